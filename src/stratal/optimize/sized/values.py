"""Values whose sizes are known only at run time, as values of fixed sizes: the largest they can take.

A symbolic size `b` in [low, high] gets a capacity of `high` elements, of which the first `b`
are valid. An axis of size `b * t` is factored as two axes of capacities `high(b)` and `high(t)`,
so that the valid region is always the first elements of every physical axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.dims import Dim, Sym, known_equal, product, quotient, same_shape, upper_bound
from stratal.base.dtypes import int64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.views.shapes import Broadcast

Factors = tuple[Dim, ...]


class Sized(NamedTuple):
    """A value by its physical node, and for each of its axes the sizes whose product it is."""

    node: Node
    axes: tuple[Factors, ...]

    @property
    def flat(self) -> Factors:
        """The size of each physical axis."""
        return tuple(n for axis in self.axes for n in axis)

    def physical_axes(self, axis: int) -> tuple[int, ...]:
        """Return the physical axes of an axis."""
        first = sum(map(len, self.axes[:axis]))
        return tuple(range(first, first + len(self.axes[axis])))

    def symbolic(self, axis: int) -> bool:
        """Return whether the size of an axis is known only at run time."""
        return any(isinstance(n, Sym) for n in self.axes[axis])


def capacities(factors: Iterable[Dim]) -> tuple[int, ...]:
    """Return the capacity of each size."""
    return tuple(map(upper_bound, factors))


def plain(type_: TensorType) -> tuple[Factors, ...]:
    """Return the axes of a type, each factored as one."""
    return tuple((n,) for n in type_.shape)


class Sizes:
    """The sizes of one run as nodes, and what is built of them: masks and other ways to hold a value."""

    def __init__(self, b: Builder, symbols: dict[str, Node]) -> None:
        self.b = b
        self.symbols = symbols  # of each symbol its size, an int64 scalar

    # -- numbers ---------------------------------------------------------------------------------------------
    def count(self, size: Dim) -> Node:
        """Return a size as an int64 scalar."""
        b = self.b
        if isinstance(size, int):
            return b.const(size, int64)
        total: Node | None = None
        for atoms, factor in size.terms:
            term = b.const(factor, int64) if factor != 1 or not atoms else None
            for atom in atoms:
                value = self._atom(atom)
                term = value if term is None else b.mul(term, value)
            assert term is not None
            total = term if total is None else b.add(total, term)
        assert total is not None
        return total

    def _atom(self, atom: str) -> Node:
        if atom not in self.symbols:
            parts = quotient(atom)
            if parts is None:
                raise ShapeError("sizes: a symbol has no value", got=atom)
            whole, divisor = parts
            self.symbols[atom] = self.b.floordiv(self.count(whole), self.b.const(divisor, int64))
        return self.symbols[atom]

    # -- the valid region ------------------------------------------------------------------------------------
    def inside(self, value: Sized, physical_axes: Iterable[int]) -> Node | None:
        """Return where an element is valid along some physical axes; None where all are."""
        b, shape = self.b, capacities(value.flat)
        found: Node | None = None
        for k in physical_axes:
            size = value.flat[k]
            if not isinstance(size, Sym):
                continue
            index = b.iota(shape=(shape[k],), axis=0, dtype=int64)
            limit = b.broadcast(self.count(size), shape=(shape[k],), axes=())
            here = b.broadcast(b.lt(index, limit), shape=shape, axes=(k,))
            found = here if found is None else b.op("and", found, here)
        return found

    def masked(self, value: Sized, axes: Iterable[int], fill: object) -> Node:
        """Return the physical node with `fill` outside the valid region along some axes."""
        inside = self.inside(value, [k for a in axes for k in value.physical_axes(a)])
        node = value.node
        return node if inside is None else self.b.select(inside, node, self.b.like(node, fill))

    def front(self, node: Node, shape: Sequence[int]) -> Node:
        """Return the first elements of a physical node along each axis: `shape` of them."""
        stop = tuple(shape)
        if node.shape == stop:
            return node
        cut: Node = self.b.slice(node, start=(0,) * len(stop), stop=stop, step=(1,) * len(stop))
        return cut

    def shaped(self, node: Node, shape: Iterable[Dim]) -> Node:
        """Return a physical node with room for such sizes as axes."""
        wanted = capacities(shape)
        made: Node = node if node.shape == wanted else self.b.reshape(node, shape=wanted)
        return made

    # -- other ways to hold it -------------------------------------------------------------------------------
    def factored(self, value: Sized, axes: Sequence[Factors]) -> Sized:
        """Return the value with its axes factored in other ways."""
        for k, wanted in enumerate(axes):
            if not same_shape(value.axes[k], wanted):
                value = self._respread(value, k, wanted)
        return value

    def prefix(self, value: Sized, axis: int) -> Sized:
        """Return the value with one axis as one physical axis: the valid elements are the first ones."""
        return self.factored(value, [(product(f),) if k == axis else f for k, f in enumerate(value.axes)])

    def _respread(self, value: Sized, axis: int, wanted: Factors) -> Sized:
        axes = tuple(wanted if k == axis else f for k, f in enumerate(value.axes))
        same = _constant_along(value.node, value.physical_axes(axis))
        if same is not None:
            return Sized(self._broadcast_again(value, axis, wanted, same), axes)
        if all(isinstance(n, int) for n in (*wanted, *value.axes[axis])):
            return Sized(self.shaped(value.node, (n for f in axes for n in f)), axes)
        return Sized(self._gathered(value, axis, wanted), axes)

    def _broadcast_again(self, value: Sized, axis: int, wanted: Factors, source: Node) -> Node:
        physical_axes, more = value.physical_axes(axis), len(wanted) - len(value.axes[axis])
        shape = capacities(n for k, f in enumerate(value.axes) for n in (wanted if k == axis else f))
        kept = tuple(a if a < physical_axes[0] else a + more for a in value.node.op.axes)  # type: ignore[attr-defined]
        again: Node = self.b.broadcast(source, shape=shape, axes=kept)
        return again

    def _gathered(self, value: Sized, axis: int, wanted: Factors) -> Node:
        """Find each element's rank in row-major order of the valid ones, and take the element of it."""
        b, have = self.b, value.axes[axis]
        rank = self._rank(wanted)
        index = self._place(rank, have)
        room = math.prod(capacities(have))
        index = b.op("min", index, b.like(index, max(room - 1, 0)))
        first = value.physical_axes(axis)[0] if have else sum(map(len, value.axes[:axis]))
        before, after = capacities(value.flat[:first]), capacities(value.flat[first + len(have) :])
        merged = b.reshape(value.node, shape=(*before, room, *after))
        taken = b.gather(merged, b.reshape(index, shape=(math.prod(capacities(wanted)),)), axis=first)
        back: Node = b.reshape(taken, shape=(*before, *capacities(wanted), *after))
        return back

    def _rank(self, factors: Factors) -> Node:
        """Return for each position of an axis its rank among the valid ones."""
        b, shape = self.b, capacities(factors)
        rank: Node | None = None
        for k in range(len(factors)):
            index = b.iota(shape=shape, axis=k, dtype=int64)
            stride = self.count(product(factors[k + 1 :]))
            term = b.mul(index, b.broadcast(stride, shape=shape, axes=()))
            rank = term if rank is None else b.add(rank, term)
        return b.iota(shape=(1,), axis=0, dtype=int64) if rank is None else rank

    def _place(self, rank: Node, factors: Factors) -> Node:
        """Return where the element of a rank stands among all positions of an axis."""
        b = self.b
        position: Node | None = None
        for k, size in reversed(list(enumerate(factors))):
            many = b.broadcast(self.count(size), shape=rank.shape, axes=())
            digit = b.rem(rank, many) if k else rank
            rank = b.floordiv(rank, many) if k else rank
            stride = math.prod(capacities(factors[k + 1 :]))
            term = b.mul(digit, b.like(digit, stride))
            position = term if position is None else b.add(position, term)
        return rank if position is None else position


