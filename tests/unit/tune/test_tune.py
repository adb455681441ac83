"""Tuning: records decide schedules, bad files and candidates do no harm, the search finds its way."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from benchmarks.compare_explorers import rank_correlation

import stratal as st
from stratal.base import settings, tuning
from stratal.base.artifact import KernelObject
from stratal.base.errors import CacheError, FormatError, MissingExtraError
from stratal.base.record_files import digest_of
from stratal.cli import main
from stratal.compiler import Program, compile_graph
from stratal.graph.graph import Graph
from stratal.inspect.timer import compare
from stratal.plan.host import current_target
from stratal.runtime.pack import pack, unpack
from stratal.runtime.storage import Storage
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem
from stratal.schedule.tactics.tiles import Tiling
from stratal.tune.explore import Attempt, Explorer, Objective
from stratal.tune.fusion import FusionVerdict, compare_fusion, fused_kernels
from stratal.tune.measure import Dropped, Measurer, Timing
from stratal.tune.model import LearnedStrategy, RandomStrategy, features, strategy
from stratal.tune.session import Task, Watch, problems_of, tasks_of, toolchain
from stratal.tune.trial import Trial, trial_of

BAD = Tiling(1, 1)
pytestmark = pytest.mark.filterwarnings("ignore:tuning records .* no such file")  # tests begin without one


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with settings.tuning(str(tmp_path / "tuning.json")):  # type: ignore[arg-type]
        yield tmp_path / "tuning.json"


@pytest.mark.filterwarnings("default")
def test_a_file_of_records_that_is_not_there_is_named_once(path: Path) -> None:
    with pytest.warns(tuning.TuningWarning, match="are ignored: there is no such file") as caught:
        assert tuning.records_for("host", str).ignored
        tuning.records_for("host", str)
    assert len(caught) == 1
    with settings.tuning("auto"), settings.cache_dir(path.parent):
        assert not tuning.records_for("host", str).ignored  # nothing was tuned yet


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(current_target(), limit_seconds=30.0) as made:
        yield made


def product_graph(m: int = 96, k: int = 80, n: int = 112) -> Graph:
    """Return the graph of relu(a @ b)."""
    return program_of(
        lambda: st.compile(lambda a, b: st.relu(a @ b))(st.zeros((m, k)), st.zeros((k, n)))
    ).graph


def program_of(call: Callable[[], object]) -> Program:
    """Return the last program that a call runs."""
    with Watch() as watch:
        call()
    return watch.programs[-1][0]


def only_task(graph: Graph) -> Task:
    (task,) = tasks_of([(compile_graph(graph), 1)])
    return task


def bad_way(task: Task) -> Candidate:
    numbers = {**BAD._asdict(), "copy_a": 0, "copy_b": 0}
    found = task.problem.named("tiles", tuple(numbers.items()))
    assert found is not None
    return found


def record_of(problem: Problem, way: Candidate, **changed: object) -> tuning.Record:
    made = tuning.Record(
        problem.digest, problem.target.digest, toolchain(), "time", way.algorithm, way.parameters,
        1e-3, 0, "tiles()", 2e-3, 0, 7, 2, "2026-11-20T00:00:00+00:00", "contract",
    )  # fmt: skip
    return dataclasses.replace(made, **changed)  # type: ignore[arg-type]


def results(program: Program, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(i.aval.ints).astype("float32") for i in program.graph.inputs]
    (made,) = program.run(
        [Storage.copy_of(a, i.aval) for a, i in zip(given, program.graph.inputs, strict=True)]
    )
    expected = np.maximum(given[0] @ given[1], 0)
    np.testing.assert_allclose(made.array, expected, rtol=1e-4, atol=1e-4)
    return np.array(made.array)


# -- records -------------------------------------------------------------------------------------------------
@pytest.mark.quick
@pytest.mark.row("B5")
def test_a_record_decides_the_schedule_and_the_log_says_it_was_measured(path: Path) -> None:
    graph = product_graph()
    before = compile_graph(graph)
    task = only_task(graph)
    tuning.write_file(path, [record_of(task.problem, bad_way(task))])
    tuned, again = compile_graph(graph), compile_graph(graph)
    assert tuned.plan.hash != before.plan.hash, "a cached program was used although the records changed"
    assert again.plan.hash == tuned.plan.hash
    (decision,) = tuned.log.of("tactic")
    assert decision.basis == "measured" and decision.choice == str(bad_way(task))
    assert "7 trials" in decision.why
    results(tuned)
    path.unlink()
    assert compile_graph(graph).plan.hash == before.plan.hash


@pytest.mark.quick
def test_records_come_back_from_the_file_as_they_were(path: Path) -> None:
    task = only_task(product_graph())
    first = record_of(task.problem, bad_way(task))
    other = dataclasses.replace(first, objective="memory")
    assert tuning.write_file(path, [first]) == 1
    assert tuning.write_file(path, [other]) == 2
    assert tuning.write_file(path, [dataclasses.replace(first, trials=9)]) == 2
    assert {(r.objective, r.trials) for r in tuning.read_file(path)} == {("time", 9), ("memory", 7)}


def test_a_file_of_records_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written"):
        tuning.write_file(tmp_path / "file" / "tuning.json", [])


@pytest.mark.parametrize("text", ["Shopping: bread, milk", '{"name": "a notebook", "cells": []}', "[1, 2]"])
def test_a_file_that_holds_something_else_is_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(CacheError, match="holds something else"):
        tuning.check_file(path)
    assert main(["tune", "--model", "none", "--db", str(path), __file__])
    assert path.read_text() == text


@pytest.mark.parametrize("damage", ["cut", "altered", "other", "list", "field"])
def test_a_corrupt_file_is_told_of_once_and_ignored(path: Path, damage: str) -> None:
    graph = product_graph()
    before = compile_graph(graph).plan.hash
    task = only_task(graph)
    tuning.write_file(path, [record_of(task.problem, bad_way(task))])
    text = path.read_text()
    value = json.loads(text)
    value["records"][0]["extra"] = 1
    value["digest"] = digest_of(value["records"])
    path.write_text({
        "cut": text[:100], "altered": text.replace('"trials": 7', '"trials": 8'), "other": "{}", "list": "[[",
        "field": json.dumps(value),
    }[damage])  # fmt: skip
    with pytest.raises(FormatError):
        tuning.read_file(path)
    with pytest.warns(tuning.TuningWarning, match="are ignored"):
        program = compile_graph(graph)
    assert program.plan.hash == before
    results(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_graph(graph)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"target": "0" * 24}, "other machines"), ({"toolchain": "0" * 32}, "another compiler")],
)
def test_records_of_another_machine_or_compiler_are_ignored(
    path: Path, change: dict[str, str], told: str
) -> None:
    graph = product_graph()
    before = compile_graph(graph).plan.hash
    task = only_task(graph)
    tuning.write_file(path, [record_of(task.problem, bad_way(task), **change)])
    with pytest.warns(tuning.TuningWarning, match=told):
        program = compile_graph(graph)
    assert program.plan.hash == before
    assert told in str(program.log) or program.log.of("tuning")[0].choice == "ignored"
    results(program)


@pytest.mark.parametrize("parameters", [
    {}, {"rows": 99}, {"rows": 0}, {"copy_a": 7}, {"run_rows": 0}, {"depth": -1}, {"vectors": 10**9},
])  # fmt: skip
def test_a_record_that_names_no_legal_schedule_is_ignored(path: Path, parameters: dict[str, int]) -> None:
    graph = product_graph()
    task = only_task(graph)
    given = dict(bad_way(task).parameters) | parameters if parameters else {}
    record = record_of(task.problem, task.default, parameters=tuple(given.items()))
    tuning.write_file(path, [record])
    program = compile_graph(graph)
    assert all(d.basis != "measured" for d in program.log.of("tactic"))
    results(program)


@pytest.mark.sampled(4)
def test_a_kernel_has_the_same_digest_in_another_process() -> None:
    text = (
        "import stratal as st\nfrom stratal.tune.session import Watch, tasks_of\n"
        "f = st.compile(lambda a, b: st.relu(a @ b))\n"
        "with Watch() as watch: f(st.zeros((96, 80)), st.zeros((80, 112)))\n"
        "print(tasks_of(watch.programs)[0].problem.digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.strip() == only_task(product_graph()).problem.digest


# -- measuring -----------------------------------------------------------------------------------------------
def pair(task: Task) -> tuple[Trial, Trial]:
    problem = task.problem
    ways = task.default, bad_way(task)
    default, bad = (trial_of(problem, w, 1) for w in ways)
    return default, bad


def with_body(trial: Trial, body: str) -> Trial:
    """Return a trial whose kernels do something else."""
    executable = unpack(trial.program)
    executable.kernels = {
        name: KernelObject(
            name, f"define void @{name}(ptr %f, i64 %c, i32 %w) {{\n{body}\n}}\n".encode(), name
        )
        for name in executable.kernels
    }
    return trial._replace(program=pack(executable))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("body", "told"), [
    ("store volatile i32 1, ptr null\nret void", "crashes: SIGSEGV"),
    ("br label %l\nl:\nbr label %l", "takes more than"),
    ("ret void", "wrong numbers"),
    ("this is no code", "CompilerError"),
])  # fmt: skip
def test_a_candidate_that_crashes_hangs_or_is_wrong_is_dropped_and_the_next_is_timed(
    body: str, told: str
) -> None:
    default, bad = pair(only_task(product_graph()))
    with Measurer(current_target(), limit_seconds=3.0) as fragile:
        fragile.compare(default, default)  # the process has started
        found = fragile.compare(default, with_body(bad, body))
        assert isinstance(found, Dropped) and told in found.reason
        assert isinstance(fragile.compare(default, bad), Timing)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("call", [
    lambda: st.compile(lambda a, b: st.relu(a @ b))(st.zeros((37, 150)), st.zeros((150, 67))),
    lambda: st.compile(lambda a, b: a @ b.T)(st.zeros((19, 300)), st.zeros((70, 300))),
    lambda: st.compile(lambda a, b: st.nn.functional.conv2d(a, b, padding=1))(
        st.zeros((1, 20, 13, 11)), st.zeros((24, 20, 3, 3))
    ),
], ids=["product", "linear", "convolution"])  # fmt: skip
def test_random_variants_compute_what_the_default_computes(
    call: Callable[[], object], measurer: Measurer
) -> None:
    (problem, default, _), *_ = problems_of(program_of(call))
    base = trial_of(problem, default, 2)
    drawn = random.Random(3).sample(problem.variants(), 6)
    reasons = []
    for way in drawn:
        assert str(problem.named(way.algorithm, way.parameters)) == str(way)
        try:
            trial = trial_of(problem, way, 2)
        except st.StratalError:
            continue  # not every combination has a schedule; none may be wrong
        found = measurer.compare(base, trial, rounds=1, seconds=0.0)
        reasons += [f"{way}: {found.reason}"] if isinstance(found, Dropped) else []
    assert reasons == []


# -- searching -----------------------------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.row("D6")
def test_from_a_bad_default_the_search_finds_something_faster(measurer: Measurer) -> None:
    task = only_task(product_graph(256, 256, 256))
    bad = bad_way(task)
    verdict = Explorer(measurer, RandomStrategy(0)).tune(task.problem, bad, trials=4)
    assert verdict.timing is not None and verdict.timing.ratio.high < 0.9
    assert verdict.chosen.parameters != bad.parameters
    assert verdict.record(toolchain(), "time").seconds < verdict.default_seconds


@pytest.mark.parametrize(("others", "wins"), [
    ([0.9] * 9, True), ([0.99] * 9, False), ([0.5, 1.5] * 5, False), ([1.5] * 9, False),
], ids=["faster", "hardly", "perhaps", "slower"])  # fmt: skip
def test_only_a_way_that_wins_by_a_margin_with_confidence_replaces_the_default(
    others: list[float], wins: bool
) -> None:
    way = Candidate("tiles", 1.0, lambda x: None)  # type: ignore[arg-type, return-value]
    timing = Timing((1.0,) * len(others), tuple(others))
    assert Objective("time", way, 0).wins(way, timing, 0) is wins


@pytest.mark.sampled(4)
def test_ctrl_c_ends_the_search_and_keeps_what_was_found(measurer: Measurer) -> None:
    task = only_task(product_graph(256, 256, 256))
    seen: list[Attempt] = []

    def interrupt(attempt: Attempt) -> None:
        seen.append(attempt)
        if len(seen) == 2:
            raise KeyboardInterrupt

    explorer = Explorer(measurer, RandomStrategy(0))
    verdict = explorer.tune(task.problem, bad_way(task), trials=50, seen=interrupt)
    assert verdict.interrupted and len(verdict.attempts) == 2


@pytest.mark.sampled(4)
@pytest.mark.row("D19")
def test_three_objectives_give_three_recorded_plans(path: Path, measurer: Measurer) -> None:
    step = st.compile(lambda a, b: st.nn.functional.conv2d(a, b, padding=1))
    graph = program_of(lambda: step(st.zeros((2, 32, 24, 24)), st.zeros((32, 32, 3, 3)))).graph
    hashes = set()
    for objective in settings.OBJECTIVES:
        task = only_task(graph)
        verdict = Explorer(measurer, RandomStrategy(1), objective).tune(task.problem, task.default, trials=6)
        tuning.write_file(path, [verdict.record(toolchain(), objective)])
        if objective == "memory":
            assert verdict.workspace_bytes <= verdict.default_workspace_bytes
        with settings.objective(objective):
            program = compile_graph(graph)
        assert program.log.of("tactic")[0].basis == "measured"
        hashes.add(program.plan.hash)
    assert len(tuning.read_file(path)) == 3
    assert len(hashes) >= 2, "least memory is another plan than least time"


def test_the_cost_model_without_its_library_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(MissingExtraError, match="lightgbm") as caught:
        strategy("lightgbm", 0)
    assert "stratal[tune]" in caught.value.hint and "--model none" in caught.value.hint


@pytest.mark.row("D6")
def test_the_cost_model_ranks_candidates_it_has_not_seen() -> None:
    pytest.importorskip("lightgbm")
    task = only_task(product_graph())
    ways = task.problem.variants()
    rows = features(ways, task.default, (96, 112))
    truth = np.array([1.0 + dict(w.parameters)["depth"] / 100 + 5 / dict(w.parameters)["rows"] for w in ways])
    learned = strategy("lightgbm", 0)
    drawn = random.Random(0).sample(range(len(ways)), 64)
    for k in drawn:
        learned.learn(rows[k], float(truth[k]))
    unseen = [k for k in range(len(ways)) if k not in set(drawn)]
    picked = unseen[learned.propose(rows[unseen])]
    assert truth[picked] < np.quantile(truth, 0.2)


def _simulated(way: Candidate, k: int) -> float:
    """Return the time of a candidate on a machine that likes some tiles, blocks and copies, and is noisy."""
    p = dict(way.parameters)
    blocks = abs(np.log2(1 + p.get("depth", 0)) - 8) / 4 + abs(np.log2(p.get("run_rows", 1)) - 2) / 8
    tiles = 8 / (p["rows"] * p.get("vectors", p.get("columns", 1)))
    noise = np.random.default_rng([k, *map(int, p.values())]).normal(0, 0.02)
    return float((1 + blocks + tiles + 0.2 * (p.get("copy_b", 0) == 0)) * np.exp(noise))


@pytest.mark.row("D6")
def test_the_cost_model_beats_random_draws_at_equal_trials() -> None:
    """On simulated times: kernel after kernel, the best of 24 draws; then the ranks of an unseen shape."""
    pytest.importorskip("lightgbm")
    shapes = [(96, 80, 112), (256, 64, 320), (33, 500, 190)]
    best: dict[str, list[float]] = {"none": [], "lightgbm": []}
    pools = []
    for m, k, n in shapes:
        task = only_task(product_graph(m, k, n))
        ways = task.problem.variants()
        pools.append((features(ways, task.default, (m, n)), np.array([_simulated(w, m) for w in ways])))
    for seed in range(3):
        for name in ("none", "lightgbm"):
            searching = strategy(name, seed)  # type: ignore[arg-type]
            for rows, truth in pools[:-1]:
                left, seen = list(range(len(truth))), []
                for _ in range(24):
                    number = left.pop(searching.propose(rows[left]))
                    searching.learn(rows[number], float(truth[number]))
                    seen.append(float(truth[number]))
                best[name].append(min(seen) / float(truth.min()))
            if isinstance(searching, LearnedStrategy):
                rows, truth = pools[-1]
                correlation = rank_correlation(searching.predict(rows), truth)
                print(f"rank correlation on a shape not seen: {correlation:.2f}")
                assert correlation > 0.3
    print({name: float(np.mean(found)) for name, found in best.items()})
    assert np.mean(best["lightgbm"]) < np.mean(best["none"])


def test_ranks_agree_wholly_not_at_all_or_in_part() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


@pytest.mark.sampled(4)
@pytest.mark.row("B5", "D6")
def test_the_command_tunes_a_script_and_knows_what_it_tuned(tmp_path: Path) -> None:
    script, records = tmp_path / "script.py", tmp_path / "records.json"
    script.write_text(
        "import stratal as st\nf = st.compile(lambda a, b: st.relu(a @ b))\n"
        "f(st.zeros((64, 64)), st.zeros((64, 64)))\n"
    )
    command = [
        sys.executable,
        "-m",
        "stratal",
        "tune",
        "--model",
        "none",
        "--trials",
        "2",
        "--db",
        str(records),
    ]
    first = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    assert "tuning 1" in first.stdout and "2 candidates tried" in first.stdout
    assert len(tuning.read_file(records)) == 1
    again = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=600)
    assert "1 tuned before: tuning 0" in again.stdout, again.stdout + again.stderr


@pytest.mark.slow
@pytest.mark.row("D6", "B5")
def test_from_a_bad_default_the_tuner_comes_back_near_the_best(measurer: Measurer) -> None:
    task = only_task(product_graph(512, 512, 512))
    found = Explorer(measurer, RandomStrategy(0)).tune(task.problem, bad_way(task), trials=64)
    best = Explorer(measurer, RandomStrategy(1)).tune(task.problem, task.default, trials=64)
    problem = task.problem
    ways = best.chosen, found.chosen
    first, second = (trial_of(problem, w, 2) for w in ways)
    timing = measurer.compare(first, second, rounds=41, seconds=1.0)
    assert isinstance(timing, Timing)
    assert timing.ratio.median < 1.05


# -- fusion --------------------------------------------------------------------------------------------------
def softmax_graph() -> Graph:
    step = st.compile(lambda x: st.nn.functional.softmax(x * 2.0, dim=-1))
    return program_of(lambda: step(st.zeros((64, 96)))).graph


@pytest.mark.row("C7")
def test_a_fused_kernel_that_loses_to_its_parts_is_taken_apart_by_a_record(path: Path) -> None:
    graph = softmax_graph()
    fused = compile_graph(graph)
    (kernel,) = fused_kernels([fused])
    slow = FusionVerdict(kernel, Timing((1.0,) * 9, (0.5,) * 9))
    assert slow.unfused
    tuning.write_file(path, [slow.record(current_target(), toolchain())])
    apart = compile_graph(graph)
    assert len(apart.plan.kernels) > len(fused.plan.kernels) == 1
    assert any(d.choice == "taken apart" and d.basis == "measured" for d in apart.log.of("fuse"))
    numbers = np.random.default_rng(0).standard_normal((64, 96)).astype("float32")
    given = Storage.copy_of(numbers, graph.inputs[0].aval)
    (one,), (other,) = fused.run([given]), apart.run([given])
    np.testing.assert_array_equal(one.array, other.array)


@pytest.mark.row("C7")
def test_fused_kernels_are_timed_beside_their_parts_and_the_winner_stays(
    path: Path, measurer: Measurer
) -> None:
    graph = softmax_graph()
    fused = compile_graph(graph)
    (verdict,) = compare_fusion(fused_kernels([fused]), measurer)
    assert verdict.timing is not None and not verdict.unfused, "one sweep against five"
    tuning.write_file(path, [verdict.record(current_target(), toolchain())])
    assert compile_graph(graph).plan.hash == fused.plan.hash


def chain_graph(length: int) -> Graph:
    def chain(x: st.Tensor) -> st.Tensor:
        for _ in range(length):
            x = st.nn.functional.softmax(x, dim=0)
        return x

    return program_of(lambda: st.compile(chain)(st.ones((1000,)))).graph


@pytest.mark.slow
@pytest.mark.row("C7", "C8")
def test_a_chain_of_2000_softmaxes_is_no_slower_fused(path: Path, measurer: Measurer) -> None:
    graph = chain_graph(2000)
    given = Storage.copy_of(np.linspace(0, 1, 1000, dtype="float32"), graph.inputs[0].aval)
    with settings.cache_dir(None):
        fused, unfused = compile_graph(graph), compile_graph(graph, fused=False)
        assert fused.compile_seconds < 20.0
        for verdict in compare_fusion(fused_kernels([fused]), measurer):
            tuning.write_file(path, [verdict.record(current_target(), toolchain())])
        tuned = compile_graph(graph)
    (one,), (other,) = tuned.run([given]), unfused.run([given])
    np.testing.assert_array_equal(one.array, other.array)
    ways = {"unfused": unfused, "tuned": tuned, "fused": fused}
    turns = compare({name: partial(program.run, [given]) for name, program in ways.items()})
    assert turns.ratio("tuned").low <= 1.02, str(turns)  # the margin of a verdict
    assert turns.ratio("fused").low <= 1.0, str(turns)
