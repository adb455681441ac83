"""The benchmark harness, with Stratal and what needs no peer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import (
    compare,
    compare_sizes,
    compare_surface,
    compare_tuned,
    generation,
    show,
    sizes,
    structure,
    structures,
)
from benchmarks.__main__ import listing, main
from benchmarks.inference import INFERENCE, folded, norms_of
from benchmarks.models import WORKLOADS
from benchmarks.process import Settings, Worker, WorkerError
from benchmarks.tasks import SUITES, TASKS, of_suites

import stratal as st
from stratal import nn

COLUMNS = """
    workload system median_ms min_ms first_call_s warm_call_s peak_rss_mb import_rss_mb outputs_agree
    floor_ms ratio_to_best_peer gate aim
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of one training step and of one kernel that NumPy has too."""
    file = tmp_path_factory.mktemp("benchmarks") / "rows.json"
    command = ["run", "--only", "mlp,gemm_128", "--against", "numpy", "--rounds", "1", "--threads", "1"]
    assert main([*command, "--json", str(file)]) == 0
    return file


@pytest.mark.sampled(5)
def test_a_run_writes_complete_rows(rows_file: Path) -> None:
    document = json.loads(rows_file.read_text())
    mlp, gemm, numpy, table = document["rows"]
    assert [r["system"] for r in (mlp, gemm, numpy)] == ["stratal", "stratal", "numpy"]
    for row in (mlp, gemm, numpy):
        assert set(COLUMNS) <= set(row)
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert row["warm_call_s"] > 0 and row["first_call_s"] > 0 and row["floor_ms"] > 0
        assert 10 < row["import_rss_mb"] <= row["peak_rss_mb"] < 1000
    assert mlp["outputs_agree"] is None and mlp["ratio_to_best_peer"] is None, "NumPy trains nothing"
    assert gemm["outputs_agree"] is True and gemm["best_peer"] == "numpy" and gemm["gate"] == 1.05
    assert table["workload"] == "gemm table" and table["kernels"] == 1
    assert table["met"] is False, "one kernel is not the table"
    assert table["ratio_to_best_peer"] == pytest.approx(gemm["ratio_to_best_peer"])
    assert document["about"]["machine"]["flops"]["float32"] > 1


@pytest.mark.sampled(5)
def test_the_report_has_a_line_for_every_workload_and_a_plot(rows_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["report", str(rows_file), "--docs", str(tmp_path)]) == 0
    page = (tmp_path / "performance.md").read_text()
    assert "MLP 784-512-512-10, batch 32, Adam" in page and "| GEMM 128^3 |" in page
    assert "performance.svg" in page and (tmp_path / "performance.svg").read_text().startswith("<?xml")
    with pytest.raises(SystemExit, match="not rows"):
        main(["report", str(tmp_path / "performance.md"), "--docs", str(tmp_path)])


def test_a_task_that_fails_has_its_error_in_its_row_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAL_NO_SUCH_SETTING", "1")
    said: list[str] = []
    settings = Settings(threads=1, rounds=1, keep=tmp_path)
    rows = [
        r
        for n in ("mlp", "gcn")
        for r in compare.measure(TASKS[n], ["stratal"], settings, tmp_path, said.append)
    ]
    assert [row["workload"] for row in rows] == ["mlp", "gcn"]
    assert all("SettingError" in row["error"] for row in rows)
    assert "SettingError" in show.block(TASKS["mlp"], rows) and "error" in show.summary(rows)


def test_a_worker_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    settings = Settings(patience_s=0.01, keep=tmp_path)
    with pytest.raises(WorkerError, match="no answer within"):
        Worker("stratal", "mlp", settings, variant="", cache=tmp_path)


def test_a_worker_that_ends_says_its_last_words(tmp_path: Path) -> None:
    settings = Settings(threads=1, keep=tmp_path)
    with pytest.raises(WorkerError, match=r"KeyError: 'no_such_task'"):
        Worker("stratal", "no_such_task", settings, variant="", cache=tmp_path)


def _entrant(system: str, rounds_ms: list[float], losses: list[float]) -> compare.Entrant:
    row = {"system": system, "median_ms": sorted(rounds_ms)[len(rounds_ms) // 2], "peak_rss_mb": 100.0}
    return compare.Entrant(system, None, row, losses, rounds_ms=rounds_ms)  # type: ignore[arg-type]


def test_the_ratio_is_that_of_turns_taken_together_and_slowdowns_are_said() -> None:
    """The second round was slow for all, as on a shared machine."""
    entrants = [_entrant("stratal", [4.0, 40.0, 4.0], []), _entrant("torch", [2.0, 20.0, 2.0], [])]
    compare._compare(TASKS["mlp"], [*entrants, _entrant("jax", [3.0, 30.0, 3.0], [])])
    row = entrants[0].row
    assert row["ratio_to_best_peer"] == 2.0 and row["best_peer"] == "torch" and row["met"] is False
    assert show.verdict_of(row) == "2.00x SLOWER than torch: gate MISSED"
    assert row["rss_ratio"] == 1.0


@pytest.mark.parametrize(("loss", "agree"), [(2.3001, True), (2.4, False), (float("nan"), False)])
def test_losses_that_differ_are_noticed(loss: float, agree: bool) -> None:
    entrants = [_entrant("stratal", [1.0], [2.3, loss]), _entrant("torch", [1.0], [2.3, 2.3])]
    compare._agree(TASKS["mlp"], entrants)
    assert entrants[0].row["outputs_agree"] is agree


@pytest.mark.parametrize("name", [*WORKLOADS, "resnet50_b1"])
def test_the_noted_structure_of_a_model_is_that_of_its_state(name: str) -> None:
    build = (WORKLOADS | INFERENCE)[name].build
    real = {key: tuple(value.shape) for key, value in build(nn).state_dict().items()}
    assert structure.state(build) == real


def test_other_work_on_the_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of two cores: we worked five seconds, others eight."""
    entrants = [_entrant("stratal", [1.0], []), _entrant("torch", [1.0], [])]
    for entrant in entrants:
        entrant.cpu_s = 12.5
    monkeypatch.setattr(compare, "cpu_seconds", lambda: (113.0, 320.0))
    compare._note_others(entrants, (100.0, 300.0), 20.0)
    assert entrants[0].row["others_busy"] == 0.4
    row = {"system": "torch", "error": "gave up", "others_busy": entrants[1].row["others_busy"]}
    assert "other processes took 40% of the machine" in show.block(TASKS["mlp"], [row])


