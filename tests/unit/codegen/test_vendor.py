"""Products by the vendor's library: right, the same bits, chosen by measurement alone."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import settings, tuning
from stratal.base.errors import CompilerError, VerifyError
from stratal.base.vendor import vendor
from stratal.compiler import Program, compile_graph
from stratal.graph.graph import Graph
from stratal.loops import index
from stratal.loops.expr import Buffer, Var, call
from stratal.loops.interpret import run_kernel
from stratal.loops.parse import parse_kernel
from stratal.loops.stmt import For, Kernel, ProductCall, Store
from stratal.loops.verify import verify_kernel
from stratal.plan.host import current_target
from stratal.runtime import vendor as runtime_vendor
from stratal.runtime.storage import Storage
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem
from stratal.tune.explore import Explorer
from stratal.tune.measure import Measurer, Timing
from stratal.tune.model import RandomStrategy
from stratal.tune.session import Task, Watch, tasks_of, toolchain
from stratal.tune.trial import trial_of

pytestmark = pytest.mark.skipif(vendor() is None, reason="this NumPy came without OpenBLAS")

Function = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with settings.tuning(str(tmp_path / "tuning.json")):  # type: ignore[arg-type]
        yield tmp_path / "tuning.json"


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which NumPy came without its library."""

    def forget() -> None:
        for module in ("stratal.base.tuning", "stratal.schedule.tactics.library", "stratal.runtime.vendor"):
            monkeypatch.setattr(f"{module}.vendor", lambda: None)

    return forget


def graph_of(function: Function, *shapes: tuple[int, ...], dtype: str = "float32") -> Graph:
    with Watch() as watch:
        st.compile(function)(*(st.zeros(shape, dtype=dtype) for shape in shapes))
    return watch.programs[-1][0].graph


def task_of(graph: Graph) -> Task:
    (task,) = tasks_of([(compile_graph(graph), 1)])
    return task


def calls_of(task: Task) -> list[Candidate]:
    return [c for c in task.problem.variants() if c.algorithm == tuning.LIBRARY]


def record_of(task: Task, way: Candidate) -> tuning.Record:
    problem = task.problem
    return tuning.Record(
        problem.digest, problem.target.digest, toolchain(), "time", way.algorithm, way.parameters,
        1e-3, 0, str(task.default), 2e-3, 0, 7, 2, "2026-11-20T00:00:00+00:00", "contract",
    )  # fmt: skip


def run(program: Program) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return random inputs and what a program makes of them."""
    rng = np.random.default_rng(0)
    inputs = program.graph.inputs
    given = [rng.standard_normal(i.aval.ints).astype(i.aval.dtype.np) for i in inputs]
    (made,) = program.run([Storage.copy_of(a, i.aval) for a, i in zip(given, inputs, strict=True)])
    return given, np.array(made.array)


# -- right, in all the ways matrices lie ---------------------------------------------------------------------
CASES: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "plain": (lambda a, b: a @ b, [(70, 33), (33, 90)]),
    "first transposed": (lambda a, b: a.T @ b, [(33, 70), (33, 90)]),
    "second transposed": (lambda a, b: a @ b.T, [(70, 33), (90, 33)]),
    "both transposed": (lambda a, b: a.T @ b.T, [(33, 70), (90, 33)]),
    "one row": (lambda a, b: a @ b, [(1, 33), (33, 90)]),
    "one column": (lambda a, b: a @ b, [(70, 33), (33, 1)]),
    "one product each": (lambda a, b: a @ b, [(7, 1), (1, 9)]),
    "a batch": (lambda a, b: a @ b, [(5, 30, 33), (5, 33, 20)]),
    "rows of a batch": (lambda a, b: a @ b, [(5, 30, 33), (33, 20)]),
    "heads": (lambda a, b: st.einsum("thd,shd->hts", a, b), [(20, 3, 16), (24, 3, 16)]),
}


@pytest.mark.sampled(12)
@pytest.mark.row("D9")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_calls_of_the_library_compute_what_numpy_computes(case: str, dtype: str, path: Path) -> None:
    function, shapes = CASES[case]
    graph = graph_of(function, *shapes, dtype=dtype)
    task, expected = task_of(graph), None
    ways = calls_of(task)
    assert ways, "the library is no candidate"
    for way in {ways[0], ways[len(ways) // 2], ways[-1]}:
        tuning.write_file(path, [record_of(task, way)])
        program = compile_graph(graph)
        assert [k.tactic for k in program.draft.kernels.values()] == [tuning.LIBRARY]
        given, found = run(program)
        expected = np.asarray(function(*map(st.tensor, given)).numpy()) if expected is None else expected
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        if case == "plain":
            np.testing.assert_allclose(found, given[0] @ given[1], rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.row("D9")
@pytest.mark.parametrize(("function", "shapes"), [
    (lambda a, b: st.relu(a @ b), [(70, 33), (33, 90)]),
    (lambda a, b: a.astype(st.bfloat16) @ b.astype(st.bfloat16), [(70, 33), (33, 90)]),
    (lambda a, b: st.nn.functional.conv2d(a, b), [(1, 8, 9, 9), (8, 8, 3, 3)]),
], ids=["with what follows", "bfloat16", "windows"])  # fmt: skip
def test_what_is_no_plain_product_is_not_offered_to_the_library(
    function: Function, shapes: list[tuple[int, ...]]
) -> None:
    assert not any(calls_of(task) for task in tasks_of([(compile_graph(graph_of(function, *shapes)), 1)]))


# -- chosen by measurement -----------------------------------------------------------------------------------
@pytest.mark.row("D9")
def test_nothing_calls_the_library_unless_a_record_says_it_was_faster(path: Path) -> None:
    graph = graph_of(lambda a, b: a @ b, (70, 33), (33, 90))
    task = task_of(graph)
    assert all(c.algorithm != tuning.LIBRARY for c in task.problem.candidates())
    before = compile_graph(graph).plan.hash
    way = calls_of(task)[0]
    tuning.write_file(path, [record_of(task, way)])
    tuned = compile_graph(graph)
    (decision,) = tuned.log.of("tactic")
    assert decision.basis == "measured" and decision.choice == str(way)
    assert str(task.default) in {a.name for a in decision.alternatives}
    assert "library" in str(tuned.plan) and tuned.plan.hash != before
    assert "OpenBLAS" in str(tuned.explain(kernel=1))


class Fixed(Measurer):
    """Finds each algorithm as fast as it is told; the default takes a second."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(current_target())
        self.seconds = seconds
        self.asked: list[str] = []

    def compare(self, base: Any, other: Any, **options: Any) -> Timing:
        return Timing((1.0,) * 9, (self.seconds.get(other, 1.0),) * 9)


