"""Blocks of scores that a mask hides as a whole, from the arithmetic of positions in it.

    s = select(j <= i, q k^T, -inf)          every j of a block above every i  ->  -inf, and e^-inf = 0
    before:  for each block of columns: products, what follows, reductions
    after:   the same, unless first column > last row

A comparison of integers made of row and column numbers is decided for a block where the bounds of its sides
are apart. What follows from that, op by op, must leave every reduction as it is: terms of sums 0, of maxima
-inf. Real arithmetic: 0 times what is not looked at is 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dtypes import int32, int64
from stratal.graph.interpret import apply
from stratal.graph.node import Const, Node, topological
from stratal.graph.pattern import uniform_scalar
from stratal.loops import index
from stratal.loops.expr import Const as Number
from stratal.loops.expr import Expr
from stratal.loops.index import Index
from stratal.ops.control.blockwise import VIEWS, Tiles

MOST_DECIDED: Final = 12  # of which two are looked at together
MOST: Final = (1 << 31) - 1  # that bounds may reach: nothing wraps around
SWAPPED: Final = {"gt": "lt", "ge": "le"}


class Bounds(NamedTuple):
    """An integer is at least each of `low` and at most each of `high`."""

    low: tuple[Expr, ...]
    high: tuple[Expr, ...]


class Decided(NamedTuple):
    """A comparison that is `truth` for all of a block if any of the conditions holds."""

    node: Node
    truth: bool
    conditions: list[Expr]


Where = tuple[Bounds, ...]
NOTHING: Final = Bounds((), ())


def exactly(number: Index) -> Bounds:
    """Return the bounds of a known number."""
    return Bounds((index.as_expr(number),), (index.as_expr(number),))


FIRST: Final = exactly(0)


def hidden(tiles: Tiles, block: Sequence[Bounds]) -> list[Expr]:
    """Return conditions, each of which says that a block changes no reduction.

    `block` bounds the numbers of its elements along every axis.
    """
    nodes = topological(sink.tile for sink in tiles.sinks)
    decided: list[Decided] = []
    for node, where in _places(nodes, tiles, tuple(block)).items():
        decided += [d for d in _decided(node, where) if d.conditions]
    found: dict[Expr, None] = {}
    left: list[Decided] = []
    for one in decided:
        if _changes_nothing(tiles, nodes, (one,)):
            found |= dict.fromkeys(one.conditions)
        else:
            left.append(one)
    for one, other in itertools.combinations(left[:MOST_DECIDED], 2):
        if one.node is not other.node and _changes_nothing(tiles, nodes, (one, other)):
            pairs = itertools.product(one.conditions, other.conditions)
            found |= dict.fromkeys(index.both(a, b) for a, b in pairs)
    return [c for c in found if not (isinstance(c, Number) and not c.value)]


def _places(nodes: Sequence[Node], tiles: Tiles, block: Where) -> dict[Node, Where]:
    """Return the bounds along its axes of what a block reads of each value, where all readers agree.

    What is reduced, or a product, is not followed: nothing is concluded of it.
    """
    found: dict[Node, Where | None] = {sink.tile: block for sink in tiles.sinks}
    for node in reversed(nodes):
        if node not in found or not (node.op.pointwise or node.op.name in VIEWS):
            continue
        where = found[node]
        for x in node.inputs:
            at = None if where is None else _seen(node, x, where)
            found[x] = at if found.get(x, at) == at else None
    return {node: where for node, where in found.items() if where is not None}


def _seen(node: Node, x: Node, where: Where) -> Where | None:
    """Return the bounds of what a node reads of an operand, None where they are not known."""
    name, sizes = node.op.name, x.aval.ints
    if name == "broadcast":
        axes = node.op.attributes["axes"]
        return tuple(where[a] if n == node.aval.ints[a] else FIRST for a, n in zip(axes, sizes, strict=True))
    if name == "reshape":
        rest = iter([e for e, n in zip(where, node.aval.ints, strict=True) if n != 1])
        same = [n for n in sizes if n != 1] == [n for n in node.aval.ints if n != 1]
        return tuple(next(rest) if n != 1 else FIRST for n in sizes) if same else None
    if name == "permute":
        perm = node.op.attributes["perm"]
        return tuple(where[perm.index(k)] for k in range(len(perm)))
    return where if node.op.pointwise and x.shape == node.shape else None


def _decided(node: Node, where: Where) -> tuple[Decided, ...]:
    """Return what makes a comparison false for all of a block, and what makes it true."""
    name = node.op.name
    if name not in ("lt", "le", "gt", "ge"):
        return ()
    left, right = (_bounds(i, where) for i in node.inputs)
    if name in SWAPPED:
        name, left, right = SWAPPED[name], right, left
    strict = name == "lt"

    def apart(highs: tuple[Expr, ...], lows: tuple[Expr, ...], less: bool) -> list[Expr]:
        return [index.less(high, low if less else index.add(low, 1)) for high in highs for low in lows]

    return (
        Decided(node, False, apart(right.high, left.low, not strict)),
        Decided(node, True, apart(left.high, right.low, strict)),
    )


def _bounds(node: Node, where: Where) -> Bounds:
    """Return the bounds of an integer where its axes are bounded, none where nothing is known."""
    found = _of_integer(node, where) if node.dtype in (int32, int64) else NOTHING
    return Bounds(*(tuple(e for e in ends if max(map(abs, index.bounds(e))) <= MOST) for ends in found))


def _of_integer(node: Node, where: Where) -> Bounds:
    scalar, name = uniform_scalar(node), node.op.name
    if scalar is not None and isinstance(scalar.op, Const):
        return exactly(int(scalar.op.value.array))
    if name == "iota":
        axis: int = node.op.attributes["axis"]
        return where[axis]
    read = [_seen(node, i, where) for i in node.inputs]
    sides = [NOTHING if at is None else _bounds(i, at) for i, at in zip(node.inputs, read, strict=True)]
    rule = RULES.get(name)
    return rule(*sides) if rule is not None else NOTHING


def _sum(a: Bounds, b: Bounds) -> Bounds:
    sums = [tuple(index.add(x, y) for x, y in itertools.product(*ends)) for ends in zip(a, b, strict=True)]
    return Bounds(*sums)


def _negative(a: Bounds) -> Bounds:
    low, high = (tuple(index.mul(x, -1) for x in ends) for ends in (a.high, a.low))
    return Bounds(low, high)


def _times(a: Bounds, b: Bounds) -> Bounds:
    for scaled, by in ((a, b), (b, a)):
        if by.low == by.high and by.low and isinstance(by.low[0], Number):
            factor = int(by.low[0].value)
            low, high = (tuple(index.mul(x, factor) for x in ends) for ends in scaled)
            return Bounds(low, high) if factor >= 0 else Bounds(high, low)
    return Bounds((), ())


RULES: Final[dict[str, Callable[..., Bounds]]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, _negative(b)),
    "neg": _negative,
    "mul": _times,
    "abs": lambda a: Bounds((*a.low, *_negative(a).low, index.as_expr(0)), ()),
    **dict.fromkeys((*VIEWS, "cast"), lambda a: a),
    "max": lambda a, b: Bounds(a.low + b.low, ()),
    "min": lambda a, b: Bounds((), a.high + b.high),
}


# -- what follows --------------------------------------------------------------------------------------------
def _changes_nothing(tiles: Tiles, nodes: Sequence[Node], decided: Sequence[Decided]) -> bool:
    """Return whether every reduction stays as it is where comparisons are known."""
    known: dict[Node, Any] = {d.node: np.asarray(d.truth) for d in decided}
    for node in nodes:
        value = None if node in known else _value(node, known)
        if value is not None:
            known[node] = value
    neutral = {"max": -math.inf, "sum": 0.0}
    return all(s.tile in known and known[s.tile] == neutral[s.how] for s in tiles.sinks)


def _value(node: Node, known: dict[Node, Any]) -> Any:
    """Return what all elements of a node are, a scalar array, or None where they are not known."""
    scalar = uniform_scalar(node)
    if scalar is not None and isinstance(scalar.op, Const):
        return scalar.op.value.array
    name, given = node.op.name, [known.get(i) for i in node.inputs]
    if name in VIEWS:
        return given[0]
    if name == "select":
        test, yes, no = given
        return (yes if test else no) if test is not None else yes if yes is not None and yes == no else None
    if given and node.op.pointwise and all(v is not None for v in given):
        return np.asarray(apply(node.op, *(v for v in given if v is not None)))
    for value in given:
        if value is not None and (name, value.item()) in DECISIVE:
            return value
    return given[0] if given and given[0] is not None and (name, given[0].item()) in DECISIVE_FIRST else None


DECISIVE: Final = {("and", False), ("or", True), ("mul", 0.0), ("add", -math.inf), ("min", -math.inf)}
DECISIVE_FIRST: Final = {("sub", -math.inf), ("div", 0.0)}
