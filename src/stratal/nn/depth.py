"""How many layers of one kind a network has: as many as fit into the machine's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import SupportsIndex

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.target import memory_bytes
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor

_OBJECTS = 4096  # bytes of Python objects a layer has at least, whatever its parameters


def repeated(name: str, count: SupportsIndex, layer: Callable[[int], Module]) -> list[Module]:
    """Return layer(0) to layer(count - 1) for the network `name`.

    The second layer, which is like all that follow, says whether they fit.
    Raises: AttributeValueError for a count that is no int or negative, ShapeError for more than fit.
    """
    depth = checked_depth(name, count)
    layers = [layer(k) for k in range(min(depth, 2))]
    if depth > 2:
        checked_depth(name, depth, layers[1].parameters())
    return layers + [layer(k) for k in range(2, depth)]


def checked_depth(name: str, count: SupportsIndex, parameters: Iterable[Tensor] = ()) -> int:
    """Return `count` where as many layers that have such parameters each fit into memory; refuse it else."""
    if not hasattr(count, "__index__") or index(count) < 0:
        raise AttributeValueError(f"{name}: the number of layers is an int, 0 or more", got=repr(count))
    depth, each = index(count), _OBJECTS + sum(p.nbytes for p in parameters)
    if 0 < memory_bytes() < depth * each:
        raise ShapeError(
            f"{name}: so many layers do not fit into memory",
            got=f"{depth} layers of at least {each} bytes each, {memory_bytes()} bytes in all",
        )
    return depth
