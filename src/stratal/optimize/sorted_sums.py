"""Long scatter sums in the order of their rows: indices are sorted once, each row is added up in one go.

    scatter(add, 0, index, x)  ->  segment_sum(x', rows, starts)     with x' = x in the order of the rows

What makes a slice is made in that order, too, where it is arithmetic on gathered slices and on one number per
slice: the indices of the gathers and the numbers are *carried* along while the rows are sorted. Then the sum
finds them side by side, knows early which slices come next, and waits for nothing but those.

    x  = gather(h, source)  * weight[:, None]
    x' = gather(h, source') * weight'[:, None]   with   rows, starts, source', weight' =
                                                        segments(index, source, weight)

Other slices stay where they are, and their places are carried. Sums over one index share what is sorted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratal.base.dtypes import int32
from stratal.base.fallback import skippable, unchanged
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, rebuild, topological
from stratal.ops.control.regions import is_zero
from stratal.ops.elementwise.conversion import Cast, Select
from stratal.ops.families import Elementwise
from stratal.ops.indexing.gather import Gather
from stratal.ops.indexing.scatter import Scatter
from stratal.ops.indexing.segments import MOST
from stratal.ops.views.shapes import Broadcast
from stratal.optimize.prologue import decided_alone
from stratal.optimize.rewrite import reshaped, with_roots

MANY = 1 << 12  # indices, and
MUCH = 1 << 18  # elements, whose sum repays sorting the indices


@dataclass
class Order:
    """What is carried along with one index: one number per slice each, and whether places are needed, too."""

    carried: dict[Node, None] = field(default_factory=dict)
    by_place: bool = False


@skippable(unchanged)
def sort_scatters(graph: Graph) -> Graph:
    """Sum many slices into rows in the order of the rows, not of the slices.

    Rows are written once and by different threads, and what makes the slices need not be stored. Each row
    still adds up in the order of the slices, but for sums so long that several threads take part: these share
    the work at places that depend on sizes alone.
    """
    sums = [node for node in graph.nodes if _repays(node)]
    if not sums:
        return graph
    orders = _orders(graph, sums)
    becomes: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = rebuild(node, (becomes[i] for i in node.inputs))
        becomes[node] = _sorted(node, moved, orders[node.inputs[1]]) if _repays(node) else moved
    return with_roots(graph, [becomes[root] for root in graph.roots])


def _repays(node: Node) -> bool:
    """Return whether a node is a sum of many slices, from zero, that rounds as a sum does."""
    if not isinstance(node.op, Scatter) or node.op.kind != "add":
        return False
    base, index, x = node.inputs
    axis = node.op.attributes["axis"]
    count, size = math.prod(index.aval.ints), base.aval.ints[axis]
    plain = is_zero(base) and not base.dtype.is_bool and base.dtype.compute is base.dtype
    much = count >= MANY and math.prod(x.aval.ints) >= MUCH
    return plain and much and math.prod(base.aval.ints[:axis]) == 1 and max(count, size) <= MOST


# -- what is carried -----------------------------------------------------------------------------------------
def _orders(graph: Graph, sums: list[Node]) -> dict[Node, Order]:
    """Return for each index what its sums need, as far as it is there before all of them and does not
    change more often than the index.
    """
    held, late = decided_alone(graph), _behind(graph, sums)
    found: dict[Node, Order] = {}
    for node in sums:
        _, index, x = node.inputs
        order = found.setdefault(index, Order())
        needed = _per_slice(x) if x.shape[:1] == index.shape else None
        if needed is None or any(v in late or (index in held and v not in held) for v in needed):
            order.by_place = True
        else:
            order.carried.update(needed)
    return found


def _behind(graph: Graph, sums: list[Node]) -> set[Node]:
    """Return the sums and what depends on them: carried with another sum, it might wait for itself."""
    late = set(sums)
    for node in graph.nodes:
        if not late.isdisjoint(node.inputs):
            late.add(node)
    return late


def _per_slice(x: Node) -> dict[Node, None] | None:
    """Return the numbers per slice that slices are made of, and gathers; None where they lie in memory."""
    found: dict[Node, None] = {}
    stack = [x]
    while stack:
        node = stack.pop()
        if _elementwise(node):
            stack += reversed(node.inputs)
        elif _gathers_slices(node):
            found[node.inputs[1]] = None
        elif _spreads(node):
            found[node.inputs[0]] = None
        elif not _same_for_all(node):
            return None
    return found


def _elementwise(node: Node) -> bool:
    return isinstance(node.op, (Elementwise, Select, Cast)) and node.aval.ndim > 1


def _gathers_slices(node: Node) -> bool:
    return isinstance(node.op, Gather) and node.op.axis == 0 and node.inputs[1].aval.ndim == 1


def _spreads(node: Node) -> bool:
    """Return whether a node is one number per slice, spread over it."""
    return isinstance(node.op, Broadcast) and node.op.axes == (0,) and not _same_for_all(node)


def _same_for_all(node: Node) -> bool:
    """Return whether all slices are equal for sure."""
    if not isinstance(node.op, Broadcast):
        return False
    axes, shape = node.op.axes, node.inputs[0].shape
    return 0 not in axes or shape[axes.index(0)] == 1


# -- the sum -------------------------------------------------------------------------------------------------
def _sorted(node: Node, moved: Node, order: Order) -> Node:
    """Return a sum whose operands are final in the order of its rows."""
    b = Builder(node.where)
    base, index, x = moved.inputs
    axis = node.op.attributes["axis"]
    size, count = base.aval.ints[axis], math.prod(index.aval.ints)
    carried = list(order.carried)
    if order.by_place:
        carried.append(b.iota(shape=(count,), axis=0, dtype=int32))
    rows, starts, *along = b.items(b.segments(reshaped(b, index, (count,)), *carried, size=size))
    place = dict(zip(carried, along, strict=True))
    needed = _per_slice(x) if x.shape[:1] == index.shape else None
    if needed is not None and all(v in place for v in needed):
        summed = b.segment_sum(_in_order(b, x, place), rows, starts)
    else:
        summed = b.segment_sum(reshaped(b, x, (count, *base.aval.ints[axis + 1 :])), rows, starts, along[-1])
    return reshaped(b, summed, base.aval.ints)


def _in_order(b: Builder, x: Node, place: Mapping[Node, Node]) -> Node:
    """Return slices made of what was carried along."""
    made: dict[Node, Node] = {}
    for node in topological([x], stop=lambda n: not _elementwise(n)):
        if _elementwise(node):
            made[node] = rebuild(node, (made[i] for i in node.inputs))
        elif _gathers_slices(node):
            made[node] = rebuild(node, (node.inputs[0], place[node.inputs[1]]))
        elif _spreads(node):
            made[node] = rebuild(node, (place[node.inputs[0]],))
        else:
            made[node] = node
    return made[x]