def test_other_sizes_are_other_models_and_their_work_follows() -> None:
    assert {name.partition("+")[0] for name in sizes.CASES} == set(WORKLOADS)
    for name, case in sizes.CASES.items():
        x, y = sizes.workload(name).data(np.random.default_rng(0))
        base = sizes.task(name.partition("+")[0]).work
        ratio = sizes.task(name).work.operations["float32"] / base.operations["float32"]
        if name.endswith("+twice"):
            assert ratio == pytest.approx(2, rel=1e-3)
            assert structure.state(case.build) == structure.state(WORKLOADS[name.partition("+")[0]].build)
        else:
            assert 1 < ratio < 2 and (len(x) % 2 == 1 or (name.startswith("lstm") and len(y) % 2 == 1))


def test_odd_sizes_are_judged_by_their_operations_per_second() -> None:
    """The odd size has 1.07 times the operations of the first; twice as slow, it keeps about half."""
    entrants = [_entrant("stratal", [ms, 3 * ms], []) for ms in (1.0, 2.0, 2.2)]
    for entrant, name in zip(entrants, ("mlp", "mlp+odd", "mlp+twice"), strict=True):
        entrant.row["workload"] = name
    compare_sizes._judge(entrants, lambda task: 1e-4)
    assert entrants[1].row["kept"] == pytest.approx(0.53, abs=0.02) and entrants[1].row["met"] is False
    assert entrants[2].row["slower"] == pytest.approx(2.2) and "MISSED" in compare_sizes.text(
        [entrants[2].row]
    )


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--only", "mpl"],
        ["--suite", "trains"],
        ["--against", "tensorflow"],
        ["--python", "x"],
    ):
        with pytest.raises(SystemExit):
            main(["run", *arguments])
    assert "mpl" in capsys.readouterr().err


def test_every_task_is_listed_with_its_work() -> None:
    assert [t.name for t in of_suites(list(SUITES))] == list(TASKS)
    assert all(task.name in listing([task]) and task.work.nbytes > 0 for task in TASKS.values())
    assert (
        TASKS["mlp"].work.operations["float32"] == 102_694_912
    )  # 3 x 2 x 32 x weights, less one input gradient


