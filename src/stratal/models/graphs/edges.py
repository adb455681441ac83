"""Edges of a graph as [2, E], where each comes from and where it goes; and sums over what arrives."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.composites.writing import scatter_reduce
from stratal.tensor.creation import arange, full, ones, zeros
from stratal.tensor.elementwise import where
from stratal.tensor.functions import FUNCTIONS
from stratal.tensor.indexing import index_add, take
from stratal.tensor.shapes import broadcast_to, concat
from stratal.tensor.tensor import Tensor

AGGREGATIONS = ("mean", "sum", "max")


def checked_graph(name: str, x: Tensor, width: int, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return sources and targets. Raises: ShapeError unless x is [nodes, width] and edges integers [2, E]."""
    if x.ndim != 2 or int(x.shape[1]) != width:
        raise ShapeError(f"{name}: takes features [nodes, {width}]", got=f"shape {list(x.shape)}")
    if edge_index.ndim != 2 or int(edge_index.shape[0]) != 2 or not edge_index.dtype.is_integer:
        raise ShapeError(f"{name}: takes edges as integers [2, E]", got=str(edge_index.type))
    return edge_index[0], edge_index[1]


def with_loops(source: Tensor, target: Tensor, nodes: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return edges with one from each node to itself behind them, and which of all count, bool [E + nodes].

    Edges that were such loops do not count any more.
    """
    own = arange(nodes)
    counts = concat([source != target, ones(nodes, dtype="bool")])
    return concat([source, own]), concat([target, own]), counts


def weights_with_loops(source: Tensor, target: Tensor, weight: Tensor, nodes: Any, own: float) -> Tensor:
    """Return weights for the edges of `with_loops`: a loop has the weight it had (the last), or `own`."""
    loops = source == target
    places = where(loops, source, nodes)  # edges that are none write behind the end
    given = full((nodes + 1,), own, dtype=weight.dtype).at[places].set(weight)
    return concat([where(loops, 0, weight), given[:nodes]])


def aggregate(kind: str, messages: Tensor, target: Tensor, nodes: Any) -> Tensor:
    """Return for each node the mean, sum or maximum of the messages [E, F] that arrive, 0 where none do."""
    start = zeros((nodes, messages.shape[1]), dtype=messages.dtype)
    if kind == "max":
        where_to = broadcast_to(target.reshape((-1, 1)), messages.shape)
        return scatter_reduce(start, 0, where_to, messages, "amax", include_self=False)
    total = index_add(start, 0, target, messages)
    return total if kind == "sum" else total / FUNCTIONS["maximum"](degrees(target, nodes, total.dtype), 1)


def degrees(target: Tensor, nodes: Any, dtype: Any) -> Tensor:
    """Return how many edges arrive at each node, [nodes, 1]."""
    count = index_add(zeros(nodes, dtype=dtype), 0, target, ones(target.shape[0], dtype=dtype))
    return count.reshape((-1, 1))


def softmax_of_arriving(scores: Tensor, target: Tensor, nodes: Any) -> Tensor:
    """Return exp(score) over its sum, among the edges [E, H] that arrive at the same node."""
    where_to = broadcast_to(target.reshape((-1, 1)), scores.shape)
    floor = zeros((nodes, scores.shape[1]), dtype=scores.dtype)
    highest = scatter_reduce(floor, 0, where_to, scores.detach(), "amax", include_self=False)
    powers = FUNCTIONS["exp"](scores - take(highest, target, axis=0))
    return powers / take(index_add(floor, 0, target, powers), target, axis=0)


def checked_aggregation(name: str, kind: str) -> str:
    """Return "mean", "sum" or "max". Raises: AttributeValueError for anything else."""
    known = {"add": "sum"}.get(kind, kind)
    if known not in AGGREGATIONS:
        raise AttributeValueError(f"{name}: aggr is one of " + ", ".join(AGGREGATIONS), got=repr(kind))
    return known