@pytest.mark.sampled(7)
@pytest.mark.row("D8", "D9")
@pytest.mark.parametrize(("seconds", "chosen"), [
    ({"library": 0.5, "tiles": 0.9}, "library"),
    ({"library": 0.9, "tiles": 0.5}, "tiles"),
    ({"library": 0.99, "tiles": 0.99}, "the default"),
    ({"library": 2.0, "tiles": 2.0}, "the default"),
])  # fmt: skip
def test_the_tuner_keeps_the_library_or_a_generated_kernel_by_their_times(
    seconds: dict[str, float], chosen: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(lambda a, b: a @ b, (70, 33), (33, 90))
    task = task_of(graph)
    explorer = Explorer(Fixed(seconds), RandomStrategy(0))
    def named(problem: Problem, way: Candidate) -> Any:
        trial_of(problem, way)  # not every combination has a schedule
        return _Named(way.algorithm)

    monkeypatch.setattr("stratal.tune.explore.trial_of", named)
    verdict = explorer.tune(task.problem, task.default, trials=6)
    assert any(a.candidate.algorithm == "library" for a in verdict.attempts), "the library was not tried"
    found = "the default" if verdict.timing is None else verdict.chosen.algorithm
    assert found == chosen
    tuning.write_file(path, [verdict.record(toolchain(), "time")])
    tactics = {k.tactic for k in compile_graph(graph).draft.kernels.values() if k.tactic != "pack"}
    assert tactics == {"library"} if chosen == "library" else "library" not in tactics


class _Named(str):
    """A trial that only knows the name of its algorithm."""

    workspace_bytes = 0


@pytest.mark.row("D8")
@pytest.mark.slow
def test_a_measured_library_and_the_kernel_it_is_compared_with_agree() -> None:
    """`python -m benchmarks vendor` makes the table of times."""
    from benchmarks import compare_vendor

    rows = compare_vendor.measure([(64, 64, 64), (8, 256, 512)], seconds=0.01)
    assert all(row["own_us"] > 0 and row["library_us"] > 0 for row in rows)
    assert all(row["kept"] in ("library", "generated") for row in rows)
    for row in rows:
        assert row["kept"] == "generated" or row["ratio"] < 1
    assert "64x64x64" in compare_vendor.text(rows)


# -- without the library -------------------------------------------------------------------------------------
@pytest.mark.row("D9")
def test_without_the_library_a_record_of_it_counts_for_nothing(
    path: Path, without_library: Callable[[], None]
) -> None:
    graph = graph_of(lambda a, b: a @ b, (70, 33), (33, 90))
    before, task = compile_graph(graph).plan.hash, task_of(graph)
    tuning.write_file(path, [record_of(task, calls_of(task)[0])])
    assert compile_graph(graph).plan.hash != before
    without_library()
    assert calls_of(task) == []
    program = compile_graph(graph)  # not the one in the cache, which calls the library
    assert program.plan.hash == before
    given, found = run(program)
    np.testing.assert_allclose(found, given[0] @ given[1], rtol=1e-4, atol=1e-4)


@pytest.mark.row("D9")
def test_a_record_of_another_version_of_the_library_counts_for_nothing(path: Path) -> None:
    graph = graph_of(lambda a, b: a @ b, (70, 33), (33, 90))
    before, task = compile_graph(graph).plan.hash, task_of(graph)
    record = record_of(task, calls_of(task)[0])
    parameters = tuple({**dict(record.parameters), "version": 1}.items())
    tuning.write_file(path, [dataclasses.replace(record, parameters=parameters)])
    assert compile_graph(graph).plan.hash == before


def test_a_kernel_that_calls_a_missing_library_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_vendor, "vendor", lambda: None)
    runtime_vendor._loaded.cache_clear()
    with pytest.raises(CompilerError, match="came without"):
        runtime_vendor.addresses([b".. stratal_vendor_sgemm .."])
    assert runtime_vendor.addresses([b"another kernel"]) == {}


