"""The batches that would run if nothing else came, and which of them would be late: what admission stands on.

Where a request has company it costs what the larger batch takes longer; where it is the first of its model
it costs a batch. Work in rows at the model's best rate, which might be counted instead, is up to 15 times too
little where few rows of a model wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from stratal.serve.planning import LatencyTable


class Planned(NamedTuple):
    """A batch that would run, ordered by when it must start; `own` has the request that is asked about."""

    starts_by: float
    seconds: float
    deadline: float  # of its first request
    rows: int
    own: bool = False


class Schedule(NamedTuple):
    """When the batch ends that has the request that is asked about, and how many rows would be late."""

    own: float
    late: int


def batches_of(
    waiting: Iterable[tuple[float, int]], cap: int, table: LatencyTable, own: int = -1
) -> list[Planned]:
    """Return the batches of requests (deadline, rows) in order of their deadlines.

    `own` is the index of the request that is asked about.
    """
    found: list[Planned] = []
    rows, first, has_own = 0, 0.0, False

    def close() -> None:
        seconds = table.latency(rows)
        found.append(Planned(first - seconds, seconds, first, rows, has_own))

    for k, (deadline, count) in enumerate(waiting):
        if rows and rows + count > cap:
            close()
            rows, has_own = 0, False
        if not rows:
            first = deadline
        rows += count
        has_own = has_own or k == own
    if rows:
        close()
    return found


def appended(
    batches: list[Planned], deadline: float, rows: int, cap: int, table: LatencyTable, own: bool = False
) -> list[Planned]:
    """Return the same with a request more, which is due last."""
    last = batches[-1] if batches else None
    if last is None or last.rows + rows > cap:
        seconds = table.latency(rows)
        return [*batches, Planned(deadline - seconds, seconds, deadline, rows, own)]
    seconds = table.latency(last.rows + rows)
    return [*batches[:-1], Planned(last.deadline - seconds, seconds, last.deadline, last.rows + rows, own)]


def schedule(batches: Iterable[Planned], now: float, free_at: Sequence[float], pace: float = 1.0) -> Schedule:
    """Return what becomes of batches that run in the order in which they must start.

    `free_at`: when each worker takes its next batch; `pace`: how many times as long as planned they take.
    """
    free = [max(now, at) for at in free_at] or [now]
    heapify(free)
    own, late = now, 0
    for batch in sorted(batches):
        end = free[0] + pace * batch.seconds
        heapreplace(free, end)
        if batch.own:
            own = end
        if end > batch.deadline:
            late += batch.rows
    return Schedule(own, late)
