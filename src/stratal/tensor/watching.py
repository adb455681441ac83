"""Tensors whose gradients a Python function sees, and may replace, while reverse mode builds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.ops.control.watched import Watch, Watched
from stratal.tensor.handles import STOPPED, TRACKED, look, node_of, track_of
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, wrap

Gradients = Sequence[Tensor | None]


def tracked(tensor: object) -> bool:
    """Return whether what is computed from a value now takes gradients to it."""
    return MODE.grad and isinstance(tensor, Tensor) and track_of(tensor) == TRACKED


def watched(name: str, tensors: Sequence[Tensor], watcher: Callable[[Gradients], Gradients]) -> list[Tensor]:
    """Return tracked tensors unchanged; reverse mode calls `watcher` with their gradients and passes on what
    it returns, None for none.

    It is called once per sweep, when all their gradients are known, on tensors that are computed when read.
    """
    nodes = [look(t)[0] for t in tensors]
    types = [node.aval for node in nodes]

    def passed(cotangents: Sequence[Node | None]) -> list[Node | None]:
        before, MODE.eager = MODE.eager, None
        try:
            given = [None if ct is None else wrap(ct, STOPPED) for ct in cotangents]
            found = watcher(given)
        finally:
            MODE.eager = before
        return [_fitting(name, new, type_) for new, type_ in zip(found, types, strict=True)]

    return [wrap(node, TRACKED) for node in Watched.of(Watch(name, passed), *nodes)]


def _fitting(name: str, gradient: Tensor | None, type_: TensorType) -> Node | None:
    """Return the node of a gradient. Raises: ShapeError where it is of another type than the value."""
    if gradient is None:
        return None
    if gradient.type != type_:
        raise ShapeError(
            f"{name}: a gradient has the shape and dtype of its tensor",
            got=f"{gradient.type} for {type_}",
        )
    return node_of(gradient)
