"""Measures the alpha-beta-gamma model of a job's links: rounds of messages, timed by the thread that sends.

    round   every rank sends to its right and receives from its left, as in each step of a ring
    alpha   what a round without bytes takes; beta what a byte adds; least squares of relative errors
    share   what each further message of a round adds, of alpha
    gamma   what a byte costs that is added to another one, while all ranks add
    mpi     MPI's own all-reduces, with an alpha and a beta of their own; not over several hosts

A time is the median over rounds after some that warm up, of the slowest rank, in the best of three passes:
what else a machine does comes and goes.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, StratalError
from stratal.distributed.algorithms import MPI, Round, Rounds, Whole, all_reduce_by
from stratal.distributed.collectives import all_reduce, barrier
from stratal.distributed.links import Link, algorithms_of, mpi_units
from stratal.distributed.world import World

SIZES: Final = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
REDUCED: Final = (1 << 10, 64 << 10, 1 << 20, 4 << 20)
PASSES: Final = 3
_WARM: Final = 2
_MOST_ROUNDS: Final = 100
_LEAST_ROUNDS: Final = 5
_ADDED: Final = 1 << 20
_BYTES: Final = 8 << 20  # a size is sent in a pass until it comes to that


class Timed(NamedTuple):
    """What a round of `messages` messages of `nbytes` each takes."""

    nbytes: int
    messages: int
    ns: float


class Reduced(NamedTuple):
    """What an all-reduce of `nbytes` takes by one algorithm, from the call on."""

    nbytes: int
    algorithm: str
    ns: float


def measure_rounds(within: World, sizes: Sequence[int] = SIZES) -> list[Timed]:
    """Return the times of rounds, on every rank the same; the last is of several short messages.

    All ranks call it. Raises: AttributeValueError for a job of one rank; what collectives raise.
    """
    if within.size == 1:
        raise AttributeValueError("doctor --cluster: one rank has no links", got="a job of one rank",
                                  hint="stratal doctor --cluster -n 2")  # fmt: skip
    cases = [*((nbytes, 1) for nbytes in sizes), (sizes[0], max(3, within.size - 1))]
    passes = [[_timed(within, *case) for case in cases] for _ in range(PASSES)]
    return [min(timed, key=lambda t: t.ns) for timed in zip(*passes, strict=True)]


def _timed(within: World, nbytes: int, messages: int) -> Timed:
    count = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _BYTES // nbytes))
    taken: list[int] = []
    barrier()
    within.run(
        lambda: _rounds(within.rank, within.size, nbytes, messages, _WARM + count, taken),
        f"{count} rounds of {messages} x {nbytes} bytes",
    )
    return Timed(nbytes, messages, _of_slowest(statistics.median(taken[_WARM:])))


def _rounds(rank: int, size: int, nbytes: int, messages: int, count: int, taken: list[int]) -> Rounds:
    """Yield rounds, and note how many nanoseconds each took."""
    out = np.ones(nbytes, np.uint8)
    into = [np.zeros(nbytes, np.uint8) for _ in range(messages)]
    distances = [1 + k % (size - 1) for k in range(messages)]
    sends = [((rank + d) % size, out) for d in distances]
    receives = [((rank - d) % size, space) for d, space in zip(distances, into, strict=True)]
    for _ in range(count):
        began = time.perf_counter_ns()
        yield Round(sends, receives)
        taken.append(time.perf_counter_ns() - began)


def measure_combining(within: World, nbytes: int = _ADDED) -> float:
    """Return the nanoseconds a byte of a sum takes, on every rank the same. All ranks call it."""
    a, b = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    found = []
    for _ in range(PASSES):
        barrier()
        taken = []
        for _ in range(_WARM + _LEAST_ROUNDS):
            began = time.perf_counter_ns()
            np.add(a, b, b)
            taken.append(time.perf_counter_ns() - began)
        found.append(_of_slowest(statistics.median(taken[_WARM:])))
    return min(found) / nbytes


def measure_own_calls(within: World, sizes: Sequence[int] = SIZES) -> list[Reduced]:
    """Return the times of MPI's own all-reduces without what goes around them, on every rank the same.

    None where they are not made: over several hosts. All ranks call it.
    """
    passes = [[_own_calls(within, nbytes) for nbytes in sizes] for _ in range(PASSES * within.calls_mpi)]
    return [min(reduced, key=lambda r: r.ns) for reduced in zip(*passes, strict=True)]


def _own_calls(within: World, nbytes: int) -> Reduced:
    count = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _BYTES // nbytes))
    taken: list[int] = []

    def rounds() -> Rounds:
        buffer = np.zeros(nbytes // 4, np.float32)
        for _ in range(_WARM + count):
            began = time.perf_counter_ns()
            yield Whole(buffer, np.add)
            taken.append(time.perf_counter_ns() - began)

    barrier()
    within.run(rounds, f"{count} all-reduces of {nbytes} bytes by {MPI}")
    return Reduced(nbytes, MPI, _of_slowest(statistics.median(taken[_WARM:])))


def measure_all_reduces(within: World, sizes: Sequence[int] = REDUCED) -> list[Reduced]:
    """Return the times of all-reduces by each algorithm, alike on every rank: what models are judged by."""
    names = algorithms_of("all_reduce", within.size, within.calls_mpi)
    cases = [(nbytes, name) for nbytes in sizes for name in names]
    passes = [[_reduced(within, *case) for case in cases] for _ in range(PASSES)]
    return [min(reduced, key=lambda r: r.ns) for reduced in zip(*passes, strict=True)]


def _reduced(within: World, nbytes: int, algorithm: str) -> Reduced:
    buffer, taken = np.zeros(nbytes // 4, np.float32), []
    make = functools.partial(all_reduce_by(algorithm), buffer, within.rank, within.size, np.add)
    for _ in range(_WARM + _LEAST_ROUNDS):
        barrier()
        began = time.perf_counter_ns()
        within.run(make, f"all_reduce of {nbytes} bytes by {algorithm}")
        taken.append(time.perf_counter_ns() - began)
    return Reduced(nbytes, algorithm, _of_slowest(statistics.median(taken[_WARM:])))


def _of_slowest(ns: float) -> float:
    return float(all_reduce(np.array([ns]), "max")[0])


def fit(rounds: Sequence[Timed], gamma_ns: float, own: Sequence[Reduced] = (), size: int = 2) -> Link:
    """Return the model with the least relative errors; `own`: MPI's all-reduces between `size` ranks.

    Raises: StratalError where times do not grow.
    """
    single = [r for r in rounds if r.messages == 1]
    alpha, beta = _least_squares([(1.0, r.nbytes) for r in single], [r.ns for r in single])
    if alpha <= 0 or beta <= 0:
        raise StratalError(
            "doctor --cluster: the times of messages do not grow with their sizes",
            got=", ".join(f"{r.nbytes} bytes {r.ns / 1e3:.1f} us" for r in single),
            hint="measure again when nothing else runs on these machines",
        )
    short = single[0].ns
    shares = [(r.ns / short - 1) / (r.messages - 1) for r in rounds if r.messages > 1]
    share = statistics.median(shares) if shares else Link().message_share
    found = Link(alpha, beta, min(1.0, max(0.0, share)), gamma_ns)  # more would be a round of its own
    if not own:
        return found
    units = [mpi_units(r.nbytes, size) for r in own]
    mpi_alpha, mpi_beta = _least_squares(units, [r.ns for r in own])
    if mpi_alpha <= 0 or mpi_beta <= 0:  # disturbed: nothing is lost by the defaults
        return found
    return found._replace(mpi_alpha_ns=mpi_alpha, mpi_beta_ns=mpi_beta)


def _least_squares(units: Sequence[tuple[float, float]], ns: Sequence[float]) -> tuple[float, float]:
    """Return the alpha and beta of least relative errors."""
    rows = np.array(units) / np.array(ns)[:, None]
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(ns)), rcond=None)[0]
    return float(alpha), float(beta)
