"""Sums over a binary tree of fixed shape, whose bits do not depend on how many ranks make them.

    leaves           v0   v1   v2   v3   v4   v5
    nodes            (0, 6) = (0, 3) + (3, 6);  (0, 3) = (0, 1) + (1, 3);  ..
    on 2 ranks       rank 0 adds up (0, 3), rank 1 (3, 6)
    on 3 ranks       rank 0 adds up (0, 1) and (1, 2), for it has no whole node; ..
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stratal.distributed.algorithms import Round, Rounds, all_to_all_all_gather, bounds, parts

Array = np.ndarray[Any, Any]
Node = tuple[int, int]  # leaves from .. to, without the last


def cover(node: Node, low: int, high: int) -> Iterator[Node]:
    """Yield the largest nodes at or below one that lie within the leaves [low, high), in order."""
    first, last = node
    if low <= first and last <= high:
        yield node
    elif first < high and low < last:
        middle = (first + last) // 2
        yield from cover((first, middle), low, high)
        yield from cover((middle, last), low, high)


def total(node: Node, of: Callable[[Node], list[Array] | None]) -> list[Array]:
    """Return the sums of a node; `of` knows those of some nodes, and of every leaf."""
    found = of(node)
    if found is not None:
        return found
    middle = (node[0] + node[1]) // 2
    left, right = total((node[0], middle), of), total((middle, node[1]), of)
    return [a + b for a, b in zip(left, right, strict=True)]


def nodes_of(rank: int, size: int, shards: int) -> list[Node]:
    """Return the nodes that a rank adds up by itself."""
    ends = bounds(shards, size)
    return list(cover((0, shards), ends[rank], ends[rank + 1]))


def tree_all_reduce(own: Sequence[Array], buffer: Array, rank: int, size: int, shards: int) -> Rounds:
    """Leave in `buffer` the sum over all leaves; `own` are the sums of this rank's nodes.

    Shapes: all [n]. Bytes sent: those of its nodes and one buffer more, times (N-1)/N.
    """
    part = parts(buffer, size)
    others = [r for r in range(size) if r != rank]
    columns = [np.stack([parts(a, size)[r] for a in own]) for r in range(size)]
    known = {r: np.empty((len(nodes_of(r, size, shards)), part[rank].size), buffer.dtype) for r in others}
    yield Round(
        [(r, columns[r].reshape(-1)) for r in others], [(r, a.reshape(-1)) for r, a in known.items()]
    )
    known[rank] = columns[rank]
    sums: dict[Node, list[Array]] = {}
    for r in range(size):
        sums.update((node, [row]) for node, row in zip(nodes_of(r, size, shards), known[r], strict=True))
    np.copyto(part[rank], total((0, shards), sums.get)[0])
    yield from all_to_all_all_gather(buffer, rank, size)
