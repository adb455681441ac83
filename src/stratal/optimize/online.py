"""Cascaded reductions over scores, and the products behind them, as passes over blocks: no N x N value.

    s = q k^T;  p = f(s);  max p, sum p, p v, p^T q      ->   blockwise(q, k, v, ...)

A *tile* is a value of the shape of a product of two smaller ones, or what follows on it element by element.
Where every reader of the tiles reduces them, none needs to be stored: each reduction computes them again, in
blocks, from what is small. Reductions that depend on each other run one after another, with three identities
of real arithmetic that spare passes:

    sum_j r_i x_ij            =  r_i sum_j x_ij            factors of rows are taken out of sums and products
    sum_j y_ij (c v^T)_ij     =  sum_e c_ie (y v)_ie       where y v is there: the row sums of a gradient
    sum_j e^(s_ij - m_i) x_ij    with m running along      (Milakov and Gimelshein, 2018)

So softmax(f(q k^T)) v is one pass whatever f is, and its gradient, which autodiff has written, another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.fallback import skippable, unchanged
from stratal.base.log import decide
from stratal.base.source import SourceLine, merge
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Node, graph_input, items, make, rebuild, topological
from stratal.graph.pattern import uniform_scalar
from stratal.ops.control.blockwise import (
    Blockwise,
    Product,
    finite_peak,
    product_of,
    shifted,
    sink_of,
    tiles,
)
from stratal.ops.families import Elementwise
from stratal.ops.linear.contract import parse_spec
from stratal.optimize.ranges import use_ranges
from stratal.optimize.rewrite import rewrite_graph, with_roots
from stratal.optimize.vanishing import vanishes, without_zeros

FEWEST: Final = 16  # rows and columns below which a block is mostly empty
GROWTH: Final = 2  # times its operands that a product must have to be worth computing again
MOST_WORKER_BYTES: Final = 16 << 20  # of the operands that a worker lays out for itself
AXES: Final = "abcdefgh"  # of tiles, in specs
OWN: Final = "z"


class Scores(NamedTuple):
    """Tiles of one shape that follow from each other, and the reductions that read them."""

    shape: tuple[int, ...]
    tiles: frozenset[Node]
    sinks: list[Node]


@skippable(unchanged)
def use_online_forms(graph: Graph) -> Graph:
    """Compute scores in blocks wherever nothing needs them as a whole; elsewhere leave them as they are."""
    least = settings.online.value
    if least is None or not any(found.sinks for found in scores_of(graph, least)):
        return graph
    simple = use_ranges(rewrite_graph(graph, _squeezed))
    for rewrite in (_factored, _reassociated, _without_shifts):
        simple = rewrite(simple, scores_of(simple, least))
    return _in_blocks(simple, graph, scores_of(simple, least))


def _squeezed(node: Node) -> tuple[str, Node] | None:
    """Repeat values of rows [..., L, 1] as [..., L]: without axes that are stretched."""
    if node.op.name != "broadcast":
        return None
    (x,) = node.inputs
    axes = node.op.attributes["axes"]
    kept = [k for k, a in enumerate(axes) if x.shape[k] == node.shape[a]]
    if len(kept) == len(axes):
        return None
    b = Builder(node.where)
    rows = b.reshape(x, shape=tuple(x.shape[k] for k in kept))
    return "squeezed", b.broadcast(rows, shape=node.shape, axes=tuple(axes[k] for k in kept))


# -- what is a tile ------------------------------------------------------------------------------------------
def scores_of(graph: Graph, least: int) -> list[Scores]:
    """Return the connected tiles that nothing needs as a whole, where there is a reduction of rows among what
    reads them.
    """
    parent: dict[Node, Node] = {}

    def first(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = node = parent[parent[node]]
        return node

    spoiled: set[Node] = set(graph.roots)
    sinks: dict[Node, Node] = {}  # to the tile it reduces
    for node in graph.nodes:
        read = [i for i in node.inputs if i in parent]
        if _is_product(node, least) and not read:
            parent[node] = node
        elif not read:
            continue
        elif _follows(node) and all(i.shape == node.shape for i in read):
            parent[node] = node
            for i in read:
                parent[first(i)] = node
        elif len(read) == 1 and reduction(node, read[0]) is not None:
            sinks[node] = read[0]
        else:
            spoiled.update(read)
    wholes = {first(node) for node in spoiled if node in parent}
    found: dict[Node, tuple[set[Node], list[Node]]] = {}
    for node in parent:
        found.setdefault(first(node), (set(), []))[0].add(node)
    for sink, tile in sinks.items():
        found[first(tile)][1].append(sink)
    return [
        Scores(whole.aval.ints, frozenset(nodes), ends)
        for whole, (nodes, ends) in found.items()
        if whole not in wholes and any(n.op.name in ("sum", "reduce_max") for n in ends)
    ]


def _is_product(node: Node, least: int) -> bool:
    """Return whether a node is a product large enough to be computed again rather than stored."""
    if node.op.name != "contract" or {node.dtype, *(i.dtype for i in node.inputs)} != {float32}:
        return False
    product = product_of(node)
    if product is None or node.aval.nbytes < least or node.aval.ndim > len(AXES):
        return False
    *_, rows, columns = node.aval.ints
    width = product.rows.width
    small = sum(i.aval.nbytes for i in node.inputs) * GROWTH <= node.aval.nbytes
    return small and min(rows, columns) >= FEWEST and columns * width * 4 <= MOST_WORKER_BYTES


def _follows(node: Node) -> bool:
    """Return whether an op goes element by element."""
    return isinstance(node.op, Elementwise) or node.op.name in ("select", "cast")


class Reduction(NamedTuple):
    """A reduction of a tile as one along columns (`along` is -1) or rows (-2), and what follows on it.

    With `other` it is a product, with a value whose axes are `letters`. `rest` are axes of the result that
    are summed then; `order` is how what is left is laid out.
    """

    op: str
    along: int
    rest: tuple[int, ...]
    other: Node | None = None
    letters: str = ""
    order: tuple[int, ...] = ()


def reduction(node: Node, tile: Node) -> Reduction | None:
    """Return how a node reduces a tile, None where it does something else with it."""
    ndim, name = tile.aval.ndim, node.op.name
    if name not in ("sum", "reduce_max", "contract") or {node.dtype, tile.dtype} != {float32}:
        return None
    if name != "contract":
        axes = node.op.attributes["axes"]
        along = -1 if ndim - 1 in axes else -2 if ndim - 2 in axes else 0
        if not along or (along == -2 and name != "sum"):
            return None
        return Reduction(name, along, tuple(a for a in axes if a != ndim + along))
    return _product_with(node, tile)


def _product_with(node: Node, tile: Node) -> Reduction | None:
    left = node.inputs[0] is tile
    other = node.inputs[1] if left else node.inputs[0]
    spec = parse_spec(node.op.attributes["spec"])
    of_tile, of_other = (spec.left, spec.right) if left else (spec.right, spec.left)
    row, column = of_tile[-2], of_tile[-1]
    own = [c for c in of_other if c not in of_tile]
    if other is tile or len(own) != 1 or (row in spec.contracted) == (column in spec.contracted):
        return None
    along, letter, kept = (-1, column, row) if column in spec.contracted else (-2, row, column)
    if kept in of_other or letter not in of_other or other.dtype is not float32:
        return None
    names = {c: AXES[k] for k, c in enumerate(of_tile)} | {own[0]: OWN}
    made = [c for c in of_tile if c != letter] + own
    left_over = [c for c in made if c in spec.out]
    rest = tuple(k for k, c in enumerate(made) if c not in spec.out)
    order = tuple(left_over.index(c) for c in spec.out)
    return Reduction("contract", along, rest, other, "".join(names[c] for c in of_other), order)


# -- identities ----------------------------------------------------------------------------------------------
def _factored(graph: Graph, found: Sequence[Scores]) -> Graph:
    """Make every reduction one along a single axis, and take what is the same along it out."""
    repl: dict[Node, Node] = {}
    for scores in found:
        for sink in scores.sinks:
            (tile,) = (i for i in sink.inputs if i in scores.tiles)
            how = reduction(sink, tile)
            assert how is not None
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


def _reassociated(graph: Graph, found: Sequence[Scores]) -> Graph:
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


def _without_shifts(graph: Graph, found: Sequence[Scores]) -> Graph:
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


# -- passes --------------------------------------------------------------------------------------------------
class Pass(NamedTuple):
    """Reductions that read each other's results nowhere, but for a maximum that runs along.

    `power` is what falls as that `peak` grows; `shift` what the graph has in the place of the peak, if it is
    another number.
    """

    sinks: list[Node]
    peak: Node | None = None
    power: Node | None = None
    shift: Node | None = None


def _in_blocks(graph: Graph, before: Graph, found: Sequence[Scores]) -> Graph:
    """Put passes in the place of reductions, those first that others depend on."""
    level = _levels(graph, found)
    planned: list[tuple[int, Scores, Pass]] = []
    for scores in found:
        planned += [(at, scores, made) for at, made in _passes(scores, level)]
    planned.sort(key=lambda p: (p[0], p[2].shift is not None))
    repl: dict[Node, Node] = {}
    for _, scores, one in planned:
        region = _region(scores, one)
        if isinstance(tiles(region.body), str):
            decide("online", f"scores {list(scores.shape)}", "stored", str(tiles(region.body)))
            return before
        made = make(Blockwise(region.body), *substitute(region.operands, repl), where=_lines(one))
        for sink, result in zip(region.sinks, items(made), strict=True):
            repl[sink] = result
        if one.shift is not None:
            _rescale(one, repl)
    for scores in found:
        passes = [one for _, which, one in planned if which is scores]
        running = sum(one.peak is not None for one in passes)
        decide(
            "online", f"scores {list(scores.shape)}",
            f"{len(passes)} passes over blocks, {running} with a running maximum",
            "nothing needs them as a whole; sums round in another order, as real arithmetic",
        )  # fmt: skip
    return with_roots(graph, substitute(graph.roots, repl)) if planned else before


def _rescale(one: Pass, repl: dict[Node, Node]) -> None:
    """Shift the results of a pass as the graph does, rather than by the maximum."""
    assert one.peak is not None and one.shift is not None
    b = Builder(one.peak.where)
    (shift,) = substitute([one.shift], repl)
    factor = b.exp(b.sub(finite_peak(b, repl[one.peak]), shift))
    for sink in one.sinks:
        if sink is not one.peak:
            axes = tuple(range(factor.aval.ndim))
            repl[sink] = b.mul(repl[sink], b.broadcast(factor, shape=sink.shape, axes=axes))


def _lines(one: Pass) -> tuple[SourceLine, ...]:
    where: tuple[SourceLine, ...] = ()
    for sink in one.sinks:
        where = merge(where, sink.where)
    return where


def _levels(graph: Graph, found: Sequence[Scores]) -> dict[Node, int]:
    """Return how many reductions of tiles every value comes after, one after another."""
    sinks = {sink for scores in found for sink in scores.sinks}
    level: dict[Node, int] = {}
    for node in graph.nodes:
        level[node] = max((level[i] + (i in sinks) for i in node.inputs), default=0)
    return level


def _passes(scores: Scores, level: dict[Node, int]) -> list[tuple[int, Pass]]:
    """Group reductions by what they come after; those that a maximum shifts join it where that is all."""
    left = dict.fromkeys(scores.sinks)
    found: list[tuple[int, Pass]] = []
    for peak in scores.sinks:
        if peak.op.name != "reduce_max" or peak not in left:
            continue
        for power in scores.tiles:
            shift = shifted(power)
            if shift is None or shift[0] is not peak.inputs[0]:
                continue
            joined = [s for s in left if s is not peak and _falls_with(s, power, level[peak], level)]
            if joined and level[shift[1]] == level[peak] + (shift[1] is not peak):
                other = None if shift[1] is peak or _is_guarded(shift[1], peak) else shift[1]
                found.append((level[peak], Pass([peak, *joined], peak, power, other)))
                for sink in (peak, *joined):
                    del left[sink]
                break
    by_level: dict[int, list[Node]] = {}
    for sink in left:
        by_level.setdefault(level[sink], []).append(sink)
    return [*found, *((at, Pass(group)) for at, group in by_level.items())]


def _is_guarded(node: Node, peak: Node) -> bool:
    """Return whether a value is select(peak == -inf, 0, peak), or select(isfinite(peak), peak, 0)."""
    if node.op.name != "select":
        return False
    test, yes, no = node.inputs
    if test.op.name == "eq" and no is peak:
        others = [uniform_scalar(i) for i in test.inputs if i is not peak]
        infinite = len(others) == 1 and _is(others[0], -math.inf)
        return infinite and _is(uniform_scalar(yes), 0.0)
    finite = test.op.name == "isfinite" and test.inputs[0] is peak
    return finite and yes is peak and _is(uniform_scalar(no), 0.0)


def _is(scalar: Node | None, value: float) -> bool:
    return scalar is not None and isinstance(scalar.op, Const) and scalar.op.value.array.item() == value


def _falls_with(sink: Node, power: Node, at: int, level: dict[Node, int]) -> bool:
    """Return whether a sum of rows is one of `power` times what does not depend on its maximum."""
    how = sink_of(sink)
    if how is None or how.how != "sum" or how.along != -1:
        return False
    factors = Factors(sink.inputs[0].aval.ndim, -1)
    factors.take(sink.inputs[0])
    if factors.same or factors.negative or factors.wide.count(power) != 1:
        return False
    others = [w for w in factors.wide if w is not power]
    if how.operand is not None:
        others.append(how.operand.node)
    return all(level[w] <= at for w in others)


class Region(NamedTuple):
    """A pass as a graph, the values it reads and the reductions its outputs are."""

    body: Graph
    operands: list[Node]
    sinks: list[Node]


def _region(scores: Scores, one: Pass) -> Region:
    roots = list(one.sinks)
    if one.power is not None and one.peak is not None:
        b, s = Builder(one.power.where), one.peak.inputs[0]
        axes = tuple(range(s.aval.ndim - 1))
        spread = b.broadcast(finite_peak(b, one.peak), shape=s.shape, axes=axes)
        roots = substitute(roots, {one.power: b.op("exp_within", b.sub(s, spread), high=65.0)})
    operands = _operands(roots, scores, one.peak)
    given = {n: graph_input(f"x{k}", n.aval) for k, n in enumerate(operands)}
    return Region(Graph(given.values(), substitute(roots, given), name="blocks"), operands, one.sinks)


def _operands(roots: Sequence[Node], scores: Scores, peak: Node | None) -> list[Node]:
    """Return what a pass reads from memory: all but tiles and what is made again with them."""
    factors = {i for n in scores.tiles if n.op.name == "contract" for i in n.inputs}
    factors |= {n.inputs[1] for n in roots if n.op.name == "contract"}

    def is_operand(node: Node) -> bool:
        if node in factors:
            return True
        if node in scores.tiles or node in roots or node.op.name == "iota" or node in running:
            return False
        if isinstance(node.op, Const) or uniform_scalar(node) is not None:
            return isinstance(node.op, Const) and node.shape != ()
        again = node.op.name in ("broadcast", "reshape", "permute") or _follows(node)
        return not again or node.shape[-2:] != scores.shape[-2:]

    running: set[Node] = set()  # what depends on the maximum of the pass itself
    if peak is not None:
        running.add(peak)
        for node in topological(roots, stop=lambda n: n in factors or n is peak):
            if any(i in running for i in node.inputs):
                running.add(node)
    return [n for n in topological(roots, stop=is_operand) if is_operand(n)]
