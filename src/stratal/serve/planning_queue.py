"""Earliest deadline first with dynamic batches: what a free worker runs next, and what is refused or dropped.

The clock is an argument, so the server and the simulator run the same code. For each model there is a queue
by deadline. The model whose batch must start first (deadline of its first row less the batch's latency) is
served. A batch holds at most the rows of the model's knee, is not filled up where the next smaller size has
the better rate, and is no larger than lets its first row be in time. What cannot be in time even alone is
dropped early: it would only make others late.

Admission works out the batches that would run if nothing else came (`stratal.serve.planning_schedule`), and
refuses a request that would be late itself or would make another late that was admitted before.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from stratal.serve.planning import LatencyTable, knee
from stratal.serve.planning_latency import Latencies, Pace
from stratal.serve.planning_schedule import Planned, appended, batches_of, schedule

T = TypeVar("T")
EASE_SECONDS: Final = 0.2


class Entry(NamedTuple, Generic[T]):
    """A queued request; ordered by deadline, then by arrival."""

    deadline: float
    number: int
    rows: int
    item: T


class Batch(NamedTuple, Generic[T]):
    """What to run next: requests of one model, their rows, the size they are filled up to."""

    model: str
    items: list[T]
    rows: int
    seconds: float  # predicted: the median
    most: float  # the high quantile


@dataclass
class ModelQueue(Generic[T]):
    """The requests of one model, first deadline first, and what is known of its latency."""

    latencies: Latencies
    sla: float
    most_rows: int = 0  # of a batch, where it is not the knee
    cap: int = field(init=False)
    eased: float = -math.inf  # when it was last believed faster
    entries: list[Entry[T]] = field(default_factory=list)
    rows: int = 0
    planned: list[Planned] | None = None  # the batches of `entries`, until something changes

    def __post_init__(self) -> None:
        self.learned()

    def learned(self) -> None:
        """Follow what is known of the latency: batches end at the knee of the median."""
        self.cap = self.most_rows or knee(self.latencies.typical, self.sla)
        self.planned = None

    @property
    def table(self) -> LatencyTable:
        """The high quantile, which is planned with."""
        return self.latencies.high

    def pop(self, count: int) -> list[T]:
        taken = self.entries[:count]
        del self.entries[:count]
        self.rows -= sum(e.rows for e in taken)
        self.planned = None
        return [e.item for e in taken]

    def batches(self) -> list[Planned]:
        """Return the batches that would run if nothing else came."""
        if self.planned is None:
            self.planned = batches_of(((e.deadline, e.rows) for e in self.entries), self.cap, self.table)
        return self.planned

    def batches_with(self, deadline: float, rows: int) -> list[Planned]:
        """Return the same with one more request."""
        if not self.entries or self.entries[-1].deadline <= deadline:  # as where all ask for the same time
            return appended(self.batches(), deadline, rows, self.cap, self.table, own=True)
        at = bisect_right(self.entries, deadline, key=lambda e: e.deadline)
        waiting = [(e.deadline, e.rows) for e in self.entries]
        waiting.insert(at, (deadline, rows))
        return batches_of(waiting, self.cap, self.table, own=at)

    def most_seconds(self) -> float:
        """Return what its batches take at most: all but the last are more than half full, two by two."""
        return (2 * self.rows / self.cap + 1) * self.table.latency(self.cap) if self.entries else 0.0

    def least_seconds(self, deadline: float) -> float:
        """Return what the rows that are due before a deadline take at least: at the model's best rate."""
        count = bisect_right(self.entries, deadline, key=lambda e: e.deadline)
        return count / len(self.entries) * self.rows / self.table.best_rate


