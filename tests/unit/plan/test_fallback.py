"""Nothing dies in the compiler: failures are injected everywhere, and trainings come out as without them."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injected import CASES, FAULTS, MODES, Fault, Injected, injected
from plan_programs import HOST, LOOP, compiled, dense, run
from record_samples import NAMES, samples
from small_trainings import MODELS, Trained, prepared
from test_records_native import faults_one_by_one

import stratal as st
from stratal import compiler
from stratal.base import fallback, settings
from stratal.base.errors import CompilerError, IndexOutOfRangeError, ShapeError, StratalError, VerifyError
from stratal.base.fallback import SCALAR, Fallbacks
from stratal.base.faults import failure_folder, is_fault
from stratal.base.session import SESSION
from stratal.cli import main
from stratal.graph.node import graph_input
from stratal.graph.op import REGISTRY
from stratal.graph.text import parse_graph
from stratal.plan import caching, generation
from stratal.plan.fallback import FallbackWarning
from stratal.plan.host import current_target


def forget_programs() -> None:
    """Let this process compile again what it has compiled."""
    SESSION.reset()
    gc.collect()  # a program that lives lends its kernels


@pytest.fixture(autouse=True)
def lenient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Fall back, as users do; report failures into a folder that goes; let no program outlive its test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    forget_programs()
    with settings.using(strict=False, compile_workers=0):
        yield
    forget_programs()


@contextmanager
def without_kept_programs() -> Iterator[None]:
    """Take kernels from the cache, but no whole program: it would be compiled without meeting a failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching.CachedProgram, "find", lambda _: None)
        yield


@cache
def healthy(model: str) -> tuple[Trained, set[str]]:
    """Return a training as it comes out, and the faults it would have met."""
    forget_programs()
    train = prepared(model)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        stack.enter_context(settings.cache_dir(Path(folder)))
        met = {f: stack.enter_context(injected(f, "never")) for f in FAULTS}
        found = train()
        assert "fallbacks" not in found.plan.to_json()
    reached = {str(f) for f, counted in met.items() if counted.calls}
    workers = {str(f) for f in FAULTS if f.name in ("worker", "workers")}
    return found, reached | workers | {"cache:unpack"}


