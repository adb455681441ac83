"""Matrix products as dot products: both operands are contiguous along the reduction, which runs in vectors.

Nothing is copied into another order, which few rows of A would not repay; the price is one sum over the lanes
of a vector per element of the result. This is the product of a linear layer: weights lie one output after the
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var, lanes
from stratal.loops.stmt import Stmt, Store, substitute_stmt
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import cut_tails, distribute_runs, finished, nest, reduction_order
from stratal.schedule.tactics.product import Product, product_of

KIND = "contract"

SUM_CYCLES = 6.0  # to add up the lanes of one vector
MISS_CYCLES = 0.4  # by which a multiply-add is slower on average: smaller tiles, vectors from afar
CHAINS = 2  # of multiply-adds in a tile of one: each waits for the one before
RUNS = 8  # of columns or rows that there should be, for all threads to share
FEW_ROWS = 32  # of tiles, of which one more or less is felt


class Cut(NamedTuple):
    """How the result is cut: tiles of `rows` x `columns` dot products, `vectors` of the reduction at a time.

    A run of `run_columns` tiles is as wide as a vector.
    """

    rows: int
    columns: int
    run_rows: int
    run_columns: int
    vectors: int = 1


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield dot products where both operands are contiguous along the same reduction."""
    p = product_of(x, target)
    if suits(p):
        cut = choose_cut(p)
        yield _candidate(p, walked(p, cut), priced=cut)


