"""The serving benchmark: its baseline policies, and how figures become rows."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import serve, serving_onnx
from benchmarks.__main__ import main
from benchmarks.serve import prediction_errors
from benchmarks.serving_capacity import (
    grown,
    highest_rate,
    likely_rate,
    onnxruntime,
    planned_rate,
    shares_of,
)
from benchmarks.serving_load import Offered
from benchmarks.serving_models import KINDS, check, difference, module, save
from benchmarks.serving_rows import Run, TimeIsUpError, row
from benchmarks.serving_server import PerModel, Planned, Shared

import stratal as st
from stratal import nn
from stratal.serve.planning import LatencyTable

TABLE = LatencyTable.of({1: 0.004, 4: 0.010, 8: 0.018})


def filled(queue: Any, *requests: tuple[str, float]) -> Any:
    """Return a queue of models `a` and `b` with requests that came at some times; deadlines are reversed."""
    for name in "ab":
        queue.add_model(name, TABLE, 0.1)
    for name, arrived in requests:
        queue.push(name, SimpleNamespace(arrived=arrived), 1, 100 - arrived)
    return queue


def taken(queue: Any) -> list[tuple[str, int]]:
    found = []
    while (batch := queue.take(0.0)) is not None:
        found.append((batch.model, batch.rows))
    return found


def test_the_shared_baseline_takes_the_oldest_and_all_that_waits_for_its_model() -> None:
    queue = filled(Shared(), ("b", 2.0), ("a", 1.0), *[("b", 3.0 + k) for k in range(9)], ("a", 1.5))
    assert queue.refusal("a", 1, 0.0, 1.0, [0.0]) == "" and queue.drop_late(1e9) == []
    assert taken(queue) == [("a", 2), ("b", 8), ("b", 2)]


def test_the_baseline_of_a_batcher_for_each_model_runs_one_batch_of_each_at_a_time() -> None:
    queue = filled(PerModel(), *[("a", float(k)) for k in range(10)], ("b", 5.0))
    assert taken(queue) == [("a", 8), ("b", 1)]
    queue.observe("b", 1, 0.004)
    assert taken(queue) == []
    queue.observe("a", 8, 0.018)
    assert taken(queue) == [("a", 2)]


def test_predictions_are_noted_before_they_are_refined() -> None:
    queue = filled(Planned())
    queue.observe("a", 3, 0.012)
    queue.recording = True
    queue.observe("a", 3, 0.020)
    assert queue.seen == [("a", 3, 0.010, 0.012, 0.020)]


def test_errors_compare_medians_with_medians_and_high_quantiles_with_theirs() -> None:
    cold = [("a", 4, 9.0, 9.0, 1.0)] * serve.WARM_BATCHES
    seen = [*cold, *[("a", 4, 1.1, 1.2, 1.0)] * 20, ("a", 3, 5.0, 5.0, 1.0), *[("b", 1, 1.0, 1.0, 1.0)] * 3]
    assert prediction_errors(seen) == {("a", 4): (pytest.approx(0.1), pytest.approx(0.2), 1.0)}
    spread = [*cold, *[("a", 4, 0.5, 1.0, 0.5)] * 12, *[("a", 4, 0.5, 0.9, 1.0)] * 8]
    assert prediction_errors(spread)["a", 4] == (pytest.approx(0.0), pytest.approx(0.0), 0.6)


def test_the_planned_rate_is_the_highest_that_fits_and_grows_with_workers() -> None:
    tables = {"a": TABLE, "b": TABLE.scaled(0.1)}
    shares = shares_of(tables)
    assert sum(shares.values()) == pytest.approx(1.0) and shares["b"] > shares["a"]
    one, two = (planned_rate(tables, shares, dict.fromkeys(tables, 0.1), n) for n in (1, 2))
    assert 0.5 * one < two - one < 1.6 * one
    work = sum(rate / tables[name].best_rate for name, rate in grown(shares, one).items())
    assert 0.5 < work < 1.0


def test_a_search_begins_near_what_workers_do_row_by_row() -> None:
    tables = {"a": TABLE, "b": TABLE.scaled(0.5)}
    assert likely_rate(tables, {"a": 0.5, "b": 0.5}, 2) == pytest.approx(0.6 * 2 / 0.003)


def run_until(ends: float) -> Run:
    return Run(Path(), ("a",), 1.0, ends, lambda _: None)


@pytest.mark.parametrize("start", [3.0, 100.0, 900.0])
def test_the_highest_rate_is_found_from_above_and_below(start: float) -> None:
    def trial(total: float) -> Offered:
        return Offered(1.0, 100, 0, 100 if total <= 130 else 90, {})

    low, found = highest_rate(trial, start, run_until(time.monotonic() + 60))
    assert 123 < low <= 130 and found is not None and found.share == 1
    never = Offered(1.0, 100, 0, 0, {})
    assert highest_rate(lambda _: never, start, run_until(time.monotonic() + 60)) == (0.0, None)
    with pytest.raises(TimeIsUpError):
        highest_rate(trial, start, run_until(0.0))


def test_what_was_dropped_counts_as_admitted_and_missed() -> None:
    found = Offered(2.0, offered=200, refused=100, in_time=90, of_model={})
    assert (found.share, found.admitted_share, found.goodput) == (0.45, 0.9, 45.0)


def test_the_row_of_onnxruntime_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_onnx, "NEEDED", ("json", "no_such_package"))
    (found,) = onnxruntime(run_until(0.0))
    assert found["ratio"] is None and found["met"] is None and found["gate"] == 1.2
    assert found["note"] == "not run: no_such_package not installed"


def test_a_saved_model_that_answers_something_else_is_not_measured(tmp_path: Path) -> None:
    save(tmp_path, ["tabular"])
    check(tmp_path, ["tabular"])
    net = module("tabular")
    x = KINDS["tabular"].rows(8)
    st.freeze(nn.Sequential(net, nn.Linear(1, 1)), x, batch_sizes=(1, 32)).save(tmp_path / "tabular.stratal")
    with pytest.raises(SystemExit, match="tabular, 1 rows, frozen beside its module: outputs differ"):
        check(tmp_path, ["tabular"])
    with pytest.raises(SystemExit, match="differ by nan"):
        difference("x", np.array([np.nan, 1.0]), np.ones(2))


def test_gates_are_the_most_or_the_least() -> None:
    assert row("w", 0.2, 0.3, "at most")["met"] is True
    assert row("w", 0.2, 0.3, "at least")["met"] is False
    assert set(row("w", 1.0, 1.0, "at least")) >= {"workload", "system", "ratio", "gate", "met"}


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette")
    with pytest.raises(SystemExit):
        main(["serve", "--only", "digits,nobody"])
    assert "unknown models: nobody" in capsys.readouterr().err
