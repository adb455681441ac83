"""The order of kernels: fusion's, but what only updates states comes late, and what frees memory soon.

A weight's gradient needs the layer's input and the gradient of its output, and makes what lives beside the
arena: run at once, it lets both go, and finds them in the cache; run last, as the order of results has it,
it keeps those of all layers.

What begins a collective runs as soon as its operand is there: a kernel in between is time in which no
message is under way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from stratal.base.fallback import skippable
from stratal.base.types import TensorType
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Item, Node, items, owner, topological
from stratal.graph.partition import Group, Partition

KERNELS = frozenset(("pointwise", "rows", "columns", "contract", "segments", "attention", "blockwise", "dft"))


class Order(NamedTuple):
    """Groups in the order they run, and about how many bytes wait between two of them, at most."""

    groups: list[Group]
    waiting_bytes: int


@skippable(lambda graph, partition, _: Order(list(partition.groups), 0))
def in_order(graph: Graph, partition: Partition, checked: Sequence[Node]) -> Order:
    """Return the groups of a graph in the order they run; `checked` is what index checks read."""
    groups = late_updates(graph, partition, checked)
    soon = _Soon(graph, partition, groups, checked)
    order = soon.run()
    return Order(order, soon.waiting_bytes(order))


def late_updates(graph: Graph, partition: Partition, checked: Iterable[Node]) -> list[Group]:
    """Return the groups, those last that only feed state updates and no index check.

    The order stays otherwise.
    """
    groups = partition.groups
    if not graph.updates:
        return list(groups)
    group_of = partition.group_of
    needed: set[Node] = set()
    stack = [*graph.outputs, *checked]
    stack += [m for g in groups if g.kind in ("body", "bytes", "host", "region") for m in g.members]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.inputs)
            if node in group_of:  # what any member of a kernel needs must run before the kernel
                stack.extend(group_of[node].members)
    early = {g for g in groups for m in g.members if m in needed and group_of[m] is g}
    return [g for g in groups if g in early] + [g for g in groups if g not in early]


class _Soon:
    """Moves kernels forward to where they free at least the memory they take, and starts of collectives.

    A kernel that makes a state's new value stays behind whoever reads the old one, and behind what may fail:
    only then it is made in place. So does a start behind host calls and checks before it: their order is that
    of all ranks.
    """

    def __init__(
        self, graph: Graph, partition: Partition, groups: Sequence[Group], checked: Sequence[Node]
    ) -> None:
        self.groups = groups
        self.partition = partition
        self.place = {g: k for k, g in enumerate(groups)}
        states = {new: state for state, new in graph.updates}
        self.outside = {*graph.outputs, *states}  # lives beside the arena
        self.reads = [self._read(g) for g in groups]
        self.readers: dict[Node, set[int]] = {}
        for k, read in enumerate(self.reads):
            for node in read:
                self.readers.setdefault(node, set()).add(k)
        may_fail = {k for k, g in enumerate(groups) if g.kind in ("host", "region")}
        may_fail |= {self.place[g] for g in map(self._maker, checked) if g is not None}
        self.after: list[set[int]] = []
        for k, group in enumerate(groups):
            before = {self.place[g] for n in self.reads[k] for g in [self._maker(n)] if g is not None}
            updated = [states[m] for m in group.members if m in states]
            if updated:
                before |= may_fail.union(*(self.readers.get(s, ()) for s in updated))
            if _begins(group):
                before |= {m for m in may_fail if m < k}
            self.after.append(before - {k})

    def _maker(self, node: Node) -> Group | None:
        return self.partition.group_of.get(owner(node))

    def _read(self, group: Group) -> set[Node]:
        """Return the values a group reads from memory."""
        members = set(group.members)

        def is_read(node: Node) -> bool:
            from_memory = isinstance(node.op, (Input, Const, Item)) or node in self.partition.stored
            return node not in members and from_memory

        return {n for n in topological(group.members, stop=is_read) if is_read(n)}

    def run(self) -> list[Group]:
        waits = [len(before) for before in self.after]
        followers: list[list[int]] = [[] for _ in self.groups]
        for k, before in enumerate(self.after):
            for b in before:
                followers[b].append(k)
        left = {node: set(readers) for node, readers in self.readers.items()}
        order: list[Group] = []
        done = [False] * len(self.groups)
        for first in range(len(self.groups)):
            due = [first]
            while due:
                k = heapq.heappop(due)
                if done[k] or (k != first and (waits[k] > 0 or not self._runs_soon(k, left))):
                    continue
                done[k] = True
                order.append(self.groups[k])
                for f in followers[k]:
                    waits[f] -= 1
                    heapq.heappush(due, f)
                for node in self.reads[k]:
                    left[node].discard(k)
                    if len(left[node]) == 1:
                        heapq.heappush(due, next(iter(left[node])))
        return order

    def _runs_soon(self, k: int, left: dict[Node, set[int]]) -> bool:
        """Return whether a group begins a collective, or is the last to read at least the bytes it makes."""
        group = self.groups[k]
        if _begins(group):
            return True
        if group.kind not in KERNELS:
            return False
        freed = sum(
            _nbytes(n) for n in self.reads[k] if left[n] == {k} and n not in self.outside and self._maker(n)
        )
        made = sum(map(_nbytes, self._made(group)))
        return freed > 0 and freed >= made

    def _made(self, group: Group) -> list[Node]:
        """Return the values a group puts into the arena."""
        stored = self.partition.stored
        made = [r for m in group.members for r in items(m) if m in stored or r in stored]
        return [r for r in made if r not in self.outside]

    def waiting_bytes(self, order: Sequence[Group]) -> int:
        """Return the largest sum of what lies in the arena between two groups, for later ones to read."""
        turn = {group: k for k, group in enumerate(order)}
        last = {n: max(turn[self.groups[k]] for k in readers) for n, readers in self.readers.items()}
        change = [0] * len(order)
        for k, group in enumerate(order):
            for node in self._made(group) if group.kind != "alias" else ():
                change[k] += _nbytes(node)
                change[max(k, last.get(node, k))] -= _nbytes(node)
        return max(accumulate(change), default=0)


def _begins(group: Group) -> bool:
    return any(node.op.begins for node in group.members)


def _nbytes(node: Node) -> int:
    return node.type.nbytes if isinstance(node.type, TensorType) else 0
