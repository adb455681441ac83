"""The stages of Winograd's algorithm on one convolution: transforms of tiles, filters and sums, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.expr import Buffer, Const, Expr, Load, Var, call, const, guard, loads
from stratal.loops.rebuild import transform
from stratal.loops.stmt import For, If, Seq, Stmt, Store, loaded, stored
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.filtering import Filtering, both_sides, filtering
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.tactics.common import in_place_pairs, nest
from stratal.schedule.tactics.contract import UNROLL_K, choose_tile

TAPS: Final = 3
PADDING: Final = 16  # elements between rows of scratch: places a power of two apart would share cache sets
ZERO: Final = const(0, float32)


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
    ones = (*given["strides"], *given["rhs_dilation"], *given["lhs_dilation"], given["groups"])
    if any(n != 1 for n in ones) or any(p != (0, 0) for p in given["padding"]):
        return None
    n, k, height, width = anchor.aval.ints
    _, c, *window = anchor.inputs[1].aval.ints
    if window != [TAPS, TAPS] or 0 in (n, k, height, width, c):
        return None
    return Sizes(n, c, k, height, width)


class RegisterTile(NamedTuple):
    """Accumulators of one product: rows are tiles of the input, vectors hold filters."""

    rows: int
    vectors: int


class Geometry:
    """How one convolution is cut into tiles of `m` x `m` outputs, and its products into register tiles."""

    def __init__(self, found: Sizes, m: int, target: Target, tile: tuple[int, int] | None = None) -> None:
        self.sizes = found
        self.target = target
        self.matrices: Filtering = filtering(m)
        self.m = m
        self.size = m + TAPS - 1  # of a tile of the input
        self.places = self.size * self.size
        self.lanes = target.lanes(float32.itemsize)
        self.rows, self.columns = -(-found.height // m), -(-found.width // m)
        self.tiles = found.batch * self.rows * self.columns
        self.tile = RegisterTile(*(tile or choose_tile(self.tiles, found.filters, self.lanes, target)))
        self.panel = self.tile.vectors * self.lanes
        self.panels = -(-found.filters // self.panel)

    def place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a tile, and the row and column its outputs start at."""
        n, row, column = index.unflatten(number, (self.sizes.batch, self.rows, self.columns))
        return n, index.mul(row, self.m), index.mul(column, self.m)


