"""The decision log: one per compilation, silent without a listener, the same after a trip through JSON."""

from __future__ import annotations

import json
import threading

import pytest
from waiting import joined

from stratal.base.errors import FormatError
from stratal.base.log import Alternative, DecisionLog, collect, decide
from stratal.base.source import SourceLine

LINE = SourceLine("train.py", 12, "step", ("softmax",))


def _log() -> DecisionLog:
    with collect() as log:
        decide("fuse", "relu", "into matmul", "read once")
        decide(
            "schedule",
            "matmul.3",
            "tile 6x64",
            "fewest loads",
            seconds=41e-6,
            basis="measured",
            where=[LINE],
            alternatives=[
                Alternative("tile 4x64", 50e-6),
                Alternative("split-K", refused="K is 8"),
                "tile 8x48",
            ],
        )
    return log


def test_nobody_listening_means_nothing_is_kept() -> None:
    decide("fuse", "relu", "alone", "no reader")
    with collect() as log:
        assert log.decisions == []


def test_a_log_collects_in_order_and_a_nested_one_takes_its_own() -> None:
    with collect() as outer:
        decide("fuse", "a", "x", "y")
        with collect() as inner:
            decide("fuse", "b", "x", "y")
        decide("memory", "c", "x", "y")
    assert [d.subject for d in outer] == ["a", "c"]
    assert [d.subject for d in inner] == ["b"]
    assert [d.subject for d in outer.of("memory")] == ["c"]


def test_another_thread_has_no_part_in_the_log() -> None:
    with collect() as log:
        thread = threading.Thread(target=lambda: decide("fuse", "a", "x", "y"))
        thread.start()
        joined(thread)
    assert len(log) == 0


def test_a_decision_prints_what_why_cost_alternatives_and_the_users_line() -> None:
    text = str(_log())
    assert "schedule: matmul.3 -> tile 6x64  [train.py:12]" in text
    assert "fewest loads (41 us measured)" in text
    assert "not tile 4x64: 50 us" in text
    assert "not split-K: K is 8" in text
    assert "not tile 8x48: not priced" in text


def test_json_gives_the_log_back() -> None:
    log = _log()
    assert DecisionLog.from_json(json.loads(json.dumps(log.to_json()))) == log


@pytest.mark.parametrize("rows", [3, [3], [{"stage": "a"}], [{**_log().to_json()[0], "surprise": 1}]])
def test_json_that_is_no_log_is_refused(rows: object) -> None:
    with pytest.raises(FormatError):
        DecisionLog.from_json(rows)
