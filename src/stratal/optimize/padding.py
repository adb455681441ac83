"""Padded copies that their readers do without: convolutions read the image itself, by tiles or where vectors
hold pixels of many images.

    y = pad(x); conv(y, w)  ->  conv(x or 0 beyond its edges, w)

Winograd's algorithm reads an element once or twice, to transform tiles of the image or to lay out its phases.
Choosing 0 there costs nothing to speak of, and copies took a tenth of the whole. Direct sums read an element
many times, and keep theirs; so it must be plain that they would be slower. Depthwise convolutions are bound
by memory: with channels side by side, a vector of them is there or not, and the copy took half of their time.

Where vectors hold one pixel of many images, a tap lies inside all of them or outside. What is outside need
not be multiplied: half of all, in the gradient of a small image by a large window. Without the copy, 3x3
windows over 32x32 pixels take a tenth less, with fewer than 4 channels a third.
"""

from __future__ import annotations

from collections.abc import Callable

from stratal.base.log import collect
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.base.types import Type
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Node
from stratal.graph.op import Op
from stratal.ops.linear.conv import Conv
from stratal.ops.views.shapes import Permute, Reshape
from stratal.optimize.layout import choose_orders, innermost_axis

Kind = tuple[Op, tuple[Type, ...]]


def pads_with_zero(pad: Node) -> bool:
    """Return whether what a node pads has zeros around it, and none between its elements."""
    _, border = pad.inputs
    zero = isinstance(border.op, Const) and not border.op.value.array.any()
    return zero and not any(pad.op.attributes["interior"])


def leaving_out(graph: Graph, lower_of: Callable[[Node], Lowered | None], target: Target) -> frozenset[Kind]:
    """Return which convolutions leave out the products with their padding: those that read and make images
    whose batch lies innermost, all of a kind.
    """
    convs = [node for node in graph.nodes if _is_padded(node)]
    if not convs or innermost_axis(graph, target) != "batch":
        return frozenset()
    with collect():  # layouts are chosen, and said, when all rewrites are done
        orders = choose_orders(graph, lower_of, target)
    by_images = {node for node, order in orders.items() if order[-1] == 0}
    others = {kind_of(conv) for conv in convs if not {conv, conv.inputs[0]} <= by_images}
    return frozenset(map(kind_of, convs)) - others


def padded_twice(graph: Graph, target: Target) -> frozenset[Node]:
    """Return the inputs of a graph that convolutions pad for images and, permuted, for gradients of filters,
    where both want the batch innermost.
    """
    read = [node.inputs[0] for node in graph.nodes if _is_padded(node)]
    plain = {x for x in read if isinstance(x.op, Input)}
    both = frozenset(plain & {permuted(x)[0] for x in read if x not in plain})
    return both if both and innermost_axis(graph, target) == "batch" else frozenset()


def permuted(x: Node) -> tuple[Node, tuple[int, ...]]:
    """Return the value whose axes a node shows in another order, and that order; else the node itself.

    Where one of them is a single element, batch and channels are exchanged by a reshape.
    """
    rank = len(x.shape)
    if isinstance(x.op, Permute):
        return x.inputs[0], x.op.perm
    if isinstance(x.op, Reshape) and rank > 2 and 1 in x.shape[:2]:
        exchanged = (1, 0, *range(2, rank))
        if x.inputs[0].shape == tuple(x.shape[axis] for axis in exchanged):
            return x.inputs[0], exchanged
    return x, tuple(range(rank))


def kind_of(node: Node) -> Kind:
    """Return what rewrites of its operands leave as it is."""
    return node.op, tuple(i.type for i in node.inputs)


def _is_padded(node: Node) -> bool:
    """Return whether a node is a plain convolution with padding, in the dtype of its products.

    Tiles of a single filter hold several pixels, which lie inside and outside.
    """
    if not isinstance(node.op, Conv) or not node.dtype.is_float or node.dtype.compute is not node.dtype:
        return False
    op = node.op.attributes
    dense = op["groups"] == 1 and all(d == 1 for d in op["lhs_dilation"])
    return dense and node.shape[1] != 1 and any(p != (0, 0) for p in op["padding"])
