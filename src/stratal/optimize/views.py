"""Views that rewrites put in: none where one would change nothing."""

from __future__ import annotations

from stratal.graph.builder import Builder
from stratal.graph.node import Node


def cut(b: Builder, x: Node, axis: int, start: int, stop: int) -> Node:
    """Return some steps of one axis."""
    shape = x.aval.ints
    if (start, stop) == (0, shape[axis]):
        return x
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    part: Node = b.slice(x, start=tuple(starts), stop=tuple(stops), step=(1,) * len(shape))
    return part


def reshaped(b: Builder, x: Node, shape: tuple[int, ...]) -> Node:
    """Return the same elements in another shape."""
    found: Node = x if x.shape == shape else b.reshape(x, shape=shape)
    return found
