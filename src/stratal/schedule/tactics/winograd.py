"""Winograd's algorithm for convolutions with 3x3 filters at stride 1: fewer products, for transforms of both
operands and of the result.

Tiles of m x m outputs are computed from tiles of the input that overlap by two (Lavin and Gray, 2015). A
block of tiles is a chunk: its input tiles are transformed into the worker's scratch memory, one matrix
product per place of the transformed tile follows, and their results are transformed back and stored, with
what follows the convolution on the same elements. A kernel that runs before transforms the filters.
Vectors lie along channels throughout, so every transform is element-wise arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.expr import Buffer, Const, Expr, Load, Var, call, const, guard, loads
from stratal.loops.rebuild import transform
from stratal.loops.stmt import For, If, Seq, Stmt, Store, loaded, stored
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.filtering import POINTS, Filtering, both_sides, filtering
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import finished, in_place_pairs, nest
from stratal.schedule.tactics.contract import UNROLL_K, Tile, choose_tile

KIND = "contract"

TAPS: Final = 3
MAX_TILES: Final = 32  # of a block: filters are read once per block, tiles are held in the cache
MIN_BLOCKS: Final = 8  # something for every thread to do
PADDING: Final = 16  # elements between rows of scratch: powers of two would share cache sets


class Sizes(NamedTuple):
    """Extents of a convolution: batch, channels, filters, output height and width."""

    batch: int
    channels: int
    filters: int
    height: int
    width: int


def sizes(anchor: Node) -> Sizes | None:
    """Return the extents of a convolution this algorithm computes; None for any other node."""
    op = anchor.op
    if op.name != "conv" or len(anchor.shape) != 4 or anchor.dtype is not float32:
        return None
    given = op.attributes
    plain = given["groups"] == 1 and all(s == 1 for s in given["strides"])
    plain = plain and all(d == 1 for d in (*given["rhs_dilation"], *given["lhs_dilation"]))
    x, w = (i.aval.ints for i in anchor.inputs)
    if not plain or any(given["padding"]) and given["padding"] != ((0, 0), (0, 0)):
        return None
    if w[2:] != (TAPS, TAPS) or math.prod(anchor.aval.ints) == 0 or w[1] == 0:
        return None
    n, k, height, width = anchor.aval.ints
    return Sizes(n, x[1], k, height, width)


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield F(2x2, 3x3) and F(4x4, 3x3) for the convolutions they compute."""
    found = sizes(x.group.members[0])
    if found is None or not settings.winograd.value:
        return
    for m in POINTS:
        plan = Plan(found, m, target)

        def make(x: GroupExpressions, plan: Plan = plan) -> Tactic:
            return WinogradNest(x, plan).tactic()

        yield Candidate("winograd", plan.seconds(x), make, (("m", m), ("tiles", plan.block)))