def train_with(fault: Fault, mode: str, model: str, folder: Path) -> tuple[Trained, Injected, list[str]]:
    """Train with a failure injected; return what came out, how often it failed, and the warnings."""
    workers = 1 if fault.name in ("worker", "workers") else 0
    with ExitStack() as stack:
        stack.enter_context(settings.compile_workers(workers))
        if fault.kind in ("cache", "code"):
            stack.enter_context(settings.cache_dir(folder))
            if fault.name == "unpack":
                forget_programs()
                prepared(model)()  # compiles, and keeps the program
                forget_programs()
        else:
            stack.enter_context(without_kept_programs())
        train = prepared(model)
        forget_programs()
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        counted = stack.enter_context(injected(fault, mode))
        found = train()
    return found, counted, [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


def check(fault: Fault, mode: str, model: str, folder: Path) -> None:
    """Train with a failure injected: the result is right, the plan and one warning say what was done."""
    want, _ = healthy(model)
    found, counted, said = train_with(fault, mode, model, folder)
    assert counted.raised, "the failure was not met"
    assert found.differs(want) == []
    rows = found.plan.to_json().get("fallbacks", [])
    assert rows or fault.kind in ("cache", "code")
    again_at_once = mode == "first" and fault.name in ("kernel_text", "linker", "loader", "load")
    kinds = {text.split("; ")[0] for text in said}
    assert len(said) == len(kinds)  # once for a failure
    assert len(said) == (not again_at_once) or fault.name == "parameters"  # each tactic fails for itself
    for text in said:
        rule, got, where, hint = text.split("\n")
        assert rule.startswith("compiler: ") and " failed in 'step'; " in rule
        assert f"got:   InjectedError: injected into {fault}" in got
        assert "where: small_trainings.py:" in where or "where: digits.py:" in where
        assert "STRATAL_STRICT=1" in hint
        path = Path(hint.split("stratal explain ")[1].split("`")[0])
        assert path.read_text().startswith("# ")
        assert parse_graph(path.read_text()).digest == found.graph.digest
    for row in rows:
        assert f"{row['stage']} failed: {row['outcome']}" in str(found.plan)
        assert any(f"{row['stage']} failed in 'step'; {row['outcome']}" in text for text in said)
        ops = row["outcome"].split(" compiled")[0].split(" run ")[0]
        assert ops in ("left out", "every op") or ops.split(", ")[0].split(" ")[0] in REGISTRY


def first_reached(fault: Fault, start: int) -> str | None:
    """Return the first model, from some place on, that meets a fault."""
    names = [*MODELS][start % len(MODELS) :] + [*MODELS][: start % len(MODELS)]
    return next((name for name in names if str(fault) in healthy(name)[1]), None)


@pytest.mark.sampled(48)
@pytest.mark.parametrize("case", range(0, len(CASES), 8), ids=lambda k: f"{CASES[k][0]}-{CASES[k][1]}")
def test_a_training_survives_a_failure(case: int, tmp_path: Path) -> None:
    fault, mode = CASES[case]
    model = first_reached(fault, case)
    if model is None:
        pytest.skip("no model here needs it: see the tests of levels")
    check(fault, mode, model, tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda k: f"{CASES[k][0]}-{CASES[k][1]}")
def test_every_training_survives_every_failure(case: int, model: str, tmp_path: Path) -> None:
    fault, mode = CASES[case]
    if str(fault) not in healthy(model)[1]:
        pytest.skip("this model does not meet it")
    check(fault, mode, model, tmp_path / "cache")


@pytest.mark.slow
def test_the_failures_met_are_many() -> None:
    assert sum(len(healthy(model)[1]) for model in MODELS) * len(MODES) >= 200


# -- levels --------------------------------------------------------------------------------------------------
WAYS = {"scalar": SCALAR, "each op on the host": fallback.HOST, "the whole on the host": fallback.HOST}


@contextmanager
def compiled_in(way: str) -> Iterator[None]:
    """Compile everything in scalar loops, or on the host: op by op, or as one call."""

    def made(*, allowed: bool) -> Fallbacks:
        found = Fallbacks(allowed=True)
        if way == "each op on the host":
            found.level = lambda _: WAYS[way]  # type: ignore[method-assign]
        else:
            found.floor = WAYS[way]
        found.lasting.add(fallback.Failure("test", "asked for"))
        return found

    with pytest.MonkeyPatch.context() as patch, without_kept_programs():
        patch.setattr(compiler, "Fallbacks", made)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [n for n in NAMES if not REGISTRY[n].not_lowered])
def test_every_record_is_right_on_every_level(name: str, way: str) -> None:
    calls = [s for s in samples(name) if not s.op.host_reason(*s.types)]
    with compiled_in(way):
        assert faults_one_by_one(calls[:24], name) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["contract", "argmax", "cumsum", "scatter", "scan"])
def test_records_of_every_kind_are_right_on_every_level(name: str, way: str) -> None:
    test_every_record_is_right_on_every_level(name, way)


@pytest.mark.parametrize("way", WAYS)
def test_an_index_out_of_range_is_found_on_every_level(way: str) -> None:
    table, at = st.randn(5, 3), st.tensor([1, 7])
    with compiled_in(way), pytest.raises(IndexOutOfRangeError):
        np.asarray(st.compile(lambda t, i: t.index_select(0, i) * 2)(table, at))


# -- what is not swallowed -----------------------------------------------------------------------------------
def raising(error: BaseException) -> Callable[..., Any]:
    def broken(*_: object, **__: object) -> Any:
        raise error

    return broken


