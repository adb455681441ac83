"""Which values of a partition get buffers: what others read, unless making it again moves fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from stratal.base.errors import VerifyError
from stratal.base.log import decide
from stratal.base.types import TupleType
from stratal.graph.node import Item, Node
from stratal.graph.partition import Group
from stratal.loops.compute import Compute
from stratal.loops.lowering import axis_positions
from stratal.ops.views.boxes import Pad
from stratal.optimize.grouping import MAX_WORK, Access, Grouping, named
from stratal.optimize.padding import pads_with_zero
from stratal.optimize.ways import Ways

Readers = Mapping[Node, list[Node]]  # of each value, once per access

WORK_PER_BYTE = 8  # operations in registers that take no longer than moving a byte through memory


class Buffers:
    """Decides for the groups of one run of fusion; members move between groups on the way."""

    def __init__(self, kernels: Grouping) -> None:
        self.kernels = kernels
        self._again: dict[Node, set[Group]] = {}  # kernels that compute a node besides its own
        self._reads_of: dict[Node, dict[Node, list[Access]]] = {}  # of each node, by what is read

    def stored(self, *, fused: bool) -> dict[Node, None]:
        """Return the values with buffers, in order; not `fused`, all that another group reads."""
        stored = self._read_elsewhere()
        if fused:
            stored = self._recompute(self._sink(self._absorb(self._without_padding(stored))))
        self._verify(stored)
        return stored

    def _verify(self, stored: Mapping[Node, None]) -> None:
        """Raise VerifyError where a kernel reads what it neither computes nor finds in a buffer."""
        for group in self.kernels.groups:
            members = set(group.members)
            for node in group.members:
                for a in self.kernels.reads.get(node, ()):
                    if a.value not in members and not self._in_memory(a.value, stored):
                        raise VerifyError(
                            f"fuse: {named(group)} reads {a.value.op.name}, which has no buffer",
                            where=node.where,
                        )

    def _in_memory(self, value: Node, stored: Mapping[Node, None]) -> bool:
        return value in stored or isinstance(value.op, Item) or self.kernels.owner(value) is None

    def _repeatable(self, node: Node) -> bool:
        """Return whether another kernel can compute a node again: element-wise, nothing to check."""
        compute = self.kernels.lower_of(node)
        return isinstance(compute, Compute) and compute.combiner is None and not compute.checks

    def _read_by(self, group: Group) -> set[Node]:
        return {a.value for m in group.members for a in self.kernels.reads.get(m, ())}

    def _kernels_of(self, node: Node) -> set[Group]:
        return {self.kernels.group_of[node]} | self._again.get(node, set())

    def _move(
        self, moved: set[Node], group: Group, reader: Group, stored: Mapping[Node, None], users: Readers
    ) -> None:
        """Let a reader compute members of a group; the group keeps those it needs itself."""
        ways = [m for m in group.members if m in moved]
        new = [m for m in ways if m not in reader.members]
        at = 1 if reader.kind == "contract" else 0  # a contraction stays the first member
        reader.members[at:at] = new
        self.kernels.work[reader] += sum(map(self.kernels.work_of, new))
        for m in reversed(ways):
            if m in stored or any(r in group.members for r in users[m]):
                self._again.setdefault(m, set()).add(reader)
                continue
            group.members.remove(m)
            if self.kernels.group_of[m] is group:
                self.kernels.group_of[m] = reader
            else:
                self._again[m].discard(group)
                self._again[m].add(reader)

    def _read_elsewhere(self) -> dict[Node, None]:
        """Return values with a buffer: results, values read by another group, values read whole."""
        stored: dict[Node, None] = {}
        for node in self.kernels.graph.nodes:
            group = self.kernels.group_of.get(node)
            if group is not None and (
                node in self.kernels.whole or not isinstance(self.kernels.lower_of(node), Compute)
            ):
                stored[node] = None
            for access in self.kernels.reads.get(node, ()):
                if self.kernels.owner(access.value) is not group and access.value in self.kernels.group_of:
                    stored[access.value] = None
        return stored

    def _without_padding(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Let convolutions by tiles read images that lie in memory without their padded copies."""
        readers = self._readers()
        for pad in [v for v in stored if isinstance(v.op, Pad) and v not in self.kernels.whole]:
            group, users = self.kernels.group_of[pad], readers.get(pad, [])
            image = next((a for a in self.kernels.reads[pad] if a.indices), None)
            if image is None:
                continue  # one number is padded
            alone = len(group.members) == 1 and self._in_memory(image.value, stored)
            together = self._channels_together(pad, image)
            reads = partial(self.kernels.tactics.reads_edges, channels_together=together)
            if not (alone and pads_with_zero(pad) and all(reads(user, pad) for user in users)):
                continue
            del stored[pad]
            for reader in dict.fromkeys(self.kernels.group_of[u] for u in users):
                self._move({pad}, self.kernels.group_of[pad], reader, stored, readers)
            decide("fuse", pad.op.name, "computed in its readers", why="tiles read the image itself",
                   where=pad.where)  # fmt: skip
        return stored

    def _channels_together(self, pad: Node, image: Access) -> bool:
        """Return whether the channels of what is padded lie together in memory."""
        compute = self.kernels.lower_of(pad)
        innermost = image.indices[self.kernels.order_of(image.value)[-1]]
        return isinstance(compute, Compute) and len(pad.shape) > 2 and innermost is compute.axes[1]

    def _absorb(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Compute an element-wise group inside its only reader, where that repeats no work."""
        readers = self._readers()
        for group in self.kernels.groups:
            kept = [m for m in group.members if m in stored]
            if group.kind != "pointwise" or len(kept) != 1 or kept[0] in self.kernels.whole:
                continue
            (value,) = kept
            users = readers.get(value, [])
            reader = self._only_reader(value, users)
            if reader is None:
                often = (
                    "several kernels read it"
                    if len({g for u in users for g in self._kernels_of(u)}) > 1
                    else "its reader would compute elements again"
                )
                decide("fuse", value.op.name, "stored", often, where=value.where)
                continue
            if reader is group or self.kernels.work[group] + self.kernels.work[reader] > MAX_WORK:
                continue
            del stored[value]
            self._move(set(group.members), group, reader, stored, readers)
            why = f"{users[0].op.name} reads each element once"
            decide("fuse", value.op.name, "computed in its only reader", why=why, where=value.where)
        return stored

    def _readers(self) -> dict[Node, list[Node]]:
        """Return the nodes that read each value, once per access."""
        readers: dict[Node, list[Node]] = {}
        for node, accesses in self.kernels.reads.items():
            for access in accesses:
                readers.setdefault(access.value, []).append(node)
        return readers

    def _sink(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Compute one of a kernel's results inside its only reader, where no more bytes move that way.

        Cheap values on the way that the kernel needs itself are computed in both.
        """
        readers = self._readers()
        for group in self.kernels.groups:
            own = [m for m in reversed(group.members) if self.kernels.group_of[m] is group]
            for value in [m for m in own if m in stored and m not in self.kernels.whole]:
                users = readers.get(value, [])
                reader = self._only_reader(value, users)
                if reader is None or all(m is value or m not in stored for m in group.members):
                    continue
                moved = self._sinking(value, group, reader, stored)
                if not moved:
                    continue
                del stored[value]
                self._move(moved, group, reader, stored, readers)
                why = f"only {users[0].op.name} reads it, and storing it would move more bytes"
                decide("fuse", value.op.name, "computed in its only reader", why=why, where=value.where)
        return stored

    def _sinking(
        self, value: Node, group: Group, reader: Group, stored: dict[Node, None]
    ) -> set[Node] | None:
        """Return what of a group a reader computes in place of a stored value; None if nothing is won."""
        moved: set[Node] = set()
        fetched: set[Node] = set()
        members = set(group.members)
        stack = [value]
        while stack:
            node = stack.pop()
            if node in moved:
                continue
            if not self._repeatable(node):
                return None
            moved.add(node)
            for a in self.kernels.reads[node]:
                inside = a.value in members and a.value not in stored
                (stack.append if inside else fetched.add)(a.value)
        known = self._read_by(reader)
        won = 2 * value.aval.nbytes - sum(v.aval.nbytes for v in fetched - known)
        little = value.aval.nbytes // 16  # at a draw, up to factors per channel, one buffer less decides
        full = self.kernels.work[reader] + sum(map(self.kernels.work_of, moved)) > MAX_WORK
        return moved if reader is not group and won + little >= 0 and not full else None

    def _recompute(self, stored: dict[Node, None]) -> dict[Node, None]:
        """Where a later kernel reads several results of one, store what they are made of and make them again.

        Derivatives read several functions of one value: of x in gelu(x), all but x itself are cheaper to
        compute twice than to write and to read.
        """
        readers = self._readers()
        for group in self.kernels.groups:
            sets = self._read_by_one(group, stored, readers)
            for reader in list(sets):
                if reader in sets and self._store_source(group, reader, sets[reader], stored, readers):
                    sets = self._read_by_one(group, stored, readers)  # what it computes now may read others
        return stored

    def _read_by_one(
        self, group: Group, stored: Mapping[Node, None], readers: Readers
    ) -> dict[Group, list[Node]]:
        """Return the results of a kernel that only one other reads, each element at its own, by that one."""
        sets: dict[Group, list[Node]] = {}
        for v in [m for m in group.members if self.kernels.group_of[m] is group]:
            outside = [u for u in readers.get(v, ()) if self._kernels_of(u) != {group}]
            reader = self._only_reader(v, outside) if v in stored and v not in self.kernels.whole else None
            if reader is not None and all(self._straight(u, v) for u in outside):
                sets.setdefault(reader, []).append(v)
        return sets

    def _straight(self, reader: Node, value: Node) -> bool:
        compute = self.kernels.lower_of(reader)
        assert isinstance(compute, Compute)
        straight = all(a.indices == tuple(compute.axes) for a in self._accesses(reader, value))
        return compute.combiner is None and straight

    def _accesses(self, reader: Node, value: Node) -> list[Access]:
        """Return the reads of one operand by a node, which may have thousands: a concatenation."""
        found = self._reads_of.get(reader)
        if found is None:
            found = self._reads_of[reader] = {}
            for access in self.kernels.reads[reader]:
                found.setdefault(access.value, []).append(access)
        return found.get(value, [])

    def _store_source(
        self, group: Group, reader: Group, values: list[Node], stored: dict[Node, None], readers: Readers
    ) -> bool:
        """Store the member of a kernel that replaces most of the values its reader fetches, if one does."""
        best: tuple[int, Node, list[Node], set[Node]] | None = None
        known = {v for v in self._read_by(reader) if self._in_memory(v, stored)}
        own = [m for m in group.members if self.kernels.group_of[m] is group]
        ways = Ways(group, self.kernels, known, lambda v: self._in_memory(v, stored), self._repeatable)
        for source in own if len(values) > 1 else [m for m in own if m in stored]:
            if source.type != values[0].type or isinstance(source.type, TupleType):
                continue
            replaced = [v for v in values if v.shape == source.shape and ways.lead(source, v)]
            saved = sum(2 * v.aval.nbytes for v in replaced) - (source not in stored) * 2 * source.aval.nbytes
            if saved <= (0 if best is None else best[0]):
                continue
            moved = ways.between(source, replaced)
            work = sum(map(self.kernels.work_of, moved.difference(reader.members)))
            fits = self.kernels.work[reader] + work <= MAX_WORK
            if fits and work * math.prod(source.aval.ints) <= WORK_PER_BYTE * saved:
                best = saved, source, replaced, moved
        if best is None:
            return False
        _, source, replaced, moved = best
        stored[source] = None
        for v in replaced:
            del stored[v]
            why = f"{source.op.name} is stored instead, and {named(reader)} computes it again"
            decide("fuse", v.op.name, "computed again in its only reader", why=why, where=v.where)
        self._move(self._unstored(replaced, moved, stored), group, reader, stored, readers)
        return True

    def _unstored(self, values: Sequence[Node], way: set[Node], stored: Mapping[Node, None]) -> set[Node]:
        """Return what of a way to values leads there from buffers.

        A kernel stores all of its members that have a buffer: those are read and not made again.
        """
        found: set[Node] = set()
        stack = list(values)
        while stack:
            node = stack.pop()
            if node in way and node not in stored and node not in found:
                found.add(node)
                stack += (a.value for a in self.kernels.reads[node])
        return found

    def _only_reader(self, value: Node, users: Sequence[Node]) -> Group | None:
        """Return the one kernel that reads a value, if computing the value there repeats no work."""
        groups = {g for u in users for g in self._kernels_of(u)}
        if len(groups) != 1:
            return None
        (group,) = groups
        repeats = not all(self._repeats_nothing(u, value, group, len(users)) for u in users)
        return None if repeats else group

    def _repeats_nothing(self, reader: Node, value: Node, group: Group, num_reads: int) -> bool:
        """Return whether a reader meets each element once, and where there are several reads, at its own."""
        compute = self.kernels.lower_of(reader)
        if group.kind == "segments":
            return num_reads == 1 and value.aval.size == reader.inputs[0].aval.size  # each slice once
        kinds = ("pointwise", "rows", "columns", "contract")
        if not isinstance(compute, Compute) or group.kind not in kinds:
            return False
        if group.kind == "contract" and compute.combiner is not None:
            return False  # each factor of a product is read many times
        order = (*compute.axes, *compute.reduce)
        size = math.prod(v.extent for v in order)
        found = self._accesses(reader, value)
        if num_reads > 1:
            return all(a.indices == order for a in found) and compute.combiner is None
        return axis_positions(found[0].indices, order) is not None and size <= math.prod(value.aval.ints)
