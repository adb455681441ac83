"""A deferred graph with the sizes of one run: nodes built anew where a size was left open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stratal.base.dims import Dim, Sym, evaluate
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import (
    Const,
    Input,
    Item,
    Node,
    constant,
    graph_input,
    items,
    make,
    rebuild,
    topological,
)
from stratal.graph.op import Op
from stratal.ops.creation import Size
from stratal.tensor.build import number
from stratal.tensor.values.binding import node_of

Sizes = Mapping[str, Dim]


def asks_size(node: Node) -> bool:
    """Return whether a node is a size that was left open: a run knows it without computing anything."""
    return isinstance(node.op, Size) and isinstance(_size_asked(node), Sym)


def _size_asked(node: Node) -> Dim:
    size: Dim = node.inputs[0].shape[node.op.attributes["axis"]]
    return size


def instantiate(
    roots: Iterable[Node], known: Mapping[Node, Node], sizes: Sizes, *, region: bool = False
) -> dict[Node, Node]:
    """Return what each node that the roots need is where open sizes are `sizes` and some nodes are `known`.

    Type rules look at every node again. A region reads nothing from around it: there, a size that is still a
    symbol is asked of its own inputs. Raises: what type rules raise, naming the line that built the node.
    """
    made = dict(known)
    for node in topological(roots, stop=lambda n: n in known or (asks_size(n) and not region)):
        if node in made:
            continue
        if asks_size(node) and not (region and isinstance(_evaluated(_size_asked(node), sizes), Sym)):
            made[node] = _number(_evaluated(_size_asked(node), sizes))
        elif isinstance(node.op, (Const, Input)):
            made[node] = node
        elif isinstance(node.op, Item) or not mentions_sizes(node.op):
            made[node] = rebuild(node, [made[i] for i in node.inputs])
        else:
            made[node] = make(_with_sizes(node.op, sizes), *[made[i] for i in node.inputs], where=node.where)
    return made


def _number(size: Dim) -> Node:
    return constant(np.asarray(size, np.int64)) if isinstance(size, int) else node_of(number(size))


# -- attributes that hold sizes ------------------------------------------------------------------------------
def mentions_sizes(op: Op) -> bool:
    """Return whether an attribute holds an open size, inside of regions too."""
    return any(map(_holds, op.attributes.values()))


def _holds(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds, value))
    if isinstance(value, TensorType):
        return _holds(value.shape)
    if isinstance(value, Graph):
        return any(mentions_sizes(n.op) or any(_holds(r.aval) for r in items(n)) for n in _nodes(value))
    return isinstance(value, Sym)


def _nodes(region: Graph) -> list[Node]:
    return [n for n in (*region.inputs, *region.nodes) if not isinstance(n.op, Item)]


def _with_sizes(op: Op, sizes: Sizes) -> Op:
    return type(op)(**{name: _evaluated(value, sizes) for name, value in op.attributes.items()})


def _evaluated(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, Sym):
        return evaluate(value, sizes)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return tuple(_evaluated(v, sizes) for v in value)
    if isinstance(value, TensorType):
        return value.with_shape(_evaluated(value.shape, sizes))
    if isinstance(value, Graph) and _holds(value):
        inputs = [
            graph_input(getattr(i.op, "label", ""), _evaluated(i.aval, sizes), i.where) for i in value.inputs
        ]
        made = instantiate(value.outputs, dict(zip(value.inputs, inputs, strict=True)), sizes, region=True)
        return Graph(inputs, [made[o] for o in value.outputs], name=value.name)
    return value