@pytest.mark.parametrize(
    "error",
    [ShapeError("not a shape"), IndexOutOfRangeError("outside"), MemoryError(), KeyboardInterrupt(),
     SystemExit()],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_what_is_no_fault_of_the_compiler_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    for holder, name in ((fallback.PASSES["simplify"], "run"), (generation, "kernel_module")):
        with pytest.MonkeyPatch.context() as patch, settings.cache_dir(None), pytest.raises(type(error)):
            patch.setattr(holder, name, raising(error))
            compiled(dense())


@pytest.mark.parametrize("setting", ["strict", "verify"])
def test_who_asks_for_errors_gets_them(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setattr(fallback.PASSES["simplify"], "run", raising(KeyError("a pass went wrong")))
    with settings.using(**{setting: True}), settings.cache_dir(None), pytest.raises(CompilerError) as caught:
        compiled(dense())
    assert "a pass went wrong" in caught.value.got


def test_an_edited_stage_that_breaks_the_rules_is_refused(tmp_path: Path) -> None:
    with settings.dump(tmp_path):
        compiled(dense())
    (folder,) = tmp_path.iterdir()
    (folder / "01-simplified.graph").write_text("nonsense")
    with settings.override(tmp_path), pytest.raises(StratalError, match="not valid"):
        compiled(dense())


class Alarm(Exception):
    """What a signal handler of a user raises."""


@pytest.mark.sampled(4)
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals as on POSIX")
@pytest.mark.parametrize("kind", [Alarm, ArithmeticError])
def test_what_a_signal_handler_raises_arrives(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep in the compiler it strikes, it is no failure of a pass."""
    rung: list[int] = []
    in_finalizers: list[object] = []  # where Python lets nothing through
    monkeypatch.setattr(sys, "unraisablehook", in_finalizers.append)

    def handler(*_: object) -> None:
        rung.append(1)
        raise kind("alarm")

    arrived = 0
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with settings.cache_dir(None), warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            compiled(dense())  # imports are done: one that is interrupted stays incomplete
            for k in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0011 * k)
                    compiled(dense())
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except kind:
                    arrived += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert arrived + len(in_finalizers) == len(rung)
    assert arrived > 0
    run(compiled(dense()))


def test_whose_error_it_is_shows_in_its_class_and_where_it_was_raised() -> None:
    assert is_fault(KeyError("x")) and is_fault(VerifyError("x"))
    assert not is_fault(Alarm()) and not is_fault(ShapeError("x"))
    assert not is_fault(MemoryError()) and not is_fault(RecursionError())


# -- what it leaves behind -----------------------------------------------------------------------------------
def test_a_program_with_fallbacks_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with settings.cache_dir(tmp_path / "cache"):
        with injected(next(f for f in FAULTS if str(f) == "tactic:contract"), "every"):
            broken = compiled(dense())
        assert broken.made.fallbacks
        assert "contract" in broken.explain()
        whole = compiled(dense())
        assert not whole.made.fallbacks and "fallbacks" not in whole.plan.to_json()
        assert whole.plan.hash != broken.plan.hash
        again = compiled(dense())
        assert again.plan.hash == whole.plan.hash
        assert again.kernels_from_cache == len(again.executable.kernels)


def test_a_kept_program_that_does_not_load_is_compiled_anew_and_kept(tmp_path: Path) -> None:
    with settings.cache_dir(tmp_path / "cache"):
        whole = compiled(dense())
        target = current_target()
        kernels = caching.CachedKernels(target)
        key = caching.CachedProgram(dense(), target, fused=True)
        bad = dict.fromkeys(whole.executable.kernels, b"no object code")
        spoiled = whole.executable
        good = dict(spoiled.kernels)
        spoiled.kernels.update(kernels.keep(bad))
        key.keep(spoiled)
        spoiled.kernels.update(good)
        again = compiled(dense())
        assert not again.made.fallbacks
        assert again.kernels_from_cache == 0
        assert [a.tobytes() for a in run(again)] == [a.tobytes() for a in run(whole)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiled(dense()).kernels_from_cache == len(good)


@pytest.mark.filterwarnings("ignore::stratal.plan.fallback.FallbackWarning")
def test_a_program_that_does_not_load_is_compiled_without_fusion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No kernel is to blame: the program as a whole goes down a level, and is not kept."""
    calls = itertools.count(1)
    original = compiler.LoadedProgram

    def fails_twice(*args: Any, **options: Any) -> Any:
        if next(calls) <= 2:
            raise KeyError("not this one")
        return original(*args, **options)

    monkeypatch.setattr(compiler, "LoadedProgram", fails_twice)
    with settings.cache_dir(tmp_path / "cache"):
        first = compiled(dense())
        assert "every op compiled unfused" in str(first.plan)
        assert not compiled(dense()).made.fallbacks


@pytest.mark.filterwarnings("ignore::stratal.plan.fallback.FallbackWarning")
def test_parts_that_fail_anew_each_time_end_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def ever_new(*_: object, **__: object) -> Any:
        with fallback.part("schedule", [graph_input("new", dense().input_types[0])]):
            raise KeyError("another node")

    monkeypatch.setattr(compiler, "lower", ever_new)
    with without_kept_programs():
        got = run(program := compiled(dense()))
    assert "every op run by its reference" in str(program.plan)
    assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, run(program), strict=True))


def test_a_failure_is_reproduced_from_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fallback.PASSES["simplify"], "run", raising(KeyError("a pass went wrong")))
    with settings.cache_dir(None), pytest.warns(FallbackWarning, match="left out") as caught:
        compiled(dense())
        compiled(dense())
    assert len(caught) == 1  # once for a program and a failure
    path = str(caught[0].message).split("stratal explain ")[1].split("`")[0]
    assert main(["explain", path]) == 1
    assert "a pass went wrong" in capsys.readouterr().err


