"""Timing that refuses what is no measurement: work not waited for, work not warmed up.

    Timer(step, x, y).blocked_autorange()            a Measurement: median, 95 % interval, spread
    compare({"fused": f, "plain": g})                interleaved in random order; ratios with intervals

Names and meaning follow torch.utils.benchmark. See Hoefler, Belli, "Scientific Benchmarking of Parallel
Computing Systems" (SC 2015) on medians, intervals and the order of runs.
"""

from __future__ import annotations

import inspect
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from stratal.base import tree
from stratal.base.collector import collector_paused
from stratal.base.errors import AttributeValueError, MeasurementError
from stratal.base.log import duration
from stratal.base.source import SourceLine, user_line
from stratal.inspect.intervals import Interval, median_interval
from stratal.runtime.storage import Storage
from stratal.tensor.lazy import flushing, program_cache, work_set
from stratal.tensor.tensor import Tensor

MOST_WARM_CALLS: Final = 24  # until a call compiles nothing
CALM_CALLS: Final = 3  # such calls in a row, before time counts
LEAST_BLOCK_S: Final = 1e-3  # of one timed block: the clock's own cost is a thousandth of a percent of it
LEAST_BLOCKS: Final = 6  # the fewest whose extremes bound the median with 95 %
DRIFT: Final = 0.25  # medians of the first and the last third differ by more: no steady state


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one call in seconds, one per block of `number_per_run` calls.

    `notes` say what a reader should know: hidden synchronisations, drift.
    """

    label: str
    times: tuple[float, ...]
    number_per_run: int
    notes: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.times)

    @property
    def interval(self) -> Interval:
        """The median with the interval that holds the true one at 95 %."""
        return median_interval(self.times)

    @property
    def iqr(self) -> float:
        """The distance between the quartiles."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        low, high = duration(self.interval.low), duration(self.interval.high)
        head = f"{self.label}: {duration(self.median)} (95 %: {low} to {high}; {len(self.times)} blocks of "
        return "\n".join([f"{head}{self.number_per_run})", *(f"  {note}" for note in self.notes)])


class Timer:
    """Times calls of a function, after warming it up.

    A call whose result is not computed when it returns (lazy tensors, futures, arrays that another library
    computes in the background) is refused, unless `synchronize` says how to wait: True computes every lazy
    tensor, a function is called with the result. So is a function that compiles in every call.
    """

    def __init__(
        self, function: Callable[..., Any], *args: Any, label: str = "",
        synchronize: bool | Callable[[Any], object] = False, **kwargs: Any
    ) -> None:
        self.label: Final = label or getattr(function, "__name__", type(function).__name__)
        self._function: Final = function
        self._args: Final = args
        self._kwargs: Final = kwargs
        self._wait: Final = (lambda _: flushing.flush_all()) if synchronize is True else synchronize or None
        self._warm = False
        self.callers: Counter[SourceLine | None] = Counter()  # who ran programs in the last warm call

    def timeit(self, number: int = 100) -> Measurement:
        """Time `number` calls one by one. Raises: MeasurementError, AttributeValueError."""
        if number < 1:
            raise AttributeValueError("timeit: at least one call", got=f"number={number}")
        self.warm_up()
        with self.measuring():
            times = tuple(self.block(1) for _ in range(number))
        return self.measurement(times, 1)

    def blocked_autorange(self, min_run_time: float = 0.2) -> Measurement:
        """Time blocks of calls, each long enough for the clock, for at least `min_run_time` seconds.

        Raises: MeasurementError.
        """
        number = self.calls_per_block()
        times: list[float] = []
        with self.measuring():
            while len(times) < LEAST_BLOCKS or sum(times) * number < min_run_time:
                times.append(self.block(number))
        return self.measurement(tuple(times), number)

    def warm_up(self) -> None:
        """Call until nothing is compiled any more. Raises: MeasurementError."""
        if self._warm:
            return
        calm = 0
        for _ in range(MOST_WARM_CALLS):
            compiled = self._state()
            self._call_checked()
            calm = calm + 1 if self._state() == compiled else 0
            if calm == CALM_CALLS:
                self._warm = True
                return
        raise MeasurementError(
            f"{self.label}: it never gets warm",
            got=f"{MOST_WARM_CALLS} calls, and something was compiled in each few of them{self._reason()}",
            hint="call it with arguments of the same types each time; step.reasons tells what changed",
        )

    def calls_per_block(self) -> int:
        """Warm up; return how many calls one block needs."""
        self.warm_up()
        number = 1
        while (taken := self.block(number) * number) < LEAST_BLOCK_S:
            number = max(2 * number, int(number * LEAST_BLOCK_S / max(taken, 1e-9)))
        return number

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Collect no garbage inside. Raises: MeasurementError where something was compiled inside."""
        before = self._state()
        with collector_paused():
            yield
        if self._state() != before:
            raise MeasurementError(
                f"{self.label}: something was compiled while it was timed",
                got=f"the times are not of a warm function{self._reason()}",
                hint="warm it up with every kind of call that is timed",
            )

    def block(self, number: int) -> float:
        """Return the seconds of one call, by the clock around `number` of them."""
        function, args, kwargs, wait = self._function, self._args, self._kwargs, self._wait
        start = time.perf_counter()
        for _ in range(number):
            result = function(*args, **kwargs)
            if wait is not None:
                wait(result)
        return (time.perf_counter() - start) / number

    def measurement(self, times: Sequence[float], number: int) -> Measurement:
        """Return times with what is to be said of them."""
        return Measurement(self.label, tuple(times), number, (*self._syncs(), *_drift(times)))

    def _state(self) -> tuple[int, int]:
        return program_cache.COMPILED[0], int(getattr(self._function, "captures", 0))

    def _reason(self) -> str:
        reasons = getattr(self._function, "reasons", ())
        return f": {reasons[-1]}" if reasons else ""

    def _call_checked(self) -> None:
        """Call once; refuse a result that is not there yet, and lazy work left behind."""
        self.callers = Counter()
        waiting = len(work_set.pending_tensors())
        with program_cache.watched(_Callers(self.callers)):
            result = self._function(*self._args, **self._kwargs)
            if self._wait is not None:
                self._wait(result)
        late = _unfinished(result, waited=self._wait is not None)
        left = max(len(work_set.pending_tensors()) - waiting, 0)
        if late or left:
            raise MeasurementError(
                f"{self.label}: it returns before its work is done",
                got=late or f"{left} lazy tensors without a value are left behind",
                hint="time what st.compile returns, or pass synchronize=True (or a function that waits)",
            )

    def _syncs(self) -> Iterator[str]:
        """Tell of calls that stop more than once to compute: each is a hidden synchronisation."""
        total = sum(self.callers.values())
        if total > 1:
            most = self.callers.most_common(4)
            lines = ", ".join(f"{line} x{n}" if n > 1 else f"{line}" for line, n in most)
            yield f"{total} programs run in each call, started at {lines}: every one waits for values"


class _Callers:
    """Counts which of the user's lines run programs."""

    def __init__(self, found: Counter[SourceLine | None]) -> None:
        self.found = found

    def compiled(self, program: Any, started_ns: int) -> None:
        """Compiling is seen elsewhere."""

    def run(self, program: Any, inputs: list[Storage]) -> list[Storage]:
        self.found[user_line()] += 1
        made: list[Storage] = program.run(inputs)
        return made


