"""Fusion: partition a graph into kernels, in one pass over the nodes in order.

A node joins the latest group among its operands' groups where their iteration spaces agree, so no cycle can
arise: everything else it needs was computed earlier. Views (reshape, permute, broadcast, slice) belong to no
group; readers look through them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from stratal.base import tuning
from stratal.base.dims import Dim, Shape
from stratal.base.log import collect, decide
from stratal.base.types import TensorType, TupleType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node
from stratal.graph.partition import Group, Partition
from stratal.loops import index
from stratal.loops.compute import Compute, Nest, Region, SameBytes, fresh_axes
from stratal.loops.expr import Buffer, Expr, Guard, Var, walk
from stratal.loops.inverse import inverse
from stratal.loops.lowering import is_contraction, is_segmented, is_view
from stratal.loops.rebuild import substitute
from stratal.optimize.asked import ConvolutionTactics
from stratal.optimize.buffers import Buffers
from stratal.optimize.grouping import (
    MAX_WORK,
    Access,
    Grouping,
    LowerOf,
    along_rows,
    column_key,
    fused_groups,
    fusion_key,
    kernel_graph,
    named,
    reads_in_order,
    reads_reshaped,
)
from stratal.optimize.layout import strides

FEW_ROWS = 8
SMALL_SPACE = 1 << 14
LITTLE = 16  # elements


class Fusion(Grouping):
    """One run of the pass; see `fuse`. Nodes that stand `alone` share no kernel."""

    def __init__(
        self, graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]],
        tactics: ConvolutionTactics, enabled: bool = True, alone: frozenset[Node] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(graph, lower_of, orders, tactics)
        self.enabled = enabled
        self.alone = alone
        self.whole |= alone | {v for v in self.by_bodies if not self._is_view(v)}
        self.views: dict[Node, tuple[tuple[Var, ...], Access]] = {}
        self.columns: dict[tuple[object, ...], list[Group]] = {}
        self.loops: dict[tuple[int, ...], tuple[Var, ...]] = {}  # variables for reductions of some extents
        self.newest: dict[Shape, Group] = {}  # element-wise kernel of each space
        self.little: set[Node] = set()
        self.shown: dict[
            Group, tuple[tuple[Var, ...], tuple[Expr, ...]]
        ] = {}  # how a sum is read by what follows
        self.waiting: dict[Node, Compute] = {}  # element-wise nodes over inputs alone, not placed yet

    def run(self) -> Partition:
        for node in self._scalars_first():
            if not isinstance(node.op, (Input, Const, Item)) and not self._see_through(node):
                self._place(node)
        self._settle(list(self.waiting))
        for root in dict.fromkeys(self.graph.roots):
            if isinstance(root.op, (Input, Const)):
                self._open("alias", root, "a result that is an input or a constant is copied")
        self._drop_unread()
        stored = Buffers(self).stored(fused=self.enabled)
        groups = [g for g in self.groups if g.members]
        for k, group in enumerate(groups):
            group.position = k
            decide("fuse", named(group), f"{group.kind} of {len(group.members)} ops", group.why,
                   where=group.members[0].where)  # fmt: skip
        return Partition(groups, self.group_of, stored)

    def _scalars_first(self) -> list[Node]:
        """Return the nodes with those that depend on little data in front: learning rates and step counts
        then hold up nothing.
        """
        little = self.little
        for node in self.graph.nodes:
            types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
            small = all(math.prod(t.ints) <= LITTLE for t in types) and not node.op.effects
            if small and all(i in little for i in node.inputs):
                little.add(node)
        nodes = self.graph.nodes
        return [n for n in nodes if n in little] + [n for n in nodes if n not in little]

    # -- views -----------------------------------------------------------------------------------------------
    def _see_through(self, node: Node) -> bool:
        """Record a view so that readers look through it.

        Values that must exist as buffers are copied instead.
        """
        lowered = self.lower_of(node)
        if node in self.whole or not isinstance(lowered, Compute) or not is_view(lowered):
            return False
        (load,) = lowered.loads
        k = next(i for i, a in enumerate(lowered.args) if a is load.buffer)
        access = self.resolve(node.inputs[k], load.indices)
        if node in self.by_bodies:
            if not self._is_reshape(node, lowered.axes, access):
                self.whole.add(node)
                return False
            self.whole.add(access.value)
        self.views[node] = (lowered.axes, access)
        return True

    def _is_view(self, node: Node) -> bool:
        lowered = None if isinstance(node.op, (Input, Const, Item)) else self.lower_of(node)
        return isinstance(lowered, Compute) and is_view(lowered)

    def _is_reshape(self, view: Node, axes: tuple[Var, ...], access: Access) -> bool:
        """Return whether a view has every element where it lies behind the view: a reshape of it."""
        if view.aval.ints == () or any(self.order_of(v) != range(len(v.shape)) for v in (view, access.value)):
            return False
        here, there = (Buffer("m", v.dtype, v.aval.ints) for v in (view, access.value))
        return here.size == there.size and index.place(there, access.indices) is index.place(here, axes)

    def resolve(self, node: Node, indices: tuple[Expr, ...]) -> Access:
        """Return the value behind views and where it is read when `node` is read at `indices`."""
        found = self.views.get(node)
        if found is None:
            return Access(node, indices)
        axes, access = found
        return Access(access.value, tuple(substitute(access.indices, dict(zip(axes, indices, strict=True)))))

    def accesses(self, node: Node, compute: Compute) -> list[Access]:
        """Return every read of an operand value, in the node's axes."""
        place = {buffer: k for k, buffer in enumerate(compute.args)}
        return [self.resolve(node.inputs[place[e.buffer]], e.indices) for e in compute.loads]

    # -- placing nodes ---------------------------------------------------------------------------------------
    def _place(self, node: Node) -> None:
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            self._settle([i for i in node.inputs if i in self.waiting])
        if lowered is None:
            self._open("host", node, "it has no lowering for these operands")
        elif isinstance(lowered, Region):
            self._open("region", node, "control flow nests commands of its own")
        elif isinstance(lowered, SameBytes):
            self._open("bytes", node, "its operand's bytes are its own")
        elif isinstance(lowered, Nest):
            self.reads[node] = [self.resolve(i, tuple(fresh_axes(i.aval.ints))) for i in node.inputs]
            self._settle([a.value for a in self.reads[node] if a.value in self.waiting])
            self._open(lowered.kind, node, "only a tactic knows how to write its loops")
        elif isinstance(lowered, Compute):
            self.reads[node] = self.accesses(node, lowered)
            self._place_compute(node, lowered, self.reads[node])
        else:
            self.reads[node] = [self.resolve(i, tuple(fresh_axes(i.aval.ints))) for i in node.inputs]
            self._settle([a.value for a in self.reads[node] if a.value in self.waiting])
            self._open("body", node, "its record writes its own loops")

    def _place_compute(self, node: Node, compute: Compute, accesses: list[Access]) -> None:
        waiting = [a.value for a in accesses if a.value in self.waiting]
        owners = [g for g in (self.owner(a.value) for a in accesses) if g is not None]
        joins = self.enabled and node not in self.alone
        if not owners and joins and compute.combiner is None and node not in self.little:
            self.waiting[node] = compute  # depends on inputs alone: runs wherever its first reader runs
            return
        latest = max(owners, key=lambda g: g.position, default=None) if joins else None
        plain = compute.combiner is None
        if latest is not None and plain and self._fits(latest, node, compute, accesses):
            needed = self._waiting_for(waiting)
            straight = all(a.indices == tuple(compute.axes) for a in accesses if a.value in self.waiting)
            room = self.work[latest] + sum(map(self.work_of, needed)) <= MAX_WORK
            if (straight and room) and all(
                v.shape == latest.space and self._fits(latest, v, self.waiting[v], ()) for v in needed
            ):
                for v in needed:
                    del self.waiting[v]
                    self._join(latest, v)
                self._join(latest, node)
                return
            if self._may_precede(needed, latest, node):
                self._settle(waiting, before=latest)
                self._join(latest, node)
                return
        if waiting:
            self._settle(waiting)
            owners = [g for g in (self.owner(a.value) for a in accesses) if g is not None]
            latest = max(owners, key=lambda g: g.position, default=None) if joins else None
        if is_contraction(compute):
            self._open(
                "contract", node, "a sum of products starts a kernel; what follows on its result joins"
            )
        elif is_segmented(compute):
            self._open("segments", node, "it adds up what data assigns to each row")
        elif compute.combiner is not None:
            self._place_reduction(node, compute, accesses, latest)
        elif latest is not None and self._fits(latest, node, compute, accesses):
            self._join(latest, node)
        else:
            self._place_apart(node, latest, accesses)

    def _place_apart(self, node: Node, latest: Group | None, accesses: Sequence[Access]) -> None:
        """Give an element-wise node the kernel of others that read the same in the same loops, or its own."""
        found = self._sibling(node, latest, accesses) if latest is not None else None
        if found is None:
            self._open("pointwise", node, self._apart(latest, node.shape, accesses))
        else:
            self._join(found, node)

    def _sibling(self, node: Node, latest: Group, accesses: Sequence[Access]) -> Group | None:
        """Return the newest element-wise kernel over a node's loops, if it is behind and reads a value of at
        least the node's size that the node reads, too.
        """
        found = self.newest.get(node.shape)
        joins = self.enabled and node not in self.alone
        if found is None or not joins or found.kind != "pointwise" or self._full(found):
            return None
        read = {a.value for m in found.members for a in self.reads[m]}
        large = (a.value for a in accesses if a.value.aval.size >= node.aval.size)
        return found if _follows(found, latest) and not read.isdisjoint(large) else None

    def _may_precede(self, values: Sequence[Node], group: Group, reader: Node) -> bool:
        """Return whether waiting values, little beside their reader, can run before the reader's kernel."""
        owners = (self.owner(a.value) for v in values for a in self.reads[v] if a.value not in self.waiting)
        little = sum(v.aval.nbytes for v in values) <= reader.aval.nbytes // LITTLE
        return little and all(o is None or o.position < group.position for o in owners)

    def _waiting_for(self, values: Sequence[Node]) -> list[Node]:
        """Return waiting values with the waiting values they read, operands first, all read at their own
        elements.
        """
        found: dict[Node, None] = {}
        stack = list(values)
        while stack:
            v = stack[-1]
            below = [a.value for a in self.reads[v] if a.value in self.waiting and a.value not in found]
            if below:
                stack.extend(below)
            else:
                found[v] = None
                stack.pop()
        return list(found)

    def _settle(self, values: Sequence[Node], before: Group | None = None) -> None:
        """Give waiting values kernels of their own, those over one space the same, `before` another one."""
        opened: dict[Shape, Group] = {}
        for v in self._waiting_for(values):
            compute = self.waiting.pop(v)
            owners = [g for g in (self.owner(a.value) for a in self.reads[v]) if g is not None]
            latest = max(owners, key=lambda g: g.position, default=None)
            beside = opened.get(v.shape)
            if latest is not None and self._fits(latest, v, compute, self.reads[v]):
                self._join(latest, v)
            elif beside is not None and _follows(beside, latest) and not self._full(beside):
                self._join(beside, v)
            else:
                why = self._apart(latest, v.shape, self.reads[v])
                opened[v.shape] = self._open("pointwise", v, why, before)

    def _fits(self, group: Group, node: Node, compute: Compute, accesses: Sequence[Access]) -> bool:
        """Return whether an element-wise node can run inside the group's loops."""
        if self._full(group) or group.kind not in ("pointwise", "contract", "columns", "rows"):
            return False
        inside = [a for a in accesses if self.owner(a.value) is group]
        if compute.checks and inside and group.kind != "pointwise":
            return False  # an index out of a reduction is checked before it is used: it needs a buffer
        axes: tuple[Expr, ...] = tuple(compute.axes)
        if group.kind == "contract":
            return self._follows_sum(group, node, compute, inside)
        if group.kind == "rows":
            fits = node.shape in (group.space, group.space[: group.num_rows])
            return fits and all(along_rows(group, a, axes) for a in inside)
        space = group.space
        if group.kind == "columns":
            space = tuple(n for k, n in enumerate(group.space) if k not in group.reduced)
        return node.shape == space and all(a.indices == axes for a in inside)

    def _follows_sum(self, group: Group, node: Node, compute: Compute, inside: Sequence[Access]) -> bool:
        """Return whether a node reads each element of a sum, or of what follows it, where it is computed.

        The first to follow a sum may show it moved; what comes later reads the sum likewise.
        """
        axes: tuple[Expr, ...] = tuple(compute.axes)
        if len(group.members) == 1 and self._moves(group.members[0], node, compute, inside):
            return True
        there = axes
        if group in self.shown:
            first, indices = self.shown[group]
            there = tuple(substitute(indices, dict(zip(first, axes, strict=False))))
        anchor = group.members[0]
        return node.shape == group.space and all(
            a.indices == (there if a.value is anchor else axes) for a in inside
        )

    def _moves(self, anchor: Node, node: Node, compute: Compute, inside: Sequence[Access]) -> bool:
        """Return whether a node shows a sum's elements, each once, at other places in memory, and neighbours
        still as neighbours.
        """
        read = {a.indices for a in inside if a.value is anchor}
        if len(read) != 1 or any(isinstance(e, Guard) for e in walk(compute.terms)):
            return False
        if not compute.axes or not anchor.aval.ndim:
            return False  # a single element has no neighbours
        (indices,) = read
        here, there = (
            Buffer("", v.dtype, v.aval.ints, strides(v.aval.ints, self.orders.get(v))) for v in (node, anchor)
        )
        if index.place(here, tuple(compute.axes)) is index.place(there, indices):
            return False  # it lies where the sum does: nothing moves (`schedule/moves.py`)
        last = compute.axes[self.order_of(node)[-1]]
        near = index.stride_of(indices[self.order_of(anchor)[-1]], last) == 1
        return near and inverse(indices, compute.axes, fresh_axes(anchor.aval.ints)) is not None

    def _place_reduction(
        self, node: Node, compute: Compute, accesses: list[Access], latest: Group | None
    ) -> None:
        order = (*compute.axes, *compute.reduce)
        space = tuple(v.extent for v in order)
        num_rows = len(compute.axes)
        # along memory: operands are read kept axes first and reduced axes last, as they are or reshaped
        reshaped = (a.value not in self.orders and reads_reshaped(a, order) for a in accesses)
        along_memory = reads_in_order(accesses, order) or any(reshaped)
        if along_memory and self._reduces_innermost(accesses, num_rows):
            if latest is None or not self._joins_rows(latest, space, num_rows, accesses, order):
                latest = self._open(
                    "rows", node, self._apart(latest, space, accesses, "its loops finish no whole row")
                )
                latest.space, latest.num_rows = space, num_rows
            else:
                self._join(latest, node)
            return
        key = column_key(compute, accesses)
        # Shared loops run over the first reduction's axes: the others' have its extents, in order.
        slot = (*(key or self._places(accesses, order)), tuple(v.extent for v in compute.reduce))
        joins = self.enabled and node not in self.alone
        known = self.columns.setdefault(slot, []) if joins else []
        for found in takewhile(lambda g: _follows(g, latest), reversed(known)):  # newest first
            if not self._full(found) and self._shares(found, accesses):
                self._join(found, node)
                return
        group = self._open("columns", node, self._apart(latest, space, accesses, "it reduces leading axes"))
        group.space, group.reduced = key or (space, tuple(range(num_rows, len(space))))
        known.append(group)

    def _places(self, accesses: Sequence[Access], order: tuple[Var, ...]) -> tuple[object, ...]:
        """Return what a reduction reads, and where: equal for two over the same windows of a value."""
        common = self.loops.setdefault(tuple(v.extent for v in order), order)
        at = dict(zip(order, common, strict=True))
        return common, *((a.value, tuple(substitute(a.indices, at))) for a in accesses)

    def _shares(self, group: Group, accesses: Sequence[Access]) -> bool:
        """Return whether a kernel reads a large value that a node reads too: else one pass over memory is as
        good as another, and many streams at once are worse.
        """
        read = {a.value for m in group.members for a in self.reads[m]}
        return any(a.value in read or math.prod(a.value.aval.ints) < SMALL_SPACE for a in accesses)

    def _reduces_innermost(self, accesses: Sequence[Access], num_rows: int) -> bool:
        """Return whether the reduced axes are also the last ones in memory, so that rows are contiguous."""
        found = [(self.orders.get(a.value), len(a.indices)) for a in accesses if len(a.indices) > num_rows]
        return all(
            order is None or set(order[num_rows:]) == set(range(num_rows, rank)) for order, rank in found
        )

    def _joins_rows(
        self, group: Group, space: tuple[int, ...], num_rows: int, accesses: list[Access],
        order: Sequence[Var]
    ) -> bool:
        """Return whether a reduction over the trailing axes of `space` can run in the group's row loop."""
        inside = [a for a in accesses if self.owner(a.value) is group]
        if self._full(group) or group.space != space:
            return False
        if group.kind == "rows":
            return group.num_rows == num_rows and all(along_rows(group, a, tuple(order)) for a in inside)
        if group.kind != "pointwise" or any(a.indices != tuple(order) for a in inside):
            return False
        if math.prod(space[:num_rows]) < FEW_ROWS and math.prod(space) > SMALL_SPACE:
            return False  # the row loop would take the parallelism away from the element-wise part
        group.kind, group.num_rows = "rows", num_rows
        return True

    def _full(self, group: Group) -> bool:
        return self.work[group] >= MAX_WORK

    def _open(self, kind: str, node: Node, why: str, before: Group | None = None) -> Group:
        """Start a kernel behind all others, or just before one of them."""
        space = node.aval.shape if isinstance(node.type, TensorType) else ()
        group = Group(kind, node, space, len(self.groups) if before is None else before.position)
        group.why = why
        if kind == "pointwise":
            self.newest[space] = group
        self.groups.insert(group.position, group)
        for later in self.groups[group.position + 1 :]:
            later.position += 1
        self.group_of[node] = group
        # a full kernel takes nothing in and goes into no other
        self.work[group] = MAX_WORK if node in self.alone else self.work_of(node)
        return group

    def _apart(
        self, latest: Group | None, space: Sequence[Dim], accesses: Sequence[Access], otherwise: str = ""
    ) -> str:
        """Say why a node does not run in the loops of the latest kernel it reads."""
        if not self.enabled:
            return "fusion is off"
        if any(a.value in self.alone for a in accesses):
            return "a record says that what it reads is faster alone"
        if latest is None:
            return "it reads no other kernel's results"
        name = named(latest)
        if latest.kind not in ("pointwise", "contract", "columns", "rows"):
            return f"{name} is a {latest.kind} command, which takes nothing in"
        if self._full(latest):
            return f"{name} has as much work as one kernel may have"
        if tuple(space) != latest.space:
            return f"it runs over {_extents(space)}, {name} over {_extents(latest.space)}"
        if any(self.owner(a.value) is latest for a in accesses):
            return otherwise or f"it reads {name} elsewhere than at the element being computed"
        return otherwise or f"the loops of {name} cannot hold it"

    def _join(self, group: Group, node: Node) -> None:
        if group.kind == "contract" and len(group.members) == 1:
            self._follow(group, node)
        group.members.append(node)
        self.group_of[node] = group
        self.work[group] += self.work_of(node)

    def _follow(self, group: Group, node: Node) -> None:
        """Note how the first node to follow a sum reads it: what comes later runs over that node's space."""
        compute = self.lower_of(node)
        for access in self.reads[node]:
            if access.value is group.members[0] and isinstance(compute, Compute):
                self.shown[group] = (compute.axes, access.indices)
                group.space = node.aval.shape

    def _drop_unread(self) -> None:
        """Drop nodes no element of a result depends on, such as what a dynamic update replaces entirely."""
        needed = set(self.graph.roots)
        for node in reversed(self.graph.nodes):
            if node.op.effects:
                needed.add(node)
            if node in needed:
                needed.update((a.value for a in self.reads[node]) if node in self.reads else node.inputs)
        for node in [n for n in self.group_of if n not in needed]:
            self.group_of.pop(node).members.remove(node)
            self.reads.pop(node, None)


