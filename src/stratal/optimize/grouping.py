"""Kernels in the making: the groups of a partition, what their members read, and how much work they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from stratal.base.lowered import Lowered
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Item, Node, graph_input, topological
from stratal.graph.partition import Group, Partition
from stratal.loops import index
from stratal.loops.compute import Compute, LoopBody, Nest
from stratal.loops.expr import Call, Expr, Var, walk
from stratal.loops.lowering import axis_positions
from stratal.optimize.asked import ConvolutionTactics
from stratal.optimize.layout import transposed

LowerOf = Callable[[Node], Lowered | None]

MAX_WORK: Final = 480  # operations per element, expanded: beyond, compile time outgrows what fusing saves


class Access(NamedTuple):
    """A stored or fused value and where a node reads it, in the node's own axes."""

    value: Node
    indices: tuple[Expr, ...]


class Grouping:
    """The state that fusion builds up and that decides what is stored."""

    def __init__(
        self, graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]],
        tactics: ConvolutionTactics
    ) -> None:
        self.graph = graph
        self.tactics = tactics
        self.number = {node: k for k, node in enumerate(graph.nodes)}
        self.lower_of = lower_of
        self.orders = orders
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.reads: dict[Node, list[Access]] = {}
        self.work: dict[Group, int] = {}
        self._sizes: dict[Compute, int] = {}
        self.whole = set(graph.roots)  # values that must exist as buffers, views or not
        self.by_bodies: set[Node] = set()  # those a loop body reads: as they lie in memory, under any shape
        for node in graph.nodes:
            lowered = None if isinstance(node.op, (Input, Const, Item)) else lower_of(node)
            if isinstance(lowered, LoopBody):
                self.by_bodies.update(node.inputs)
            elif not isinstance(node.op, (Input, Const, Item)) and not isinstance(lowered, (Compute, Nest)):
                self.whole.update(node.inputs)
                self.whole.update(transposed(node) if lowered is None else ())

    def owner(self, value: Node) -> Group | None:
        """Return the group that computes a value; None for inputs and constants."""
        return self.group_of.get(value.inputs[0] if isinstance(value.op, Item) else value)

    def order_of(self, value: Node) -> Sequence[int]:
        """Return the axes of a value as they lie in memory, outermost first."""
        return self.orders.get(value) or range(len(value.shape))

    def work_of(self, node: Node) -> int:
        """Return the operations a node adds to a kernel."""
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            return 0
        if lowered not in self._sizes:
            self._sizes[lowered] = 1 + sum(1 for e in walk(lowered.terms) if isinstance(e, Call))
        return self._sizes[lowered]


def named(group: Group) -> str:
    """Return a short name for a group: the first of its ops."""
    names = list(dict.fromkeys(m.op.name for m in group.members))
    return "+".join(names[:3]) + ("+.." if len(names) > 3 else "")


def along_rows(group: Group, access: Access, axes: tuple[Expr, ...]) -> bool:
    """Row values are read by row; elements only by readers that run over elements, each its own."""
    rows = group.space[: group.num_rows]
    if len(axes) == len(group.space) and access.value.shape == group.space and access.indices == axes:
        return True
    return access.value.shape == rows and access.indices == axes[: group.num_rows]


def reads_in_order(accesses: Sequence[Access], order: Sequence[Var]) -> bool:
    """Return whether a reduction reads its operands with kept axes first and reduced axes last."""
    full = [a for a in accesses if len(a.indices) == len(order)]
    return bool(full) and all(
        axis_positions(a.indices, tuple(order)) == tuple(range(len(order))) for a in full
    )


def reads_reshaped(access: Access, order: Sequence[Var]) -> bool:
    """Return whether loops visit the elements of a row-major value one after another."""
    shape, extents = access.value.aval.ints, tuple(v.extent for v in order)
    if math.prod(shape) != math.prod(extents):
        return False
    return index.flatten(access.indices, shape) is index.flatten(tuple(order), extents)


def column_key(
    compute: Compute, accesses: Sequence[Access]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (space, reduced axes) of the operand read straight: reductions with equal keys share a loop
    nest.
    """
    order = (*compute.axes, *compute.reduce)
    for access in accesses:
        where = axis_positions(access.indices, order)
        if where is not None and sorted(where) == list(range(len(order))):
            reduced = tuple(a for a, k in enumerate(where) if k >= len(compute.axes))
            if [k for k in where if k < len(compute.axes)] == list(range(len(compute.axes))):
                return tuple(order[k].extent for k in where), reduced
    return None


def fused_groups(partition: Partition) -> list[Group]:
    """Return the groups that compute several nodes in one kernel."""
    kinds = ("pointwise", "rows", "columns", "contract")
    return [g for g in partition.groups if g.kind in kinds and len(g.members) > 1]


def kernel_graph(group: Group, partition: Partition) -> Graph:
    """Return what a group computes as a graph of its own: what it reads from memory are the inputs."""
    members = set(group.members)

    def is_read(node: Node) -> bool:
        constant = isinstance(node.op, Const) and node.shape != ()
        return node not in members and (
            isinstance(node.op, (Input, Item)) or constant or node in partition.stored
        )

    read = [n for n in topological(group.members, stop=is_read) if is_read(n)]
    fresh = {node: graph_input(f"x{k}", node.aval) for k, node in enumerate(read)}
    results = [m for m in group.members if m in partition.stored]
    return Graph([fresh[n] for n in read], substitute(results, fresh), name="kernel")


def fusion_key(kernel: Graph) -> str:
    """Return the name under which records hold whether a kernel is better taken apart."""
    return f"fusion {kernel.digest}"
