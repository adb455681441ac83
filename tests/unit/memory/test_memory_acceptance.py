"""Memory of real training steps: planned, checked command by command, and observed."""

from __future__ import annotations

import gc
import os
import tracemalloc
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import workloads
from workloads import FULL, SMALL, Step

from stratal.compiler import decided, driver_object
from stratal.memory.plan import live_minimum, plan_arena
from stratal.plan.host import current_target
from stratal.runtime import encode, storage
from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage

MODELS = [
    *(pytest.param("small", name, id=name) for name in ("demo", "lenet", "resnet18", "gpt")),
    *(pytest.param("full", name, id=f"full-{name}", marks=pytest.mark.slow) for name in ("resnet18", "gpt")),
]
SLACK = 1.15  # of the arena over the largest live sum
STEPS = int(os.environ.get("MEMORY_STEPS", "60"))  # of the steady state; 1000 for the acceptance run


@lru_cache(maxsize=2)
def made(size: str, name: str) -> Step:
    return workloads.steps(SMALL if size == "small" else FULL)[name]()


def copies(inputs: list[Storage]) -> list[Storage]:
    return [Storage.copy_of(s.array, s.type) for s in inputs]


def assert_same(a: list[np.ndarray[Any, Any]], b: list[np.ndarray[Any, Any]]) -> None:
    assert [x.tobytes() for x in a] == [x.tobytes() for x in b]


@pytest.mark.sampled(7)
@pytest.mark.row("E3", "E5")
@pytest.mark.parametrize(("size", "name"), MODELS)
def test_commands_write_only_what_they_say_and_never_need_a_dead_value(size: str, name: str) -> None:
    """Guards between buffers, every command's writes compared with its write set, dead ranges poisoned."""
    run = made(size, name).recorded()
    checked = LoadedProgram(run.program.executable, driver_object(current_target()), checked=True)
    inputs = copies(run.inputs)
    outputs = checked.run(inputs)
    assert_same([o.array for o in outputs], run.outputs)
    assert_same([inputs[k].array for k in run.program.executable.states], run.states)


@pytest.mark.sampled(7)
@pytest.mark.row("E3")
@pytest.mark.parametrize(("size", "name"), MODELS)
def test_the_plan_counts_every_byte_and_its_peak_is_reached(size: str, name: str) -> None:
    run = made(size, name).recorded()
    program, executable = run.program, run.program.executable
    memory = program.plan["memory"]
    fresh = LoadedProgram(executable, driver_object(current_target()))
    arena = fresh.memory.arena
    assert arena.nbytes == executable.arena_bytes == memory["arena_bytes"]
    touched = np.zeros(arena.nbytes, np.bool_)
    for pattern in (0xA5, 0x5A):  # a byte that is written differs from one of them at least
        arena[:] = pattern
        fresh.run(copies(run.inputs))
        touched |= arena != pattern
    if arena.nbytes:
        assert arena.nbytes - storage.ALIGNMENT < int(np.flatnonzero(touched)[-1]) + 1 <= arena.nbytes
    encoded = fresh.encoding
    tables = encoded.records, encoded.frames, encoded.relocations.table, encoded.moves, encoded.slots
    assert sum(table.nbytes for table in tables) < 1 << 22  # the command list itself
    issued = [one for memory in fresh.output_memory for one in memory._issued]
    held = fresh.memory.nbytes | {"outputs": sum(one.owner.nbytes for one in issued)}
    assert held["scratch"] <= memory["scratch_bytes"] and held["constants"] <= memory["constant_bytes"]
    assert held["outputs"] <= sum(v + storage.ALIGNMENT for v in output_bytes(executable))
    assert sum(held.values()) <= memory["planned_peak_bytes"] + storage.ALIGNMENT * len(executable.outputs)


def output_bytes(executable: Any) -> list[int]:
    values = {v.id: v for v in executable.values}
    return [values[i].nbytes for i in executable.outputs]


@pytest.mark.sampled(4)
@pytest.mark.row("E3", "E5")
@pytest.mark.parametrize(("size", "name"), MODELS)
def test_the_arena_is_near_the_live_minimum_and_below_the_unfused_one(size: str, name: str) -> None:
    program = made(size, name).program
    executable = program.executable
    least = live_minimum(executable.values, executable.commands, executable.outputs)
    assert least <= executable.arena_bytes <= SLACK * least
    draft = decided(program.graph, current_target(), fused=False).draft
    assert executable.arena_bytes <= plan_arena(draft.values, draft.commands, outputs=draft.outputs)


@pytest.mark.sampled(7)
@pytest.mark.row("E2")
@pytest.mark.parametrize(("size", "name"), MODELS)
def test_the_steady_state_allocates_nothing(size: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratal.tensor.capture.audit.Schedule.due", lambda self: False)  # audits run Python
    step = made(size, name)
    for _ in range(2):
        float(np.asarray(first(step.call())))
    native: list[int] = []
    new = storage.aligned_empty

    def counted(nbytes: int) -> Any:
        native.append(nbytes)
        return new(nbytes)

    for module in (storage, encode):
        monkeypatch.setattr(module, "aligned_empty", counted)
    gc.collect()
    resident = resident_bytes()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(STEPS):
        step.call()
    peak = tracemalloc.get_traced_memory()[1] - before
    large = [t for t in tracemalloc.take_snapshot().traces if t.size >= 1024]
    tracemalloc.stop()
    assert not native
    assert peak < 1 << 17, "Python's own small objects"
    assert not [t for t in large if "stratal" in str(t.traceback)], large
    assert resident_bytes() - resident < 4 << 20


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
