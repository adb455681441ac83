"""Algorithms of collectives over point to point, as generators of rounds.

    for round in ring_all_reduce(buffer, rank, size, np.add):
        a transport posts every message of the round, waits for all of them, and resumes the generator

They know no transport: MPI carries them between processes, and the tests run all ranks of one in a loop.
Every buffer is one-dimensional. The order of sums depends on the number of ranks and on sizes alone, and
every rank ends with the same bits.

Cost, all-reduce of M bytes by N ranks, per rank sent (and as much received):

    algorithm             rounds             bytes
    ring                  2(N-1)             2M(N-1)/N
    halving_doubling      2 log2 N           2M(N-1)/N     N a power of two
    doubling              log2 N             M log2 N      N a power of two
    all_to_all            2                  2M(N-1)/N     to N-1 peers each
    tree                  2 ceil(log2 N)     up to M log2 N, at the root
    mpi                   one call of MPI's own `Allreduce`, of which rounds and bytes are not seen

Sources: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Combine = Callable[[Array, Array, Array], Any]  # a ufunc: (a, b, out)


class Round(NamedTuple):
    """Messages that are under way at once: (peer, elements) to send and to receive into."""

    sends: list[tuple[int, Array]]
    receives: list[tuple[int, Array]]


class Whole(NamedTuple):
    """A reduction over all ranks in place, by MPI's own call."""

    buffer: Array
    combine: Combine


Rounds = Iterator[Round | Whole]


def bounds(count: int, size: int) -> list[int]:
    """Return where `size` parts of `count` elements begin, and their end: as equal as can be, longer ones
    first.
    """
    short, longer = divmod(count, size)
    return [k * short + min(k, longer) for k in range(size + 1)]


def parts(buffer: Array, size: int) -> list[Array]:
    """Return the parts of a buffer, as views."""
    ends = bounds(len(buffer), size)
    return [buffer[a:b] for a, b in pairwise(ends)]