def test_a_folded_batch_norm_gives_what_the_norm_gave() -> None:
    def build(nn: Any) -> Any:
        class Pair(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.conv1, self.bn1 = nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5)

        return Pair()

    weights = structure.draw(structure.state(build))
    assert norms_of(weights) == {"conv1": "bn1"}
    model, x = build(nn), st.tensor(np.random.default_rng(0).standard_normal((2, 3, 6, 6), dtype=np.float32))
    model.load_state_dict(weights)
    model.eval()
    one = folded(weights)
    got = nn.functional.conv2d(x, st.tensor(one["conv1.weight"]), st.tensor(one["conv1.bias"]), padding=1)
    np.testing.assert_allclose(got.numpy(), model.bn1(model.conv1(x)).numpy(), rtol=2e-5, atol=2e-6)


# -- defaults beside what tuning finds -----------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.row("D16", "B5")
def test_the_lecture_s_convolution_is_timed_without_and_with_tuning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 filters 3x3, batch 32, channels = width = height = 64."""
    file = tmp_path / "rows.json"
    command = ["tuned", "--only", "conv_64_64x64", "--trials", "1", "--model", "none", "--json", str(file)]
    assert main(command) in (0, 1), "how much faster it gets is the machine's affair"
    (row,) = json.loads(file.read_text())
    assert row["kernels"] == row["searched"] == 1 and row["candidates"] == 1
    assert (
        row["default_ms"] > 0 and row["tuned_ms"] > 0 and row["low"] <= row["default_to_tuned"] <= row["high"]
    )
    assert f"{row['default_ms']:.4g}" in capsys.readouterr().out


def test_a_default_is_behind_where_its_whole_interval_is() -> None:
    assert compare_tuned.met([{"low": 1.05, "default_to_tuned": 1.2, "high": 1.3}])
    assert not compare_tuned.met([{"low": 1.11, "default_to_tuned": 1.2, "high": 1.3}])


def test_an_unknown_task_to_tune_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tuned", "--only", "conv_65"])
    assert "unknown task 'conv_65'" in capsys.readouterr().err


@pytest.mark.sampled(7)
@pytest.mark.row("A13")
@pytest.mark.parametrize("name", structures.MODELS)
def test_shapes_are_trained_on_with_the_same_losses_eagerly_and_captured(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    structures.measure(name, 2, 1)  # compares them
    assert "ms an example eagerly" in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.parametrize("name", generation.CLASSES)
def test_texts_are_hugging_faces(name: str) -> None:
    pytest.importorskip("transformers")
    assert generation.measure(name, layers=1, width=128, tokens=3, rounds=1, threads=1)["stratal"] > 0


FEW_NAMES = {"exp", "reshape", "linalg.cholesky"}


def test_functions_are_timed_beside_every_library_that_has_them_and_told_apart() -> None:
    chosen = [e for e in compare_surface.chosen([], ["math", "linalg"]) if e.path in FEW_NAMES]
    rows = compare_surface.measure(chosen, [100], 2, 0.001, lambda line: None)
    assert {row["name"] for row in rows} == FEW_NAMES
    assert all(row["ours"] > 0 and row["numpy"] > 0 and not row["differs"] for row in rows)
    kinds = {row["name"]: compare_surface._class(row) for row in rows}
    assert kinds == {
        "exp": compare_surface.COMPILED, "reshape": "views in the peer",
        "linalg.cholesky": "on the host or made at once",
    }  # fmt: skip
    shown = compare_surface.text(rows)
    for words in ("100 elements, compiled", "linalg.cholesky: cholesky", "every result agrees"):
        assert words in shown


def test_a_slow_function_counts_and_a_wrong_one_fails() -> None:
    about = {"host": "", "at_once": False, "ops": 1, "differs": ""}
    row = {"name": "f", "n": max(compare_surface.SIZES), **about}
    rows = [row | {"ratio": ratio} for ratio in (1.0, 4.0)]
    assert compare_surface.slow_share(rows) == 0.5 and not compare_surface.met(rows)
    assert compare_surface.met(rows[:1]) and not compare_surface.met([rows[0] | {"differs": "shapes"}])
