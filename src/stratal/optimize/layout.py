"""Layouts: the order in which each stored value's axes lie in memory, chosen per value; logical shapes never change.

Convolutions want channels last, so that a window's rows are contiguous and outputs are written in vectors;
what is computed from a value element by element keeps its order. Results of the graph are row-major.
"""

from __future__ import annotations

from stratal.base.log import decide
from stratal.graph.graph import Graph
from stratal.graph.node import Item, Node
from stratal.graph.partition import Partition

Order = tuple[int, ...]


def channels_last(rank: int) -> Order:
    """Return the axis order N, spatial..., C."""
    return (0, *range(2, rank), 1)


def choose_orders(graph: Graph, partition: Partition) -> dict[Node, Order]:
    """Return the axis order of every stored value that is not row-major, outermost axis first."""
    orders: dict[Node, Order] = {}
    pinned = set(graph.roots)
    convolved: set[Node] = set()
    for node in graph.nodes:
        if node.op.name == "conv":
            convolved.update(_sources(node.inputs[0]))
    for node in graph.nodes:
        if node not in partition.stored or node in pinned or isinstance(node.op, Item):
            continue
        if partition.group_of[node].kind in ("host", "region", "body"):
            continue
        rank = len(node.shape)
        if node.op.name == "conv" or (rank > 2 and node in convolved):
            orders[node] = channels_last(rank)
            _note(node, orders[node], "convolutions read windows and write vectors along the channels")
            continue
        found = _inherited(node, partition, orders, rank)
        if found is not None:
            orders[node] = found
            _note(node, found, "the order of the operand it is computed from")
    return orders


def _note(node: Node, order: Order, why: str) -> None:
    decide("layout", f"{node.op.name} {node.type}", f"axes in order {order}", why, where=node.where)


def _sources(node: Node) -> list[Node]:
    """Return the values a convolution's first operand is a permutation or padding of."""
    found = [node]
    while node.op.name == "permute":
        node = node.inputs[0]
        found.append(node)
    return found[-1:] if found[-1].op.name == "pad" else []


def _inherited(node: Node, partition: Partition, orders: dict[Node, Order], rank: int) -> Order | None:
    """Return the order of the first operand of equal rank that has one, looking through fused members."""
    seen: set[Node] = set()
    stack = list(reversed(node.inputs))
    while stack:
        v = stack.pop()
        if v in seen or len(seen) > 64:
            continue
        seen.add(v)
        if v in orders and len(v.shape) == rank:
            return orders[v]
        fused = v not in partition.stored and v.op.name not in ("permute", "reshape", "broadcast")
        if fused and len(v.shape) == rank:
            stack.extend(reversed(v.inputs))
    return None


def strides(shape: tuple[int, ...], order: Order | None) -> tuple[int, ...]:
    """Return element strides of a dense buffer whose axes lie in `order`."""
    steps = [0] * len(shape)
    step = 1
    for axis in reversed(order or tuple(range(len(shape)))):
        steps[axis] = step
        step *= max(shape[axis], 1)
    return tuple(steps)
