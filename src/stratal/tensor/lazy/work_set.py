"""The work set of a run: which pending tensors are computed together.

A run of some values also computes every live tensor of this thread that shares intermediate results with
them, and every one that depends on the old value of a cell the run gives a new one. What needs another run
before is left out. What other threads wait for stays theirs: a cell whose old value they read moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Any, Final

from stratal.base.weak import Note
from stratal.graph.node import Const, Input, Node, topological
from stratal.tensor.lazy import program_cache
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import TRACKED, Handle, overwritten_node
from stratal.tensor.values.live import FAILED, LIVE, is_own_thread

_MOST_LATER: Final = 4  # tensors with a history that a step leaves out


def pending_tensors() -> list[Handle]:
    """Return every live tensor of this thread that has no value yet, in the order they were made; not those
    that failed.
    """
    me = get_ident()
    return _without_value([handle for handle in list(LIVE.values()) if handle.fact == me])


def pending_or_failed() -> list[Handle]:
    """Return every live tensor that has no value yet, of any thread, and those that failed: they may be asked
    again.
    """
    return _without_value([*list(LIVE.values()), *list(FAILED.values())])


def read_by_other_threads() -> set[Node]:
    """Return the nodes that tensors of other threads need, for their value or for a gradient."""
    me = get_ident()
    found = [t for handle in list(LIVE.values()) if handle.fact != me and (t := handle()) is not None]
    histories = topological([node for t in found if t._storage is not None and (node := t._node) is not None])
    return still_read([t for t in found if t._storage is None and t._trace is None]).union(histories)


def _without_value(handles: Iterable[Note[Handle]]) -> list[Handle]:
    found = []
    for handle in handles:
        tensor = handle()
        if tensor is not None and tensor._storage is None and tensor._trace is None:
            found.append(tensor)
    return found


def goal_of(tensor: Handle) -> Node:
    """Return the node whose value a waiting tensor needs."""
    node = tensor._node
    assert node is not None
    return node_values.pending(node) or node


def is_leaf(node: Node) -> bool:
    """Return whether a node needs no computing: an input, or what has its value."""
    return node.op.__class__ is Input or node_values.finished(node) is not None


def _below(node: Node) -> Sequence[Node]:
    """Return what a node needs to have its value: a leaf that waits needs the node it waits for."""
    if node_values.finished(node) is not None:
        return ()
    value = node_values.pending(node)
    return node.inputs if value is None else (value,)


def _behind(tensors: Iterable[Handle], done: Iterable[Node] = ()) -> list[Node]:
    """Return every node that waiting tensors need, once `done` have their values; operands come first."""
    complete = dict.fromkeys(done, True)
    order: list[Node] = []
    stack = [goal_of(t) for t in tensors]
    while stack:
        node = stack[-1]
        state = complete.get(node)
        if state is None:
            complete[node] = False
            stack += [i for i in _below(node) if i not in complete]
        else:
            stack.pop()
            if not state:
                complete[node] = True
                order.append(node)
    return order


def still_read(tensors: Iterable[Handle], done: Iterable[Node] = ()) -> set[Node]:
    """Return the nodes whose values waiting tensors need, once `done` have theirs."""
    return set(_behind(tensors, done))


def dependents_of(leaves: set[Node], tensors: Sequence[Handle]) -> list[Node | Handle]:
    """Return the waiting tensors that depend on some leaves; of other threads' their nodes."""
    reached: set[Node] = set()
    for node in _behind(tensors):
        if node in leaves or not reached.isdisjoint(_below(node)):
            reached.add(node)
    return [t if is_own_thread(t) else goal_of(t) for t in tensors if goal_of(t) in reached]


class WorkSet:
    """The tensors of one run and what they need, chosen among everything that waits.

    An isolated run computes nothing but its goal. That of an optimizer's step leaves out what waits with a
    history that it does not overwrite, such as what another network made: the backward pass through that is
    still to come, and computes it, too.
    """

    def __init__(self, goal: Sequence[Node | Handle], isolated: bool = False, step: bool = False) -> None:
        self.tensors = [g for g in goal if isinstance(g, Handle)]
        self.pending_leaves = [g for g in goal if isinstance(g, Node)]  # tensors may have them, too
        self.plan: Any = None  # how it was run
        self.step = step
        taken = set(map(id, self.tensors))
        self.others = [] if isolated else [t for t in pending_tensors() if id(t) not in taken]
        roots = self.roots() + [goal_of(t) for t in self.others]
        self.scope, leaves = program_cache.walk(roots, is_leaf)  # all that waits
        self.leaves = set(leaves)

    def blockers(self) -> list[Node]:
        """Return the leaves of the goal that have no value yet."""
        needed = self.needed()
        return [n for n in self.scope if n in self.leaves and n in needed and node_values.finished(n) is None]

    def add_co_scheduled(self) -> None:
        """Add co-scheduled tensors; none that needs another run before."""
        late = self.reach({n for n in self.leaves if node_values.finished(n) is None})
        self.others = [t for t in self.others if goal_of(t) not in late]
        while chosen := self.co_scheduled():
            taken = set(map(id, chosen))
            self.tensors += chosen
            self.others = [t for t in self.others if id(t) not in taken]

    def roots(self) -> list[Node]:
        return [goal_of(t) for t in self.tensors] + [node_values.pending(n) or n for n in self.pending_leaves]

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
        found = set(self.roots())
        leaves = self.leaves
        for node in reversed(self.scope):
            if node in found and node not in leaves:
                found.update(node.inputs)
        return found

    def written(self) -> set[Node]:
        """Return the leaves of cells that this run gives another value."""
        return {node for t in self.tensors if (node := overwritten_node(t)) is not None}

    def co_scheduled(self) -> list[Handle]:
        """Return the others that share work with this run, or depend on what it overwrites."""
        if not self.others:
            return []
        needed = self.needed()
        shared = {n for n in needed if n not in self.leaves and not is_constant(n)}
        written = self.written()
        reached = self.reach(shared | written)
        found = [
            t for t in self.others if goal_of(t) in reached or overwritten_node(t) in needed
        ]
        return found if not self.step else self._without_histories(found, self.reach(written))

    def _without_histories(self, found: list[Handle], ended: set[Node]) -> list[Handle]:
        """Leave out what has a history that does not end here, unless a loop seems to keep such tensors."""
        later = {
            id(t)
            for t in found
            if t._track == TRACKED and not t._leaf and t._destination is None and goal_of(t) not in ended
        }
        return found if len(later) > _MOST_LATER else [t for t in found if id(t) not in later]

    def read_later(self) -> set[Node]:
        """Return the nodes that tensors outside of this run need after it: their values must stand."""
        taken = set(map(id, self.tensors))
        known = {t._node for t in self.tensors if t._track == TRACKED and t._node is not None}
        later = (t for t in pending_or_failed() if id(t) not in taken)
        return still_read(later, known | set(self.pending_leaves))


def is_constant(node: Node) -> bool:
    """Return whether a node is a constant or the broadcast of one: nothing to share."""
    return isinstance(node.op, Const) or (node.op.repeats and isinstance(node.inputs[0].op, Const))
