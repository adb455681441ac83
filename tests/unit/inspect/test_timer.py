"""Timing that refuses unsynchronised and unwarmed measurement, with an interval on every number."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, MeasurementError
from stratal.inspect import timer
from stratal.inspect.intervals import median_interval
from stratal.inspect.timer import Timer, compare

pytestmark = pytest.mark.quick

X = st.tensor(np.ones((64, 64), np.float32))


class Clock:
    """Stands in the timer for the machine's, which says too much on a busy one: only sleeping takes time."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(timer, "time", made := Clock())
    return made


# -- not waited for ------------------------------------------------------------------------------------------
@pytest.mark.row("I6")
def test_a_lazy_result_is_refused_and_timed_once_somebody_waits() -> None:
    with pytest.raises(MeasurementError, match="returns before its work is done") as refused:
        Timer(lambda: X @ X).timeit(3)
    assert "f32[64,64] that is not computed yet" in str(refused.value)
    assert Timer(lambda: X @ X, synchronize=True).timeit(3).median > 0


@pytest.mark.row("I6")
def test_lazy_work_that_is_left_behind_is_refused_although_nothing_is_returned() -> None:
    kept: list[Any] = []

    def work() -> None:
        kept[:] = [X.exp()]

    with pytest.raises(MeasurementError, match="lazy tensor"):
        Timer(work).timeit(3)


@pytest.mark.row("I6")
def test_futures_and_arrays_of_libraries_that_compute_in_the_background_are_refused() -> None:
    class Background:
        def block_until_ready(self) -> Background:
            return self

    with ThreadPoolExecutor(1) as pool:
        slow = lambda: pool.submit(time.sleep, 0.002)  # noqa: E731
        with pytest.raises(MeasurementError, match="Future that nobody waits for"):
            Timer(slow).timeit(3)
        waited = Timer(slow, synchronize=lambda future: future.result()).timeit(5)
    assert waited.median >= 0.002
    with pytest.raises(MeasurementError, match="computes in the background"):
        Timer(Background).timeit(3)
    assert Timer(Background, synchronize=lambda made: made.block_until_ready()).timeit(3).times


@pytest.mark.row("I6")
def test_hidden_synchronisations_are_told_with_the_lines_that_ask_for_values() -> None:
    def step() -> float:
        total = 0.0
        for k in range(3):
            total += (X * (k + 1.0)).sum().item()
        return total

    note, *_ = Timer(step).timeit(8).notes
    assert note.startswith("3 programs run in each call")
    assert "test_timer.py:" in note and "x3" in note


# -- not warmed up -------------------------------------------------------------------------------------------
@pytest.mark.row("I6", "I7")
def test_the_calls_that_compile_are_not_timed() -> None:
    double = st.compile(lambda x: (x * 2).sum())
    captures: list[int] = []  # before each call, warm-up and all

    def call() -> Any:
        captures.append(double.captures)
        return double(X)

    with st.no_grad():
        measured = Timer(call).timeit(20)
    assert len(measured.times) == 20 < len(captures)
    assert captures[0] == 0 and [*captures, double.captures][-21:] == [1] * 21


@pytest.mark.row("I7")
def test_a_function_that_compiles_in_every_call_is_refused_with_the_reason() -> None:
    grow = st.compile(lambda x: x * 2, dynamic=False)
    sizes = iter(range(1, 1000))
    with st.no_grad(), pytest.raises(MeasurementError, match="never gets warm") as refused:
        Timer(lambda: grow(st.tensor(np.ones(next(sizes), np.float32)))).timeit(3)
    assert "24 calls" in str(refused.value)


@pytest.mark.row("I7")
def test_a_compilation_in_the_middle_of_a_measurement_is_refused() -> None:
    sizes = iter([7, 7, 7, 7, 7, 9, 9, 9, 9])
    with pytest.raises(MeasurementError, match="compiled while it was timed"):
        Timer(lambda: st.tensor(np.ones(next(sizes), np.float32)).sinh().numpy()).timeit(4)


# -- numbers with intervals ----------------------------------------------------------------------------------
@pytest.mark.row("I7")
def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for n in (6, 15, 40):
        intervals = [median_interval(rng.exponential(size=n).tolist()) for _ in range(800)]
        held = np.mean([i.low <= np.log(2) <= i.high for i in intervals])
        assert 0.94 <= held <= 0.995
    wide, narrow = (median_interval(rng.exponential(size=n).tolist()) for n in (20, 5000))
    assert (narrow.high - narrow.low) / narrow.median < (wide.high - wide.low) / wide.median / 4
    assert median_interval([3.0]) == (3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


@pytest.mark.row("I7")
def test_a_measurement_states_median_interval_and_spread() -> None:
    measured = Timer(time.sleep, 0.001).blocked_autorange(min_run_time=0.05)
    assert measured.number_per_run == 1
    assert 0.001 <= measured.interval.low <= measured.median <= measured.interval.high
    assert measured.iqr >= 0
    assert str(measured).startswith("sleep: ") and "95 %" in str(measured)


def test_blocks_hold_enough_calls_for_the_clock() -> None:
    measured = Timer(abs, -1).blocked_autorange(min_run_time=0.01)
    assert measured.number_per_run * measured.median > 0.5e-3
    assert len(measured.times) >= 6


@pytest.mark.row("I7")
def test_functions_are_compared_in_turns_in_random_order_with_an_interval_on_the_ratio(clock: Clock) -> None:
    order: list[str] = []

    def sleeper(name: str, seconds: float) -> Any:
        return lambda: (order.append(name), clock.sleep(seconds))[1]

    found = compare({"short": sleeper("s", 0.0015), "long": sleeper("l", 0.003)}, rounds=10)
    ratio = found.ratio("long")
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.median == pytest.approx(2)
    assert found.ratio("short", to="long").median == pytest.approx(0.5)
    turns = "".join(order[-20:])
    assert all(sorted(turns[k : k + 2]) == ["l", "s"] for k in range(0, 20, 2))  # each once a round
    assert {"sl", "ls"} == {turns[k : k + 2] for k in range(0, 20, 2)}  # and not always in one order
    assert "of the time of short (95 %:" in str(found)


def test_a_function_without_a_steady_state_is_told(clock: Clock) -> None:
    waits = iter([0.0005] * 40 + [0.002] * 40)
    measured = Timer(lambda: clock.sleep(next(waits))).timeit(60)
    assert any("no steady state" in note for note in measured.notes)


def test_nonsense_is_refused() -> None:
    with pytest.raises(AttributeValueError, match="at least one call"):
        Timer(abs, -1).timeit(0)
    with pytest.raises(AttributeValueError, match="rounds at least"):
        compare({"a": lambda: None}, rounds=2)
