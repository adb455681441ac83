"""What both modes share: which nodes carry a derivative, and how an error learns the user's line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from stratal.base.errors import NotDifferentiableError
from stratal.base.types import TupleType
from stratal.graph.node import Node


def has_tangent(node: Node) -> bool:
    """Return whether a value, or one of its results, is of an inexact dtype."""
    if isinstance(node.type, TupleType):
        return any(t.dtype.is_inexact for t in node.type.elements)
    return node.type.dtype.is_inexact


def active_nodes(order: Iterable[Node], wrt: Iterable[Node]) -> set[Node]:
    """Return the nodes of a topological order whose derivative with respect to `wrt` may be non-zero."""
    active = {node for node in wrt if has_tangent(node)}
    for node in order:
        for child in node.inputs:
            if child in active:
                if has_tangent(node):
                    active.add(node)
                break
    return active


@contextmanager
def located(node: Node) -> Iterator[None]:
    """Tell a missing derivative the line of the node that lacks it."""
    try:
        yield
    except NotDifferentiableError as error:
        raise error.at(node.where) from None