class DeadlineQueue(Generic[T]):
    """Requests of several models for a number of equal workers; see the module's text for the policy."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._models: dict[str, ModelQueue[T]] = {}
        self._number = 0
        self.pace = Pace()

    def add_model(self, name: str, table: LatencyTable, sla: float, *, cap: int = 0,
                  typical: LatencyTable | None = None) -> None:  # fmt: skip
        """Queue for a model from now on; batches up to `cap` rows, by default the knee under its SLA.

        `table` is a high quantile of the latency, `typical` the median, where that is known.
        """
        self._models[name] = ModelQueue(Latencies(table, typical), sla, cap)

    def remove_model(self, name: str) -> list[T]:
        """Forget a model; return the requests that waited for it."""
        queue = self._models.pop(name, None)
        return [e.item for e in queue.entries] if queue else []

    def knows(self, name: str) -> bool:
        """Return whether there is a queue for a model."""
        return name in self._models

    def table(self, name: str) -> LatencyTable:
        """Return what is believed of a model's latency: the high quantile."""
        return self._models[name].table

    def typical(self, name: str) -> LatencyTable:
        """Return what is believed of a model's median latency."""
        return self._models[name].latencies.typical

    def observe(self, name: str, rows: int, seconds: float) -> None:
        """Take note of how long a batch took; sizes that were cut into several are not learned from."""
        queue = self._models.get(name)
        if queue is not None:
            self.pace.observe(seconds, queue.table.latency(rows))
            queue.latencies.observe(rows, seconds)
            queue.learned()

    def ease(self, name: str, measured: LatencyTable, now: float) -> None:
        """Believe a model a little faster again, at most once in `EASE_SECONDS`.

        For a model that is refused, maybe because it seems slow: nothing of it runs, so nothing else would
        ever correct what a stall of the machine made of its table. Others may run meanwhile.
        """
        queue = self._models[name]
        if now >= queue.eased + EASE_SECONDS:
            queue.eased = now
            queue.latencies.ease(measured)
            queue.learned()

    def __len__(self) -> int:
        return sum(len(q.entries) for q in self._models.values())

    def waiting(self, name: str) -> int:
        """Return how many requests of a model wait."""
        return len(self._models[name].entries) if name in self._models else 0

    def refusal(self, name: str, rows: int, deadline: float, now: float, free_at: Sequence[float]) -> str:
        """Return why a request that arrives now cannot be in time, or nothing.

        `free_at`: when each worker is free. It cannot where it would itself be late if nothing else came, or
        would make requests late that were admitted before.
        """
        queue = self._models[name]
        pace = self.pace.factor
        own = pace * queue.table.latency(rows)
        if now + own > deadline:
            left = max(0.0, deadline - now)
            return f"it takes {own * 1e3:.3g} ms and {left * 1e3:.3g} ms are left until its deadline"
        waiting = [q for q in self._models.values() if q.entries]
        work = own + pace * sum(q.most_seconds() for q in waiting)
        if max(now, *free_at, now) + work <= min([deadline, *(q.entries[0].deadline for q in waiting)]):
            return ""  # all of it one after another, on the worker that is free last, is in time
        ahead = pace * sum(q.least_seconds(deadline) for q in waiting) / max(1, len(free_at))
        if now + ahead + own > deadline:
            return _too_late(ahead + own, deadline - now)
        others = [batch for q in waiting if q is not queue for batch in q.batches()]
        found = schedule([*others, *queue.batches_with(deadline, rows)], now, free_at, pace)
        if found.own > deadline:
            return _too_late(found.own - now, deadline - now)
        if found.late and found.late > schedule([*others, *queue.batches()], now, free_at, pace).late:
            return f"it takes {own * 1e3:.3g} ms, and others would be late that were admitted before"
        return ""

    def push(self, name: str, item: T, rows: int, deadline: float) -> None:
        """Queue a request."""
        self._number += 1
        queue = self._models[name]
        entry, entries = Entry(deadline, self._number, rows, item), queue.entries
        if not entries or entries[-1].deadline <= deadline:
            entries.append(entry)
            if queue.planned is not None:
                queue.planned = appended(queue.planned, deadline, rows, queue.cap, queue.table)
        else:
            queue.planned = None
            insort(entries, entry, key=lambda e: (e.deadline, e.number))
        queue.rows += rows

    def drop_late(self, now: float) -> list[T]:
        """Remove and return requests at the front that cannot be in time any more, not even alone."""
        late: list[T] = []
        pace = self.pace.factor
        for queue in self._models.values():
            count = 0
            for entry in queue.entries:
                if now + pace * queue.table.latency(entry.rows) <= entry.deadline:
                    break
                count += 1
            if count:
                late += queue.pop(count)
        return late

    def take(self, now: float) -> Batch[T] | None:
        """Remove and return the batch that must start first; None where nothing waits."""
        best: tuple[float, str, int, int] | None = None
        for name, queue in self._models.items():
            if queue.entries:
                count, rows = _sized(queue, now)
                latest = queue.entries[0].deadline - queue.table.latency(rows)
                if best is None or latest < best[0]:
                    best = latest, name, count, rows
        if best is None:
            return None
        _, name, count, rows = best
        latencies = self._models[name].latencies
        typical, most = latencies.typical.latency(rows), latencies.high.latency(rows)
        return Batch(name, self._models[name].pop(count), rows, typical, most)


def _too_late(takes: float, left: float) -> str:
    return f"it would wait and run for {takes * 1e3:.3g} ms; its deadline is in {left * 1e3:.3g} ms"


def _sized(queue: ModelQueue[T], now: float) -> tuple[int, int]:
    """Return how many requests from the front make a batch, and their rows."""
    table = queue.table
    count, rows = _within(queue.entries, queue.cap)
    below = max((s for s in table.sizes if s < rows), default=0)
    above = table.size_for(rows)
    if below and rows < above and rows / table.at(above) < table.rate(below):
        count, rows = _within(queue.entries, below)  # filling it up would cost rate
    while count > 1 and now + table.latency(rows) > queue.entries[0].deadline:
        smaller = max((s for s in table.sizes if s < rows), default=1)
        count, rows = _within(queue.entries[: count - 1], smaller)
    return count, rows


def _within(entries: Sequence[Entry[T]], limit: int) -> tuple[int, int]:
    """Return how many entries have at most `limit` rows together, one at least, and their rows."""
    count, rows = 1, entries[0].rows
    while count < len(entries) and rows + entries[count].rows <= limit:
        rows += entries[count].rows
        count += 1
    return count, rows
