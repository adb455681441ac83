"""What is known of a model's latency: the last batches of each size, of which quantiles are taken.

Two numbers are wanted of a size: the median, which is what a batch will probably take, and a high quantile,
which is what is promised by. A window has both, and a stall of the machine is one of its samples, however
long it was. A moving average that rises quickly and falls slowly is an expectile instead: one stall of 4 ms
doubled what was believed of a batch of 0.6 ms for the next fifty.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

from stratal.serve.planning import LatencyTable

WINDOW: Final = 32  # batches of a size that count
QUANTILE: Final = 0.9  # that is planned with
MEMORY: Final = 0.05  # seconds of work over which the pace is a mean
MOST_PACE: Final = 3.0  # a stall is no pace
SEED: Final = 4  # samples that a measured median stands for; the high quantile is one more


class Window:
    """The last samples of one batch size, in seconds, ordered by time and by length."""

    __slots__ = ("_by_time", "_sorted")

    def __init__(self, typical: float, high: float) -> None:
        self._by_time = deque([high, *[typical] * SEED])
        self._sorted = sorted(self._by_time)

    def add(self, seconds: float) -> None:
        if len(self._by_time) == WINDOW:
            self._forget(self._by_time.popleft())
        self._by_time.append(seconds)
        insort(self._sorted, seconds)

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
        share = 1 - math.exp(-seconds / MEMORY)
        self._mean += share * (min(seconds / high, MOST_PACE) - self._mean)

    @property
    def factor(self) -> float:
        return max(1.0, self._mean)


class Latencies:
    """The windows of a model's batch sizes; they begin with what was measured when it was loaded.

    `high` is a quantile of 90 % by size, `typical` the median.
    """

    def __init__(self, high: LatencyTable, typical: LatencyTable | None = None) -> None:
        typical = typical or high
        self.high, self.typical = high, typical
        pairs = zip(high.sizes, typical.seconds, high.seconds, strict=True)
        self._windows = {size: Window(min(median, most), most) for size, median, most in pairs}

    def observe(self, rows: int, seconds: float) -> None:
        """Take note of how long a batch took; nothing is learned from one that was cut into several."""
        if rows <= self.high.sizes[-1]:
            size = self.high.size_for(rows)
            self._windows[size].add(seconds)
            self._changed(size)

    def ease(self, measured: LatencyTable) -> None:
        """Believe a little less of what made the model slower than it was when it was loaded."""
        for size, most in zip(measured.sizes, measured.seconds, strict=True):
            if self.high.at(size) > most:
                self._windows[size].ease(most)
                self._changed(size)

    def _changed(self, size: int) -> None:
        window = self._windows[size]
        self.high = self.high.with_entry(size, window.quantile(QUANTILE))
        self.typical = self.typical.with_entry(size, window.quantile(0.5))
