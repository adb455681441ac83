"""Batch sizes from latency tables and an SLA: pure functions of numbers, times in seconds, rates in rows/s.

A batch that starts as its first row arrives makes a row that comes just afterwards wait for it and then run:
two latencies. Hence the largest batch for an SLA is the largest b with 2 latency(b) <= SLA (lectures, 001),
and no larger than the knee of the rate, beyond which a batch only adds latency.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratal.base.errors import AttributeValueError

KNEE = 0.9  # of the best rate: what a smaller batch must reach to be preferred


@dataclass(frozen=True)
class LatencyTable:
    """How long a batch of each size takes, `sizes` ascending. What was measured, a high quantile of it."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = list(self.sizes) == sorted(set(self.sizes)) and self.sizes and self.sizes[0] > 0
        times = len(self.seconds) == len(self.sizes) and all(0 < s < math.inf for s in self.seconds)
        if not ascending or not times:
            raise AttributeValueError(
                "latency table: ascending batch sizes with a time each",
                got=f"{self.sizes} {self.seconds}"[:120],
            )

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> LatencyTable:
        """Return the table of {batch size: seconds}."""
        rows = sorted(measured.items())
        return cls(tuple(size for size, _ in rows), tuple(seconds for _, seconds in rows))

    def size_for(self, rows: int) -> int:
        """Return the smallest size that holds `rows`, or the largest there is."""
        return self.sizes[min(bisect_left(self.sizes, rows), len(self.sizes) - 1)]

    def at(self, size: int) -> float:
        """Return the seconds of one batch of a size of the table."""
        return self.seconds[self.sizes.index(size)]

    def latency(self, rows: int) -> float:
        """Return the seconds of any number of rows: filled up to a size, or cut into largest batches."""
        if rows <= self.sizes[-1]:
            return self.seconds[bisect_left(self.sizes, rows)] if rows else 0.0
        whole, rest = divmod(rows, self.sizes[-1])
        return whole * self.seconds[-1] + self.latency(rest)

    def rate(self, size: int) -> float:
        """Return rows a second in full batches of a size."""
        return size / self.at(size)

    @functools.cached_property  # each request asks for it
    def best_rate(self) -> float:
        """Rows a second at the size that is best for that."""
        return max(map(self.rate, self.sizes))

    def scaled(self, factor: float) -> LatencyTable:
        """Return the table of a machine `factor` times as slow."""
        return LatencyTable(self.sizes, tuple(factor * s for s in self.seconds))

    def with_entry(self, size: int, seconds: float) -> LatencyTable:
        """Return the table with another time for one of its sizes."""
        at = self.sizes.index(size)
        return LatencyTable(self.sizes, (*self.seconds[:at], seconds, *self.seconds[at + 1 :]))


def largest_batch(table: LatencyTable, sla: float) -> int:
    """Return the largest size with 2 latency(size) <= SLA; 0 where there is none."""
    return max((size for size in table.sizes if 2 * table.at(size) <= sla), default=0)


def knee(table: LatencyTable, sla: float = math.inf, share: float = KNEE) -> int:
    """Return the smallest size within `share` of the best rate that the SLA allows; at least the smallest."""
    allowed = [size for size in table.sizes if 2 * table.at(size) <= sla] or [table.sizes[0]]
    best = max(map(table.rate, allowed))
    return next(size for size in allowed if table.rate(size) >= share * best)


@dataclass(frozen=True)
class Session:
    """A promise to plan for: rows of one model at a rate (rows/s), each answered within `sla` seconds."""

    name: str
    table: LatencyTable
    rate: float
    sla: float


class Regime(NamedTuple):
    """Which of the four regimes of the lectures (001) a session is in, and what is done there."""

    rate: str  # "high": one worker is not enough; or "low"
    sla: str  # "tight": it forbids the batch size at the knee; or "loose"
    strategy: str
    why: str


