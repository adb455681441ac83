"""The members of a group as one expression each: views and unstored members are inlined where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratal.base.errors import VerifyError
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.graph.node import Const as ConstNode
from stratal.graph.node import Input, Item, Node
from stratal.graph.partition import Group
from stratal.loops.compute import Combiner, Compute
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Buffer, Call, Expr, Guard, Load, Var, const, loads, walk
from stratal.loops.rebuild import substitute, transform


class Reads(NamedTuple):
    """The indices at which something reads a buffer, as functions of axes."""

    axes: tuple[Var, ...]
    indices: set[tuple[Expr, ...]]


class GroupExpressions:
    """Reads values at index expressions.

    `buffers` gives each stored value its memory; `local` overrides it inside the kernel. What is made of
    `held` values alone before the kernel is made once for many runs of it.
    """

    def __init__(
        self,
        group: Group,
        lower_of: Callable[[Node], Lowered | None],
        buffer_of: Callable[[Node], Buffer],
        stored: Callable[[Node], bool],
        held: frozenset[Node] = frozenset(),
    ) -> None:
        self.group = group
        self.lower_of = lower_of
        self.members = frozenset(group.members)
        self.stored = stored
        self.held = held
        self._held_buffers: set[Buffer] = set()
        self.local: dict[Node, Buffer] = {}
        self.seen_as: dict[Target, object] = {}  # what tactics make of the group to look at it
        self._buffer_of = buffer_of
        self._memo: dict[tuple[Node, tuple[Expr, ...]], Expr] = {}
        self._reads: dict[tuple[Buffer, Node], Reads] = {}

    @property
    def results(self) -> list[Node]:
        """Members with a buffer of their own."""
        return [m for m in self.group.members if self.stored(m)]

    def compute(self, node: Node) -> Compute:
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            raise VerifyError(f"schedule: {node.op.name} is not a tensor expression", where=node.where)
        return lowered

    def buffer(self, node: Node) -> Buffer:
        """Return the buffer of a stored value or of an operand from outside."""
        return self._buffer_of(node)

    def behind(self, node: Node) -> Node:
        """Return the value from outside that a chain of views shows."""
        while not (isinstance(node.op, (Input, ConstNode, Item)) or self.stored(node)):
            compute = self.compute(node)
            node = node.inputs[compute.args.index(compute.loads[0].buffer)]
        return node

    def is_held(self, term: Expr) -> bool:
        """Return whether a term reads nothing but held values."""
        return all(e.buffer in self._held_buffers for e in loads((term,)))

    def combiner(self, node: Node) -> Combiner:
        """Return how a member that is a reduction combines its terms."""
        found = self.compute(node).combiner
        assert found is not None
        return found

    def at(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        """Return the value of `node` at `indices`, as an expression of buffers."""
        key = (node, indices)
        found = self._memo.get(key)
        if found is None:
            found = self._read(node, indices)
            self._memo[key] = found
        return found

    def forget(self) -> None:
        """Drop remembered expressions, after `local` changed."""
        self._memo.clear()
        self._reads.clear()

    def reads_of(self, buffer: Buffer, node: Node) -> Reads:
        """Return where a member reads a buffer, at axes made for that."""
        key = (buffer, node)
        if key not in self._reads:
            axes = tuple(fresh_axes(node.aval.ints))
            read = {e.indices for e in loads((self.at(node, axes),)) if e.buffer is buffer}
            self._reads[key] = Reads(axes, read)
        return self._reads[key]

    def _read(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        if node in self.local:
            return self.local[node][indices]
        op = node.op
        if isinstance(op, ConstNode) and node.shape == () and not node.dtype.is_complex:
            return const(op.value.array.item(), node.dtype)
        outside = node not in self.members
        if outside and (isinstance(op, (Input, ConstNode, Item)) or self.stored(node)):
            buffer = self.buffer(node)
            if node in self.held:
                self._held_buffers.add(buffer)
            return buffer[indices]
        compute = self.compute(node)
        if compute.combiner is not None:
            raise VerifyError(f"schedule: reduction {op.name} read before it has a place", where=node.where)
        return self.terms(node, indices, ())[0]

    def terms(self, node: Node, axes: tuple[Expr, ...], reduce: tuple[Expr, ...]) -> list[Expr]:
        """Return the terms of a member's compute at given axes, with operands inlined."""
        compute = self.compute(node)
        values = dict(zip((*compute.axes, *compute.reduce), (*axes, *reduce), strict=True))
        place = {buffer: k for k, buffer in enumerate(compute.args)}
        moved = substitute(compute.terms, values)

        def inline(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in place:
                return self.at(node.inputs[place[e.buffer]], e.indices)
            return None

        return transform(moved, inline)


def work(roots: list[Expr]) -> int:
    """Return the number of arithmetic operations in expressions, index arithmetic left out."""
    return sum(
        1 for e in walk(roots) if (isinstance(e, Call) and e.dtype.name != "int64") or isinstance(e, Guard)
    )


def by_stride(axes: list[Var], buffer: Buffer) -> list[Var]:
    """Return loop variables ordered so that the buffer is walked through memory in order."""
    place = {v: k for k, v in enumerate(axes)}
    return sorted(axes, key=lambda v: (-buffer.strides[place[v]], place[v]))
