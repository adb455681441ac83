"""Alpha-beta-gamma model of links: what a collective costs by each algorithm, which one is chosen by size.

A round costs `alpha_ns`, a byte over the busiest link of a rank `beta_ns`, a byte of a reduction `gamma_ns`;
a further message of the same round costs a share of alpha. MPI's own all-reduce has an alpha and a beta of
its own, as if it took log2 N rounds and 2M(N-1)/N bytes. All ranks hold the same model, so that all choose
the same algorithm: what `stratal doctor --cluster` measured (`link_records`), or the defaults.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from stratal.base.errors import AttributeValueError
from stratal.distributed.algorithms import ALL_GATHER, ALL_REDUCE, MPI, POWERS_OF_TWO_ONLY, REDUCE_SCATTER

# Waking, polls and calls of a bucket take 0.3 ms from kernels on the same core, whatever the link is: over
# 1 Gbit/s buckets of 64 KB took 12 ms of a step, 280 KB 6 ms and 670 KB 5.
_LEAST_BUCKET: Final = 1 << 18


class Link(NamedTuple):
    """What messages between two ranks cost."""

    alpha_ns: float = 5000.0  # of a round: posting, polling, waking, from Python
    beta_ns: float = 0.15  # per byte: 7 GB/s, shared memory of one host
    message_share: float = 0.25  # of alpha, for each further message of a round
    gamma_ns: float = 0.1  # per byte that is combined with another one: a pass over two operands and a result
    mpi_alpha_ns: float = 3000.0  # of MPI's own all-reduce, driven by MPI alone
    mpi_beta_ns: float = 0.3  # per byte, sums included: 64 MB took 20 ms where a ring took 5


class Traffic(NamedTuple):
    """What one rank sends in a collective."""

    rounds: int
    messages: int
    bytes: float


def traffic(kind: str, algorithm: str, nbytes: float, size: int, rank: int = 1) -> Traffic:
    """Return what a rank sends of `nbytes` bytes, divisible by `size`: the formulas of `algorithms`.

    `rank` matters for trees alone.
    """
    if size == 1:
        return Traffic(0, 0, 0)
    log, part = math.ceil(math.log2(size)), nbytes / size
    if kind in ("reduce_scatter", "all_gather"):
        rounds = size - 1 if algorithm == "ring" else 1
        return Traffic(rounds, size - 1, (size - 1) * part)
    if kind != "all_reduce":
        raise AttributeValueError("traffic: a collective it has no formula for", got=kind)
    if algorithm == "ring":
        return Traffic(2 * (size - 1), 2 * (size - 1), 2 * (size - 1) * part)
    if algorithm == "all_to_all":
        return Traffic(2, 2 * (size - 1), 2 * (size - 1) * part)
    if algorithm == "halving_doubling":
        return Traffic(2 * log, 2 * log, 2 * (size - 1) * part)
    if algorithm == "doubling":
        return Traffic(log, log, log * nbytes)
    messages = _children(rank, size) + bool(rank)  # down to each child, up to the parent
    return Traffic(2 * log, messages, messages * nbytes)


def _children(rank: int, size: int) -> int:
    """Return how many children a rank has in the binomial tree."""
    count, distance = 0, 1
    while distance < size and not rank & distance:
        count += rank + distance < size
        distance *= 2
    return count


def estimate_ns(kind: str, algorithm: str, nbytes: float, size: int, link: Link) -> float:
    """Return what the slowest rank takes."""
    reducing_ns = combined_bytes(kind, algorithm, nbytes, size) * link.gamma_ns
    if algorithm == MPI:
        calls, nbytes = mpi_units(nbytes, size)
        return calls * link.mpi_alpha_ns + nbytes * link.mpi_beta_ns
    if algorithm == "tree":
        rounds = 2 * math.ceil(math.log2(size))
        return rounds * (link.alpha_ns + nbytes * link.beta_ns) + reducing_ns
    sent = traffic(kind, algorithm, nbytes, size)
    further = sent.messages - sent.rounds
    sending_ns = (sent.rounds + link.message_share * further) * link.alpha_ns + sent.bytes * link.beta_ns
    return sending_ns + reducing_ns


def mpi_units(nbytes: float, size: int) -> tuple[float, float]:
    """Return how many of its alphas and betas MPI's own all-reduce costs."""
    return math.ceil(math.log2(size)), 2 * (size - 1) / size * nbytes


def combined_bytes(kind: str, algorithm: str, nbytes: float, size: int) -> float:
    """Return how many bytes the busiest rank combines with others."""
    if kind == "all_gather" or size == 1 or algorithm == MPI:  # whose beta has its sums
        return 0.0
    if algorithm in ("doubling", "tree"):  # whole buffers, in every round
        return math.ceil(math.log2(size)) * nbytes
    return (size - 1) * nbytes / size


_KINDS: Final[dict[str, Iterable[str]]] = {
    "all_reduce": ALL_REDUCE, "reduce_scatter": REDUCE_SCATTER, "all_gather": ALL_GATHER,
}  # fmt: skip


def algorithms_of(kind: str, size: int, mpi: bool = False) -> list[str]:
    """Return the algorithms of a collective that so many ranks can take; `mpi`: MPI's own all-reduce, too."""
    found = [n for n in _KINDS[kind] if n not in POWERS_OF_TWO_ONLY or not size & (size - 1)]
    return [*found, MPI] if mpi and kind == "all_reduce" else found


@functools.lru_cache(maxsize=4096)  # asked before every collective, where it would cost as much as a round
def choose(kind: str, nbytes: float, size: int, link: Link, algorithm: str = "", mpi: bool = False) -> str:
    """Return the algorithm with the least estimate, or the given one; `mpi`: MPI's own may be taken.

    Raises: AttributeValueError.
    """
    names = algorithms_of(kind, size, mpi)
    if not algorithm:
        return min(names, key=lambda name: estimate_ns(kind, name, nbytes, size, link))
    if algorithm not in names:
        why = f"{size} ranks are no power of two" if algorithm in POWERS_OF_TWO_ONLY else ""
        why = "which adds in an order of its own" if algorithm == MPI else why
        raise AttributeValueError(f"{kind}: no such algorithm", got=f"{algorithm!r} {why}".strip(),
                                  hint=f"there are {', '.join(names)}")  # fmt: skip
    return algorithm


def thresholds(
    kind: str, size: int, link: Link, most: int = 1 << 30, mpi: bool = False
) -> list[tuple[int, str]]:
    """Return from how many bytes on each algorithm is chosen, up to `most`; the first from 1 on."""
    found = [(1, choose(kind, 1, size, link, mpi=mpi))]
    low = 1
    while low < most:
        high = 2 * low
        if (name := choose(kind, high, size, link, mpi=mpi)) != found[-1][1]:
            while high - low > 1:
                middle = (low + high) // 2
                same = choose(kind, middle, size, link, mpi=mpi) == name
                low, high = (low, middle) if same else (middle, high)
            found.append((high, name))
        low = high
    return found


def bucket_bytes(size: int, link: Link) -> int:
    """Return how many bytes should leave at once: where rounds cost a tenth of the bytes, in 256 KB at least.

    Smaller ones cost more rounds, larger ones leave later.
    """
    if size == 1:
        return _LEAST_BUCKET
    share = 2 * (size - 1) / size  # of the bytes, over the busiest link
    rounds = 2 * (1 + link.message_share * (size - 2)) * link.alpha_ns
    return max(_LEAST_BUCKET, int(10 * rounds / (share * link.beta_ns)))