def regime(session: Session) -> Regime:
    """Return the regime of a session and the strategy that suits it."""
    table, ms = session.table, session.sla * 1e3
    free, allowed = knee(table), largest_batch(table, session.sla)
    tight = allowed < free
    capacity = table.rate(knee(table, session.sla))
    high = session.rate >= capacity
    strategy = {
        (True, False): "large batches on workers of its own",
        (True, True): "split batching: each stage at its own size",
        (False, False): "packed with other models",
        (False, True): "small batches, packed"
        if allowed
        else "a worker of its own, rows served as they come",
    }[high, tight]
    limit = f"largest batch with 2 latency <= {ms:g} ms is {allowed or 'none'}"
    why = f"{limit}, the knee is at {free}; {session.rate:g} rows/s of {capacity:.0f} that one worker does"
    return Regime("high" if high else "low", "tight" if tight else "loose", strategy, why)


# -- stages of one model -------------------------------------------------------------------------------------


def least_times(table: LatencyTable, rows: int) -> list[tuple[float, int]]:
    """Return the least seconds for 0, 1, .. `rows` rows, each with the size of one of the batches it takes.

    A batch may be filled up. Cost: O(rows * sizes).
    """
    best: list[tuple[float, int]] = [(0.0, 0)]
    pairs = list(zip(table.sizes, table.seconds, strict=True))
    for n in range(1, rows + 1):
        best.append(min((best[max(0, n - size)][0] + seconds, size) for size, seconds in pairs))
    return best


def split_batch(table: LatencyTable, rows: int) -> tuple[float, tuple[int, ...]]:
    """Return the least seconds for `rows` rows, and the batches, largest first, that take them."""
    best = least_times(table, rows)
    sizes, left = [], rows
    while left > 0:
        sizes.append(best[left][1])
        left -= sizes[-1]
    return best[rows][0], tuple(sorted(sizes, reverse=True))


def split_table(stages: Sequence[LatencyTable]) -> LatencyTable:
    """Return the latency table of stages in a row, each of which cuts a batch into what suits it."""
    sizes = sorted({size for stage in stages for size in stage.sizes})
    return LatencyTable.of({n: sum(split_batch(stage, n)[0] for stage in stages) for n in sizes})


def whole_table(stages: Sequence[LatencyTable]) -> LatencyTable:
    """Return the latency table of stages in a row that all run the same batch."""
    common = sorted(set.intersection(*(set(stage.sizes) for stage in stages)))
    return LatencyTable.of({n: sum(stage.at(n) for stage in stages) for n in common})


# -- pipelines of models -------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A model of a pipeline, and how many of its rows one query makes on average."""

    table: LatencyTable
    rows_per_query: float = 1.0


class Budgets(NamedTuple):
    """How a latency budget is shared out: seconds for each stage, and the workers this needs."""

    seconds: tuple[float, ...]
    workers: float


def split_budget(stages: Iterable[Stage], rate: float, sla: float, steps: int = 200) -> Budgets:
    """Return the split of an SLA over the models of a pipeline that needs the fewest workers.

    `rate` is in queries a second. Dynamic programming over `steps` parts of the SLA (Nexus, SOSP 2019,
    section 6.2). Raises: AttributeValueError where no split gives every model 2 latency(1).
    """
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (steps + 1)
    for stage in stages:
        alone = [_workers(stage, rate, sla * n / steps) for n in range(steps + 1)]
        best = [
            min((best[n - m][0] + alone[m], (*best[n - m][1], m)) for m in range(n + 1))
            for n in range(steps + 1)
        ]
    workers, parts = best[steps]
    if math.isinf(workers):
        raise AttributeValueError(
            "pipeline: no split of the SLA gives every model time for two batches of one row",
            got=f"{sla * 1e3:g} ms",
        )
    return Budgets(tuple(sla * n / steps for n in parts), workers)


def _workers(stage: Stage, rate: float, budget: float) -> float:
    """Return the (fractional) workers a model needs within a budget; infinite where none are enough."""
    allowed = [s for s in stage.table.sizes if 2 * stage.table.at(s) <= budget]
    return rate * stage.rows_per_query / max(map(stage.table.rate, allowed)) if allowed else math.inf