# -- threads -------------------------------------------------------------------------------------------------
@pytest.mark.row("D9")
def test_calls_of_the_library_give_the_same_bits_for_every_number_of_threads(path: Path) -> None:
    graph = graph_of(lambda a, b: a @ b, (130, 300), (300, 170))
    task = task_of(graph)
    way = next(w for w in calls_of(task) if dict(w.parameters)["rows"] < 130)
    tuning.write_file(path, [record_of(task, way)])
    found = []
    for threads in (1, 2, 3):
        with settings.threads(threads):
            program = compile_graph(graph)
            assert program.executable.threads == threads
            found += [run(program)[1] for _ in range(3)]
    assert all(np.array_equal(found[0], other) for other in found)


def test_the_threads_of_numpys_own_library_are_left_alone() -> None:
    library = vendor()
    assert library is not None
    numpys = ctypes.CDLL(str(library.path)).scipy_openblas_get_num_threads64_
    before = numpys()
    own = runtime_vendor._loaded()
    assert own.scipy_openblas_get_num_threads64_() == 1
    assert numpys() == before


# -- the statement -------------------------------------------------------------------------------------------
def product_kernel(rows: int = 5, columns: int = 7, depth: int = 6) -> Kernel:
    """Return a kernel of two calls: the halves of the columns of a product with a transposed operand."""
    a, b = (
        Buffer(f"x{k}", st.float32, shape) for k, shape in enumerate([(depth, rows), (depth, 2 * columns)])
    )
    c = Buffer("y0", st.float32, (rows, 2 * columns))
    half, r, n, k = Var("half", 2), Var("r", rows), Var("c", columns), Var("k", depth)
    column = index.add(index.mul(half, columns), n)
    store = Store(c, (r, column), call("mul", a[k, r], b[k, column]))
    return Kernel("k", [a, b], [c], For(half, ProductCall(r, n, k, store), "parallel"))


def test_the_interpreter_runs_a_call_of_the_library_and_its_text_reads_back() -> None:
    kernel = product_kernel()
    verify_kernel(kernel)
    assert str(parse_kernel(str(kernel))) == str(kernel)
    assert "gemm r in 5, c in 7, k in 6:" in str(kernel)
    rng = np.random.default_rng(0)
    for k in (kernel, parse_kernel(str(kernel))):
        arrays = {b: rng.standard_normal(b.shape).astype(np.float32) for b in k.parameters}
        x, w, y = arrays.values()
        assert run_kernel(k, arrays) == 0
        np.testing.assert_allclose(y, x.T @ w, rtol=1e-5, atol=1e-6)


def test_a_call_of_the_library_that_leaves_a_buffer_or_is_no_product_is_refused() -> None:
    a, c = Buffer("x0", st.float32, (8, 8)), Buffer("y0", st.float32, (8, 8))
    r, n, k = Var("r", 9), Var("c", 8), Var("k", 8)
    beyond = ProductCall(r, n, k, Store(c, (r, n), call("mul", a[r, k], a[k, n])))
    with pytest.raises(VerifyError, match="leaves the buffer"):
        verify_kernel(Kernel("k", [a], [c], beyond))
    r = Var("r", 8)
    turned = ProductCall(r, n, k, Store(c, (n, r), call("mul", a[r, k], a[k, n])))
    with pytest.raises(VerifyError, match="no product of matrices"):
        verify_kernel(Kernel("k", [a], [c], turned))
    added = ProductCall(r, n, k, Store(c, (r, n), call("add", a[r, k], a[k, n])))
    with pytest.raises(VerifyError, match="something else"):
        verify_kernel(Kernel("k", [a], [c], added))
