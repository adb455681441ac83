"""What waits for its value, and what one run takes in of it.

A run of some values also computes every live tensor that shares intermediate results with them, and every one
that depends on the old value of a cell the run overwrites.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.graph.node import Const, Input, Node
from stratal.tensor import programs, values
from stratal.tensor.alive import LIVE
from stratal.tensor.tensor import Tensor


def waiting() -> list[Tensor]:
    """Return every live tensor that has no value yet, in the order they were made."""
    found = []
    for handle in list(LIVE.values()):
        tensor = handle()
        if tensor is not None and tensor._storage is None and tensor._trace is None:
            found.append(tensor)
    return found


def goal_of(tensor: Tensor) -> Node:
    """Return the node whose value a waiting tensor needs."""
    assert tensor._node is not None
    return values.pending(tensor._node) or tensor._node


def is_leaf(node: Node) -> bool:
    """Return whether a node needs no computing: an input, or what has its value."""
    return isinstance(node.op, Input) or values.finished(node) is not None


def depending(leaves: set[Node], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the waiting tensors that depend on some leaves."""
    reached: set[Node] = set()
    order, _ = programs.walk([goal_of(t) for t in tensors], is_leaf)
    for node in order:
        if node in leaves or not reached.isdisjoint(node.inputs):
            reached.add(node)
    return [t for t in tensors if goal_of(t) in reached]


class Run:
    """The tensors of one run and what they need, chosen among everything that waits.

    A run apart takes in only those that could not be computed after it.
    """

    def __init__(self, goal: Sequence[Node | Tensor], apart: bool = False) -> None:
        self.apart = apart
        self.tensors = [g for g in goal if isinstance(g, Tensor)]
        self.orphans = [g for g in goal if isinstance(g, Node)]  # pending leaves; a tensor may hold them
        taken = set(map(id, self.tensors))
        self.others = [t for t in waiting() if id(t) not in taken]
        roots = self.roots() + [goal_of(t) for t in self.others]
        self.scope, leaves = programs.walk(roots, is_leaf)  # all that waits
        self.leaves = set(leaves)
        self.late = self.reach({n for n in leaves if values.finished(n) is None})

    def roots(self) -> list[Node]:
        return [goal_of(t) for t in self.tensors] + [values.pending(n) or n for n in self.orphans]

    def reach(self, start: set[Node]) -> set[Node]:
        """Return the nodes in scope that are, or depend on, some nodes."""
        found = set(start)
        if found:
            leaves = self.leaves
            for node in self.scope:
                if node not in leaves and not found.isdisjoint(node.inputs):
                    found.add(node)
        return found

    def needed(self) -> set[Node]:
        """Return the nodes this run computes or reads."""
        return self.behind(self.roots())

    def behind(self, roots: Iterable[Node]) -> set[Node]:
        """Return the nodes in scope that some nodes are, or depend on."""
        found = set(roots)
        leaves = self.leaves
        for node in reversed(self.scope):
            if node in found and node not in leaves:
                found.update(node.inputs)
        return found

    def spoiling(self, chosen: Sequence[Tensor], written: set[Node]) -> set[int]:
        """Return those, by id, that would overwrite what a tensor waiting for this run still reads.

        One that depends on what this run overwrites has to be in it all the same.
        """
        waiting_for_this = [goal_of(t) for t in self.others if goal_of(t) in self.late]
        if not waiting_for_this:
            return set()
        read, lost = self.behind(waiting_for_this), self.reach(written)
        return {
            id(t) for t in chosen if t._home is not None and t._home[1] in read and goal_of(t) not in lost
        }

    def written(self) -> set[Node]:
        """Return the leaves whose storage this run overwrites."""
        return {t._home[1] for t in self.tensors if t._home is not None and t._home[1] is not None}

    def touching(self, needed: set[Node], written: set[Node]) -> list[Tensor]:
        """Return the others that share work with this run, or depend on what it overwrites."""
        if self.apart:
            lost = self.reach(written)
            return [t for t in self.others if goal_of(t) in lost]
        shares = self.reach({n for n in needed if n not in self.leaves and not trivial(n)} | written)
        return [
            t for t in self.others if goal_of(t) in shares or (t._home is not None and t._home[1] in needed)
        ]

    def grow(self) -> list[Tensor]:
        """Take in every tensor to be computed in this run; return those that must be but wait for another run
        first.
        """
        while self.others:
            needed, written = self.needed(), self.written()
            chosen = self.touching(needed, written)
            late = [t for t in chosen if goal_of(t) in self.late]
            if late and (overwritten := self.reach(written)):
                must = [t for t in late if goal_of(t) in overwritten]
                if must:
                    return must
            postponed = set(map(id, late)) | self.spoiling(chosen, written)
            chosen = [t for t in chosen if id(t) not in postponed]
            if not chosen:
                break
            taken = set(map(id, chosen))
            self.tensors += chosen
            self.others = [t for t in self.others if id(t) not in taken]
        return []


def trivial(node: Node) -> bool:
    """Return whether a node is a constant or the broadcast of one: nothing to share."""
    return isinstance(node.op, Const) or (
        node.op.name == "broadcast" and isinstance(node.inputs[0].op, Const)
    )
