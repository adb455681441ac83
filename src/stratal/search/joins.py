"""Several results of one kind that read one value, computed as one: products, branches of convolutions.

    y0 = relu(conv(x, w0) + b0)           y  = relu(conv(x, concatenate(w0, w1)) + concatenate(b0, b1))
    y1 = relu(conv(x, w1) + b1)     ->    y0 = part(y), y1 = part(y)

Which operands lie side by side is read off the op's tensor expression (`axes`), so no rule names an op or
a contraction's spec. What element-wise ops make of all results in the same way is computed as one, too. A
result may first be replaced by what one step makes of it: a convolution 1x1 enlarged to 3x3 joins others that
are 3x3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Const, Input, Node
from stratal.search.axes import Axes, parts_along, remade, resized, side_by_side
from stratal.search.found import Replaced, Step, distinct
from stratal.search.moves import Context
from stratal.search.rule_set import RuleSet

MOST_JOINED: Final = 16  # results that become one op
FEW: Final = 4  # of which pairs are tried by themselves, too
MOST_FOLLOWED: Final = 16  # element-wise ops that are joined after them
Way = tuple[Replaced, tuple[Step, ...]]


class Member(NamedTuple):
    """A result as it joins: the node it replaces, itself or what a step made of it."""

    node: Node
    made: Node
    steps: tuple[Step, ...] = ()


def joins(context: Context, rules: RuleSet, *, pairs: bool = False) -> Iterator[list[Way]]:
    """Yield, for each value with several readers of a kind, the ways to join them: all, or `pairs` too."""
    seen: set[tuple[Node, ...]] = set()
    for value in [*context.graph.inputs, *context.graph.nodes]:
        for members, axis in _groups(value, context, rules):
            key = tuple(m.node for m in members)
            if key in seen:
                continue
            seen.add(key)
            few = pairs and 2 < len(members) <= FEW
            chosen = [members, *(itertools.combinations(members, 2) if few else ())]
            ways = [way for some in chosen for way in _joined(some, axis, context, rules.axes)]
            if ways:
                yield ways


def _groups(value: Node, context: Context, rules: RuleSet) -> Iterator[tuple[list[Member], int]]:
    """Yield readers of a value that are one op along an axis of their results."""
    readers = [r for r in context.readers.get(value, ()) if _may_join(r, context)]
    if len(readers) < 2:
        return
    ops = dict.fromkeys(r.op for r in readers)
    for op in ops:
        members = [Member(r, r) for r in readers if r.op == op]
        if len(ops) > 1:
            members += _made_to_be(op, value, readers, rules)
        if len(members) < 2:
            continue
        at = members[0].made.inputs.index(value)
        for axis in range(members[0].made.aval.ndim):
            running = rules.axes.running(members[0].made, axis)
            if running is None or running[at] is not None or all(k is None for k in running):
                continue
            groups: dict[object, list[Member]] = {}
            for m in members:
                if m.made.inputs.index(value) == at:
                    groups.setdefault(_common(m.made, axis), []).append(m)
            for group in groups.values():
                if len(group) > 1 and _independent([m.node for m in group], context):
                    yield sorted(group, key=lambda m: _place(m.made, value, context))[:MOST_JOINED], axis


def _may_join(node: Node, context: Context) -> bool:
    plain = isinstance(node.type, TensorType) and not node.op.pointwise and not node.op.effects
    return plain and node not in context.frozen and not context.moves(node)


def _made_to_be(op: object, value: Node, readers: Sequence[Node], rules: RuleSet) -> Iterator[Member]:
    """Yield what one step makes an op of that reads the value."""
    for node in readers:
        if node.op != op and node.op.name == getattr(op, "name", ""):
            for match in rules.matches(node):
                if match.made.op == op and value in match.made.inputs and (step := rules.proved(match)):
                    yield Member(node, match.made, (step,))
                    break


def _place(node: Node, value: Node, context: Context) -> tuple[int, ...]:
    """Return where in another value the operand lies that is not the common one: that orders parts."""
    for operand in node.inputs:
        while operand is not value and context.moves(operand):
            if operand.op.name == "slice":
                return tuple(operand.op.attributes["start"])
            operand = operand.inputs[0]
    return ()


def _independent(nodes: Sequence[Node], context: Context) -> bool:
    """Return whether none of some nodes needs another."""
    number = context.number
    first = min(number[n] for n in nodes)
    members, seen = set(nodes), set()
    stack = [i for n in nodes for i in n.inputs]
    while stack:
        node = stack.pop()
        if node in members:
            return False
        if node not in seen and number[node] > first:
            seen.add(node)
            stack += node.inputs
    return True


def _joined(members: Sequence[Member], axis: int, context: Context, axes: Axes) -> Iterator[Way]:
    """Yield parts of one op in place of some results, with what follows them alike and without; none where
    that is not proved.
    """
    joiner = _Joiner(context, axes)
    nodes = tuple(m.node for m in members)
    whole = joiner.of_op([m.made for m in members], axis)
    if whole is None:
        return
    before = [s for m in members for s in m.steps]
    joiner.wholes[nodes, axis] = joiner.results[nodes] = whole
    alone = joiner.replaced(axis), distinct([*before, *joiner.steps])
    joiner.follow(nodes, axis)
    if len(joiner.results) > 1:
        yield joiner.replaced(axis), distinct([*before, *joiner.steps])
    yield alone


def _common(node: Node, axis: int) -> object:
    """Return what values that lie side by side along an axis have in common: dtype and other sizes."""
    return node.dtype, tuple(n for k, n in enumerate(node.shape) if k != axis)


class _Joiner:
    """Makes wholes of nodes that lie side by side along an axis; notes by which steps."""

    def __init__(self, context: Context, axes: Axes) -> None:
        self.context, self.axes = context, axes
        self.wholes: dict[tuple[tuple[Node, ...], int], Node] = {}
        self.results: dict[tuple[Node, ...], Node] = {}  # the wholes that replace nodes
        self.steps: list[Step] = []

    def whole(self, nodes: Sequence[Node], axis: int) -> Node | None:
        """Return values side by side: what they are parts of, their op on operands side by side if that is
        a view, else a concatenation.
        """
        key = tuple(nodes), axis
        if key in self.wholes:
            return self.wholes[key]
        if any(n.aval.ndim <= axis for n in nodes) or len({_common(n, axis) for n in nodes}) > 1:
            return None
        made = _parted(nodes, axis)
        if made is None and all(self._is_spread(n) for n in nodes):
            made = self.of_op(nodes, axis)
        if made is None:
            step = self.axes.concatenated(nodes, axis)
            if step is None:
                return None
            self.steps.append(step)
            made = Builder(nodes[0].where[:1]).concatenate(*nodes, axis=axis)
        self.wholes[key] = made
        return made

    def _is_spread(self, node: Node) -> bool:
        """Return whether an op only moves elements, and makes no fewer of them."""
        if isinstance(node.op, (Input, Const)) or not self.context.moves(node):
            return False
        return all(i.aval.size <= node.aval.size for i in node.inputs)

    def of_op(self, nodes: Sequence[Node], axis: int) -> Node | None:
        """Return results of one op side by side as that op on operands side by side, proved."""
        first = nodes[0]
        if any(resized(n.op, n.shape, first.shape) != first.op for n in nodes):
            return None
        running = self.axes.running(first, axis)
        if running is None:
            return None
        operands: list[Node] = []
        for k, at in enumerate(running):
            given = [n.inputs[k] for n in nodes]
            same = all(x is given[0] for x in given)
            operand = (given[0] if same else None) if at is None else self.whole(given, at)
            if operand is None:
                return None
            operands.append(operand)
        made = remade(first, {axis: sum(n.shape[axis] for n in nodes)}, operands)
        if made is None:
            return None
        steps = []
        for part in side_by_side(nodes, axis):
            step = self.axes.law(made, {axis: part})
            if step is None:
                return None
            steps.append(step)
        self.steps += dict.fromkeys(steps)
        return made

    def follow(self, nodes: tuple[Node, ...], axis: int) -> None:
        """Join what element-wise ops make of all of some nodes in the same way, and of that."""
        pending = [nodes]
        while pending and len(self.results) < MOST_FOLLOWED:
            for users in self._users_alike(pending.pop(0)):
                operands = zip(*(u.inputs for u in users), strict=True)
                if users in self.results or not all(map(self._is_given, operands)):
                    continue
                made = self.of_op(users, axis)
                if made is not None:
                    self.wholes[users, axis] = self.results[users] = made
                    pending.append(users)

    def _users_alike(self, nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
        """Yield users of each node that are one op, at the same operand."""
        for first in self.context.readers.get(nodes[0], ()):
            if not first.op.pointwise:
                continue
            at = first.inputs.index(nodes[0])
            users = [first]
            for node in nodes[1:]:
                for user in self.context.readers.get(node, ()):
                    if user.op == first.op and user.inputs[at] is node and user not in users:
                        users.append(user)
                        break
            if len(users) == len(nodes):
                yield tuple(users)

    def _is_given(self, operands: tuple[Node, ...]) -> bool:
        """Return whether values side by side cost nothing in a run: they are joined, or decided before."""
        return operands in self.results or all(map(self.context.is_decided, operands))

    def replaced(self, axis: int) -> Replaced:
        """Return parts of wholes for the nodes that others read, or that are results."""
        inside = {n for nodes in self.results for n in nodes}
        found: dict[Node, Node] = {}
        for nodes, whole in self.results.items():
            if any(n in self.context.roots or not inside.issuperset(self.context.readers[n]) for n in nodes):
                found.update(zip(nodes, parts_along(whole, axis, nodes), strict=True))
        return found


def _parted(nodes: Sequence[Node], axis: int) -> Node | None:
    """Return the value of which some nodes are all parts, in their order."""
    source = nodes[0].inputs[0] if nodes[0].op.name == "slice" else None
    if source is None or sum(n.shape[axis] for n in nodes) != source.shape[axis]:
        return None
    made = parts_along(source, axis, nodes)
    return source if all(a is b for a, b in zip(made, nodes, strict=True)) else None
