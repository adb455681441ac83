"""What is known of a model's latency: the last batches of each size, of which quantiles are taken.

Two numbers are wanted of a size: the median, which is what a batch will probably take, and a high quantile,
which is what is promised by. A window has both, and a stall of the machine is one of its samples, however
long it was. A moving average that rises quickly and falls slowly is an expectile instead: one stall of 4 ms
doubled what was believed of a batch of 0.6 ms for the next fifty.

Of a few samples the high quantile is the longest, so one stall decides it, and what is believed slow is
refused and never measured again. Sizes with few samples are therefore bounded by their neighbours.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Final

from stratal.serve.planning import LatencyTable

WINDOW: Final = 32  # batches of a size that count
QUANTILE: Final = 0.9  # that is planned with
MEMORY: Final = 0.05  # seconds of work over which the pace is a mean
MOST_PACE: Final = 3.0  # a stall is no pace
ENOUGH: Final = 10  # samples of which the high quantile is not the longest
STEEPEST: Final = 1.5  # times the rows, that a larger batch takes at most of a smaller one's time
SEED: Final = 4  # samples that a measured median stands for; the high quantile is one more


class Window:
    """The last samples of one batch size, in seconds, ordered by time and by length."""

    __slots__ = ("_by_time", "_sorted", "observed")

    def __init__(self, typical: float, high: float) -> None:
        self._by_time = deque([high, *[typical] * SEED])
        self._sorted = sorted(self._by_time)
        self.observed = 0

    def add(self, seconds: float) -> None:
        if len(self._by_time) == WINDOW:
            self._forget(self._by_time.popleft())
        self._by_time.append(seconds)
        insort(self._sorted, seconds)
        self.observed += 1

    def _forget(self, seconds: float) -> None:
        del self._sorted[bisect_left(self._sorted, seconds)]

    def quantile(self, share: float) -> float:
        """Return the smallest sample that so large a share of all does not exceed."""
        return self._sorted[max(0, math.ceil(share * len(self._sorted) - 1e-9) - 1)]

    def ease(self, most: float) -> None:
        """Let the longest sample be no longer than `most`."""
        longest = self._sorted[-1]
        if longest > most:
            self._sorted.pop()
            insort(self._sorted, most)
            self._by_time[self._by_time.index(longest)] = most


class Pace:
    """How many times as long as their high quantile batches take of late, at least 1.

    A machine that others use slows down for all models. The mean is over `MEMORY` seconds of work, so this is
    known after a batch or two; tables, by model and size, would take dozens to follow.
    """

    def __init__(self) -> None:
        self._mean = 1.0

    def observe(self, seconds: float, high: float) -> None:
        share = 1 - math.exp(-high / MEMORY)  # by its seconds a stall would count twice
        self._mean += share * (min(seconds / high, MOST_PACE) - self._mean)

    @property
    def factor(self) -> float:
        return max(1.0, self._mean)


def bounded(sizes: Sequence[int], seconds: Sequence[float], certain: Sequence[bool]) -> list[float]:
    """Return times by size, of which those that are not certain are no longer than neighbours allow.

    A batch takes no longer than a larger one that it could be filled up to, and no more than `STEEPEST` times
    as long for a row as the next smaller one.
    """
    found = list(seconds)
    for k in reversed(range(len(found) - 1)):
        if not certain[k]:
            found[k] = min(found[k], found[k + 1])
    for k in range(1, len(found)):
        if not certain[k]:
            found[k] = min(found[k], STEEPEST * sizes[k] / sizes[k - 1] * found[k - 1])
    return found


class Latencies:
    """The windows of a model's batch sizes; they begin with what was measured when it was loaded.

    `high` is a quantile of 90 % by size, `typical` the median; sizes with few samples are bounded.
    """

    def __init__(self, high: LatencyTable, typical: LatencyTable | None = None) -> None:
        typical = typical or high
        self.high, self.typical = high, typical
        pairs = zip(high.sizes, typical.seconds, high.seconds, strict=True)
        self._windows = {size: Window(min(median, most), most) for size, median, most in pairs}

    def observe(self, rows: int, seconds: float) -> None:
        """Take note of how long a batch took; nothing is learned from one that was cut into several."""
        if rows <= self.high.sizes[-1]:
            self._windows[self.high.size_for(rows)].add(seconds)
            self._changed()

    def ease(self, measured: LatencyTable) -> None:
        """Believe a little less of what made the model slower than it was when it was loaded."""
        for size, most in zip(measured.sizes, measured.seconds, strict=True):
            if self.high.at(size) > most:
                self._windows[size].ease(most)
        self._changed()

    def _changed(self) -> None:
        windows = self._windows.values()
        certain = [window.observed >= ENOUGH for window in windows]
        self.high, self.typical = (
            LatencyTable(self.high.sizes, tuple(bounded(self.high.sizes, times, certain)))
            for times in ([w.quantile(QUANTILE) for w in windows], [w.quantile(0.5) for w in windows])
        )
