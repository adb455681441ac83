"""Where a value that is not finite comes from: the op, its line, and whether the backward pass made it.

The step's graph is run once more by the reference interpreter, which keeps every value. From the loss, or a
gradient, that is not finite the way leads back through operands that are not, to the op whose operands are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.autodiff import value_and_grad_graph
from stratal.base import tree
from stratal.base.errors import StratalError
from stratal.base.source import SourceLine
from stratal.formats.traced import graph_of
from stratal.graph.graph import Graph
from stratal.graph.interpret import Value, apply
from stratal.graph.node import Item, Node, label_of, owner
from stratal.nn.module import Module
from stratal.tensor.tensor import Tensor


class Origin(NamedTuple):
    """The first op whose result is not finite."""

    op: str
    where: tuple[SourceLine, ...]
    backward: bool

    def __str__(self) -> str:
        return f"{self.op}{' in the backward pass' if self.backward else ''}"


def origin(net: Module, forward: Callable[[Any, Any], tuple[Tensor, Any]], batch: Any) -> Origin | None:
    """Return where what is not finite in a step comes from: `forward` returns the loss first.

    None where the step cannot be traced without values, or where the reference finds all values finite.
    """
    leaves, structure = tree.flatten(batch)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    try:
        graph = graph_of(
            lambda *given: forward(*tree.unflatten(structure, given))[0], [x.type for x in leaves], named
        )
        known = {f"input {k}": np.asarray(x.detach()) for k, x in enumerate(leaves)}
        known |= {name: np.asarray(p.detach()) for name, p in named.items()}
        labels = [label_of(node) for node in graph.inputs]
        whole = value_and_grad_graph(graph, [k for k, label in enumerate(labels) if label in named])
        values = _values(whole, [known[label] for label in labels])
    except StratalError:
        return None
    first = next((found for root in whole.outputs if (found := _first(root, values))), None)
    if first is None:
        return None
    computing = owner(first)
    return Origin(computing.op.name, computing.where, computing not in set(graph.nodes))


def _values(graph: Graph, inputs: Sequence[np.ndarray[Any, Any]]) -> dict[Node, Value]:
    values: dict[Node, Value] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node not in values:
            operands: list[Any] = [values[operand] for operand in node.inputs]
            is_item = isinstance(node.op, Item)
            values[node] = operands[0][node.op.index] if is_item else apply(node.op, *operands)  # type: ignore[attr-defined]
    return values


def _first(root: Node, values: dict[Node, Value]) -> Node | None:
    """Return the first node on the way to a root that is not finite; constants are meant as they are."""
    if _finite(values[root]):
        return None
    node = root
    while earlier := [x for x in node.inputs if x.inputs and not _finite(values[x])]:
        node = earlier[0]
    return node


def _finite(value: Value) -> bool:
    arrays = value if isinstance(value, tuple) else (value,)
    return all(a.dtype.kind in "biu" or bool(np.isfinite(a).all()) for a in arrays)
