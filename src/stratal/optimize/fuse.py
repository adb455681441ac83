"""Fusion: partition a graph into kernels, in one pass over the nodes in order.

A node joins the latest group among its operands' groups where their iteration spaces agree, so no cycle can
arise: everything else it needs was computed earlier. Views (reshape, permute, broadcast, slice) belong to no
group; readers look through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stratal.base.dims import Dim
from stratal.base.log import decide
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node
from stratal.graph.partition import Group, Partition
from stratal.loops.compute import Compute, Region
from stratal.loops.expr import Call, Expr, Var, walk
from stratal.loops.lowering import axis_positions, is_contraction, is_view
from stratal.loops.rebuild import substitute

LowerOf = Callable[[Node], Lowered | None]

MAX_WORK = (
    480  # operations per element, expanded, beyond which compile time grows faster than what fusing saves
)
FEW_ROWS = 8
SMALL_SPACE = 1 << 14
LITTLE = 16  # elements
WORK_PER_BYTE = 8  # operations in registers that take no longer than moving a byte through memory


class Access(NamedTuple):
    """A stored or fused value and where a node reads it, in the node's own axes."""

    value: Node
    indices: tuple[Expr, ...]


class Fusion:
    """One run of the pass; see `fuse`."""

    def __init__(
        self, graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]], enabled: bool = True
    ) -> None:
        self.graph = graph
        self.lower_of = lower_of
        self.orders = orders
        self.enabled = enabled
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.views: dict[Node, tuple[tuple[Var, ...], Access]] = {}
        self.columns: dict[tuple[tuple[int, ...], ...], Group] = {}
        self.reads: dict[Node, list[Access]] = {}
        self.little: set[Node] = set()
        self.work: dict[Group, int] = {}
        self.sizes: dict[Compute, int] = {}
        self.waiting: dict[Node, Compute] = {}  # element-wise nodes over inputs alone, not placed yet
        self.whole = set(graph.roots)  # values that must exist as buffers, views or not
        for node in graph.nodes:
            if not isinstance(node.op, (Input, Const, Item)) and not isinstance(lower_of(node), Compute):
                self.whole.update(node.inputs)

    def run(self) -> Partition:
        for node in self._scalars_first():
            if not isinstance(node.op, (Input, Const, Item)) and not self._see_through(node):
                self._place(node)
        self._settle(list(self.waiting))
        for root in dict.fromkeys(self.graph.roots):
            if isinstance(root.op, (Input, Const)):
                self._open("alias", root, "a result that is an input or a constant is copied")
        self._drop_unread()
        stored = self._stored()
        if self.enabled:
            stored = self._recompute(self._sink(self._absorb(stored)))
        groups = [g for g in self.groups if g.members]
        for k, group in enumerate(groups):
            group.position = k
            decide("fuse", _named(group), f"{group.kind} of {len(group.members)} ops", group.why,
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
        self.views[node] = (lowered.axes, self.resolve(node.inputs[k], load.indices))
        return True

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

    def owner(self, value: Node) -> Group | None:
        """Return the group that computes a value; None for inputs and constants."""
        return self.group_of.get(value.inputs[0] if isinstance(value.op, Item) else value)

    # -- placing nodes ---------------------------------------------------------------------------------------
    def _place(self, node: Node) -> None:
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            self._settle([i for i in node.inputs if i in self.waiting])
        if lowered is None:
            self._open("host", node, "it has no lowering for these operands")
        elif isinstance(lowered, Region):
            self._open("region", node, "control flow nests commands of its own")
        elif isinstance(lowered, Compute):
            self.reads[node] = self.accesses(node, lowered)
            self._place_compute(node, lowered, self.reads[node])
        else:
            self._open("body", node, "its record writes its own loops")

    def _place_compute(self, node: Node, compute: Compute, accesses: list[Access]) -> None:
        waiting = [a.value for a in accesses if a.value in self.waiting]
        owners = [g for g in (self.owner(a.value) for a in accesses) if g is not None]
        if not owners and self.enabled and compute.combiner is None and node not in self.little:
            self.waiting[node] = compute  # depends on inputs alone: runs wherever its first reader runs
            return
        latest = max(owners, key=lambda g: g.position, default=None) if self.enabled else None
        plain = compute.combiner is None
        if latest is not None and plain and self._fits(latest, node, compute, accesses):
            needed = self._waiting_for(waiting)
            straight = all(a.indices == tuple(compute.axes) for a in accesses if a.value in self.waiting)
            if straight and all(
                v.shape == latest.space and self._fits(latest, v, self.waiting[v], ()) for v in needed
            ):
                for v in needed:
                    del self.waiting[v]
                    self._join(latest, v)
                self._join(latest, node)
                return
        if waiting:
            self._settle(waiting)
            owners = [g for g in (self.owner(a.value) for a in accesses) if g is not None]
            latest = max(owners, key=lambda g: g.position, default=None)
        if is_contraction(compute):
            self._open(
                "contract", node, "a sum of products starts a kernel; what follows on its result joins"
            )
        elif compute.combiner is not None:
            self._place_reduction(node, compute, accesses, latest)
        elif latest is not None and self._fits(latest, node, compute, accesses):
            self._join(latest, node)
        else:
            self._open("pointwise", node, self._apart(latest, node.shape, accesses))

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

    def _settle(self, values: Sequence[Node]) -> None:
        """Give waiting values groups of their own."""
        for v in self._waiting_for(values):
            compute = self.waiting.pop(v)
            owners = [g for g in (self.owner(a.value) for a in self.reads[v]) if g is not None]
            latest = max(owners, key=lambda g: g.position, default=None)
            if latest is not None and self._fits(latest, v, compute, self.reads[v]):
                self._join(latest, v)
            else:
                self._open("pointwise", v, self._apart(latest, v.shape, self.reads[v]))

    def _fits(self, group: Group, node: Node, compute: Compute, accesses: Sequence[Access]) -> bool:
        """Return whether an element-wise node can run inside the group's loops."""
        if self._full(group) or group.kind not in ("pointwise", "contract", "columns", "rows"):
            return False
        inside = [a for a in accesses if self.owner(a.value) is group]
        if compute.checks and inside and group.kind != "pointwise":
            return False  # an index out of a reduction is checked before it is used: it needs a buffer
        axes: tuple[Expr, ...] = tuple(compute.axes)
        if group.kind == "rows":
            fits = node.shape in (group.space, group.space[: group.num_rows])
            return fits and all(_along_rows(group, a, axes) for a in inside)
        space = group.space
        if group.kind == "columns":
            space = tuple(n for k, n in enumerate(group.space) if k not in group.reduced)
        return node.shape == space and all(a.indices == axes for a in inside)

    def _place_reduction(
        self, node: Node, compute: Compute, accesses: list[Access], latest: Group | None
    ) -> None:
        order = (*compute.axes, *compute.reduce)
        space = tuple(v.extent for v in order)
        num_rows = len(compute.axes)
        if _reads_in_order(accesses, order) and self._reduces_innermost(accesses, num_rows):
            if latest is None or not self._joins_rows(latest, space, num_rows, accesses, order):
                latest = self._open(
                    "rows", node, self._apart(latest, space, accesses, "its loops finish no whole row")
                )
                latest.space, latest.num_rows = space, num_rows
            else:
                self._join(latest, node)
            return
        key = _column_key(compute, accesses)
        # Shared loops run over the first reduction's axes: the others' have its extents, in order.
        slot = None if key is None else (*key, tuple(v.extent for v in compute.reduce))
        found = self.columns.get(slot) if slot is not None and self.enabled else None
        if (
            found is not None
            and not self._full(found)
            and (latest is None or latest.position < found.position)
        ):
            self._join(found, node)
            return
        group = self._open("columns", node, self._apart(latest, space, accesses, "it reduces leading axes"))
        group.space, group.reduced = key or (space, tuple(range(num_rows, len(space))))
        if slot is not None:
            self.columns[slot] = group

    def _reduces_innermost(self, accesses: Sequence[Access], num_rows: int) -> bool:
        """Return whether the reduced axes are also the last ones in memory, so that rows are contiguous."""
        found = [(self.orders.get(a.value), len(a.indices)) for a in accesses if len(a.indices) > num_rows]
        return all(
            order is None or set(order[num_rows:]) == set(range(num_rows, rank)) for order, rank in found
        )

    def _joins_rows(
        self,
        group: Group,
        space: tuple[int, ...],
        num_rows: int,
        accesses: list[Access],
        order: Sequence[Var],
    ) -> bool:
        """Return whether a reduction over the trailing axes of `space` can run in the group's row loop."""
        inside = [a for a in accesses if self.owner(a.value) is group]
        if self._full(group) or group.space != space:
            return False
        if group.kind == "rows":
            return group.num_rows == num_rows and all(_along_rows(group, a, tuple(order)) for a in inside)
        if group.kind != "pointwise" or any(a.indices != tuple(order) for a in inside):
            return False
        if math.prod(space[:num_rows]) < FEW_ROWS and math.prod(space) > SMALL_SPACE:
            return False  # the row loop would take the parallelism away from the element-wise part
        group.kind, group.num_rows = "rows", num_rows
        return True

    def _full(self, group: Group) -> bool:
        return self.work[group] >= MAX_WORK

    def _work(self, node: Node) -> int:
        """Return the operations a node adds to a kernel."""
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            return 0
        if lowered not in self.sizes:
            self.sizes[lowered] = 1 + sum(1 for e in walk(lowered.terms) if isinstance(e, Call))
        return self.sizes[lowered]

    def _open(self, kind: str, node: Node, why: str) -> Group:
        space = node.aval.shape if isinstance(node.type, TensorType) else ()
        group = Group(kind, node, space, len(self.groups))
        group.why = why
        self.groups.append(group)
        self.group_of[node] = group
        self.work[group] = self._work(node)
        return group

    def _apart(
        self, latest: Group | None, space: Sequence[Dim], accesses: Sequence[Access], otherwise: str = ""
    ) -> str:
        """Say why a node does not run in the loops of the latest kernel it reads."""
        if not self.enabled:
            return "fusion is off"
        if latest is None:
            return "it reads no other kernel's results"
        name = _named(latest)
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
        group.members.append(node)
        self.group_of[node] = group
        self.work[group] += self._work(node)

    # -- what is stored --------------------------------------------------------------------------------------
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

    def _stored(self) -> dict[Node, None]:
        """Return values with a buffer: results, values read by another group, values read whole."""
        stored: dict[Node, None] = {}
        for node in self.graph.nodes:
            group = self.group_of.get(node)
            if group is not None and (node in self.whole or group.kind in ("host", "region", "body")):
                stored[node] = None
            for access in self.reads.get(node, ()):
                if self.owner(access.value) is not group and access.value in self.group_of:
                    stored[access.value] = None
        return stored

    def _absorb(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Compute an element-wise group inside its only reader, where that repeats no work."""
        readers = self._readers()
        for group in self.groups:
            kept = [m for m in group.members if m in stored]
            if group.kind != "pointwise" or len(kept) != 1 or kept[0] in self.whole:
                continue
            (value,) = kept
            users = readers.get(value, [])
            reader = self._only_reader(value, users)
            if reader is None:
                often = (
                    "several kernels read it"
                    if len({self.group_of[u] for u in users}) > 1
                    else "its reader would compute elements again"
                )
                decide("fuse", value.op.name, "stored", often, where=value.where)
                continue
            if reader is group or self.work[group] + self.work[reader] > MAX_WORK:
                continue
            _put_first(reader, group.members)
            self.work[reader] += self.work[group]
            for member in group.members:
                self.group_of[member] = reader
            group.members.clear()
            del stored[value]
            why = f"{users[0].op.name} reads each element once"
            decide("fuse", value.op.name, "computed in its only reader", why=why, where=value.where)
        return stored

    def _readers(self) -> dict[Node, list[Node]]:
        """Return the nodes that read each value, once per access."""
        readers: dict[Node, list[Node]] = {}
        for node, accesses in self.reads.items():
            for access in accesses:
                readers.setdefault(access.value, []).append(node)
        return readers

    def _sink(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Compute one of a kernel's results inside its only reader, where no more bytes move that way.

        Cheap values on the way that the kernel needs itself are computed in both.
        """
        readers = self._readers()
        for group in self.groups:
            for value in [m for m in reversed(group.members) if m in stored and m not in self.whole]:
                users = readers.get(value, [])
                reader = self._only_reader(value, users)
                if reader is None or all(m is value or m not in stored for m in group.members):
                    continue
                moved = self._sinking(value, group, reader, stored)
                if not moved:
                    continue
                del stored[value]
                _put_first(reader, [m for m in group.members if m in moved and m not in reader.members])
                self.work[reader] += sum(map(self._work, moved))
                for m in reversed([m for m in group.members if m in moved]):
                    if m is value or not any(r in group.members for r in readers[m]):
                        group.members.remove(m)
                        self.group_of[m] = reader
                why = f"only {users[0].op.name} reads it, and storing it would move more bytes"
                decide("fuse", value.op.name, "computed in its only reader", why=why, where=value.where)
        return stored

    def _sinking(
        self, value: Node, group: Group, reader: Group, stored: dict[Node, None]
    ) -> set[Node] | None:
        """Return what of a group a reader computes in place of a stored value; None if nothing is won."""
        moved: set[Node] = set()
        fetched: set[Node] = set()
        stack = [value]
        while stack:
            node = stack.pop()
            compute = self.lower_of(node)
            if not isinstance(compute, Compute) or compute.combiner is not None or compute.checks:
                return None
            moved.add(node)
            for a in self.reads[node]:
                inside = self.owner(a.value) is group and a.value not in stored
                (stack.append if inside else fetched.add)(a.value)
        known = {a.value for m in reader.members for a in self.reads.get(m, ())}
        won = 2 * value.aval.nbytes - sum(v.aval.nbytes for v in fetched - known)
        little = value.aval.nbytes // 16  # at a draw, up to factors per channel, one buffer less decides
        full = self.work[reader] + sum(map(self._work, moved)) > MAX_WORK
        return moved if reader is not group and won + little >= 0 and not full else None

    def _recompute(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Where a later kernel reads several results of one, store what they are made of and make them again.

        Derivatives read several functions of one value: of x in gelu(x), all but x itself are cheaper to
        compute twice than to write and to read.
        """
        readers = self._readers()
        for group in self.groups:
            sets: dict[Group, list[Node]] = {}
            for v in group.members:
                outside = [u for u in readers.get(v, ()) if self.group_of[u] is not group]
                reader = self._only_reader(v, outside) if v in stored and v not in self.whole else None
                if reader is not None and all(self._straight(u, v) for u in outside):
                    sets.setdefault(reader, []).append(v)
            for reader, candidates in sets.items():
                self._store_source(group, reader, candidates, stored, readers)
        return stored

    def _straight(self, reader: Node, value: Node) -> bool:
        compute = self.lower_of(reader)
        assert isinstance(compute, Compute)
        return compute.combiner is None and all(
            a.indices == tuple(compute.axes) for a in self.reads[reader] if a.value is value
        )

    def _store_source(
        self,
        group: Group,
        reader: Group,
        values: list[Node],
        stored: dict[Node, None],
        readers: Mapping[Node, list[Node]],
    ) -> None:
        """Store the member of a kernel that replaces most of the values its reader fetches."""
        best: tuple[int, Node, list[Node], set[Node]] | None = None
        known = {a.value for m in reader.members for a in self.reads.get(m, ())}
        for source in group.members:
            if source.type != values[0].type or isinstance(source.type, TupleType):
                continue
            moved: set[Node] = set()
            replaced = []
            saved = 0 if source in stored else -2 * source.aval.nbytes
            for v in values:
                way = self._way(v, source, group, stored, known) if v is not source else None
                if way is not None and v.shape == source.shape:
                    replaced.append(v)
                    moved |= way
                    saved += 2 * v.aval.nbytes
            work = sum(map(self._work, moved - set(reader.members)))
            fits = self.work[reader] + work <= MAX_WORK
            if saved > 0 and fits and work * math.prod(source.aval.ints) <= WORK_PER_BYTE * saved:
                if best is None or saved > best[0]:
                    best = saved, source, replaced, moved
        if best is None:
            return
        _, source, replaced, moved = best
        stored[source] = None
        for v in replaced:
            del stored[v]
            why = f"{source.op.name} is stored instead, and {_named(reader)} computes it again"
            decide("fuse", v.op.name, "computed again in its only reader", why=why, where=v.where)
        _put_first(reader, [m for m in group.members if m in moved and m not in reader.members])
        self.work[reader] += sum(map(self._work, moved))
        for m in reversed([m for m in group.members if m in moved]):
            if not any(r in group.members for r in readers[m]):
                group.members.remove(m)
                self.group_of[m] = reader

    def _way(
        self, value: Node, source: Node, group: Group, stored: Mapping[Node, None], known: set[Node]
    ) -> set[Node] | None:
        """Return the members of a group that lead from a source to a value; None if more would be needed."""
        way: set[Node] = set()
        stack = [value]
        while stack:
            node = stack.pop()
            if node is source or node in way:
                continue
            compute = self.lower_of(node)
            if not isinstance(compute, Compute) or compute.combiner is not None or compute.checks:
                return None
            way.add(node)
            for a in self.reads[node]:
                if self.owner(a.value) is group:
                    stack.append(a.value)
                elif a.value not in known and a.value.aval.nbytes > value.aval.nbytes // 16:
                    return None
        return way

    def _only_reader(self, value: Node, users: Sequence[Node]) -> Group | None:
        """Return the one kernel that reads a value, if computing the value there repeats no work."""
        groups = {self.group_of[u] for u in users}
        if len(groups) != 1 or not all(self._repeats_nothing(u, value, len(users)) for u in users):
            return None
        return groups.pop()

    def _repeats_nothing(self, reader: Node, value: Node, num_reads: int) -> bool:
        """Return whether a reader meets each element once, and where there are several reads, at its own."""
        compute = self.lower_of(reader)
        kind = self.group_of[reader].kind
        if not isinstance(compute, Compute) or kind not in ("pointwise", "rows", "columns", "contract"):
            return False
        if kind == "contract" and compute.combiner is not None:
            return False  # each factor of a product is read many times
        order = (*compute.axes, *compute.reduce)
        size = math.prod(v.extent for v in order)
        found = [a for a in self.reads[reader] if a.value is value]
        if num_reads > 1:
            return all(a.indices == order for a in found) and compute.combiner is None
        return axis_positions(found[0].indices, order) is not None and size <= math.prod(value.aval.ints)


def _put_first(group: Group, members: Sequence[Node]) -> None:
    """Add what a group now computes for itself; a contraction stays its first member."""
    at = 1 if group.kind == "contract" else 0
    group.members[at:at] = members


def _named(group: Group) -> str:
    names = list(dict.fromkeys(m.op.name for m in group.members))
    return "+".join(names[:3]) + ("+.." if len(names) > 3 else "")


def _extents(space: Sequence[Dim]) -> str:
    return "x".join(map(str, space)) or "a scalar"


def _along_rows(group: Group, access: Access, axes: tuple[Expr, ...]) -> bool:
    """Row values are read by row; elements only by readers that run over elements, each its own."""
    rows = group.space[: group.num_rows]
    if len(axes) == len(group.space) and access.value.shape == group.space and access.indices == axes:
        return True
    return access.value.shape == rows and access.indices == axes[: group.num_rows]


def _reads_in_order(accesses: Sequence[Access], order: Sequence[Var]) -> bool:
    """Return whether a reduction reads its operands with kept axes first and reduced axes last."""
    full = [a for a in accesses if len(a.indices) == len(order)]
    return bool(full) and all(
        axis_positions(a.indices, tuple(order)) == tuple(range(len(order))) for a in full
    )


def _column_key(
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


def fuse(
    graph: Graph, lower_of: LowerOf, orders: Mapping[Node, tuple[int, ...]], *, enabled: bool = True
) -> Partition:
    """Partition a graph into kernels; `orders` says how values that are not row-major will lie in memory.

    With `enabled=False` every node that is not a view runs alone.
    """
    return Fusion(graph, lower_of, orders, enabled).run()
