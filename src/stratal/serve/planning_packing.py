"""Squishy bin packing (Nexus, SOSP 2019, section 6.1): sessions on as few workers as keep every SLA.

A session with enough rows for a worker of its own fills workers with its largest batch. What is left of it is
a batch of b rows every duty cycle of d seconds, with latency(b) + d <= SLA; two such are merged on one worker
by shortening both to the smaller cycle, which makes their batches smaller (they are squishy), as long as all
of them still fit into the cycle. A session whose SLA is below two latencies has no cycle: it gets workers of
its own, as many as make its waiting short enough.

A cycle holds a batch of every session, however seldom one is asked: many sessions of low rates and tight SLAs
fit into none. Where there are too few workers for that, sessions share one without a cycle, as long as
Poisson arrivals, served as they come, are in time often enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from stratal.serve.planning import Session, largest_batch, regime

UTILIZATION = 0.8  # what is planned for is the declared rate over this: arrivals come in clumps
GOAL = 0.99  # share of the rows that must be in time
MOST_WORKERS = 10_000


class Share(NamedTuple):
    """A session's part of a worker: batches of `batch` rows, `rate` rows a second in all."""

    session: Session
    batch: int
    rate: float


class Worker(NamedTuple):
    """What one worker does in a duty cycle (seconds), and the part of its time that is busy.

    Without a cycle (0) rows are served as they come.
    """

    shares: tuple[Share, ...]
    duty_cycle: float
    occupancy: float


class Refusal(NamedTuple):
    """A session that is not taken, and why."""

    session: Session
    reason: str


class Packing(NamedTuple):
    """Workers for the sessions that are taken, and those that are not."""

    workers: tuple[Worker, ...]
    refused: tuple[Refusal, ...]


def infeasible(session: Session) -> str:
    """Return why no number of workers keeps a session's SLA, or nothing."""
    first = session.table.seconds[0]
    if first > session.sla:
        return (
            f"a batch of {session.table.sizes[0]} takes {first * 1e3:.3g} ms alone, its SLA is "
            f"{session.sla * 1e3:g} ms"
        )
    if 2 * first > session.sla and _dedicated(session, GOAL) is None:
        return (
            f"at {session.rate:g} rows/s, no {MOST_WORKERS} workers of its own keep {session.sla * 1e3:g} ms"
        )
    return ""


def pack(sessions: Sequence[Session], utilization: float = UTILIZATION, goal: float = GOAL) -> Packing:
    """Return workers for every session that is feasible at all; those that are not are refused."""
    refused = [Refusal(s, reason) for s in sessions if (reason := infeasible(s))]
    taken = [s for s in sessions if not infeasible(s) and s.rate > 0]
    full: list[Worker] = []
    rest: list[Worker] = []
    for session in taken:
        rate = session.rate / utilization
        if largest_batch(session.table, session.sla) == 0:
            full += _alone(session, goal)
            continue
        filled, left = _full(session, rate)
        full += filled
        if left > 1e-9 * rate:
            rest.append(_residual(session, left))
    merged: list[Worker] = []
    for worker in sorted(rest, key=lambda w: -w.occupancy):
        options = [(w, both) for w in merged if (both := merge(w, worker)) is not None]
        if options:
            old, both = max(options, key=lambda o: o[1].occupancy)
            merged[merged.index(old)] = both
        else:
            merged.append(worker)
    return Packing((*full, *merged), tuple(refused))


def pack_onto(
    sessions: Sequence[Session], workers: int, utilization: float = UTILIZATION, goal: float = GOAL
) -> Packing:
    """Return a packing that, where duty cycles need more than so many workers, does without them.

    It may still need more.
    """
    packing = pack(sessions, utilization, goal)
    if len(packing.workers) <= workers:
        return packing
    found: list[Worker] = []
    for worker in sorted(packing.workers, key=lambda w: -w.occupancy):
        for k, other in enumerate(found):
            if (both := _without_cycle([*other.shares, *worker.shares], goal)) is not None:
                found[k] = both
                break
        else:
            found.append(worker)
    return Packing(tuple(found), packing.refused)


def admit(sessions: Sequence[Session], workers: int, utilization: float = UTILIZATION) -> Packing:
    """Return a packing onto at most so many workers: sessions are taken in order, as long as they fit.

    The refused ones say what they would have needed.
    """
    taken: list[Session] = []
    refused: list[Refusal] = []
    for session in sessions:
        packing = pack_onto([*taken, session], workers, utilization)
        if packing.refused:
            refused += packing.refused
        elif len(packing.workers) > workers:
            needs = f"with it, {len(packing.workers)} workers are needed and there are {workers}"
            refused.append(Refusal(session, f"{needs}; {regime(session).why}"))
        else:
            taken.append(session)
    return Packing(pack_onto(taken, workers, utilization).workers, tuple(refused))


