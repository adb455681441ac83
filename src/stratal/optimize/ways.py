"""How values of a kernel follow from its other members: what a reader would have to compute again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush

from stratal.graph.node import Node
from stratal.graph.partition import Group
from stratal.optimize.grouping import Grouping

Operands = dict[Node, list[Node] | None]


class Ways:
    """The ways from members of a group to others, for a reader that has some values at hand.

    A member can be computed again if it is `repeatable` and its operands are `known` to the reader, members
    themselves, or little data in memory, such as a factor per row: read rather than computed again. Every
    question takes time linear in the size of the group.
    """

    def __init__(
        self, group: Group, kernels: Grouping, known: Collection[Node], in_memory: Callable[[Node], bool],
        repeatable: Callable[[Node], bool]
    ) -> None:
        self.members = sorted(group.members, key=kernels.number.__getitem__)  # operands first
        self.number = kernels.number
        self.inside = frozenset(group.members)
        self.reads = kernels.reads
        self.known = known
        self.in_memory = in_memory
        self.repeatable = repeatable
        self._operands_for: dict[int, Operands] = {}
        self._stuck_for: dict[int, set[Node]] = {}
        self._gates: dict[Node, set[Node] | None] = {}

    def lead(self, source: Node, value: Node) -> bool:
        """Return whether another value can be computed from a source and what the reader has."""
        if value not in self._gates:
            self._gates[value] = self._gates_of(value)
        gates = self._gates[value]
        return value is not source and (gates is None or source in gates)

    def between(self, source: Node, values: Collection[Node]) -> set[Node]:
        """Return the members on the ways from a source to values that it leads to."""
        found: set[Node] = set()
        for little in {_little(v) for v in values}:
            operands, seen = self._operands(little), {source}
            stack = [v for v in values if _little(v) == little]
            while stack:
                node = stack.pop()
                if node not in seen:
                    seen.add(node)
                    stack += operands[node] or ()
            found |= seen - {source}
        return found

    def _gates_of(self, value: Node) -> set[Node] | None:
        """Return the members that every way to a value from what cannot be computed again leads through; None
        where nothing is of that kind.
        """
        operands, stuck = self._operands(_little(value)), self._stuck(_little(value))
        if value not in stuck:
            return None
        gates: set[Node] = set()
        ahead, behind = {value}, [(-self.number[value], value)]
        while behind:  # latest first: when one is left, all ways lead through it
            _, node = heappop(behind)
            if not behind and node is not value:
                gates.add(node)
            below = operands[node]
            if below is None:
                break
            for operand in below:
                if operand in stuck and operand not in ahead:
                    ahead.add(operand)
                    heappush(behind, (-self.number[operand], operand))
        return gates

    def _stuck(self, little: int) -> set[Node]:
        """Return the members that cannot be computed again, or follow from such."""
        if little not in self._stuck_for:
            operands, found = self._operands(little), set[Node]()
            for node in self.members:
                below = operands[node]
                if below is None or not found.isdisjoint(below):
                    found.add(node)
            self._stuck_for[little] = found
        return self._stuck_for[little]

    def _operands(self, little: int) -> Operands:
        """Return the members each member is computed again from; None where it cannot be."""
        if little not in self._operands_for:
            self._operands_for[little] = {m: self._operands_of(m, little) for m in self.members}
        return self._operands_for[little]

    def _operands_of(self, node: Node, little: int) -> list[Node] | None:
        if not self.repeatable(node):
            return None
        found = []
        for value in dict.fromkeys(a.value for a in self.reads[node]):
            if value.aval.nbytes <= little and self.in_memory(value):
                continue
            if value in self.inside:
                found.append(value)
            elif value not in self.known:
                return None
        return found


def _little(value: Node) -> int:
    """Return how many bytes are little beside a value."""
    return value.aval.nbytes // 16