class Plan:
    """How one convolution is cut into tiles of `m` x `m` outputs, blocks of tiles and panels of filters."""

    def __init__(self, found: Sizes, m: int, target: Target) -> None:
        self.sizes = found
        self.target = target
        self.matrices: Filtering = filtering(m)
        self.m = m
        self.size = m + TAPS - 1  # of a tile of the input
        self.places = self.size * self.size
        self.lanes = target.lanes(float32.itemsize)
        self.rows, self.columns = -(-found.height // m), -(-found.width // m)
        self.tiles = found.batch * self.rows * self.columns
        self.tile = choose_tile(min(self.tiles, MAX_TILES), found.filters, self.lanes, target)
        self.block = self._block()
        self.blocks = -(-self.tiles // self.block)
        self.panel = self.tile.vectors * self.lanes
        self.panels = -(-found.filters // self.panel)

    def _block(self) -> int:
        """Return how many tiles a block has: a whole number of register tiles, little of the last block idle.
        """
        step = self.tile.rows
        fit = [t for t in range(step, MAX_TILES + step, step)]
        many = [t for t in fit if -(-self.tiles // t) >= MIN_BLOCKS and t >= 2 * step]
        return min(many or fit[:1], key=lambda t: -(-self.tiles // t) * (t + 3))

    def seconds(self, x: GroupExpressions) -> float:
        """Estimate the time on one core: products at the peak, one instruction a cycle in transforms."""
        s, cycle = self.sizes, 1e-9 / self.target.ghz
        flops = 2.0 * self.places * self.blocks * self.block * s.channels * self.panels * self.panel
        moved = 2 * self.places + 8 * self.size  # loads and stores of a tile and its arithmetic
        vectors = -(-s.channels // self.lanes) + -(-s.filters // self.lanes)
        transforms = self.blocks * self.block * vectors * moved
        filters = s.channels * self.panels * self.tile.vectors * (9 * self.lanes + 2 * self.places)
        weights = 4.0 * self.places * s.channels * self.panels * self.panel
        moving = 2 * weights / self.target.bandwidth(weights)
        return 1.1 * flops / self.target.peak_flops() + (transforms + filters) * cycle + moving


class WinogradNest:
    """Builds the kernel of one convolution and its epilogue, and the one that transforms its filters."""

    def __init__(self, x: GroupExpressions, plan: Plan) -> None:
        self.x = x
        self.plan = plan
        self.anchor = x.group.members[0]
        s, block = plan.sizes, plan.block
        channels = -(-s.channels // plan.lanes) * plan.lanes
        self.tiles = Buffer("tiles", float32, (plan.places, block, channels + PADDING), space="scratch")
        filters = plan.panels * plan.panel
        self.sums = Buffer("sums", float32, (plan.places, block, filters + PADDING), space="scratch")
        rows = plan.panels * s.channels + 1  # one to spare: places a power of two apart share cache sets
        self.filters = Buffer("filters", float32, (plan.places, rows, plan.panel))
        self.local = [self.tiles, self.sums]
        self.chunk = Var("b", plan.blocks)
        self.stand = Buffer("stand", float32, self.anchor.aval.ints)
        x.local[self.anchor] = self.stand
        x.forget()

    def tactic(self) -> Tactic:
        products = self._products()
        body = For(self.chunk, sequence(self._input(), products.body, self._output()), "parallel")
        schedule = Schedule(body, self.local)
        schedule.steps += products.steps
        m = self.plan.m
        schedule.steps.append(f"reduction in the order c of F({m}x{m}, {TAPS}x{TAPS}), in tiles")
        where = tuple(Var(f"i{k}", n) for k, n in enumerate(self.anchor.aval.ints))
        results = self._results(const(0, float32), where)
        operands = {e.buffer for e in loads([self._input_at(where), self._filter_at(where)])}
        reads = [b for b in loaded(results) if b not in operands]
        in_place = in_place_pairs(results, reads, stored(results))
        return finished(schedule, "winograd", in_place, [self._pack()])

    # -- operands and results --------------------------------------------------------------------------------
    def _input_at(self, where: tuple[Expr, ...]) -> Expr:
        return self.x.at(self.anchor.inputs[0], where)

    def _filter_at(self, where: tuple[Expr, ...]) -> Expr:
        return self.x.at(self.anchor.inputs[1], where)

    def _results(self, total: Expr, where: tuple[Expr, ...]) -> Stmt:
        """Return the stores of what the group computes from one sum."""
        parts: list[Stmt] = []
        for r in self.x.results:
            (value,) = transform(
                [self.x.at(r, where)],
                lambda e: total if isinstance(e, Load) and e.buffer is self.stand else None,
            )
            parts.append(Store(self.x.buffer(r), where, value))
        return sequence(*parts)

    def _register(self, name: str, *shape: int) -> Buffer:
        made = Buffer(f"{name}{len(self.local)}", float32, (*shape, self.plan.lanes), space="register")
        self.local.append(made)
        return made

    def _tile(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a tile, and the row and column its outputs start at."""
        p = self.plan
        n, row, column = index.unflatten(number, (p.sizes.batch, p.rows, p.columns))
        return n, index.mul(row, p.m), index.mul(column, p.m)

    def _number(self, t: Var) -> Expr:
        return index.add(index.mul(self.chunk, self.plan.block), t)

    # -- the stages of a block -------------------------------------------------------------------------------
    def _input(self) -> Stmt:
        """Transform the input tiles of a block; tiles after the last are copies of the last."""
        p, s = self.plan, self.plan.sizes
        t = Var("t", p.block)
        number = self._number(t)
        if p.tiles % p.block:
            number = call("min", number, index.as_expr(p.tiles - 1))
        n, y, x = self._tile(number)
        height, width = s.height + TAPS - 1, s.width + TAPS - 1
        inside = index.both(
            index.less(index.add(y, p.size - 1), height), index.less(index.add(x, p.size - 1), width)
        )

        def arm(edge: bool) -> Stmt:
            outer, lane = Var("c", -(-s.channels // p.lanes)), Var("l", p.lanes)
            c = index.add(index.mul(outer, p.lanes), lane)

            def read(k: int, j: Var) -> Expr:
                there = index.add(y, k), index.add(x, j)
                condition = index.less(c, s.channels)
                if edge:
                    condition = index.both(condition, index.less(there[0], height))
                    condition = index.both(condition, index.less(there[1], width))
                return guard(condition, self._input_at((n, c, *there)), const(0, float32))

            def write(i: Var, values: list[Expr]) -> Stmt:
                row = index.mul(i, p.size)
                return Seq(Store(self.tiles, (index.add(row, k), t, c), v) for k, v in enumerate(values))

            held = self._register("columns", p.size, p.size)
            body = both_sides(p.matrices.input, read, held, lane, write)
            return For(outer, For(lane, body, "vector"))

        return For(t, self._either(inside, arm))

    def _either(self, inside: Expr, arm: Callable[[bool], Stmt]) -> Stmt:
        """Return an arm for whole tiles, and where not all are whole, one for those at the edge."""
        if isinstance(inside, Const):
            return arm(not inside.value)
        return If(inside, arm(False), arm(True))

    def _products(self) -> Schedule:
        """Multiply tiles and filters place by place, in register tiles."""
        p, s, tile = self.plan, self.plan.sizes, self.plan.tile
        place, panel = Var("p", p.places), Var("q", p.panels)
        run, c = Var("r", p.block // tile.rows), Var("c", s.channels)
        acc = self._register("acc", tile.rows, tile.vectors)

        def registers(make: Callable[[Expr, Expr, tuple[Expr, ...]], Stmt]) -> tuple[Stmt, tuple[Var, ...]]:
            i, j, lane = Var("i", tile.rows), Var("j", tile.vectors), Var("l", p.lanes)
            t, column = index.add(index.mul(run, tile.rows), i), index.add(index.mul(j, p.lanes), lane)
            return nest((i, j, lane), make(t, column, (i, j, lane))), (i, j, lane)

        def update(t: Expr, column: Expr, at: tuple[Expr, ...]) -> Stmt:
            row = index.add(index.mul(panel, s.channels), c)
            product = self.tiles[place, t, c], self.filters[place, row, column]
            return Store(acc, at, call("fma", *product, acc[at]))

        def keep(t: Expr, column: Expr, at: tuple[Expr, ...]) -> Stmt:
            return Store(self.sums, (place, t, index.add(index.mul(panel, p.panel), column)), acc[at])

        parts = [
            registers(lambda t, column, at: Store(acc, at, const(0, float32))),
            registers(update),
            registers(keep),
        ]
        zero, add, store = (part for part, _ in parts)
        schedule = Schedule(nest((place, panel, run), Seq((zero, For(c, add), store))))
        for _, (i, j, lane) in parts:
            schedule.unroll(i)
            schedule.unroll(j)
            schedule.vectorize(lane)
        outer, inner = schedule.split(c, UNROLL_K)
        schedule.unroll(inner)
        if s.channels % UNROLL_K:
            schedule.peel(outer)
        return schedule

    def _output(self) -> Stmt:
        """Transform the sums of a block back, and store what follows from them."""
        p, s = self.plan, self.plan.sizes
        t = Var("t", p.block)
        number = self._number(t)
        n, y, x = self._tile(number)
        exists = index.less(number, p.tiles)
        inside = index.both(
            exists,
            index.both(
                index.less(index.add(y, p.m - 1), s.height), index.less(index.add(x, p.m - 1), s.width)
            ),
        )

        def arm(edge: bool) -> Stmt:
            outer, lane = Var("k", -(-s.filters // p.lanes)), Var("l", p.lanes)
            k = index.add(index.mul(outer, p.lanes), lane)
            totals = self._register("totals", p.m)

            def write(i: Var, values: list[Expr]) -> Stmt:
                j = Var("j", p.m)
                there = index.add(y, i), index.add(x, j)
                stmt = self._results(totals[j, lane], (n, k, *there))
                condition = index.less(k, s.filters)
                if edge:
                    condition = index.both(condition, index.less(there[0], s.height))
                    condition = index.both(condition, index.less(there[1], s.width))
                stmt = guard_leaves(stmt, condition)
                first = [Store(totals, (index.as_expr(c), lane), v) for c, v in enumerate(values)]
                return Seq((*first, For(j, stmt, "unroll")))

            def read(a: int, j: Var) -> Expr:
                return self.sums[index.add(j, a * p.size), t, k]

            held = self._register("columns", p.m, p.size)
            body = both_sides(p.matrices.output, read, held, lane, write)
            return For(outer, For(lane, body, "vector"))

        return For(t, self._either(inside, lambda edge: guard_leaves(arm(edge), exists) if edge else arm(edge)))

    def _pack(self) -> Pack:
        """Transform the filters: panels of them, contiguous over the channels."""
        p, s = self.plan, self.plan.sizes
        panel, v, c = Var("q", p.panels), Var("v", p.tile.vectors), Var("c", s.channels)
        lane = Var("l", p.lanes)
        column = index.add(index.mul(v, p.lanes), lane)
        k = index.add(index.mul(panel, p.panel), column)

        def read(a: int, j: Var) -> Expr:
            value = self._filter_at((k, c, index.as_expr(a), j))
            return guard(index.less(k, s.filters), value, const(0, float32))

        def write(i: Var, values: list[Expr]) -> Stmt:
            row, place = index.add(index.mul(panel, s.channels), c), index.mul(i, p.size)
            return Seq(Store(self.filters, (index.add(place, a), row, column), e) for a, e in enumerate(values))

        held = Buffer("columns", float32, (p.size, TAPS, p.lanes), space="register")
        schedule = Schedule(nest((panel, v, c, lane), both_sides(p.matrices.weights, read, held, lane, write)))
        schedule.vectorize(lane)
        vectors = p.panels * p.tile.vectors
        pieces = max(d for d in range(1, s.channels + 1) if s.channels % d == 0 and (d * vectors <= 64 or d == 1))
        outer, _ = schedule.split(c, s.channels // pieces)
        schedule.parallel(schedule.fuse(schedule.fuse(panel, v), outer))
        return Pack(self.filters, schedule.body, tuple(schedule.steps), (held,))
