"""Layouts: the order in which each stored value's axes lie in memory, chosen per value.

Logical shapes never change.

Convolutions want vectors along an axis their windows do not touch: channels last, so that a window's rows are
contiguous too, or where channels are too few to fill a vector the batch last, or the rows of images as they
are. Depthwise convolutions fill vectors along any axis and keep the order they find. What is computed from a
value element by element keeps its order. Results of the graph are row-major.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from stratal.base.fallback import skippable
from stratal.base.log import decide
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node
from stratal.loops.compute import Compute, SameBytes
from stratal.ops.linear.contract import Contract
from stratal.ops.linear.conv import Conv
from stratal.ops.views.boxes import Pad
from stratal.ops.views.shapes import Broadcast, Permute, Reshape

Order = tuple[int, ...]

NEAR: Final = 0.9  # of the arithmetic's time, for windows whose channels lie together
ROWS: Final = 1.5  # for vectors along rows: windows begin anywhere, and tiles have no other algorithm


def channels_last(rank: int) -> Order:
    """Return the axis order N, spatial..., C."""
    return (0, *range(2, rank), 1)


@skippable(lambda *_: {})
def choose_orders(
    graph: Graph, lower_of: Callable[[Node], Lowered | None], target: Target,
    given: Mapping[Node, Order] | None = None,
) -> dict[Node, Order]:  # fmt: skip
    """Return the axis order of every value that is not row-major when stored, outermost axis first.

    Fusion reads it too: which axes are contiguous decides which reductions run along rows. `given` are the
    orders of inputs that another program lays out.
    """
    orders: dict[Node, Order] = dict(given or {})
    convolved: dict[Node, Node] = {}
    for node in graph.nodes:
        for source in _sources(node.inputs[0]) if isinstance(node.op, Conv) else ():
            if source not in convolved or source is node.inputs[0]:  # rather than through a permutation
                convolved[source] = node
    inmost = innermost_axis(graph, target)
    for node in graph.nodes:
        if isinstance(node.op, (Input, Const, Item)) or not isinstance(lower_of(node), Compute):
            continue
        rank = len(node.shape)
        if isinstance(node.op, Conv) or (rank > 2 and node in convolved):
            conv = convolved.get(node, node)
            found = _order_of(node.inputs[0], orders)
            if _is_depthwise(conv) and _walks(conv, found[-1]):
                orders[node] = found
                _note(node, orders[node], "channels that are convolved one by one stay where they are")
            elif inmost != "channels" and _of_activations(conv):
                orders[node] = (*range(1, rank), 0) if inmost == "batch" else tuple(range(rank))
                _note(node, orders[node], "channels are too few to fill the vectors of a convolution")
            else:
                orders[node] = channels_last(rank)
                _note(node, orders[node], "convolutions read windows and write vectors along the channels")
            continue
        inherited = _inherited(node, orders, rank)
        if inherited is not None:
            orders[node] = inherited
    for root in graph.roots:
        orders.pop(root, None)
    for node in graph.nodes:
        if isinstance(lower_of(node), SameBytes):
            orders.pop(node.inputs[0], None)
        elif node.inputs and lower_of(node) is None:
            for x in transposed(node):
                orders.pop(x, None)
    return orders


def transposed(node: Node) -> list[Node]:
    """Return the permutations whose elements a node without a lowering takes as a vector.

    They are stored row-major: a transpose copies by tiles, a reshape of one would element by element.
    """
    flat = [x.inputs[0] for x in node.inputs if isinstance(x.op, Reshape) and x.aval.ndim == 1]
    return [x for x in flat if isinstance(x.op, Permute)]


def innermost_axis(graph: Graph, target: Target) -> str:
    """Return along which axis the vectors of a graph's convolutions take the least arithmetic: "channels", if
    not by far, "batch", or "rows" of images where no windows move along them by more than one element.
    """
    work = dict.fromkeys(("channels", "batch", "rows"), 0.0)
    for node in graph.nodes:
        if isinstance(node.op, Conv) and _of_activations(node):
            lanes = target.lanes(max(4, node.dtype.itemsize))
            batch, channels, *image = node.aval.ints
            if not _is_depthwise(node):
                channels //= node.op.attributes["groups"]  # vectors hold filters of one group
            flops = node.op.cost(*[i.aval for i in node.inputs]).flops
            work["channels"] += flops * _padded(channels, lanes) * NEAR
            work["batch"] += flops * _padded(batch, lanes)
            straight = bool(image) and _walks(node, len(node.shape) - 1)
            work["rows"] += flops * _padded(image[-1], lanes) * ROWS if straight else math.inf
    return min(work, key=lambda axis: work[axis])


def _padded(extent: int, lanes: int) -> float:
    """Return how many lanes are computed per lane used."""
    return math.ceil(extent / lanes) * lanes / max(extent, 1)


def _of_activations(node: Node) -> bool:
    """Return whether a convolution makes images. One that makes weight gradients has images for windows, and
    its batch and channels are swapped.
    """
    return math.prod(node.inputs[1].aval.ints[2:]) <= math.prod(node.aval.ints[2:])


def _is_depthwise(conv: Node) -> bool:
    """Return whether every channel is convolved alone: windows read no other channel beside it."""
    return conv.op.attributes["groups"] > 1 and conv.inputs[1].aval.ints[1] == 1


def _walks(conv: Node, axis: int) -> bool:
    """Return whether windows move by one element along an axis, or not at all."""
    return axis < 2 or bool(conv.op.attributes["strides"][axis - 2] == 1)


def _order_of(node: Node, orders: dict[Node, Order]) -> Order:
    """Return the order in which a value lies, seen through permutations."""
    if isinstance(node.op, Permute) and node not in orders:
        given, perm = _order_of(node.inputs[0], orders), node.op.attributes["perm"]
        return tuple(perm.index(axis) for axis in given)
    return orders.get(node, tuple(range(len(node.shape))))


def _note(node: Node, order: Order, why: str) -> None:
    decide("layout", f"{node.op.name} {node.type}", f"axes in order {order}", why, where=node.where)


def _sources(node: Node) -> list[Node]:
    """Return the values a convolution's first operand is a permutation or padding of."""
    found = [node]
    while isinstance(node.op, Permute):
        node = node.inputs[0]
        found.append(node)
    return found[-1:] if isinstance(found[-1].op, Pad) else []


def _inherited(node: Node, orders: dict[Node, Order], rank: int) -> Order | None:
    """Return the order of the first operand of equal rank that has one.

    A permutation moves the axes of its operand's.
    """
    if isinstance(node.op, Permute):
        given = orders.get(node.inputs[0])
        perm: tuple[int, ...] = node.op.attributes["perm"]
        return None if given is None else tuple(perm.index(axis) for axis in given)
    if isinstance(node.op, (Reshape, Broadcast, Contract)):
        return None
    return next((orders[v] for v in node.inputs if v in orders and len(v.shape) == rank), None)


def strides(shape: tuple[int, ...], order: Order | None) -> tuple[int, ...]:
    """Return element strides of a dense buffer whose axes lie in `order`."""
    steps = [0] * len(shape)
    step = 1
    for axis in reversed(order or tuple(range(len(shape)))):
        steps[axis] = step
        step *= max(shape[axis], 1)
    return tuple(steps)
