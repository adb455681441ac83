"""The cache across processes: a warm start compiles nothing, and nothing wrong is ever taken from it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import settings
from stratal.base.artifact import KernelObject
from stratal.base.dtypes import float32
from stratal.base.log import DecisionLog
from stratal.base.types import TensorType
from stratal.compiler import Program, compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.plan import caching, generation
from stratal.runtime.cache import object_cache
from stratal.runtime.pack import pack
from stratal.runtime.storage import Storage

SCRIPT = """
import json, sys
import numpy as np
import stratal as st

w = st.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))

@st.compile
def step(x):
    return st.tanh(x @ w).sum(axis=0)

x = st.tensor(np.arange(8, dtype=np.float32).reshape(2, 4))
result = step(x)
made = step.program.made
print(json.dumps({
    "bytes": np.asarray(result).tobytes().hex(),
    "cached": made.num_cached,
    "kernels": len(step.program.executable.kernels),
    "digest": step.program.digest,
    "planned": "_drafted" in vars(step.program),
    "where": str(step.program.executable.commands[0].where),
    "plan": step.plan.hash,
    "decisions": step.program.log.to_json(),
}))
"""


def run(cache: Path, script: str = SCRIPT, **extra: str) -> dict[str, Any]:
    """Run a script in a fresh process and return what it printed."""
    environment = {**os.environ, "STRATAL_CACHE_DIR": str(cache), "STRATAL_THREADS": "2", **extra}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def entries(cache: Path) -> set[Path]:
    return set(cache.glob("*.entry"))


@pytest.mark.sampled(4)
def test_a_second_process_takes_the_whole_program_and_gives_the_same_bits(tmp_path: Path) -> None:
    cold, warm = run(tmp_path / "c"), run(tmp_path / "c")
    assert cold["planned"] and cold["cached"] == 0
    assert not warm["planned"] and warm["cached"] == warm["kernels"] == cold["kernels"]
    assert warm["bytes"] == cold["bytes"]
    assert warm["digest"] == cold["digest"]


def test_a_programs_digest_is_that_of_what_decides_its_results() -> None:
    x = graph_input("x", TensorType(float32, (8,)))
    b = Builder()

    def digest(label: str, factor: float) -> str:
        x = graph_input(label, TensorType(float32, (8,)))
        return compile_graph(Graph([x], [b.mul(x, b.full(x.aval, factor))], name=label)).digest

    assert digest("x", 2.0) == digest("y", 2.0) != digest("x", 3.0)
    with settings.threads(1):
        assert digest("x", 2.0) == digest("x", 2.0)
    assert compile_graph(Graph([x], [b.exp(x)])).digest != digest("x", 2.0)


@pytest.mark.sampled(4)
def test_plan_and_decisions_of_a_program_from_the_cache_are_those_it_was_made_with(tmp_path: Path) -> None:
    cold, warm = run(tmp_path / "c"), run(tmp_path / "c")
    assert warm["plan"] == cold["plan"]
    assert warm["decisions"] == cold["decisions"] != []


@pytest.mark.sampled(5)
def test_lines_are_those_of_the_program_that_runs(tmp_path: Path) -> None:
    cold = run(tmp_path / "c")
    moved = run(tmp_path / "c", "\n\n\n" + SCRIPT)
    assert not moved["planned"]  # the same program, three lines further down
    assert "line=10" in cold["where"] and "line=13" in moved["where"]


@pytest.mark.sampled(7)
def test_a_corrupt_entry_is_compiled_again(tmp_path: Path) -> None:
    cold = run(tmp_path / "c")
    for path in entries(tmp_path / "c"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    again = run(tmp_path / "c")
    assert again["planned"] and again["cached"] == 0 and again["bytes"] == cold["bytes"]
    assert not run(tmp_path / "c")["planned"]  # and stored again


@pytest.mark.sampled(5)
def test_the_package_in_a_zip_file_finds_the_same_programs(tmp_path: Path) -> None:
    cold = run(tmp_path / "c")
    package = Path(st.__file__).parent
    with zipfile.ZipFile(tmp_path / "stratal.zip", "w") as archive:
        for path in package.rglob("*"):
            if path.suffix != ".pyc":
                archive.write(path, Path("stratal") / path.relative_to(package))
    zipped = run(tmp_path / "c", PYTHONPATH=str(tmp_path / "stratal.zip"))
    assert not zipped["planned"] and zipped["bytes"] == cold["bytes"]
    fresh = run(tmp_path / "d", PYTHONPATH=str(tmp_path / "stratal.zip"))
    assert fresh["planned"] and fresh["plan"] == cold["plan"]


@pytest.mark.sampled(4)
def test_threads_and_target_have_entries_of_their_own(tmp_path: Path) -> None:
    cold = run(tmp_path / "c")
    threads = run(tmp_path / "c", STRATAL_THREADS="1")
    assert threads["planned"] and threads["cached"] == threads["kernels"]  # another program, the same kernels
    assert threads["bytes"] == cold["bytes"]


def graph(scale: float = 2.0) -> Graph:
    b = Builder()
    x = graph_input("x", TensorType(float32, (64, 64)))
    factor = b.broadcast(b.const(scale, float32), shape=(64, 64), axes=())
    return Graph([x], [b.tanh(b.mul(x, factor))])


def from_cache(program: Program) -> bool:
    return "_drafted" not in vars(program)


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with settings.cache_dir(tmp_path / "own"):
        yield object_cache()


def test_what_differs_is_not_found(cache: Any) -> None:
    assert not from_cache(compile_graph(graph()))
    assert from_cache(compile_graph(graph()))
    assert not from_cache(compile_graph(graph(3.0)))
    assert not from_cache(compile_graph(graph(), fused=False))
    with settings.threads(settings.threads.value + 1):
        assert not from_cache(compile_graph(graph()))


def test_verifying_and_dumping_compile_before_ones_eyes(cache: Any, tmp_path: Path) -> None:
    compile_graph(graph())
    with settings.verify(True):
        assert not from_cache(compile_graph(graph()))
    with settings.dump(tmp_path / "stages"):
        assert not from_cache(compile_graph(graph()))
    assert list((tmp_path / "stages").rglob("*.ll"))


def test_an_edit_of_the_compiler_makes_old_entries_unreachable(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_graph(graph())
    monkeypatch.setattr(caching, "toolchain_digest", lambda scope: "edited")
    again = compile_graph(graph())
    assert not from_cache(again) and again.kernels_from_cache == 0


def test_without_a_cache_all_is_compiled(tmp_path: Path) -> None:
    with settings.cache_dir(None):
        compile_graph(graph())
        program = compile_graph(graph())
    assert not from_cache(program) and program.kernels_from_cache == 0


def test_a_program_that_calls_python_is_planned_anew_with_kernels_from_the_cache(cache: Any) -> None:
    @st.compile
    def step(x: st.Tensor) -> st.Tensor:
        y = st.host_call(lambda a: a + 1, st.spec((64, 64), st.float32), st.tanh(x))
        return y * 3.0

    np.testing.assert_array_equal(step(st.zeros((64, 64))).numpy(), np.full((64, 64), 3.0, np.float32))
    again = compile_graph(step.graph)
    assert not from_cache(again)
    assert again.kernels_from_cache == len(again.executable.kernels) > 0


def test_a_directory_that_cannot_be_written_is_still_read(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_graph(graph())

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stratal.runtime.cache._write_atomically", refuse)
    assert from_cache(compile_graph(graph()))
    with pytest.warns(UserWarning, match="cannot be written"):
        program = compile_graph(graph(5.0))
    assert not from_cache(program)


@pytest.mark.parametrize("bad", [b"", b"text", b"\x7fELF" + bytes(200)], ids=["empty", "text", "zeros"])
@pytest.mark.parametrize("what", ["kernels", "program", "driver", "driver alone"])
def test_code_in_the_cache_that_does_not_link_is_compiled_again(
    cache: Any, monkeypatch: pytest.MonkeyPatch, what: str, bad: bytes
) -> None:
    first = compile_graph(graph())
    target = first.made.target
    store, kernels = object_cache(), caching.CachedKernels(target)
    program_key = caching.CachedProgram(first.graph, target, fused=True)._key
    x = Storage(TensorType(float32, (64, 64)), np.ones((64, 64), np.float32))
    expected = first.run([x])[0].array.tobytes()
    if what == "kernels":
        store.drop(program_key)
        for kernel in first.executable.kernels.values():
            store.put(kernel.key, bad)
    elif what == "program":
        broken = dataclasses.replace(first.executable)
        broken.kernels = {s: KernelObject(s, bad, k.key) for s, k in first.executable.kernels.items()}
        store.put(program_key, pack(broken, []))
    else:
        store.put(kernels.key("driver"), bad)
        monkeypatch.setitem(generation._drivers, target, bad)
        if what == "driver alone":
            store.drop(program_key)
            for kernel in first.executable.kernels.values():
                store.drop(kernel.key)
    again = compile_graph(graph())
    assert again.run([x])[0].array.tobytes() == expected
    assert not from_cache(again) and from_cache(compile_graph(graph()))


def test_each_setting_that_shapes_programs_makes_others_that_decide_again_as_they_did(
    cache: Any, tmp_path: Path
) -> None:
    others: dict[str, Any] = {
        "target": "generic", "threads": settings.threads.value + 1, "winograd": False, "math": "real",
        "memory": 1 << 30, "offload_dir": tmp_path, "micro_batches": True, "online": 1 << 20,
        "tuning": str(tmp_path / "records.json"), "objective": "memory",
    }  # fmt: skip
    assert others.keys() == settings.shaping().keys()
    compile_graph(graph())
    for name, value in others.items():
        with settings.using(**{name: value}):
            program = compile_graph(graph())
        # records shape programs, and there are none: neither the file nor the objective alone
        assert from_cache(program) == (name in ("tuning", "objective")), name
        assert program.made.chosen[name] == value
        with program.made.in_force():
            assert settings.shaping() == program.made.chosen


def test_the_log_is_that_of_the_compilation(cache: Any) -> None:
    cold, warm = compile_graph(graph()), compile_graph(graph())
    assert isinstance(warm.log, DecisionLog)
    assert warm.log.to_json() == cold.log.to_json()
