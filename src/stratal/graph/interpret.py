"""The reference interpreter: run a graph with each record's NumPy reference.

The oracle, and eager mode's engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.errors import ShapeError, StratalError, VerifyError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import Input, Item, Node
from stratal.graph.op import Array, Op

Value = Array | tuple[Array, ...]


def apply(op: Op, *arrays: Array) -> Value:
    """Run one op's reference and check that the result has the promised type."""
    with np.errstate(all="ignore"):
        return op.ref(*arrays)


def _checked(node: Node, value: Value) -> Value:
    types = node.type.elements if not isinstance(node.type, TensorType) else (node.type,)
    values = value if isinstance(value, tuple) else (value,)
    for array, type_ in zip(values, types, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != type_.dtype.np or array.shape != type_.shape:
            got = (
                f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            )
            raise VerifyError(
                f"{node.op.name}: reference returned {got}", got=f"promised {type_}", where=node.where
            )
    return value


def interpret(graph: Graph, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Run a graph; return its outputs and the new values of its states, in the order of `updates`."""
    values: dict[Node, Value] = {}
    for node, array in zip(graph.inputs, inputs, strict=True):
        values[node] = _checked(node, np.asarray(array))
    last_use: dict[Node, int] = {}
    for k, node in enumerate(graph.nodes):
        for child in node.inputs:
            last_use[child] = k
    keep = set(graph.roots) | set(graph.inputs)
    for k, node in enumerate(graph.nodes):
        if node not in values:
            values[node] = _evaluate(node, values)
        for child in node.inputs:
            if last_use[child] == k and child not in keep:
                values.pop(child, None)
    return list(_arrays(graph.outputs, values)), list(_arrays((v for _, v in graph.updates), values))


def _evaluate(node: Node, values: dict[Node, Value]) -> Value:
    if isinstance(node.op, Input):
        raise VerifyError(f"interpreter: no value for input {node.op.label!r}", where=node.where)
    operands = [values[i] for i in node.inputs]
    if isinstance(node.op, Item):
        return operands[0][node.op.index]
    try:
        return _checked(node, apply(node.op, *operands))  # type: ignore[arg-type]
    except StratalError as error:
        raise error.at(node.where) from None
    except (MemoryError, ValueError) as error:
        if not isinstance(error, MemoryError) and "too big" not in str(error):
            raise
        rule = f"{node.op.name}: the result does not fit into memory"
        raise ShapeError(rule, got=str(node.type), where=node.where) from error


def _arrays(nodes: Iterable[Node], values: dict[Node, Value]) -> Iterable[Array]:
    for node in nodes:
        value = values[node]
        if isinstance(value, tuple):
            raise VerifyError("interpreter: a result of tuple type; take one with item", where=node.where)
        yield value


def evaluate(nodes: Sequence[Node]) -> list[Array]:
    """Return the values of nodes that depend on constants only."""
    return interpret(Graph((), nodes), [])[0]