def _unfinished(result: Any, waited: bool) -> str:
    """Return what of a result is still being computed, or an empty string.

    Other libraries' arrays do not tell: they are believed once somebody waited.
    """
    for leaf in tree.flatten(result)[0]:
        if isinstance(leaf, Tensor) and leaf._storage is None:
            return f"a {leaf.type} that is not computed yet"
        if (isinstance(leaf, Future) and not leaf.done()) or inspect.isawaitable(leaf):
            return f"a {type(leaf).__name__} that nobody waits for"
        if not waited and (getattr(leaf, "is_cuda", False) or hasattr(leaf, "block_until_ready")):
            kind = f"{type(leaf).__module__}.{type(leaf).__name__}"
            return f"a {kind}, which its library computes in the background"
    return ""


def _drift(times: Sequence[float]) -> Iterator[str]:
    third = len(times) // 3
    if third >= 2:
        first, last = statistics.median(times[:third]), statistics.median(times[-third:])
        if abs(first - last) > DRIFT * min(first, last):
            yield f"no steady state: {duration(first)} in the first third, {duration(last)} in the last"


# -- comparing -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Comparison:
    """Measurements taken in turns, by label; ratios are relative to the first."""

    measurements: Mapping[str, Measurement]

    @property
    def baseline(self) -> str:
        return next(iter(self.measurements))

    def ratio(self, label: str, to: str = "") -> Interval:
        """Return the time of `label` over that of `to`, the baseline: the median ratio of all turns."""
        mine, others = self.measurements[label].times, self.measurements[to or self.baseline].times
        return median_interval([a / b for a, b in zip(mine, others, strict=True)])

    def __str__(self) -> str:
        lines = []
        for label, measured in self.measurements.items():
            ratio = self.ratio(label)
            lines.append(str(measured))
            if label != self.baseline:
                interval = f"95 %: {ratio.low:.3f} to {ratio.high:.3f}"
                lines.append(f"  {ratio.median:.3f} of the time of {self.baseline} ({interval})")
        return "\n".join(lines)


def compare(
    functions: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 15,
    seed: int = 0,
    synchronize: bool | Callable[[Any], object] = False,
) -> Comparison:
    """Time functions in turns: every round runs a block of each, in an order drawn anew.

    What slows the machine down for a while then slows all of them. Raises: MeasurementError for a function
    that `Timer` refuses; AttributeValueError for too few rounds or functions.
    """
    if not functions or rounds < LEAST_BLOCKS:
        got = f"{len(functions)} functions, {rounds} rounds"
        raise AttributeValueError(f"compare: one function and {LEAST_BLOCKS} rounds at least", got=got)
    timers = {label: Timer(f, label=label, synchronize=synchronize) for label, f in functions.items()}
    numbers = {label: timer.calls_per_block() for label, timer in timers.items()}
    times: dict[str, list[float]] = {label: [] for label in timers}
    order, draw = list(timers), random.Random(seed)
    for _ in range(rounds):
        draw.shuffle(order)
        for label in order:
            with timers[label].measuring():
                times[label].append(timers[label].block(numbers[label]))
    return Comparison({k: timer.measurement(times[k], numbers[k]) for k, timer in timers.items()})
