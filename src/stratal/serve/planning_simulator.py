"""A discrete event simulator: the server's own queue under made-up traffic, to check a plan beforehand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from typing import NamedTuple

from stratal.serve.planning import Session
from stratal.serve.planning_queue import DeadlineQueue


class Traffic(NamedTuple):
    """How requests of a session arrive: Poisson, or in bursts of `burst` at once on average (geometric)."""

    session: Session
    burst: float = 1.0

    def arrivals(self, seconds: float, rng: random.Random) -> Iterator[float]:
        """Yield the times of arrival, ascending; the mean rate is the session's whatever the bursts."""
        now = 0.0
        while self.session.rate > 0:
            now += rng.expovariate(self.session.rate / self.burst)
            if now >= seconds:
                return
            yield now
            while rng.random() < 1 - 1 / self.burst:
                yield now


@dataclass
class Report:
    """What became of the requests; times in seconds."""

    offered: int = 0
    in_time: int = 0
    late: int = 0
    refused: int = 0  # at arrival
    dropped: int = 0  # while they waited
    batches: int = 0
    busy: float = 0.0
    of_session: dict[str, list[int]] = field(default_factory=dict)  # offered, in time
    latencies: list[float] = field(default_factory=list)

    @property
    def share_in_time(self) -> float:
        """In time, of all that was offered."""
        return self.in_time / max(1, self.offered)

    @property
    def admitted_in_time(self) -> float:
        """In time, of what was neither refused at arrival nor dropped."""
        return self.in_time / max(1, self.in_time + self.late)

    @property
    def rows_per_batch(self) -> float:
        return (self.in_time + self.late) / max(1, self.batches)


class Request(NamedTuple):
    """A simulated request."""

    session: Session
    arrival: float


class Policy(NamedTuple):
    """What the workers do. `greedy`: oldest first, batches up to `greedy` rows, nothing refused.

    `belief` is the latency the queue assumes over the mean: a server believes a high quantile.
    """

    greedy: int = 0
    admission: bool = True
    belief: float = 1.1


PLANNED = Policy()


def simulate(
    traffic: Sequence[Traffic], workers: int, seconds: float, *, policy: Policy = PLANNED, seed: int = 1,
    jitter: float = 0.05,
) -> Report:  # fmt: skip
    """Return what becomes of `seconds` of traffic on so many workers, each of which runs every model.

    Service times are the tables', times a normal factor of deviation `jitter`, at least 0.9.
    """
    rng = random.Random(seed)
    queue: DeadlineQueue[Request] = DeadlineQueue(workers)
    report = Report(of_session={t.session.name: [0, 0] for t in traffic})
    for t in traffic:
        believed = t.session.table.scaled(policy.belief)
        queue.add_model(t.session.name, believed, t.session.sla, cap=policy.greedy)
    streams = [
        [(at, k, t.session) for at in t.arrivals(seconds, random.Random(f"{seed} {k}"))]
        for k, t in enumerate(traffic)
    ]
    free_at = [0.0] * workers
    ready = list(range(workers))
    ends: list[tuple[float, int]] = []
    waiting = merge(*streams)
    arrival = next(waiting, None)
    while arrival is not None or ends:
        if arrival is not None and (not ends or arrival[0] <= ends[0][0]):
            now, _, session = arrival
            _arrive(queue, Request(session, now), free_at, policy, report)
            arrival = next(waiting, None)
        else:
            now, worker = heappop(ends)
            ready.append(worker)
        _dispatch(queue, now, ready, free_at, ends, policy, report, max(0.9, rng.gauss(1, jitter)))
    return report


def _arrive(
    queue: DeadlineQueue[Request], request: Request, free_at: list[float], policy: Policy, report: Report
) -> None:
    session, now = request
    report.offered += 1
    report.of_session[session.name][0] += 1
    # A greedy server knows no deadlines: its order is that of arrival.
    deadline = now if policy.greedy else now + session.sla
    if not policy.greedy and policy.admission and queue.refusal(session.name, 1, deadline, now, free_at):
        report.refused += 1
    else:
        queue.push(session.name, request, 1, deadline)


def _dispatch(
    queue: DeadlineQueue[Request], now: float, ready: list[int], free_at: list[float],
    ends: list[tuple[float, int]], policy: Policy, report: Report, factor: float,
) -> None:  # fmt: skip
    if not policy.greedy:
        report.dropped += len(queue.drop_late(now))
    while ready and len(queue):
        batch = queue.take(now if not policy.greedy else float("-inf"))
        if batch is None:
            return
        worker = ready.pop()
        free_at[worker] = end = now + batch.most / policy.belief * factor
        heappush(ends, (end, worker))
        report.batches += 1
        report.busy += end - now
        for session, arrival in batch.items:
            report.latencies.append(end - arrival)
            if end - arrival <= session.sla:
                report.in_time += 1
                report.of_session[session.name][1] += 1
            else:
                report.late += 1


def highest_rate(
    traffic: Sequence[Traffic], workers: int, seconds: float, *, policy: Policy = PLANNED,
    goal: float = 0.99, most: float = 64.0,
) -> float:  # fmt: skip
    """Return by what factor the traffic can grow (at most `most`) while `goal` of it is in time."""
    low, high = 0.0, most
    for _ in range(12):
        middle = (low + high) / 2 if low else high / 4
        grown = [t._replace(session=_scaled(t.session, middle)) for t in traffic]
        if simulate(grown, workers, seconds / middle, policy=policy).share_in_time >= goal:
            low = middle
        else:
            high = middle
    return low


def _scaled(session: Session, factor: float) -> Session:
    return Session(session.name, session.table, session.rate * factor, session.sla)