def _full(session: Session, rate: float) -> tuple[list[Worker], float]:
    """Return workers that do nothing else, and the rate that is left."""
    table = session.table
    allowed = [s for s in table.sizes if 2 * table.at(s) <= session.sla]
    batch = max(allowed, key=table.rate)
    count = math.floor(rate / table.rate(batch))
    share = Share(session, batch, table.rate(batch))
    return [Worker((share,), table.at(batch), 1.0)] * count, rate - count * table.rate(batch)


def _residual(session: Session, rate: float) -> Worker:
    """Return the part of a worker that a rate below one worker's takes.

    The largest batch whose rows arrive, and run, within the SLA; with few rows a batch of the smallest size
    as often as the SLA asks for it.
    """
    table, sla = session.table, session.sla
    fits = [s for s in table.sizes if table.at(s) + s / rate <= sla and table.at(s) <= s / rate]
    batch = max(fits, default=table.sizes[0])
    cycle = min(batch / rate, sla - table.at(batch))
    return Worker((Share(session, batch, rate),), cycle, table.at(batch) / cycle)


def merge(left: Worker, right: Worker) -> Worker | None:
    """Return one worker that does what two did, or None where it cannot.

    Both cycles become the shorter one; batches shrink to the rows that arrive in it.
    """
    cycle = min(left.duty_cycle, right.duty_cycle)
    shares = [_squeezed(s, cycle) for s in (*left.shares, *right.shares)]
    busy = sum(s.session.table.at(s.batch) for s in shares)
    late = any(cycle + s.session.table.at(s.batch) > s.session.sla * (1 + 1e-9) for s in shares)
    return None if busy > cycle or late else Worker(tuple(shares), cycle, busy / cycle)


def _without_cycle(shares: Sequence[Share], goal: float) -> Worker | None:
    """Return one worker that serves rows of several sessions as they come, None where too many are late.

    Rows arrive at rates r and are served one by one in s seconds. The wait W of such a queue has
    P(W > t) <= exp(-h t) for every h with sum(r (exp(h s) - 1)) <= h (Kingman, 1964). That h is taken which
    lets `goal` of every session's rows wait no longer than its SLA leaves.
    """
    spare = min(s.session.sla - s.session.table.seconds[0] for s in shares)
    h = math.log(1 / (1 - goal)) / spare if spare > 0 else math.inf
    if h * max(s.session.table.seconds[0] for s in shares) > 100:
        return None  # a row is longer than any may wait
    if sum(s.rate * math.expm1(h * s.session.table.seconds[0]) for s in shares) > h:
        return None
    busy = sum(s.rate * s.session.table.seconds[0] for s in shares)
    return Worker(tuple(s._replace(batch=s.session.table.sizes[0]) for s in shares), 0.0, busy)


def _squeezed(share: Share, cycle: float) -> Share:
    rows = max(1, math.ceil(cycle * share.rate - 1e-9))
    return share._replace(batch=share.session.table.size_for(rows))


def _alone(session: Session, goal: float) -> list[Worker]:
    count = _dedicated(session, goal)
    assert count is not None
    table, each = session.table, session.rate / count
    worker = Worker((Share(session, table.sizes[0], each),), table.seconds[0], each * table.seconds[0])
    return [worker] * count


def _dedicated(session: Session, goal: float) -> int | None:
    """Return how many workers of its own let `goal` of a session's rows start soon enough, None if too many.

    Poisson arrivals, one row at a time, constant service D: the wait W of an M/D/1 queue with arrivals at
    rate r has P(W <= t) = (1 - r D) exp(r t) for t < D (Erlang).
    """
    service, spare = session.table.seconds[0], session.sla - session.table.seconds[0]

    def enough(count: int) -> bool:
        rate = session.rate / count
        return rate * service < 1 and (1 - rate * service) * math.exp(rate * spare) >= goal

    low, high = 0, 1
    while not enough(high):
        low, high = high, high * 2
        if low > MOST_WORKERS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def describe(worker: Worker) -> str:
    """Return one line about a worker."""
    parts = [f"{s.session.name}: {s.rate:.0f} rows/s in batches of {s.batch}" for s in worker.shares]
    cycle = f"cycle {worker.duty_cycle * 1e3:.3g} ms" if worker.duty_cycle else "rows as they come"
    return f"{worker.occupancy:4.0%} busy, {cycle}: {'; '.join(parts)}"
