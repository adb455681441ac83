"""Forward mode: tangents of inputs to tangents of outputs, in one sweep in topological order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stratal.base.errors import DTypeError, NotDifferentiableError, ShapeError, VerifyError
from stratal.base.types import TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Item, Node, graph_input, topological

Tangent = Any  # a Node, None for zero, or a list of these for a node with several results


def jvp(outputs: Sequence[Node], wrt: Sequence[Node], tangents: Sequence[Node | None]) -> list[Node | None]:
    """Return the tangent of each output, None for zero, when each node of `wrt` moves along its tangent.

    A node of `wrt` is independent: what it was computed from does not add to its tangent.
    Raises: NotDifferentiableError naming the op, its reason and the user's line.
    """
    found: dict[Node, Tangent] = {}
    for node, tangent in zip(wrt, tangents, strict=True):
        if tangent is not None and tangent.type != node.type:
            raise ShapeError(
                "jvp: a tangent must have the type of its input",
                got=f"{tangent.type} for {node.type}",
                where=node.where,
            )
        found[node] = tangent
    builder = Builder((), None, jvp_graph)
    for node in topological(outputs, stop=set(wrt).__contains__):
        if node not in found:
            tangent = _tangent_of(builder, node, found)
            if tangent is not None:
                found[node] = tangent
    return [found.get(o) for o in outputs]


def _tangent_of(builder: Builder, node: Node, found: dict[Node, Tangent]) -> Tangent:
    operands = [found.get(i) for i in node.inputs]
    if not has_tangent(node) or all(t is None for t in operands):
        return None
    if isinstance(node.op, Item):
        results: list[Node | None] = operands[0] or []  # never empty: some operand has a tangent
        return results[node.op.index]
    with located(node):
        tangent = node.op.jvp(builder.at(node.where), operands, node, *node.inputs)
    for part, type_ in _results(node, tangent):
        if part is not None and part.type != type_:
            raise VerifyError(
                f"{node.op.name}: its jvp rule gave a tangent of another type",
                got=f"{part.type} for {type_}",
                where=node.where,
            )  # fmt: skip
    return tangent


def _results(node: Node, tangent: Tangent) -> list[tuple[Node | None, Any]]:
    if isinstance(node.type, TupleType):
        return list(zip(tangent or [None] * len(node.type.elements), node.type.elements, strict=True))
    return [(tangent, node.type)]


def jvp_graph(graph: Graph, wrt: Sequence[bool]) -> Graph:
    """Return the graph (inputs..., tangents of marked ones...) -> (outputs..., tangents of inexact outputs).

    It stands on the very input nodes of `graph`. An output that does not depend on the marked inputs gets
    zeros.
    """
    marked = [node for node, mark in zip(graph.inputs, wrt, strict=True) if mark]
    for node in marked:
        if not node.dtype.is_inexact:
            raise DTypeError("jvp: only floats and complex numbers have tangents", got=str(node.type))
    tangents = [graph_input(f"t{k}", node.aval) for k, node in enumerate(marked)]
    outputs = [o for o in graph.outputs if o.dtype.is_inexact]
    b = Builder()
    found = [
        b.like(o, 0) if t is None else t for o, t in zip(outputs, jvp(outputs, marked, tangents), strict=True)
    ]
    return Graph((*graph.inputs, *tangents), (*graph.outputs, *found), name=f"{graph.name}.jvp")


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