def _follows(group: Group, earlier: Group | None) -> bool:
    return earlier is None or earlier.position < group.position


def _extents(space: Sequence[Dim]) -> str:
    return "x".join(map(str, space)) or "a scalar"


def fuse(
    graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]], tactics: ConvolutionTactics, *,
    enabled: bool = True, alone: frozenset[Node] = frozenset()
) -> Partition:
    """Partition a graph into kernels; `orders` says how values that are not row-major will lie in memory.

    With `enabled=False` every node that is not a view runs alone. So do those that must be `alone`, and the
    members of a kernel that was measured to be slower than its parts (`stratal tune --fusion`).
    """
    if enabled and tuning.in_force().unfused:
        alone |= _slower_fused(graph, lower_of, orders, tactics)
    return Fusion(graph, lower_of, orders, tactics, enabled, alone).run()


def _slower_fused(
    graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]], tactics: ConvolutionTactics
) -> frozenset[Node]:
    """Return the members of kernels that records say to take apart."""
    unfused = tuning.in_force().unfused
    with collect():  # what would be decided without the records is nobody's decision
        partition = Fusion(graph, lower_of, orders, tactics).run()
    found: set[Node] = set()
    for group in fused_groups(partition):
        record = unfused.get(fusion_key(kernel_graph(group, partition)))
        if record is not None:
            found.update(group.members)
            decide("fuse", named(group), "taken apart", f"measured {record.when}", basis="measured",
                   seconds=record.seconds, where=group.members[0].where)  # fmt: skip
    return frozenset(found)
