"""From a graph to the kernels it is cut into: algorithms, axis orders and fusion, as every compilation and
every price takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stratal.base import fallback
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node
from stratal.graph.partition import Partition
from stratal.optimize.canonical import choose_algorithms
from stratal.optimize.fuse import fuse
from stratal.optimize.layout import Order, choose_orders, strides
from stratal.schedule.program import Planned
from stratal.schedule.tactics import convolutions


class Lowerings:
    """The lowering of each node, made once per op and operand types.

    None where the reference runs on the host: there is no lowering, or code made of it failed.
    """

    def __init__(self) -> None:
        self._found: dict[object, Lowered | None] = {}
        self._of: dict[Node, Lowered | None] = {}

    def __call__(self, node: Node) -> Lowered | None:
        try:
            return self._of[node]
        except KeyError:
            self._of[node] = found = self._lowered(node)
            return found

    def _lowered(self, node: Node) -> Lowered | None:
        if isinstance(node.op, (Input, Const, Item)) or fallback.level(node) == fallback.HOST:
            return None
        types = tuple(i.aval for i in node.inputs)
        key = (node.op, types)
        if key not in self._found:
            make = partial(node.op.lower, *types)
            self._found[key] = None if node.op.host_reason(*types) else fallback.optional(
                f"lowering of {node.op.name}", make, lambda: None, where=node.where)  # fmt: skip
        return self._found[key]


def cut_into_kernels(
    graph: Graph, lower_of: Lowerings, target: Target, fused: bool = True,
    given: Mapping[Node, Order] | None = None
) -> Planned:
    """Choose algorithms and axis orders and fuse: a graph and its partition.

    `given` are the axis orders of inputs that do not lie row-major.
    """
    graph = choose_algorithms(graph, lower_of, target, convolutions)
    orders = choose_orders(graph, lower_of, target, given)
    partition = partitioned(graph, lower_of, orders, fused)
    return Planned(graph, partition, lambda node: strides(node.aval.ints, orders.get(node)))


def partitioned(
    graph: Graph, lower_of: Lowerings, orders: Mapping[Node, Order], fused: bool
) -> Partition:
    """Fuse a graph, but for nodes that fell below that level; where fusion fails, give each op a kernel."""
    fused = fused and fallback.floor() == fallback.FUSED
    alone = frozenset(n for n in fallback.below_fused() if isinstance(n, Node))
    found = fallback.optional(
        "fusion", partial(fuse, graph, lower_of, orders, convolutions, enabled=fused, alone=alone),
        partial(fuse, graph, lower_of, orders, convolutions, enabled=False),
    )  # fmt: skip
    for group in found.groups:
        group.why = fallback.reason(group.members[0]) or group.why
    return found
