"""Identities of real arithmetic that bring reductions of scores into few passes.

    sum_j r_i x_ij            =  r_i sum_j x_ij            factors of rows are taken out of sums and products
    sum_j y_ij (c v^T)_ij     =  sum_e c_ie (y v)_ie       where y v is there: the row sums of a gradient
    sum_j t_ij                =  0                         where terms cancel: the gradient of a shift
    e^(x - (m + log l))       =  e^(x - m) / l             exp(log_softmax(s)), exp(s - logsumexp(s))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, rebuild
from stratal.ops.control.blockwise import Product, product_of
from stratal.optimize.online.scores import AXES, OWN, Reduction, Scores, reduction
from stratal.optimize.online.vanishing import vanishes, without_zeros
from stratal.optimize.rewrite import with_roots


def without_logarithms(node: Node, least: int) -> tuple[str, Node] | None:
    """Divide by a sum rather than take its logarithm off in an exponent: then it need not be known before.

    For values of at least that many bytes.
    """
    if node.op.name not in ("exp", "exp_within") or node.inputs[0].op.name != "sub":
        return None
    if node.aval.nbytes < least:
        return None
    x, spread = node.inputs[0].inputs
    if spread.op.name != "broadcast":
        return None
    (rows,) = spread.inputs
    parts = rows.inputs if rows.op.name == "add" else (rows,)
    logarithm = next((p for p in parts if p.op.name == "log"), None)
    if logarithm is None or logarithm.inputs[0].op.name != "sum":
        return None
    b, axes = Builder(node.where), spread.op.attributes["axes"]
    rest = [p for p in parts if p is not logarithm]
    shifted = b.sub(x, b.broadcast(rest[0], shape=x.shape, axes=axes)) if rest else x
    total = b.broadcast(logarithm.inputs[0], shape=x.shape, axes=axes)
    return "without_logarithms", b.div(b.exp(shifted), total)


def factored(graph: Graph, found: Sequence[Scores]) -> Graph:
    """Make every reduction one along a single axis, and take what is the same along it out."""
    repl: dict[Node, Node] = {}
    for scores in found:
        for sink in scores.sinks:
            (tile,) = (i for i in sink.inputs if i in scores.tiles)
            how = reduction(sink, tile)
            assert how is not None
            if not how.along:
                continue
            repl[sink] = _one_axis(Builder(sink.where), tile, how, scores)
    return _replaced(graph, repl)


def _one_axis(b: Builder, tile: Node, how: Reduction, scores: Scores) -> Node:
    ndim = tile.aval.ndim
    factors = Factors(ndim, how.along)
    if how.op != "reduce_max":
        factors.take(tile)
    if how.op == "reduce_max" or not any(w in scores.tiles for w in factors.wide):
        factors = Factors(ndim, how.along)
        factors.wide.append(tile)
    made = _reduced(b, factors.product(b), how)
    axes = [k for k in range(ndim) if k != ndim + how.along]
    made = factors.applied(b, made, axes)
    if how.rest:
        positions = tuple(axes.index(a) if how.other is None else a for a in how.rest)
        made = b.op("sum" if how.op == "contract" else how.op, made, axes=positions)
    if how.order and how.order != tuple(range(len(how.order))):
        made = b.permute(made, perm=how.order)
    return made


def _reduced(b: Builder, tile: Node, how: Reduction) -> Node:
    ndim = tile.aval.ndim
    if how.other is None:
        return b.op(how.op, tile, axes=(ndim + how.along,))
    letters = AXES[:ndim]
    kept = letters[:-2] + (letters[-2] if how.along == -1 else letters[-1])
    return b.contract(tile, how.other, spec=f"{letters},{how.letters}->{kept}{OWN}")


class Factors:
    """A tile as a product: of tiles (`wide`), and of values that are the same along the axis reduced."""

    def __init__(self, ndim: int, along: int) -> None:
        self.ndim, self.along = ndim, along
        self.wide: list[Node] = []
        self.same: list[tuple[Node, bool]] = []  # a broadcast, and whether it divides
        self.negative = False

    def take(self, node: Node) -> None:
        name = node.op.name
        if name == "neg":
            self.negative = not self.negative
            self.take(node.inputs[0])
        elif name == "mul":
            for i in node.inputs:
                self.take(i)
        elif name == "div" and self._is_same(node.inputs[1]):
            self.same.append((node.inputs[1], True))
            self.take(node.inputs[0])
        elif self._is_same(node):
            self.same.append((node, False))
        else:
            self.wide.append(node)

    def _is_same(self, node: Node) -> bool:
        """Return whether a value is repeated along the axis that is reduced; a product of rows may keep a
        factor of columns only if both are.
        """
        if node.op.name != "broadcast":
            return False
        last = self.ndim - (1 if self.along == -1 else 2)
        return all(a < last for a in node.op.attributes["axes"])

    def product(self, b: Builder) -> Node:
        if len(self.wide) == 1:
            return self.wide[0]
        return reduce(b.mul, self.wide)

    def applied(self, b: Builder, made: Node, axes: Sequence[int]) -> Node:
        """Return a reduction, of some axes of the tile, times what was taken out of it."""
        for node, divides in self.same:
            (x,) = node.inputs
            place = tuple(axes.index(a) for a in node.op.attributes["axes"])
            spread = b.broadcast(x, shape=made.shape, axes=place) if made.shape != x.shape else x
            made = b.div(made, spread) if divides else b.mul(made, spread)
        return b.neg(made) if self.negative else made


def reassociated(graph: Graph, found: Sequence[Scores]) -> Graph:
    """Take sums of rows of y (c v^T) from the rows of y v, where that is computed anyway."""
    repl: dict[Node, Node] = {}
    for scores in found:
        there = set(scores.sinks)
        for sink in scores.sinks:
            if sink.op.name == "sum" and sink.op.attributes["axes"] == (len(scores.shape) - 1,):
                made = _by_rows(Builder(sink.where), _factors_of(sink.inputs[0]), there)
                if made is not None:
                    repl[sink] = made
    return _replaced(graph, repl)


def _factors_of(tile: Node) -> list[Node]:
    """Return the tiles whose product a tile is; none where there is more to it."""
    factors = Factors(tile.aval.ndim, -1)
    factors.take(tile)
    return [] if factors.same or factors.negative else factors.wide


def _by_rows(b: Builder, wide: Sequence[Node], there: set[Node]) -> Node | None:
    """Return the sum of a product's rows as that of smaller values that are there, if one factor is c v^T."""
    for node in wide if len(wide) > 1 else ():
        product = product_of(node) if node.op.name == "contract" else None
        if product is None:
            continue
        rest = [w for w in wide if w is not node]
        names = AXES[: node.aval.ndim] + OWN
        letters = "".join(names[k] for k in product.columns.axes)
        how = Reduction("contract", -1, (), product.columns.node, letters)
        for order in (rest, rest[::-1]):
            weighted = _reduced(b, reduce(b.mul, order), how)
            if weighted in there:
                return b.sum(b.mul(_laid_out(b, product, weighted), weighted), axes=(weighted.aval.ndim - 1,))
    return None


