"""Algorithm choices made on the graph before fusion: exact rewrites that give the tactics what they are good at."""

from __future__ import annotations

from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.optimize.rewrite import rewrite_graph


def pad_convolutions(graph: Graph) -> Graph:
    """Make padding and dilation of a convolution's operand a value of its own, so that the inner loop needs no conditions.

        conv(x, w, padding=p, lhs_dilation=d)  ->  conv(pad(x, 0, p, d - 1), w)
        conv(permute(x), ...)                  ->  conv(permute(pad(x, ...)), w)      one padded copy serves both directions
    """
    return rewrite_graph(graph, _pad_convolution)


def _pad_convolution(node: Node) -> tuple[str, Node] | None:
    if node.op.name != "conv":
        return None
    op = node.op.attributes
    padding, dilation = op["padding"], op["lhs_dilation"]
    if all(p == (0, 0) for p in padding) and all(d == 1 for d in dilation):
        return None
    if any(low < 0 or high < 0 for low, high in padding):
        return None
    x, w = node.inputs
    b = Builder(node.where)
    zero = b.const(0, x.dtype)
    low = (0, 0, *(p[0] for p in padding))
    high = (0, 0, *(p[1] for p in padding))
    interior = (0, 0, *(d - 1 for d in dilation))
    if x.op.name == "permute":
        perm = x.op.attributes["perm"]
        place = {axis: k for k, axis in enumerate(perm)}
        moved = [tuple(values[place[axis]] for axis in range(len(perm))) for values in (low, high, interior)]
        padded = b.permute(
            b.pad(x.inputs[0], zero, low=moved[0], high=moved[1], interior=moved[2]), perm=perm
        )
    else:
        padded = b.pad(x, zero, low=low, high=high, interior=interior)
    attributes = op | {"padding": tuple((0, 0) for _ in padding), "lhs_dilation": tuple(1 for _ in dilation)}
    return "pad-convolution", b.conv(padded, w, **attributes)