def _constant_along(node: Node, physical_axes: Sequence[int]) -> Node | None:
    """Return what a node is a broadcast of, if it is the same along some physical axes."""
    if not isinstance(node.op, Broadcast) or set(node.op.axes) & set(physical_axes):
        return None
    return node.inputs[0]


def merged(factors: Iterable[Dim]) -> Factors:
    """Return factors with neighbours of known size as one, and without ones beside others."""
    out: list[Dim] = []
    for n in factors:
        if out and isinstance(n, int) and isinstance(out[-1], int):
            out[-1] = out[-1] * n
        else:
            out.append(n)
    return tuple(n for n in out if not known_equal(n, 1)) or (1,)


def regrouped(flat: Sequence[Dim], target: Sequence[Dim]) -> list[list[Dim]] | None:
    """Return sizes in order, cut into groups whose products are the target sizes; known ones may be split.

    None where that cannot be done without moving elements.
    """
    rest = [n for n in reversed(flat) if not known_equal(n, 1)]
    groups: list[list[Dim]] = []
    for wanted in target:
        group: list[Dim] = []
        while not known_equal(product(group), wanted):
            if not rest:
                return None
            n = rest.pop()
            missing = _ratio(wanted, product(group))
            if isinstance(n, int) and missing is not None and missing % n:
                if n % missing:
                    return None
                rest.append(n // missing)
                n = missing
            group.append(n)
        groups.append(group)
    return None if rest else groups


def _ratio(whole: Dim, part: Dim) -> int | None:
    """Return the int that `whole` is `part` times, or None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    if not isinstance(whole, Sym) or not isinstance(part, Sym):
        return None
    k = whole.terms[0][1] // (part.terms[0][1] or 1)
    return k if k > 0 and known_equal(part * k, whole) else None


Rule = Callable[..., Any]
RULES: Final[dict[str, Rule]] = {}
"""rule(sizes, node, *operands) -> the result as Sized, or one for each result."""

NEEDS_KNOWN_SIZES: Final[dict[str, str]] = {}
"""Why an op has no rule. A graph in which one has operands of symbolic sizes is captured for known ones."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def no_rule(reason: str, *names: str) -> None:
    """Register the reason why some ops have no rule."""
    NEEDS_KNOWN_SIZES.update(dict.fromkeys(names, reason))