def _summed(b: Builder, there: set[Node], wide: list[Node]) -> Node | None:
    """Return the sum of a product's rows as a value that is there, or made of such."""
    plain = b.sum(wide[0], axes=(wide[0].aval.ndim - 1,)) if len(wide) == 1 else None
    return plain if plain in there else _by_rows(b, wide, there)


def without_shifts(graph: Graph, found: Sequence[Scores]) -> Graph:
    """Leave out gradients of shifts, which cancel out."""
    repl: dict[Node, Node] = {}
    for scores in found:
        there = set(scores.sinks)
        last = len(scores.shape) - 1
        for sink in scores.sinks:
            if sink.op.name != "sum" or sink.op.attributes["axes"] != (last,):
                continue
            if vanishes(sink, partial(_summed, Builder(sink.where), there)):
                repl[sink] = Builder(sink.where).like(sink, 0)
    return without_zeros(_replaced(graph, repl)) if repl else graph


def _laid_out(b: Builder, product: Product, like: Node) -> Node:
    """Return the rows' side of a product with the axes of tiles in order, its own last."""
    last = like.aval.ndim - 1
    axes = [last if k == -1 else k for k in product.rows.axes]
    order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    x = b.permute(product.rows.node, perm=order) if order != tuple(range(len(axes))) else product.rows.node
    return b.broadcast(x, shape=like.shape, axes=tuple(sorted(axes))) if x.shape != like.shape else x


def _replaced(graph: Graph, repl: dict[Node, Node]) -> Graph:
    """Return the graph with values replaced, in what they are replaced by, too."""
    new: dict[Node, Node] = {}
    for root in graph.roots:
        stack = [root]
        while stack:
            node = stack[-1]
            target = repl.get(node, node)
            waiting = [i for i in (node.inputs if target is node else (target,)) if i not in new]
            if node in new:
                stack.pop()
            elif waiting:
                stack += waiting
            else:
                new[node] = rebuild(node, [new[i] for i in node.inputs]) if target is node else new[target]
                stack.pop()
    return with_roots(graph, [new[root] for root in graph.roots])
