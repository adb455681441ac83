"""Reverse mode: cotangents of outputs to cotangents of inputs, by one sweep over the nodes in reverse order.

Cost: one rule per node that lies on a path from `wrt` to an output and receives a cotangent. A value read
n times sums n adjoints, once. Nodes outside those paths are not differentiated at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratal.autodiff.jvp import active_nodes, has_tangent, jvp_graph, located
from stratal.base.errors import DTypeError, ShapeError, VerifyError
from stratal.base.types import TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Item, Node, graph_input, topological


def vjp(outputs: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node]) -> list[Node | None]:
    """Return the cotangent of each node of `wrt`, or None where no path leads from it to an output.

    A cotangent of None stands for zero. Every adjoint node carries the source lines of its primal.
    Raises: NotDifferentiableError naming the op, its reason and the user's line.
    """
    sweep = _Sweep(outputs, wrt)
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None:
            sweep.seed(output, cotangent)
    return sweep.run()


def reached(outputs: Iterable[Node], wrt: Sequence[Node]) -> list[bool]:
    """Return for each node of `wrt` whether gradients may flow there: where `vjp` gives None, too, because a
    derivative on the way is known to be zero.
    """
    found = {o for o in outputs if has_tangent(o)}
    stack = list(found)
    while stack:
        node = stack.pop()
        for operand in node.op.differentiated(*node.inputs):
            if operand not in found and has_tangent(operand):
                found.add(operand)
                stack.append(operand)
    return [node in found for node in wrt]


class _Sweep:
    """The state of one reverse sweep: the adjoint of every node seen so far, not yet passed on."""

    def __init__(self, outputs: Iterable[Node], wrt: Sequence[Node]) -> None:
        self.wrt = wrt
        self.order = topological(outputs)
        self.active = active_nodes(self.order, wrt)
        self.adjoint: dict[Node, Node] = {}
        self.pieces: dict[Node, list[Node | None]] = {}  # of nodes with several results, by result
        self.builder = Builder((), vjp_graph, jvp_graph)

    def seed(self, output: Node, cotangent: Node) -> None:
        if cotangent.type != output.type:
            raise ShapeError(
                "vjp: a cotangent must have the type of its output",
                got=f"{cotangent.type} for {output.type}",
                where=output.where,
            )
        self.add(output, cotangent)

    def run(self) -> list[Node | None]:
        kept = set(self.wrt)
        result: dict[Node, Node] = {}
        for node in reversed(self.order):
            if node not in self.active:
                continue
            ct: Any = (
                self.pieces.pop(node, None)
                if isinstance(node.type, TupleType)
                else self.adjoint.pop(node, None)
            )
            if ct is None:
                continue
            if node in kept:
                result[node] = ct
            if isinstance(node.op, Item):
                self.add_piece(node.inputs[0], node.op.index, ct)
            elif any(i in self.active for i in node.inputs):
                self.apply_rule(node, ct)
        return [result.get(node) for node in self.wrt]

    def apply_rule(self, node: Node, ct: Any) -> None:
        needs = tuple([i in self.active for i in node.inputs])
        with located(node):
            found = node.op.vjp(self.builder.at(node.where, needs), ct, node, *node.inputs)
        if len(found) != len(node.inputs):
            raise VerifyError(
                f"{node.op.name}: its vjp rule gave {len(found)} cotangents", got=str(len(node.inputs))
            )
        for operand, needed, cotangent in zip(node.inputs, needs, found, strict=True):
            if not needed or cotangent is None:
                continue
            if cotangent.type != operand.type:
                raise VerifyError(
                    f"{node.op.name}: its vjp rule gave a cotangent of another type",
                    got=f"{cotangent.type} for an operand of {operand.type}",
                    where=node.where,
                )
            self.add(operand, cotangent)

    def add(self, node: Node, cotangent: Node) -> None:
        """Add one adjoint; several sum up, in the order they arrive."""
        if node not in self.active:
            return
        known = self.adjoint.get(node)
        self.adjoint[node] = cotangent if known is None else self.builder.at(node.where).add(known, cotangent)

    def add_piece(self, node: Node, index: int, cotangent: Node) -> None:
        assert isinstance(node.type, TupleType)
        pieces = self.pieces.setdefault(node, [None] * len(node.type.elements))
        known = pieces[index]
        pieces[index] = cotangent if known is None else self.builder.at(node.where).add(known, cotangent)


def vjp_graph(graph: Graph, wrt: Sequence[bool]) -> Graph:
    """Return the graph (inputs..., cotangents of inexact outputs...) -> cotangents of the marked inputs.

    It stands on the very input nodes of `graph`, so that hash-consing shares what both compute. An input no
    output depends on gets zeros.
    """
    marked = [node for node, mark in zip(graph.inputs, wrt, strict=True) if mark]
    for node in marked:
        if not node.dtype.is_inexact:
            raise DTypeError("vjp: only floats and complex numbers have cotangents", got=str(node.type))
    outputs = [o for o in graph.outputs if o.dtype.is_inexact]
    cotangents = [graph_input(f"ct{k}", o.aval) for k, o in enumerate(outputs)]
    found = vjp(outputs, cotangents, marked)
    b = Builder()
    results = [b.like(x, 0) if ct is None else ct for x, ct in zip(marked, found, strict=True)]
    return Graph((*graph.inputs, *cotangents), results, name=f"{graph.name}.vjp")


def value_and_grad_graph(graph: Graph, wrt: Sequence[int], output: int = 0) -> Graph:
    """Return the graph with the gradients of one scalar output added behind its outputs; updates stay.

    `wrt` lists input positions. Raises: ShapeError where the output is not a real scalar.
    """
    loss = graph.outputs[output]
    if loss.aval.ndim or not loss.dtype.is_float:
        raise ShapeError(
            "grad: the output must be a real scalar",
            got=str(loss.type),
            where=loss.where,
            hint="sum it, or use vjp with a cotangent of its shape",
        )
    targets = [graph.inputs[k] for k in wrt]
    b = Builder(loss.where)
    found = vjp([loss], [b.const(1, loss.dtype)], targets)
    grads = [b.like(x, 0) if g is None else g for x, g in zip(targets, found, strict=True)]
    return Graph(graph.inputs, (*graph.outputs, *grads), graph.updates, f"{graph.name}.value_and_grad")


def grad_graph(graph: Graph, wrt: Sequence[int], output: int = 0) -> Graph:
    """Return the graph of the gradients alone."""
    both = value_and_grad_graph(graph, wrt, output)
    return Graph(both.inputs, both.outputs[len(graph.outputs) :], name=f"{graph.name}.grad")