@pytest.mark.sampled(5)
def test_after_two_hundred_failures_other_programs_are_what_they_were() -> None:
    graphs = [dense(), parse_graph(LOOP), parse_graph(HOST)]
    with without_kept_programs(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        before = [(compiled(g).plan.hash, run(compiled(g))) for g in graphs]
        failures = 0
        for fault, mode in itertools.cycle(CASES):
            with injected(fault, mode) as counted:
                for graph in graphs:
                    run(compiled(graph))
            failures += counted.raised
            if failures >= 200:
                break
        for graph, (plan, results) in zip(graphs, before, strict=True):
            found = compiled(graph)
            assert found.plan.hash == plan and not found.made.fallbacks
            assert [a.tobytes() for a in run(found)] == [a.tobytes() for a in results]


def test_a_module_that_ends_two_workers_is_not_compiled_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lets LLVM crash must not end the process that trains: its op runs on the host."""
    from stratal.codegen.assemble_workers import Worker

    give = Worker.give

    def deadly(self: Worker, key: str, *rest: str) -> None:
        give(self, key, *rest)
        if key in doomed:
            self.wait_until_ready(60)  # one that never was has not begun the module
            self.kill()

    doomed = {s.kernel.name for s in compiled(dense()).draft.kernels.values() if s.tactic == "contract"}
    monkeypatch.setattr(Worker, "give", deadly)
    with settings.using(compile_workers=1), settings.cache_dir(None), pytest.warns(FallbackWarning) as caught:
        got = run(compiled(dense()))
    assert any("ended" in str(w.message) for w in caught)
    assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, run(compiled(dense())), strict=True))


@pytest.mark.sampled(4)
def test_falling_back_takes_no_longer_than_a_few_compilations() -> None:
    """Many kernels that fail at once go down a level together."""
    attempts = []
    original = Fallbacks.settle

    def counted(self: Fallbacks) -> None:
        attempts.append(time.monotonic())
        original(self)

    with pytest.MonkeyPatch.context() as patch, settings.cache_dir(None):
        patch.setattr(Fallbacks, "settle", counted)
        patch.setattr(generation, "kernel_module", raising(KeyError("no code")))
        train = prepared("conv")
        with pytest.warns(FallbackWarning):
            train()
    assert len(attempts) < 40


def test_of_the_folders_with_what_reproduces_faults_the_newest_few_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "stratal-failure-file").write_text("of somebody else")
    (tmp_path / "another").mkdir()
    (tmp_path / "stratal-failure-link").symlink_to(tmp_path / "another")
    made = []
    for k in range(12):
        made.append(failure_folder())
        (made[-1] / "failed.graph").write_text("")
        os.utime(made[-1], (k, k))
        assert made[-1].is_dir()
    assert [folder.exists() for folder in made] == [False] * 4 + [True] * 8
    assert {"stratal-failure-file", "another", "stratal-failure-link"} <= {p.name for p in tmp_path.iterdir()}
