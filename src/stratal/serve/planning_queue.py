"""Earliest deadline first with dynamic batches: what a free worker runs next, and what is refused or dropped.

The clock is an argument, so the server and the simulator run the same code. For each model there is a queue
by deadline. The model whose batch must start first (deadline of its first row less the batch's latency) is
served. A batch holds at most the rows of the model's knee, is not filled up where the next smaller size has
the better rate, and is no larger than lets its first row be in time. What cannot be in time even alone is
dropped early: it would only make others late.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from stratal.serve.planning import LatencyTable, eased, knee

T = TypeVar("T")


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
    seconds: float  # predicted


@dataclass
class ModelQueue(Generic[T]):
    """The requests of one model, first deadline first, and what is known of its latency."""

    table: LatencyTable
    cap: int
    entries: list[Entry[T]] = field(default_factory=list)
    rows: int = 0

    def pop(self, count: int) -> list[T]:
        taken = self.entries[:count]
        del self.entries[:count]
        self.rows -= sum(e.rows for e in taken)
        return [e.item for e in taken]


class DeadlineQueue(Generic[T]):
    """Requests of several models for a number of equal workers; see the module's text for the policy."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._models: dict[str, ModelQueue[T]] = {}
        self._number = 0

    def add_model(self, name: str, table: LatencyTable, sla: float, *, cap: int = 0) -> None:
        """Queue for a model from now on; batches up to `cap` rows, by default the knee under its SLA."""
        self._models[name] = ModelQueue(table, cap or knee(table, sla))

    def remove_model(self, name: str) -> list[T]:
        """Forget a model; return the requests that waited for it."""
        queue = self._models.pop(name, None)
        return [e.item for e in queue.entries] if queue else []

    def knows(self, name: str) -> bool:
        """Return whether there is a queue for a model."""
        return name in self._models

    def table(self, name: str) -> LatencyTable:
        """Return what is believed of a model's latency."""
        return self._models[name].table

    def observe(self, name: str, rows: int, seconds: float) -> None:
        """Take note of how long a batch took; sizes that were cut into several are not learned from."""
        queue = self._models.get(name)
        if queue is not None and rows <= queue.table.sizes[-1]:
            queue.table = queue.table.observed(queue.table.size_for(rows), seconds)

    def ease(self, name: str, measured: LatencyTable) -> None:
        """Believe a model a little faster again. For a model that is refused because it seems slow: nothing
        of it runs, so nothing else would ever correct what a stall of the machine made of its table.
        """
        queue = self._models[name]
        queue.table = eased(queue.table, measured)

    def __len__(self) -> int:
        return sum(len(q.entries) for q in self._models.values())

    def waiting(self, name: str) -> int:
        """Return how many requests of a model wait."""
        return len(self._models[name].entries) if name in self._models else 0

    def refusal(self, name: str, rows: int, deadline: float, now: float, free_at: Sequence[float]) -> str:
        """Return why a request that arrives now cannot be in time, or nothing.

        The assumption is in its favour: what is queued with an earlier deadline runs at its
        model's best rate on all workers (`free_at`: when each is free), then the request alone.
        """
        queue = self._models[name]
        own = queue.table.latency(rows)
        if now + own > deadline:
            left = max(0.0, deadline - now)
            return f"it takes {own * 1e3:.3g} ms and {left * 1e3:.3g} ms are left until its deadline"
        ahead = sum(self._ahead(q, deadline) for q in self._models.values())
        start = _when(ahead, now, free_at)
        if start + own <= deadline:
            return ""
        waits, time = (start - now) * 1e3, (deadline - now) * 1e3
        return f"it would wait {waits:.3g} ms and take {own * 1e3:.3g} ms; its deadline is in {time:.3g} ms"

    @staticmethod
    def _ahead(queue: ModelQueue[T], deadline: float) -> float:
        """Return the least seconds of work of a model that is due before a deadline."""
        if not queue.entries:
            return 0.0
        count = bisect_right(queue.entries, deadline, key=lambda e: e.deadline)
        return count / len(queue.entries) * queue.rows / queue.table.best_rate

    def push(self, name: str, item: T, rows: int, deadline: float) -> None:
        """Queue a request."""
        self._number += 1
        queue = self._models[name]
        entry, entries = Entry(deadline, self._number, rows, item), queue.entries
        if not entries or entries[-1].deadline <= deadline:  # as where all ask for the same time
            entries.append(entry)
        else:
            insort(entries, entry, key=lambda e: (e.deadline, e.number))
        queue.rows += rows

    def drop_late(self, now: float) -> list[T]:
        """Remove and return requests at the front that cannot be in time any more, not even alone."""
        late: list[T] = []
        for queue in self._models.values():
            count = 0
            for entry in queue.entries:
                if now + queue.table.latency(entry.rows) <= entry.deadline:
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
        queue = self._models[name]
        seconds = queue.table.latency(rows)
        return Batch(name, queue.pop(count), rows, seconds)


def _when(work: float, now: float, free_at: Sequence[float]) -> float:
    """Return when workers that become free at these times have done some seconds of work, shared evenly."""
    times = sorted(max(now, at) for at in free_at) or [now]
    for count, at in enumerate(times[1:], 1):
        if count * (at - times[0]) - sum(t - times[0] for t in times[:count]) >= work:
            return (work + sum(times[:count])) / count
    return (work + sum(times)) / len(times)


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