def variants(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield dot products in other tiles and runs."""
    p = Product(x, target)
    if not suits(p):
        return
    for rows, columns in [(r, c) for c in (1, 2, 4, 8, 16) for r in range(1, 9) if _fits(p, r, c)]:
        chosen = cut_in_tiles(p, rows, columns)
        num_rows = -(-p.m.extent // rows)
        for run_rows in sorted({1, max(1, num_rows // 2), num_rows, chosen.run_rows}):
            for run_columns in sorted({1, chosen.run_columns, 2 * chosen.run_columns}):
                for vectors in {1, CHAINS} if columns == 1 else {1}:
                    yield _candidate(p, Cut(rows, columns, run_rows, run_columns, vectors))


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return dot products cut as the parameters say."""
    if algorithm != "dots" or set(parameters) != set(Cut._fields) or min(parameters.values()) < 1:
        return None
    p, cut = Product(x, target), Cut(**parameters)
    return _candidate(p, cut) if suits(p) and _fits(p, cut.rows, cut.columns, cut.vectors) else None


def _candidate(p: Product, cut: Cut, priced: Cut | None = None) -> Candidate:
    """Return dot products in a cut, with the price of another one that waits for memory as long."""
    target = p.target
    return Candidate(
        "dots",
        cycles_of(p, priced or cut) / (p.target.ghz * 1e9),
        lambda x: schedule_dots(Product(x, target), cut),
        tuple(cut._asdict().items()),
        p.operations,
    )


def schedule_dots(p: Product, cut: Cut) -> Tactic:
    """Return the scheduled nest of a contraction as dot products, with its epilogue."""
    return finished(DotProducts(p, cut).schedule(), "dots", p.in_place, p.packs)


def suits(p: Product) -> bool:
    k = p.roles.reduce[-1] if p.roles.reduce else None
    return (
        k is not None
        and k.extent >= p.lanes
        and all(v.extent for v in (*p.axes, *p.roles.reduce))
        and p.combiner.lanes is not None
        and p.step(0, k) == 1
        and p.step(1, k) == 1
    )


def choose_cut(p: Product) -> Cut:
    """Choose the tile that takes the least time: products, loads and sums of lanes counted."""
    rows, columns = p.m.extent, p.roles.vector.extent
    tiles = [(r, c) for c in (4, 8, 6, 5, 3, 2, 16, 1) for r in range(1, 9) if _fits(p, r, c)]
    return cut_in_tiles(
        p, *min(tiles, key=lambda t: -(-rows // t[0]) * -(-columns // t[1]) * _tile_cycles(*t))
    )


def walked(p: Product, cut: Cut) -> Cut:
    """Return the cut that reads one operand as it lies, where memory holds it and the first cache the other.

    Such a product waits for memory, which gives the most to one long stream: tiles of 8 columns read rows of
    256 floats half as fast, those of 768 at seven eighths. Where rows fill the cache, 8 of them are as good.
    """
    rows, columns = p.m, p.roles.vector
    depth = p.roles.reduce[-1].extent
    for k, along, beside in ((p.roles.a, rows, columns), (p.roles.b, columns, rows)):
        found, few = p.operand(k), beside.extent
        far = found is not None and found.buffer.nbytes > 2 * p.target.l2_bytes and p.step(k, along) == depth
        near = few * depth * p.dtype.itemsize <= p.target.l1d_bytes // 4
        tile = (1, few) if along is rows else (few, 1)
        vectors = max(1, CHAINS // few)
        if far and near and p.step(k, beside) == 0 and _fits(p, *tile, vectors):
            return cut_in_tiles(p, *tile)._replace(vectors=vectors)
    return cut


def cut_in_tiles(p: Product, r: int, c: int) -> Cut:
    """Choose the runs for a tile: a vector wide, and enough of them; half as wide where two threads could not
    share few rows of tiles evenly.
    """
    num_columns, num_rows = -(-p.roles.vector.extent // c), -(-p.m.extent // r)
    run_columns = max(1, p.lanes // c)
    runs = -(-num_columns // run_columns) * p.num_outer
    if runs * num_rows % 2 and runs * num_rows < FEW_ROWS and num_columns > 1:
        run_columns = -(-min(run_columns, num_columns) // 2)
        runs = -(-num_columns // run_columns) * p.num_outer
    return Cut(r, c, max(1, num_rows // max(1, -(-RUNS // runs))), run_columns)


def _fits(p: Product, rows: int, columns: int, vectors: int = 1) -> bool:
    return (
        (rows * columns + columns) * vectors + 1 <= p.target.num_vector_registers
        and (rows == 1 or rows <= p.m.extent)
        and (columns == 1 or columns <= p.roles.vector.extent)
    )


def _tile_cycles(rows: int, columns: int) -> float:
    """Return the cycles of a tile per vector of the reduction."""
    return max(rows * columns / 2, (rows + columns) / 2, 4.0) + 0.25


def cycles_of(p: Product, cut: Cut) -> float:
    rows, columns = p.m.extent, p.roles.vector.extent
    tiles = -(-rows // cut.rows) * -(-columns // cut.columns) * p.num_outer
    steps = math.prod(v.extent for v in p.roles.reduce[:-1]) * -(-p.roles.reduce[-1].extent // p.lanes)
    each = _tile_cycles(cut.rows, cut.columns) * (1 + MISS_CYCLES) * p.slowing(())
    return tiles * (steps * each + SUM_CYCLES * cut.rows * cut.columns)


class DotProducts:
    """Builds the nest of one product as dot products."""

    def __init__(self, p: Product, cut: Cut) -> None:
        self.p = p
        self.cut = cut
        self.width = cut.vectors * p.lanes
        self.loops = [*p.roles.outer, p.roles.vector, p.m]
        self.steps: list[str] = []

    def schedule(self) -> Schedule:
        p = self.p
        axes = [*p.roles.outer, p.m, p.roles.vector]
        *_, k = p.roles.reduce
        shape = tuple(v.extent for v in axes)
        lane = Var("l", self.width)
        acc = Buffer("acc", p.dtype, (*shape, self.width), space="register")
        sums = Buffer("sums", p.dtype, shape, space="scratch")
        here: tuple[Expr, ...] = tuple(axes)
        assert p.combiner.lanes is not None
        total = lanes(p.combiner.lanes, acc[(*here, lane)], lane)
        parts = [
            self._part(Store(acc, (*here, lane), p.zero), [lane]),
            self._products(acc, here, k),
            self._part(Store(sums, here, total), []),
            self._results(p.results(sums[here])),
        ]
        s = Schedule(sequence(*(part.body for part, _, _ in parts)), [acc, sums])
        s.steps += self.steps
        s.merge_nests([runs for _, runs, _ in parts])
        s.merge_nests([tiles for _, _, tiles in parts[:3]])
        runs, tiles = parts[0][1], parts[0][2]
        s.shrink(acc, [*runs, *tiles], "register")
        s.shrink(sums, runs, "scratch")
        for var in reversed(runs):
            s.branch(var, below=runs[-1])
        cut_tails(s)
        cut = self.cut
        size = cut.rows * cut.columns * cut.run_rows * cut.run_columns
        distribute_runs(s, runs, 2.0 * p.depth * size / 8)
        s.steps.append(f"{reduction_order(p.roles.reduce)}, in {self.width} lanes")
        return s

    def _nest(self, stmt: Stmt, inner: Sequence[Var]) -> tuple[Schedule, list[Var]]:
        """Return a stage in loops of its own, and those loops but for the `inner` ones."""
        fresh = {v: Var(v.name, v.extent) for v in self.loops}
        around = list(fresh.values())
        return Schedule(nest([*around, *inner], substitute_stmt(stmt, dict(fresh)))), around

    def _split(
        self, stmt: Stmt, inner: Sequence[Var]
    ) -> tuple[Schedule, list[Var], list[Var], tuple[Var, Var]]:
        """Return a stage with its loops split into runs, tiles and what a tile holds, in that order."""
        part, (*outer, n, m) = self._nest(stmt, inner)
        no, ni = part.split(n, self.cut.columns)
        mo, mi = part.split(m, self.cut.rows)
        nb, nt = part.split(no, self.cut.run_columns)
        mb, mt = part.split(mo, self.cut.run_rows)
        return part, [*outer, nb, mb], [nt, mt], (mi, ni)

    def _part(self, stmt: Stmt, inner: Sequence[Var]) -> tuple[Schedule, list[Var], list[Var]]:
        """Return a stage that runs once per tile, `inner` in vectors."""
        part, runs, tiles, held = self._split(stmt, inner)
        part.reorder(*runs, *tiles, *held, *inner)
        for v in held:
            part.unroll(v)
        for v in inner:
            part.vectorize(v)
        return part, runs, tiles

    def _products(self, acc: Buffer, here: tuple[Expr, ...], k: Var) -> tuple[Schedule, list[Var], list[Var]]:
        """Return the stage that adds up products, the innermost reduction in vectors."""
        p = self.p
        many, lane = Var("ko", -(-k.extent // self.width)), Var("kl", self.width)
        position = index.add(index.mul(many, self.width), lane)
        stmt = substitute_stmt(p.update(acc, (*here, lane)), {k: position})
        before = p.roles.reduce[:-1]
        stmt = guard_leaves(stmt, index.less(position, k.extent))
        part, runs, tiles, held = self._split(stmt, [*before, many, lane])
        part.reorder(*runs, *tiles, *before, many, *held, lane)
        for v in held:
            part.unroll(v)
        part.vectorize(lane)
        if k.extent % self.width:
            part.peel(many)
        self.steps = part.steps
        return part, runs, tiles

    def _results(self, stmt: Stmt) -> tuple[Schedule, list[Var], list[Var]]:
        """Return the epilogue: rows of a run in vectors."""
        part, (*outer, n, m) = self._nest(stmt, ())
        nb, ni = part.split(n, self.cut.columns * self.cut.run_columns)
        mb, mi = part.split(m, self.cut.rows * self.cut.run_rows)
        part.reorder(*outer, nb, mb, mi, ni)
        part.vectorize(ni)
        return part, [*outer, nb, mb], []
