"""Views that are results: where one has each element at the place it already lies, nothing needs to move."""

from __future__ import annotations

from collections.abc import Callable

from stratal.base.fallback import skippable
from stratal.base.lowered import Lowered
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.graph.partition import Group, Partition
from stratal.loops import index
from stratal.loops.compute import Compute
from stratal.loops.expr import Buffer, Load
from stratal.loops.lowering import is_view


@skippable(lambda *_: None)
def lies_in_order(
    group: Group,
    graph: Graph,
    partition: Partition,
    lower_of: Callable[[Node], Lowered | None],
    strides_of: Callable[[Node], tuple[int, ...]],
) -> Node | None:
    """Return the value that a group only shows in other axes, if it is read by nothing else.

    The value may then be made where the result is wanted: images stored with channels last, and returned so.
    """
    node = group.members[0]
    if group.kind != "pointwise" or len(group.members) > 1 or len(node.inputs) != 1:
        return None
    (source,) = node.inputs
    compute = lower_of(node)
    if not isinstance(compute, Compute) or not is_view(compute) or source not in partition.stored:
        return None
    if source in graph.roots or sum(source in n.inputs for n in graph.nodes) > 1:
        return None
    there = Buffer("there", source.dtype, source.aval.ints, strides_of(source))
    here = Buffer("here", node.dtype, node.aval.ints, strides_of(node))
    (load,) = compute.loads
    same = index.place(there, load.indices) is index.place(here, tuple(compute.axes))
    return source if same and isinstance(load, Load) and there.size == here.size else None