class Stages:
    """Builds the stages for one group: the convolution and what follows on the same elements."""

    def __init__(self, x: GroupExpressions, geometry: Geometry) -> None:
        self.x = x
        self.g = geometry
        self.anchor = x.group.members[0]
        self.registers: list[Buffer] = []
        self.stand = Buffer("stand", float32, self.anchor.aval.ints)
        x.local[self.anchor] = self.stand
        x.forget()

    # -- operands and results --------------------------------------------------------------------------------
    def results(self, total: Expr, where: tuple[Expr, ...]) -> Stmt:
        """Return the stores of what the group computes from one sum."""
        parts: list[Stmt] = []
        for r in self.x.results:
            (value,) = transform(
                [self.x.at(r, where)],
                lambda e: total if isinstance(e, Load) and e.buffer is self.stand else None,
            )
            parts.append(Store(self.x.buffer(r), where, value))
        return sequence(*parts)

    def in_place(self) -> list[tuple[Buffer, Buffer]]:
        """Return what the epilogue may overwrite: values it alone reads, each element where it is written."""
        where = tuple(Var(f"i{k}", n) for k, n in enumerate(self.anchor.aval.ints))
        results = self.results(ZERO, where)
        operands = {e.buffer for e in loads([self.x.at(i, where) for i in self.anchor.inputs])}
        return in_place_pairs(results, [b for b in loaded(results) if b not in operands], stored(results))

    def register(self, name: str, *shape: int) -> Buffer:
        made = Buffer(f"{name}{len(self.registers)}", float32, (*shape, self.g.lanes), space="register")
        self.registers.append(made)
        return made

    def taken(self) -> tuple[Buffer, ...]:
        """Return the registers in use, for a kernel that is finished; the next starts with none."""
        made, self.registers = tuple(self.registers), []
        return made

    # -- stages ----------------------------------------------------------------------------------------------
    def input_tile(self, tiles: Buffer, number: Expr, t: Expr, channels: int) -> Stmt:
        """Transform one tile of the input: tiles[place, t, c] for all channels, 0 beyond the last."""
        g, s = self.g, self.g.sizes
        n, y, x = g.place(number)
        height, width = s.height + TAPS - 1, s.width + TAPS - 1

        def arm(edge: bool) -> Stmt:
            outer, lane = Var("c", channels // g.lanes), Var("l", g.lanes)
            c = index.add(index.mul(outer, g.lanes), lane)

            def read(k: int, j: Var) -> Expr:
                row, column = index.add(y, k), index.add(x, j)
                condition = index.less(c, s.channels)
                if edge:
                    inside = index.both(index.less(row, height), index.less(column, width))
                    condition = index.both(condition, inside)
                return guard(condition, self.x.at(self.anchor.inputs[0], (n, c, row, column)), ZERO)

            def write(i: Var, values: Sequence[Expr]) -> Stmt:
                first = index.mul(i, g.size)
                return Seq(Store(tiles, (index.add(first, k), t, c), v) for k, v in enumerate(values))

            held = self.register("columns", g.size, g.size)
            body = both_sides(g.matrices.input, read, held, lane, write)
            return For(outer, For(lane, body, "vector"))

        last = g.size - 1
        return _either(_fits(index.add(y, last), height, index.add(x, last), width), arm)

    def filter_vector(self, filters: Buffer, k: Expr, c: Expr, at: tuple[Expr, Expr]) -> Stmt:
        """Transform a vector of filters from `k` on: filters[place, row, column...], 0 beyond the last."""
        g, s = self.g, self.g.sizes
        row, column = at
        lane = Var("l", g.lanes)
        k = index.add(k, lane)

        def read(a: int, j: Var) -> Expr:
            value = self.x.at(self.anchor.inputs[1], (k, c, index.as_expr(a), j))
            return guard(index.both(index.less(k, s.filters), index.less(c, s.channels)), value, ZERO)

        def write(i: Var, values: Sequence[Expr]) -> Stmt:
            first = index.mul(i, g.size)
            there = row, index.add(column, lane)
            return Seq(Store(filters, (index.add(first, a), *there), v) for a, v in enumerate(values))

        held = self.register("columns", g.size, TAPS)
        return For(lane, both_sides(g.matrices.weights, read, held, lane, write), "vector")

    def products(
        self,
        tiles: Buffer,
        filters: Buffer,
        sums: Buffer,
        *,
        block: int,
        panels: int,
        channels: tuple[Expr, int],
        add: bool,
    ) -> Schedule:
        """Multiply tiles and filters place by place, in register tiles.

        `channels` are where those of this product start among the tiles', and how many they are; with `add`
        the product is added to the sums.
        """  # fmt: skip
        g, tile = self.g, self.g.tile
        start, depth = channels
        place, panel = Var("p", g.places), Var("q", panels)
        run, c = Var("r", block // tile.rows), Var("c", depth)
        acc = self.register("acc", tile.rows, tile.vectors)
        innermost: list[tuple[Var, Var, Var]] = []

        def over_tile(make: Callable[[Expr, Expr, tuple[Expr, ...]], Stmt]) -> Stmt:
            i, j, lane = Var("i", tile.rows), Var("j", tile.vectors), Var("l", g.lanes)
            innermost.append((i, j, lane))
            t, column = index.add(index.mul(run, tile.rows), i), index.add(index.mul(j, g.lanes), lane)
            return nest((i, j, lane), make(t, column, (i, j, lane)))

        def sum_at(t: Expr, column: Expr) -> tuple[Expr, ...]:
            return place, t, index.add(index.mul(panel, g.panel), column)

        def update(t: Expr, column: Expr, at: tuple[Expr, ...]) -> Stmt:
            row = index.add(index.mul(panel, depth), c)
            factors = tiles[place, t, index.add(start, c)], filters[place, row, column]
            return Store(acc, at, call("fma", *factors, acc[at]))

        def keep(t: Expr, column: Expr, at: tuple[Expr, ...]) -> Stmt:
            there = sum_at(t, column)
            return Store(sums, there, call("add", sums[there], acc[at]) if add else acc[at])

        begin = over_tile(lambda t, column, at: Store(acc, at, ZERO))
        go_on = For(c, over_tile(update))
        end = over_tile(keep)
        schedule = Schedule(nest((place, panel, run), Seq((begin, go_on, end))))
        for i, j, lane in innermost:
            schedule.unroll(i)
            schedule.unroll(j)
            schedule.vectorize(lane)
        outer, inner = schedule.split(c, UNROLL_K)
        schedule.unroll(inner)
        if depth % UNROLL_K:
            schedule.peel(outer)
        return schedule

    def output_tile(self, sums: Buffer, number: Expr, t: Expr, first: Expr, filters: int) -> Stmt:
        """Transform the sums of one tile back and store what follows, for `filters` from `first` on."""
        g, s = self.g, self.g.sizes
        n, y, x = g.place(number)

        def arm(edge: bool) -> Stmt:
            outer, lane = Var("k", -(-filters // g.lanes)), Var("l", g.lanes)
            column = index.add(index.mul(outer, g.lanes), lane)
            k = index.add(first, column)
            totals = self.register("totals", g.m)

            def write(i: Var, values: Sequence[Expr]) -> Stmt:
                j = Var("j", g.m)
                row, there = index.add(y, i), index.add(x, j)
                condition = index.less(k, s.filters)
                if edge:
                    condition = index.both(_fits(row, s.height, there, s.width), condition)
                stores = guard_leaves(self.results(totals[j, lane], (n, k, row, there)), condition)
                held = [Store(totals, (index.as_expr(a), lane), v) for a, v in enumerate(values)]
                return Seq((*held, For(j, stores, "unroll")))

            held = self.register("columns", g.m, g.size)
            body = both_sides(
                g.matrices.output, lambda a, j: sums[index.add(j, a * g.size), t, column], held, lane, write
            )
            return For(outer, For(lane, body, "vector"))

        exists = index.less(number, g.tiles)
        last = g.m - 1
        whole = index.both(exists, _fits(index.add(y, last), s.height, index.add(x, last), s.width))
        return _either(whole, lambda edge: If(exists, arm(edge)) if edge else arm(edge))


def _fits(y: Expr, height: int, x: Expr, width: int) -> Expr:
    return index.both(index.less(y, height), index.less(x, width))


def _either(whole: Expr, arm: Callable[[bool], Stmt]) -> Stmt:
    """Return the arm for whole tiles, and where not all are whole, one for those at the edge."""
    if isinstance(whole, Const):
        return arm(not whole.value)
    return If(whole, arm(False), arm(True))