# -- ring ----------------------------------------------------------------------------------------------------
def ring_reduce_scatter(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Leave in part `rank` of `buffer` the sum over ranks; the other parts hold partial sums.

    Part k is summed along the ring from rank k+1 on.
    """
    part, space = parts(buffer, size), np.empty(-(-len(buffer) // size), buffer.dtype)
    for step in range(1, size):
        out, into = part[(rank - step) % size], part[(rank - step - 1) % size]
        taken = space[: len(into)]
        yield Round([((rank + 1) % size, out)], [((rank - 1) % size, taken)])
        combine(taken, into, into)


def ring_all_gather(buffer: Array, rank: int, size: int) -> Rounds:
    """Fill every part of `buffer` from the rank of its number."""
    part = parts(buffer, size)
    for step in range(size - 1):
        out, into = part[(rank - step) % size], part[(rank - step - 1) % size]
        yield Round([((rank + 1) % size, out)], [((rank - 1) % size, into)])


def ring_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    yield from ring_reduce_scatter(buffer, rank, size, combine)
    yield from ring_all_gather(buffer, rank, size)


# -- halves and doubles --------------------------------------------------------------------------------------
def halving_doubling_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Exchange halves with ranks further and further away, then put them together again on the way back."""
    low, high, halves = 0, len(buffer), []
    space = np.empty(-(-len(buffer) // 2), buffer.dtype)
    distance = size // 2
    while distance:
        middle, upper = (low + high) // 2, bool(rank & distance)
        own, other = ((middle, high), (low, middle)) if upper else ((low, middle), (middle, high))
        taken = space[: own[1] - own[0]]
        yield Round([(rank ^ distance, buffer[slice(*other)])], [(rank ^ distance, taken)])
        kept = buffer[slice(*own)]
        first, second = (taken, kept) if upper else (kept, taken)  # the lower rank's first
        combine(first, second, kept)
        halves.append((distance, own, other))
        (low, high), distance = own, distance // 2
    for distance, own, other in reversed(halves):
        yield Round([(rank ^ distance, buffer[slice(*own)])], [(rank ^ distance, buffer[slice(*other)])])


def doubling_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Exchange everything with ranks further and further away: the fewest rounds, for short messages."""
    space, distance = np.empty_like(buffer), 1
    while distance < size:
        yield Round([(rank ^ distance, buffer)], [(rank ^ distance, space)])
        first, second = (space, buffer) if rank & distance else (buffer, space)
        combine(first, second, buffer)
        distance *= 2


# -- all to all ----------------------------------------------------------------------------------------------
def all_to_all_reduce_scatter(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Send every part to the rank of its number, which adds them in the order of ranks."""
    part = parts(buffer, size)
    own, others = part[rank], [r for r in range(size) if r != rank]
    taken = {r: np.empty_like(own) for r in others}
    yield Round([(r, part[r]) for r in others], list(taken.items()))
    taken[rank] = own.copy()
    np.copyto(own, taken[0])
    for r in range(1, size):
        combine(own, taken[r], own)


def all_to_all_all_gather(buffer: Array, rank: int, size: int) -> Rounds:
    """Send the own part to all others at once."""
    part, others = parts(buffer, size), [r for r in range(size) if r != rank]
    yield Round([(r, part[rank]) for r in others], [(r, part[r]) for r in others])


def all_to_all_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    yield from all_to_all_reduce_scatter(buffer, rank, size, combine)
    yield from all_to_all_all_gather(buffer, rank, size)


def all_to_all_reduce_into(source: Array, own: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Put the sum over two ranks or more of part `rank` of every `source` into `own`, in the order of ranks.

    The first part that comes is received into `own`: between two ranks nothing needs memory of its own.
    """
    part, others = parts(source, size), [r for r in range(size) if r != rank]
    taken = {r: own if r == others[0] else np.empty_like(own) for r in others}
    yield Round([(r, part[r]) for r in others], list(taken.items()))
    taken[rank] = part[rank]
    combine(taken[0], taken[1], own)
    for r in range(2, size):
        combine(own, taken[r], own)


def all_to_all(source: Array, buffer: Array, rank: int, size: int) -> Rounds:
    """Put part `rank` of every rank's `source` into its part of `buffer`. All parts have one length."""
    out, into = parts(source, size), parts(buffer, size)
    others = [r for r in range(size) if r != rank]
    np.copyto(into[rank], out[rank])
    yield Round([(r, out[r]) for r in others], [(r, into[r]) for r in others])


# -- tree ----------------------------------------------------------------------------------------------------
def tree_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Leave at rank 0 the sum over ranks, over a binomial tree; other buffers hold partial sums."""
    space, distance = np.empty_like(buffer), 1
    while distance < size:
        if rank & distance:
            yield Round([(rank - distance, buffer)], [])
            return
        if rank + distance < size:
            yield Round([], [(rank + distance, space)])
            combine(buffer, space, buffer)
        distance *= 2


def tree_broadcast(buffer: Array, rank: int, size: int, root: int = 0) -> Rounds:
    """Fill every buffer with that of `root`, over a binomial tree."""
    place = (rank - root) % size
    distance = 1
    while distance < size and not place & distance:
        distance *= 2
    if place:
        yield Round([], [((place - distance + root) % size, buffer)])
    distance //= 2
    while distance:
        if place + distance < size:
            yield Round([((place + distance + root) % size, buffer)], [])
        distance //= 2


def tree_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    yield from tree_reduce(buffer, rank, size, combine)
    yield from tree_broadcast(buffer, rank, size)


# -- point to point ------------------------------------------------------------------------------------------
def permute(source: Array, buffer: Array, rank: int, pairs: list[tuple[int, int]]) -> Rounds:
    """Send `source` along the pairs (from, to); who receives nothing has zeros."""
    sends = [(to, source) for frm, to in pairs if frm == rank != to]
    receives = [(frm, buffer) for frm, to in pairs if to == rank != frm]
    if (rank, rank) in pairs:
        np.copyto(buffer, source)
    elif not receives:
        buffer.fill(0)
    yield Round(sends, receives)


def barrier(rank: int, size: int) -> Rounds:
    """Return once every rank has come here: a byte to ranks further and further away."""
    distance = 1
    while distance < size:
        out, into = np.zeros(1, np.uint8), np.zeros(1, np.uint8)
        yield Round([((rank + distance) % size, out)], [((rank - distance) % size, into)])
        distance *= 2


def mpi_all_reduce(buffer: Array, rank: int, size: int, combine: Combine) -> Rounds:
    """Leave it to MPI: a short sum takes it a fraction of what a round from Python takes."""
    return iter((Whole(buffer, combine),))


AllReduce = Callable[[Array, int, int, Combine], Rounds]
ALL_REDUCE: Final[dict[str, AllReduce]] = {
    "ring": ring_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "doubling": doubling_all_reduce,
    "all_to_all": all_to_all_all_reduce,
    "tree": tree_all_reduce,
}
REDUCE_SCATTER: Final[dict[str, AllReduce]] = {
    "ring": ring_reduce_scatter, "all_to_all": all_to_all_reduce_scatter,
}  # fmt: skip
ALL_GATHER: Final[dict[str, Callable[[Array, int, int], Rounds]]] = {
    "ring": ring_all_gather, "all_to_all": all_to_all_all_gather,
}  # fmt: skip
POWERS_OF_TWO_ONLY: Final = {"halving_doubling", "doubling"}
MPI: Final = "mpi"  # beside those of ALL_REDUCE, where its order of sums will do


def all_reduce_by(algorithm: str) -> AllReduce:
    """Return an algorithm by its name."""
    return mpi_all_reduce if algorithm == MPI else ALL_REDUCE[algorithm]
