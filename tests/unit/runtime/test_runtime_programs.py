"""Loaded programs: nested commands natively, states, outputs, errors, threads, forks and interrupts."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from layout import IMPORTED
from memory_baselines import aliased
from runtime_programs import kernel_texts, random_program, run_model
from test_memory_plan import inputs_for
from waiting import LIMIT_S, exit_code, joined

from stratal.base.artifact import Command, Copy, Executable, Host, KernelObject, Launch, Loop, Value, While
from stratal.base.dtypes import bool_, int64
from stratal.base.errors import CompilerError, IndexOutOfRangeError, ShapeError, StratalError
from stratal.base.types import TensorType
from stratal.codegen.assemble import assemble, host_machine
from stratal.codegen.driver import driver_target, driver_text
from stratal.memory.plan import plan_arena
from stratal.runtime.pool import pool_for
from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage
from stratal.runtime.timing import TimedProgram

Array = np.ndarray[Any, Any]
SEEDS = range(60)


@lru_cache(maxsize=1)
def driver() -> bytes:
    return assemble(driver_text(driver_target(host_machine().triple)), host_machine())


@lru_cache(maxsize=1)
def kernels() -> dict[str, KernelObject]:
    machine = host_machine()
    return {k: KernelObject(k, assemble(text, machine), f"test-{k}") for k, text in kernel_texts().items()}


def storage(array: Any) -> Storage:
    array = np.asarray(array, np.int64)
    return Storage.copy_of(array, TensorType(int64, array.shape))


def vector(id_: int, home: Any = "arena", index: int = -1, n: int = 8) -> Value:
    return Value(id_, TensorType(int64, (n,)), (1,), home, index)


def scalar(id_: int, home: Any = "arena", index: int = -1, dtype: Any = int64) -> Value:
    return Value(id_, TensorType(dtype, ()), (), home, index)


def load(
    values: list[Value],
    commands: tuple[Command, ...],
    outputs: tuple[int, ...] = (),
    *,
    threads: int = 2,
    **options: Any,
) -> LoadedProgram:
    inputs = sorted((v for v in values if v.home == "input"), key=lambda v: v.index)
    arena = plan_arena(values, commands, outputs=outputs)
    checked = options.pop("checked", False)
    executable = Executable(
        "test", kernels(), values, commands, tuple(v.id for v in inputs), outputs,
        options.pop("states", ()), options.pop("constants", []), arena, 0, threads, options.pop("calls", []),
    )  # fmt: skip
    return LoadedProgram(executable, driver(), checked=checked)


def mix(a: int, b: int, out: int, k: int = 0, n: int = 8) -> Launch:
    return Launch("mix", (a, b), (out,), n, (n, k))


def set_cell(cell: int, k: int) -> Launch:
    return Launch("fill", (), (cell,), 1, (1, k))


def doubling(**options: Any) -> LoadedProgram:
    """state <- 4 * state + k; output = the new state."""
    values = [vector(0, "input", 0), vector(1), vector(2, "output", 0)]
    commands = (mix(0, 0, 1, 1), mix(1, 0, 2, 0), Copy(1, 0))
    return load(values, commands, (2,), states=(0,), **options)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_random_nested_programs_equal_the_model(threads: int) -> None:
    for seed in SEEDS:
        program = random_program(seed, host_calls=seed % 3 == 0)
        arrays = inputs_for(program, seed)
        outputs, states = run_model(program, arrays)
        if seed % 2:
            aliased(program.values, program.commands, program.candidates(),
                           states=program.state_ids, outputs=program.outputs)  # fmt: skip
        arena = plan_arena(program.values, program.commands, outputs=program.outputs)
        loaded = LoadedProgram(program.executable(kernels(), arena, threads), driver(), checked=False)
        inputs = [storage(a) for a in arrays]
        results = loaded.run(inputs)
        for want, got in zip((*outputs, *states), (*results, *inputs), strict=True):
            np.testing.assert_array_equal(want, got.array, err_msg=f"seed {seed}")


@pytest.mark.row("E3")
def test_random_programs_write_only_what_they_say_and_read_nothing_dead() -> None:
    for seed in range(40):
        program = random_program(seed, host_calls=seed % 3 == 0)
        arrays = inputs_for(program, seed)
        outputs, states = run_model(program, arrays)
        aliased(program.values, program.commands, program.candidates(),
                       states=program.state_ids, outputs=program.outputs)  # fmt: skip
        arena = plan_arena(program.values, program.commands, outputs=program.outputs)
        loaded = LoadedProgram(program.executable(kernels(), arena, 2), driver(), checked=True)
        inputs = [storage(a) for a in arrays]
        results = loaded.run(inputs)
        for want, got in zip((*outputs, *states), (*results, *inputs), strict=True):
            np.testing.assert_array_equal(want, got.array, err_msg=f"seed {seed}")


def test_the_checked_mode_finds_a_write_outside_the_write_set() -> None:
    values = [vector(0, "input", 0), vector(1), vector(2), vector(3, "output", 0)]
    wrong = Launch("fill", (), (1,), 20, (20, 5))  # 20 elements into a value of 8
    program = load(values, (mix(0, 0, 2), wrong, mix(1, 2, 3)), (3,), checked=True)
    with pytest.raises(StratalError, match="writes outside its write set"):
        program.run([storage(np.arange(8))])


def test_the_checked_mode_poisons_what_nobody_needs() -> None:
    values = [vector(0, "input", 0), vector(1), vector(2, "output", 0)]
    program = load(values, (mix(0, 0, 1), mix(0, 0, 2)), (2,), checked=True)
    program.run([storage(np.arange(8))])
    np.testing.assert_array_equal(program.memory.arena[:64], 255)


def test_the_checked_mode_shows_what_was_read_before_it_was_written() -> None:
    values = [vector(1), vector(2, "output", 0)]
    half = Launch("fill", (), (1,), 4, (4, 10))
    program = load(values, (half, mix(1, 1, 2)), (2,), checked=True)
    for _ in range(2):
        np.testing.assert_array_equal(program.run([])[0].array, [40] * 4 + [-4] * 4)  # 0xFF... is -1


def test_states_are_updated_in_place_and_outputs_are_fresh() -> None:
    program = doubling()
    state = storage(np.arange(8))
    address = state.address
    first = program.run([state])[0]
    second = program.run([state])[0]
    assert state.address == address
    expected = np.arange(8) * 4 + 1
    np.testing.assert_array_equal(state.array, expected * 4 + 1)
    np.testing.assert_array_equal(first.array, expected * 3 + np.arange(8))
    assert not np.shares_memory(first.array, second.array)


def test_a_state_somebody_looks_at_moves_and_the_view_keeps_the_old_values() -> None:
    program = doubling()
    state = storage(np.arange(8))
    view = state.export()
    program.run([state])
    np.testing.assert_array_equal(view, np.arange(8))
    np.testing.assert_array_equal(state.array, np.arange(8) * 4 + 1)
    address = state.address
    del view
    program.run([state])
    assert state.address == address


def test_an_input_that_shares_a_states_memory_is_read_as_it_was() -> None:
    values = [vector(0, "input", 0), vector(1, "input", 1), vector(2, "output", 0)]
    set_state = Launch("fill", (), (0,), 8, (8, 100))
    program = load(values, (set_state, mix(1, 1, 2)), (2,), states=(0,))
    state = storage(np.arange(8))
    out = program.run([state, state])[0]
    np.testing.assert_array_equal(out.array, np.arange(8) * 4)
    np.testing.assert_array_equal(state.array, 100)


def test_two_states_on_one_memory_are_refused() -> None:
    values = [vector(0, "input", 0), vector(1, "input", 1)]
    program = load(values, (Copy(0, 1),), states=(0, 1))
    state = storage(np.arange(8))
    with pytest.raises(StratalError, match="share one memory"):
        program.run([state, state])


def test_outputs_that_are_inputs_constants_or_repeated_are_copies() -> None:
    constant = np.arange(8) + 50
    values = [vector(0, "input", 0), vector(1, "const", 0), vector(2), vector(3, "output", 4)]
    commands = (mix(0, 1, 2), mix(2, 2, 3), Copy(2, 0))
    program = load(values, commands, (0, 1, 2, 3, 3), states=(0,), constants=[constant.tobytes()])
    state = storage(np.arange(8))
    outputs = program.run([state])
    new = np.arange(8) * 3 + constant
    for out, want in zip(outputs, (np.arange(8), constant, new, new * 4, new * 4), strict=True):
        np.testing.assert_array_equal(out.array, want)
    np.testing.assert_array_equal(state.array, new)
    assert len({o.address for o in outputs}) == 5


def test_inputs_in_another_layout_are_brought_into_the_expected_one() -> None:
    type_ = TensorType(int64, (4, 2))
    values = [Value(0, type_, (2, 1), "input", 0), Value(1, type_, (2, 1), "output", 0)]
    program = load(values, (Launch("mix", (0, 0), (1,), 8, (8, 0)),), (1,))
    array = np.arange(8).reshape(2, 4).T
    out = program.run([Storage(type_, array)])[0]
    np.testing.assert_array_equal(out.array, array * 4)


def test_inputs_of_another_type_are_refused() -> None:
    with pytest.raises(ShapeError, match="not those it was compiled for"):
        doubling().run([storage(np.arange(9))])


def failing() -> LoadedProgram:
    """The index check fails where state[0] >= 3; the state is written afterwards."""
    check = Launch("check", (0,), (), 1, (1, 3), may_fail="gather: index out of range")
    values = [vector(0, "input", 0), vector(1), vector(2, "output", 0)]
    return load(values, (check, mix(0, 0, 1, 1), mix(0, 0, 2), Copy(1, 0)), (2,), states=(0,))


def test_a_failed_index_check_raises_its_message_and_leaves_states_untouched() -> None:
    program = failing()
    state = storage(np.arange(8) + 5)
    with pytest.raises(IndexOutOfRangeError, match="gather: index out of range"):
        program.run([state])
    np.testing.assert_array_equal(state.array, np.arange(8) + 5)
    good = storage(np.arange(8))
    program.run([good])
    np.testing.assert_array_equal(good.array, np.arange(8) * 4 + 1)


def test_a_failure_deep_in_loops_stops_the_run() -> None:
    check = Launch("check", (9,), (), 1, (1, 2), may_fail="take: index out of range")
    add = Launch("add", (8,), (8,), 1, (1, 1))
    values = [scalar(0, "input", 0), scalar(8), scalar(9), scalar(7), scalar(1, "output", 0)]
    program = load(values, (set_cell(8, 0), Loop((Loop((check, add), 5, 9),), 3, 7), Copy(8, 1)), (1,))
    with pytest.raises(IndexOutOfRangeError, match="take: index out of range"):
        program.run([storage(0)])


def host_program(call: Any) -> LoadedProgram:
    values = [vector(0, "input", 0), vector(1), vector(2), vector(3, "output", 0)]
    host = Host(0, (1, 0), (2,), label="call")
    return load(values, (mix(0, 0, 1), host, mix(2, 1, 3)), (3,), calls=[call])


def test_a_host_call_sees_read_only_views_and_its_result_is_used() -> None:
    seen = []

    def call(a: Array, b: Array) -> Array:
        seen.append((a.flags.writeable, b.flags.writeable))
        return a - b

    out = host_program(call).run([storage(np.arange(8))])[0]
    np.testing.assert_array_equal(out.array, np.arange(8) * 3 * 3 + np.arange(8) * 4)
    assert seen == [(False, False)]


def test_an_exception_in_a_host_call_reaches_the_caller_and_the_program_still_runs() -> None:
    answers: list[Any] = [ZeroDivisionError("inside"), None]

    def call(a: Array, b: Array) -> Array:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return a

    program = host_program(call)
    with pytest.raises(ZeroDivisionError, match="inside"):
        program.run([storage(np.arange(8))])
    program.run([storage(np.arange(8))])


def test_a_host_call_that_returns_another_shape_is_refused() -> None:
    with pytest.raises(CompilerError, match="a result of another type"):
        host_program(lambda a, b: a[:3]).run([storage(np.arange(8))])


def test_a_host_call_may_run_another_program_but_not_its_own() -> None:
    inner = doubling()

    def call(a: Array, b: Array) -> Array:
        return inner.run([storage(b)])[0].array

    np.testing.assert_array_equal(host_program(call).run([storage(np.ones(8))])[0].array, (5 * 3 + 1) * 3 + 4)
    programs: list[LoadedProgram] = []
    programs.append(host_program(lambda a, b: programs[0].run([storage(b)])[0].array))
    with pytest.raises(StratalError, match="cannot run inside itself"):
        programs[0].run([storage(np.ones(8))])


@pytest.mark.row("E2")
def test_a_steady_step_allocates_nothing_large() -> None:
    n = 4096
    values = [vector(0, "input", 0, n), vector(1, n=n), vector(2, "output", 0, n)]
    program = load(values, (mix(0, 0, 1, 1, n), mix(1, 0, 2, 0, n), Copy(1, 0)), (2,), states=(0,))
    state = storage(np.ones(n))
    out = None
    for _ in range(3):
        (out,) = program.run([state])
    allocated = [[id(made) for made in m._issued] for m in program.output_memory]
    gc.collect()
    tracemalloc.start()
    for _ in range(500):
        (out,) = program.run([state])
        assert out.array.shape == (n,)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [[id(made) for made in m._issued] for m in program.output_memory] == allocated
    assert peak < 16_384  # Python's own small objects; one output alone would be 32 KiB


def test_outputs_somebody_holds_are_never_overwritten() -> None:
    program = doubling()
    state = storage(np.ones(8))
    kept, copies = [], []
    for k in range(12):
        out = program.run([state])[0]
        kept.append(out.array[2:] if k % 2 else out)  # now the storage, now only a view of it
        copies.append(out.array.copy())
        del out
    for held, copy in zip(kept, copies, strict=True):
        found = held.array if isinstance(held, Storage) else held
        np.testing.assert_array_equal(found, copy[-len(found) :])


def test_an_output_that_became_a_state_and_moved_is_never_handed_out_again() -> None:
    program, other = doubling(), doubling()
    made = program.run([storage(np.ones(8))])[0]
    first = made.export()
    other.run([made])  # somebody looks at it: it moves
    seen = made.export()
    copy = seen.copy()
    assert not np.shares_memory(first, seen)
    del made  # `first` counts for the memory that was left as the storage did before
    kept = [program.run([storage(np.full(8, k))]) for k in range(6)]
    assert len(kept) == 6
    np.testing.assert_array_equal(seen, copy)


def test_other_python_threads_go_on_while_a_program_runs() -> None:
    program, turns, stop = counting(300_000, threads=2, chunks=4), [0], threading.Event()

    def count() -> None:
        while not stop.wait(1e-3):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        state = storage(np.zeros(4))
        ran = []
        for _ in range(20):  # a busy machine may have no processor for the other thread in some of them
            before = turns[0]
            program.run([state])
            ran.append(turns[0] - before)
            if ran[-1] >= 2:
                break
    finally:
        stop.set()
        joined(thread)
    assert ran[-1] >= 2, ran


def test_python_spends_little_on_a_replay() -> None:
    values = [scalar(0, "input", 0), scalar(1, "output", 0)]
    program = load(values, (Copy(0, 1),), (1,), threads=1)
    inputs = [storage(1)]
    for _ in range(200):
        program.run(inputs)
    best = min(_seconds(program, inputs, 500) for _ in range(5)) / 500
    assert best < 100e-6  # 3-5 us on a quiet machine


def _seconds(program: LoadedProgram, inputs: list[Storage], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        program.run(inputs)
    return time.thread_time() - start


def counting(trips: int, threads: int = 4, chunks: int = 64) -> LoadedProgram:
    """Add to a vector many times, each launch a parallel region."""
    values = [vector(0, "input", 0, chunks), vector(1, n=chunks), scalar(9), vector(2, "output", 0, chunks)]
    step = Launch("offset", (1, 9), (1,), chunks, (chunks, 0))
    return load(values, (Copy(0, 1), Loop((step,), trips, 9), Copy(1, 2)), (2,), threads=threads)


def test_many_parallel_regions_on_more_threads_than_cores() -> None:
    program = counting(20_000, threads=4)
    before = program.pool.stats()
    out = program.run([storage(np.zeros(64))])[0]
    after = program.pool.stats()
    np.testing.assert_array_equal(out.array, sum(range(20_000)))
    assert after["regions"] - before["regions"] == 20_000
    chunks = sum(after[k] - before[k] for k in ("caller_chunks", "worker_chunks"))
    assert chunks == 20_000 * 64


@pytest.mark.sampled(4)
def test_threads_that_slept_are_woken_and_the_caller_waits_for_slow_ones() -> None:
    rng = random.Random(5)
    expected: dict[tuple[int, int], list[int]] = {}
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        threads, chunks, steps = rng.choice([2, 3, 8]), rng.choice([2, 3, 16]), rng.choice([1, 100, 10_000])
        values = [vector(0, "output", 0, chunks)]
        program = load(values, (Launch("spin", (), (0,), chunks, (chunks, steps)),), (0,), threads=threads)
        for _ in range(20):
            found = program.run([])[0].array.tolist()
            assert found == expected.setdefault((chunks, steps), found)
            time.sleep(rng.choice([0, 1e-5, 1e-4]))


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("chunks", [2, 7, 16])
def test_a_thread_takes_chunks_of_others_only_when_its_own_share_is_gone(threads: int, chunks: int) -> None:
    launch = Launch("spin", (), (0,), chunks, (chunks, 200))
    program = load([vector(0, "output", 0, chunks)], (launch,), (0,), threads=threads)
    timed = TimedProgram(program, events_per_log=100)
    for _ in range(20):
        timed.run([])
        (*logs, _), _ = timed.take_events()
        ran = [log["chunk"].tolist() for log in logs]
        assert sorted(chunk for mine in ran for chunk in mine) == list(range(chunks))
        for thread, mine in enumerate(ran):
            share = range(thread * chunks // threads, (thread + 1) * chunks // threads)
            own = [chunk for chunk in mine if chunk in share]
            assert mine[: len(own)] == own == sorted(own)


def test_python_threads_queue_for_the_pool_and_get_their_own_results() -> None:
    programs = [doubling(), doubling()]
    shared = storage(np.zeros(8))
    failures: list[str] = []

    def work(program: LoadedProgram) -> None:
        state = storage(np.arange(8))
        expected = np.arange(8)
        with np.errstate(over="ignore"):
            for _ in range(300):
                program.run([state])
                expected = expected * 4 + 1
                programs[0].run([shared])
        if not np.array_equal(state.array, expected):
            failures.append("a state went wrong")

    threads = [threading.Thread(target=work, args=(p,)) for p in (programs[0], programs[0], programs[1])]
    for thread in threads:
        thread.start()
    joined(*threads)
    assert not failures
    expected = 0
    for _ in range(900):
        expected = (expected * 4 + 1) & (2**64 - 1)
    np.testing.assert_array_equal(shared.array.view(np.uint64), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    program = counting(200, threads=2)
    program.run([storage(np.zeros(64))])
    child = os.fork()
    if not child:  # no pytest machinery below this line
        code = 1
        try:
            out = program.run([storage(np.zeros(64))])[0]
            code = 0 if program.pool.started == 2 and (out.array == sum(range(200))).all() else 2
        finally:
            os._exit(code)
    assert exit_code(child) == 0
    np.testing.assert_array_equal(program.run([storage(np.zeros(64))])[0].array, sum(range(200)))


def interrupt_soon() -> threading.Thread:
    def interrupt() -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_an_interrupt_waits_for_the_end_of_the_step() -> None:
    program = counting(300_000, threads=2, chunks=4)
    thread = interrupt_soon()
    state = storage(np.zeros(4))
    deadline = time.monotonic() + LIMIT_S
    with pytest.raises(KeyboardInterrupt):
        while time.monotonic() < deadline:
            program.run([state])
    joined(thread)
    np.testing.assert_array_equal(program.run([state])[0].array, sum(range(300_000)))


def test_an_interrupt_inside_a_host_call_waits_too() -> None:
    finished = []

    def call(a: Array, b: Array) -> Array:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        finished.append(True)
        return a

    program = host_program(call)
    with pytest.raises(KeyboardInterrupt):
        program.run([storage(np.arange(8))])
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_while_loop_runs_natively_until_its_predicate_fails() -> None:
    values = [scalar(0, "input", 0), scalar(1), scalar(2, dtype=bool_), scalar(3, "output", 0)]
    condition = (Launch("less", (1,), (2,), 1, (1, 1000)),)
    body = (Launch("add", (1,), (1,), 1, (1, 7)),)
    program = load(values, (Copy(0, 1), While(condition, 2, body), Copy(1, 3)), (3,))
    assert program.run([storage(5)])[0].array == 1006  # 5 + 7 * 143


def test_a_copy_between_values_that_share_memory_disappears() -> None:
    values = [vector(0, "input", 0), vector(1)]
    values[1].alias = 0
    program = load(values, (Launch("mix", (0, 0), (1,), 8, (8, 0)), Copy(1, 0)), states=(0,))
    assert program.encoding.count == 1


def test_a_value_outside_the_arena_is_refused() -> None:
    values = [vector(0, "input", 0), vector(1)]
    executable = Executable("bad", kernels(), values, (mix(0, 0, 1),), (0,), (), (), [], 0, 0, 1)
    with pytest.raises(CompilerError, match="outside the arena"):
        LoadedProgram(executable, driver())


def test_object_code_that_does_not_link_is_refused() -> None:
    body = "{\n  call void @nowhere_to_be_found()\n  ret void\n}"
    text = f"declare void @nowhere_to_be_found()\ndefine void @k(ptr %f, i64 %c, i32 %w) {body}"
    bad = {"k": KernelObject("k", assemble(text, host_machine()), "")}
    executable = Executable("bad", bad, [], (), (), (), (), [], 0, 0, 1)
    with pytest.raises(CompilerError, match="does not link"):
        LoadedProgram(executable, driver())


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_loading_and_dropping_programs_keeps_memory_flat() -> None:
    code = kernels()["fill"].code

    def cycle(first: int, count: int) -> int:
        for k in range(first, first + count):  # another key each time: nothing is shared
            fresh = {"fill": KernelObject("fill", code + bytes(k + 1), f"flat-{k}")}
            value = vector(0, "output", 0)
            fill = Launch("fill", (), (0,), 8, (8, k))
            executable = Executable("flat", fresh, [value], (fill,), (), (0,), (), [], 0, 0, 2)
            assert LoadedProgram(executable, driver()).run([])[0].array[0] == k
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    before = cycle(0, 100)
    assert cycle(100, 300) - before < 1 << 20


def test_the_pool_of_one_thread_runs_everything_itself() -> None:
    pool = pool_for(driver(), 1)
    program = counting(10, threads=1)
    program.run([storage(np.zeros(64))])
    assert program.pool is pool and pool.started == 1
    assert pool.stats()["regions"] == 0


two_processors = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors"
)


def printed_by(code: str) -> str:
    """Return what a process of its own prints, which finds the folders of tests in its arguments."""
    command = [sys.executable, "-c", code, *IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


@two_processors
def test_a_thread_is_never_woken_where_the_caller_runs() -> None:
    """A process of its own: its first program starts the pool, the second run wakes a thread that slept."""
    code = (
        "import os, sys, time; sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np, test_runtime_programs as t\n"
        "p = t.counting(100, threads=2)\n"
        "p.run([t.storage(np.zeros(64))])\n"
        "time.sleep(0.1)\n"
        "p.run([t.storage(np.zeros(64))])\n"
        "allowed = os.sched_getaffinity(0)\n"
        "places = [os.sched_getaffinity(int(k)) for k in os.listdir('/proc/self/task')]\n"
        "print(len(allowed), sorted(len(p) for p in places if p != allowed), p.pool.stats()['wakes'] > 0)\n"
    )
    count = len(os.sched_getaffinity(0))
    assert printed_by(code) == f"{count} [{count - 1}] True\n"


@two_processors
def test_threads_leave_the_processor_the_caller_comes_to() -> None:
    """The caller is moved while the other thread still looks for work: no wake-up would keep them apart."""
    code = (
        "import ctypes, os, sys, threading; sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np, test_runtime_programs as t\n"
        "here = ctypes.CDLL(None).sched_getcpu\n"
        "allowed = os.sched_getaffinity(0)\n"
        "before = {int(k) for k in os.listdir('/proc/self/task')}\n"
        "p = t.counting(100, threads=2)\n"
        "p.run([t.storage(np.zeros(64))])\n"
        "of_python = {k.native_id for k in threading.enumerate()}\n"
        "(other,) = {int(k) for k in os.listdir('/proc/self/task')} - before - of_python\n"
        "checked = set()\n"
        "for place in sorted(allowed)[:2] * 50:\n"
        "    os.sched_setaffinity(0, {place}); os.sched_setaffinity(0, allowed)\n"
        "    p.run([t.storage(np.zeros(64))])\n"
        "    may = os.sched_getaffinity(other)\n"
        "    if here() == place:\n"
        "        assert place not in may, (place, may)\n"
        "        checked.add(place)\n"
        "print(len(checked))\n"
    )
    assert printed_by(code) == "2\n"


def test_the_process_ends_cleanly_with_running_workers() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np, test_runtime_programs as t\n"
        "p = t.counting(100, threads=4)\n"
        "p.run([t.storage(np.zeros(64))])\n"
    )
    command = [sys.executable, "-c", code, *IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_byte_after_a_guarded_array_cannot_be_touched() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np, ctypes\n"
        "from guard_pages import guarded_array\n"
        "a = guarded_array((5,), np.dtype(np.float32), flush=FLUSH)\n"
        "a[:] = 1\n"
        "print(a.sum(), flush=True)\n"
        "ctypes.c_float.from_address(a.ctypes.data + OFFSET).value\n"
        "print('not reached')\n"
    )
    for flush, offset in (("end", 20), ("start", -4)):
        filled = code.replace("FLUSH", repr(flush)).replace("OFFSET", str(offset))
        command = [sys.executable, "-c", filled, *IMPORTED]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.stdout == "5.0\n"
        assert done.returncode == -signal.SIGSEGV


@pytest.mark.row("E3")
def test_the_planned_peak_is_the_observed_peak_to_the_byte() -> None:
    touched = 0
    for seed in range(60):
        program = random_program(seed)
        arrays = inputs_for(program, seed)
        arena = plan_arena(program.values, program.commands, outputs=program.outputs)
        loaded = LoadedProgram(program.executable(kernels(), arena, 2), driver(), checked=False)
        changed = np.zeros(arena, np.bool_)
        for pattern in (0x5A, 0xC3):  # a byte that was written differs from one of the two
            loaded.memory.arena[:] = pattern
            loaded.run([storage(a) for a in arrays])
            changed |= loaded.memory.arena != pattern
        last = int(np.flatnonzero(changed)[-1]) if changed.any() else -1
        ends = {v.offset + v.nbytes for v in program.values if v.offset >= 0}
        assert last < max(ends, default=0) <= arena < max(ends, default=0) + 64 or not ends
        touched += last + 1 in ends
    assert touched > 30  # the rest end in a branch not taken or a loop that ran no time


def test_memory_that_is_not_aligned_is_copied_before_a_run() -> None:
    raw = np.zeros(9 * 8 + 64, np.uint8)
    start = -raw.ctypes.data % 64 + 8
    odd = raw[start : start + 64].view(np.int64)
    odd[:] = np.arange(8)
    program = doubling()
    state = Storage(TensorType(int64, (8,)), odd)
    program.run([state])
    assert state.address % 64 == 0
    np.testing.assert_array_equal(state.array, np.arange(8) * 4 + 1)
    np.testing.assert_array_equal(odd, np.arange(8))


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 5, 1 << 19])
def test_memory_that_fills_large_pages_starts_with_one(size: int) -> None:
    assert Storage.empty(TensorType(int64, (size,))).address % (1 << 21) == 0
    assert Storage.empty(TensorType(int64, (size // 8,))).address % 64 == 0


def test_strides_of_axes_with_one_element_do_not_matter() -> None:
    type_ = TensorType(int64, (1, 8, 1))
    plain = Storage.empty(type_)
    strange = np.lib.stride_tricks.as_strided(Storage.empty(type_).array, (1, 8, 1), (8, 8, 4096))
    assert Storage(type_, strange).layout is plain.layout


def test_programs_share_a_kernel_only_where_its_code_is_the_same() -> None:
    def program(constant: int) -> LoadedProgram:
        text = kernel_texts()["fill"].replace("store i64 %k", f"store i64 {constant}")
        same_name = {"fill": KernelObject("fill", assemble(text, host_machine()), "same key")}
        value = vector(0, "output", 0)
        fill = Launch("fill", (), (0,), 8, (8, 0))
        executable = Executable("share", same_name, [value], (fill,), (), (0,), (), [], 0, 0, 1)
        return LoadedProgram(executable, driver(), checked=False)

    first, again, other = program(1), program(1), program(2)
    assert first._libraries == again._libraries and first._libraries != other._libraries
    assert [p.run([])[0].array[0] for p in (first, again, other)] == [1, 1, 2]
