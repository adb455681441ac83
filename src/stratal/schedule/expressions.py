"""The members of a group as one expression each: views and unstored members are inlined where they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from stratal.base.errors import VerifyError
from stratal.base.lowered import Lowered
from stratal.base.target import Target
from stratal.graph.node import Const as ConstNode
from stratal.graph.node import Input, Item, Node
from stratal.graph.partition import Group
from stratal.loops.compute import Combiner, Compute, fresh_axes
from stratal.loops.expr import Buffer, Call, Expr, Guard, Load, Var, const, loads, walk
from stratal.loops.rebuild import substitute, transform


class Reads(NamedTuple):
    """The indices at which something reads a buffer, as functions of axes."""

    axes: tuple[Var, ...]
    indices: set[tuple[Expr, ...]]


class Element(NamedTuple):
    """A value at index expressions."""

    node: Node
    indices: tuple[Expr, ...]


@dataclass(eq=False)
class GroupExpressions:
    """Reads values at index expressions.

    `buffer` gives each stored value, and each operand from outside, its memory; `local` overrides it inside
    the kernel. What is made of `frozen` values alone before the kernel is made once for many runs of it.
    """

    group: Group
    lower_of: Callable[[Node], Lowered | None]
    buffer: Callable[[Node], Buffer]
    stored: Callable[[Node], bool]
    frozen: frozenset[Node] = frozenset()
    local: dict[Node, Buffer] = field(default_factory=dict)
    seen_as: dict[Target, object] = field(default_factory=dict)  # what tactics make of it to look at it
    _held_buffers: set[Buffer] = field(default_factory=set)
    _memo: dict[Element, Expr] = field(default_factory=dict)
    _reads: dict[tuple[Buffer, Node], Reads] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = frozenset(self.group.members)

    @property
    def results(self) -> list[Node]:
        """Members with a buffer of their own."""
        return [m for m in self.group.members if self.stored(m)]

    def compute(self, node: Node) -> Compute:
        lowered = self.lower_of(node)
        if not isinstance(lowered, Compute):
            raise VerifyError(f"schedule: {node.op.name} is not a tensor expression", where=node.where)
        return lowered

    def behind(self, node: Node) -> Node:
        """Return the value from outside that a chain of views shows."""
        while not (isinstance(node.op, (Input, ConstNode, Item)) or self.stored(node)):
            compute = self.compute(node)
            node = node.inputs[compute.args.index(compute.loads[0].buffer)]
        return node

    def is_frozen(self, term: Expr) -> bool:
        """Return whether a term reads nothing but frozen values."""
        return all(e.buffer in self._held_buffers for e in loads((term,)))

    def combiner(self, node: Node) -> Combiner:
        """Return how a member that is a reduction combines its terms."""
        found = self.compute(node).combiner
        assert found is not None
        return found

    def at(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        """Return the value of `node` at `indices`, as an expression of buffers."""
        stack = [Element(node, indices)]
        terms: dict[Element, list[Expr]] = {}
        while True:  # no recursion: chains of members are long
            element = stack[-1]
            found = self._known(element)
            if found is None:
                if element not in terms:
                    terms[element] = self._element(element)
                made, waiting = self._inlined(terms[element], element.node)
                if waiting:
                    stack += waiting
                    continue
                found = self._memo[element] = made[0]
            stack.pop()
            if not stack:
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

    def terms(self, node: Node, axes: tuple[Expr, ...], reduce: tuple[Expr, ...]) -> list[Expr]:
        """Return the terms of a member's compute at given axes, with operands inlined."""
        terms = self._terms(node, (*axes, *reduce))
        while True:
            made, waiting = self._inlined(terms, node)
            if not waiting:
                return made
            for element in waiting:
                self.at(*element)

    def _known(self, element: Element) -> Expr | None:
        """Return an element that was made before, or that a buffer or a constant holds."""
        found = self._memo.get(element)
        if found is None:
            found = self._read(*element)
            if found is not None:
                self._memo[element] = found
        return found

    def _read(self, node: Node, indices: tuple[Expr, ...]) -> Expr | None:
        if node in self.local:
            return self.local[node][indices]
        op = node.op
        if isinstance(op, ConstNode) and node.shape == () and not node.dtype.is_complex:
            return const(op.value.array.item(), node.dtype)
        outside = node not in self.members
        if outside and (isinstance(op, (Input, ConstNode, Item)) or self.stored(node)):
            buffer = self.buffer(node)
            if node in self.frozen:
                self._held_buffers.add(buffer)
            return buffer[indices]
        return None

    def _element(self, element: Element) -> list[Expr]:
        """Return the term of an element, as a function of operands."""
        node = element.node
        if self.compute(node).combiner is not None:
            raise VerifyError(
                f"schedule: reduction {node.op.name} read before it has a place", where=node.where
            )
        return self._terms(node, element.indices)

    def _terms(self, node: Node, loops: tuple[Expr, ...]) -> list[Expr]:
        """Return the terms of a member's compute at given loops, as functions of its operands."""
        compute = self.compute(node)
        return substitute(compute.terms, dict(zip((*compute.axes, *compute.reduce), loops, strict=True)))

    def _inlined(self, terms: list[Expr], node: Node) -> tuple[list[Expr], list[Element]]:
        """Return terms with a member's operands inlined, and the elements that have to be known first."""
        place = {buffer: k for k, buffer in enumerate(self.compute(node).args)}
        waiting: list[Element] = []

        def inline(e: Expr) -> Expr | None:
            if not (isinstance(e, Load) and e.buffer in place):
                return None
            element = Element(node.inputs[place[e.buffer]], e.indices)
            found = self._known(element)
            if found is None and not any(inner.buffer in place for inner in loads(e.indices)):
                waiting.append(element)
            return found

        return transform(terms, inline), waiting


def work(roots: list[Expr]) -> int:
    """Return the number of arithmetic operations in expressions, index arithmetic left out."""
    return sum(
        1 for e in walk(roots) if (isinstance(e, Call) and e.dtype.name != "int64") or isinstance(e, Guard)
    )


def by_stride(axes: list[Var], buffer: Buffer) -> list[Var]:
    """Return loop variables ordered so that the buffer is walked through memory in order."""
    place = {v: k for k, v in enumerate(axes)}
    return sorted(axes, key=lambda v: (-buffer.strides[place[v]], place[v]))
