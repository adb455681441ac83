"""Sums of rows that are zero in real arithmetic: the gradient of the shift of a softmax.

A maximum taken off scores changes nothing of softmax, so what flows back to it cancels out. Written out it is
a sum of tiles; here it becomes a polynomial in what is known of rows, whose terms cancel or do not:

    l = sum e,  d = sum_j e (c v^T)  ->  sum_j ((c v^T) / l - d / l^2) e  =  d / l - (d / l^2) l  =  0
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node
from stratal.graph.pattern import uniform_scalar
from stratal.optimize.rewrite import rewrite_graph
from stratal.optimize.simplify import fold

Monomial = frozenset[tuple[Node, int]]
Polynomial = dict[Monomial, Fraction]

ONE: Final[Monomial] = frozenset()
MOST_TERMS: Final = 16
MOST_STEPS: Final = 64


class Expansion:
    """Values as polynomials of what is no sum, product or quotient."""

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim  # of tiles: what is repeated along their last axis is a value of rows
        self.left = MOST_STEPS

    def of(self, node: Node) -> Polynomial | None:
        """Return a value as a polynomial, None where it is too long."""
        self.left -= 1
        if self.left < 0:
            return None
        scalar = uniform_scalar(node)
        if scalar is not None and isinstance(scalar.op, Const) and scalar.dtype.is_float:
            value = float(scalar.op.value.array)
            return {ONE: Fraction(value)} if abs(value) < 1e30 else {frozenset({(node, 1)}): Fraction(1)}
        name = node.op.name
        if name == "broadcast" and self._of_rows(node):
            return self.of(node.inputs[0])
        if name not in ("neg", "add", "sub", "mul", "div"):
            return {frozenset({(node, 1)}): Fraction(1)}
        parts = [self.of(i) for i in node.inputs]
        if any(p is None for p in parts):
            return None
        first, *others = (p for p in parts if p is not None)
        if name == "neg":
            return {m: -c for m, c in first.items()}
        (second,) = others
        if name in ("add", "sub"):
            return _sum(first, second if name == "add" else {m: -c for m, c in second.items()})
        if name == "div":
            if len(second) != 1:
                return {frozenset({(node, 1)}): Fraction(1)}
            ((monomial, factor),) = second.items()
            second = {frozenset((n, -e) for n, e in monomial): 1 / factor}
        return _product(first, second) if len(first) * len(second) <= MOST_TERMS else None

    def _of_rows(self, node: Node) -> bool:
        (x,) = node.inputs
        axes = node.op.attributes["axes"]
        fewer = x.aval.ndim < self.ndim and x.shape == node.shape[: x.aval.ndim]
        return fewer and axes == tuple(range(x.aval.ndim))


def _sum(first: Polynomial, second: Polynomial) -> Polynomial:
    made = dict(first)
    for monomial, factor in second.items():
        made[monomial] = made.get(monomial, Fraction(0)) + factor
    return {m: c for m, c in made.items() if c}


def _product(first: Polynomial, second: Polynomial) -> Polynomial:
    made: Polynomial = {}
    for a, x in first.items():
        for b, y in second.items():
            powers: dict[Node, int] = dict(a)
            for node, power in b:
                powers[node] = powers.get(node, 0) + power
            made = _sum(made, {frozenset((n, e) for n, e in powers.items() if e): x * y})
    return made


def vanishes(sink: Node, summed: Callable[[list[Node]], Node | None]) -> bool:
    """Return whether the sum of a tile's rows cancels out.

    `summed` gives the sum of a product of tiles as a value that is there anyway, if there is one.
    """
    (tile,) = sink.inputs
    expansion = Expansion(tile.aval.ndim)
    found = expansion.of(tile)
    if found is None or len(found) < 2:
        return False
    total: Polynomial = {}
    for monomial, factor in found.items():
        wide = [(n, e) for n, e in monomial if n.shape == tile.shape]
        if any(e != 1 for _, e in wide):
            return False
        value = summed([n for n, _ in wide])
        known = None if value is None else expansion.of(value)
        if known is None:
            return False
        rows = frozenset((n, e) for n, e in monomial if n.shape != tile.shape)
        total = _sum(total, _product({rows: factor}, known))
    return not total


def without_zeros(graph: Graph) -> Graph:
    """Return a graph without products with zeros and sums of such."""
    return rewrite_graph(graph, _step)


def _step(node: Node) -> tuple[str, Node] | None:
    if node.op.name in ("mul", "add", "neg", "div"):
        zeros = [_is_zero(i) for i in node.inputs]
        if (node.op.name != "add" and zeros[0]) or (node.op.name == "mul" and zeros[1]):
            return "times_zero", Builder(node.where).like(node, 0)
        if node.op.name == "add" and any(zeros):
            return "plus_zero", node.inputs[1 if zeros[0] else 0]
    return fold(node)


def _is_zero(node: Node) -> bool:
    scalar = uniform_scalar(node)
    return scalar is not None and isinstance(scalar.op, Const) and not scalar.op.value.array.any()
