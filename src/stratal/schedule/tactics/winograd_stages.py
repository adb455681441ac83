"""The stages of Winograd's algorithm on one convolution: transforms of tiles, filters and sums, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.base.dtypes import bool_, float32
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Const, Expr, Guard, Load, Var, call, cast, const, guard, loads
from stratal.loops.lowering import strip_cast
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import For, If, Prefetch, Seq, Stmt, Store, guarded, loaded, stored
from stratal.ops.linear.conv import Conv
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.placement import placed, stores
from stratal.schedule.primitives import Schedule, guard_leaves
from stratal.schedule.tactics.common import in_place_pairs, nest
from stratal.schedule.tactics.contract import choose_tile
from stratal.schedule.tactics.tiles import UNROLL_K
from stratal.schedule.winograd_matrices import Matrix, WinogradMatrices, both_sides, winograd_matrices

TAPS: Final = range(3, 6)  # of filters that are worth it, per axis
MOST_PHASES: Final = 64  # channels, phases counted, of a convolution with strides
LINE: Final = 16  # elements of a cache line
PADDING: Final = LINE  # between rows of a workspace: places a power of two apart would share cache sets
ZERO: Final = const(0, float32)
OF_SHORT: Final = 0.7  # of its estimate is what Winograd's took where products over words took all of theirs


class Sizes(NamedTuple):
    """Extents of a convolution: batch, channels, filters, output height and width, taps along an axis.

    One with strides is one without, over more channels: those of each phase of the image, which is every
    `stride`th element of every `stride`th row, with every `stride`th tap.
    """

    batch: int
    channels: int
    filters: int
    height: int
    width: int
    taps: int = 3
    stride: int = 1


def is_plain(anchor: Node, *, strides: bool = False) -> bool:
    """Return whether a node is a two-dimensional convolution that sums in float32, without padding, groups,
    dilation, and, unless asked for, strides.
    """
    if not isinstance(anchor.op, Conv) or len(anchor.shape) != 4 or anchor.dtype.compute is not float32:
        return False
    given = anchor.op.attributes
    ones = (*given["rhs_dilation"], *given["lhs_dilation"], given["groups"])
    steps = given["strides"]
    stepping = len(set(steps)) == 1 and (strides or steps[0] == 1)
    return stepping and all(n == 1 for n in ones) and all(p == (0, 0) for p in given["padding"])


def sizes(anchor: Node) -> Sizes | None:
    """Return the extents of a convolution this algorithm computes; None for any other node."""
    if not is_plain(anchor, strides=True):
        return None
    n, k, height, width = anchor.aval.ints
    _, c, *window = anchor.inputs[1].aval.ints
    stride = anchor.op.attributes["strides"][0]
    taps = -(-window[0] // stride)
    if window[0] != window[1] or taps not in TAPS or 0 in (n, k, height, width, c):
        return None
    channels = c * stride * stride
    if stride > 1 and channels > MOST_PHASES:
        return None
    return Sizes(n, channels, k, height, width, taps, stride)


class RegisterTile(NamedTuple):
    """Accumulators of one product: rows are tiles of the input, vectors hold filters."""

    rows: int
    vectors: int


class Geometry:
    """How one convolution is cut into tiles of `m` x `m` outputs, and its products into register tiles.

    The register tile is the one that suits the tiles of the input best, unless given.
    """

    def __init__(self, found: Sizes, m: int, target: Target, tile: tuple[int, int] | None = None) -> None:
        self.sizes = found
        self.target = target
        self.matrices: WinogradMatrices = winograd_matrices(m, found.taps)
        self.m = m
        self.size = m + found.taps - 1  # of a tile of the input
        self.places = self.size * self.size
        self.lanes = target.lanes(float32.itemsize)
        self.rows, self.columns = -(-found.height // m), -(-found.width // m)
        self.batch_rows = found.batch * self.rows  # of tiles
        self.tiles = self.batch_rows * self.columns
        self.tile = RegisterTile(*(tile or choose_tile(self.tiles, found.filters, self.lanes, target)))
        self.panel = self.tile.vectors * self.lanes
        self.panels = -(-found.filters // self.panel)

    def place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the image of a tile, and the row and column its outputs start at."""
        n, row, column = index.unflatten(number, (self.sizes.batch, self.rows, self.columns))
        return n, index.mul(row, self.m), index.mul(column, self.m)

    def clamped(self, number: Expr) -> Expr:
        """Return the number of a tile: the last one's where it would be greater."""
        last = self.tiles - 1
        return number if index.bounds(number)[1] <= last else call("min", number, index.as_expr(last))


class Image(NamedTuple):
    """What tiles are cut from: `read` takes channel, row and column, `exists` says which channels there are,
    `extent` how many rows and columns.
    """

    read: Callable[[Expr, Expr, Expr], Expr]
    exists: Callable[[Expr], Expr]
    extent: Sequence[int]

    def at(self, c: Expr, row: Expr, column: Expr) -> Expr:
        """Return an element, 0 where there is none."""
        there = fits(row, self.extent[0], column, self.extent[1])
        return guard(index.both(there, self.exists(c)), self.read(c, row, column), ZERO)


class Factors(NamedTuple):
    """Where the product of a place reads and adds up.

    `left` takes place, row and step, `right` place, panel, column and step, `sums` place, row, panel and
    column.
    """

    left: Callable[[Expr, Expr, Expr], Expr]
    right: Callable[[Expr, Expr, Expr, Expr], Expr]
    sums: Callable[[Expr, Expr, Expr, Expr], Load]


Beside = Callable[[Expr, int], Sequence[Stmt]]


class Stages:
    """Builds the stages for one group: the convolution and what follows on the same elements."""

    def __init__(self, x: GroupExpressions, geometry: Geometry) -> None:
        self.x = x
        self.g = geometry
        self.anchor = x.group.members[0]
        self.registers: list[Buffer] = []
        self.phases: Buffer | None = None  # what tiles of the input are read from instead of the image

    # -- operands and results --------------------------------------------------------------------------------
    def read(self, operand: Node, where: tuple[Expr, ...]) -> Expr:
        """Return an element of an operand, in float32."""
        return _widened(self.x.at(operand, where))

    def results(self, total: Expr, where: tuple[Expr, ...]) -> Stmt:
        """Return the stores of what the group computes from one sum."""
        return stores(self.x, cast(total, self.anchor.dtype), where)

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
        g = self.g
        n, y, x = g.place(number)
        return self.tile(tiles, g.matrices.input, self._image(n), (y, x), t, channels)

    def _image(self, n: Expr) -> Image:
        """Return one image of the batch, or its phases."""
        s, phases = self.g.sizes, self.phases
        if phases is not None:
            every = const(True, bool_)
            return Image(lambda c, row, column: phases[n, row, column, c], lambda c: every, phases.shape[1:3])
        return Image(
            lambda c, row, column: self.read(self.anchor.inputs[0], (n, c, row, column)),
            lambda c: index.less(c, s.channels),
            (s.height + s.taps - 1, s.width + s.taps - 1),
        )

    def fetch_row(self, number: Expr, i: Expr) -> Stmt | None:
        """Bring near one row of what a tile reads and those before it have not; None where that is no use:
        lines hold no channels, or caches the whole image.
        """
        g, s = self.g, self.g.sizes
        n, y, x = g.place(number)
        j, c = Var("j", g.m), Var("c", -(-s.channels // LINE))
        row, column = index.add(index.add(y, s.taps - 1), i), index.add(index.add(x, s.taps - 1), j)
        channel = Var("l", s.channels)
        value = self._image(n).at(channel, row, column)
        found = strip_cast(unguarded(value))
        if not isinstance(found, Load) or found.buffer.nbytes <= g.target.l2_bytes:
            return None
        if index.stride_of(index.offset(found), channel) != 1:
            return None
        there, *where = substitute((condition(value), *found.indices), {channel: index.mul(c, LINE)})
        fetch = For(c, Prefetch(found.buffer, where), "unroll")
        return For(j, guarded(there, fetch), "unroll")

    def tile(
        self, tiles: Buffer, matrix: Matrix, image: Image, corner: tuple[Expr, Expr], t: Expr, channels: int
    ) -> Stmt:
        """Transform the tile of an image that starts at `corner`: tiles[place, t, c], 0 outside the image."""
        g, (y, x) = self.g, corner
        outer, lane = Var("c", channels // g.lanes), Var("l", g.lanes)
        c = index.add(index.mul(outer, g.lanes), lane)

        def read(k: int, j: Var) -> Expr:
            return image.at(c, index.add(y, k), index.add(x, j))

        def write(i: Var, values: Sequence[Expr]) -> Stmt:
            first = index.mul(i, g.size)
            return Seq(Store(tiles, (index.add(first, k), t, c), v) for k, v in enumerate(values))

        held = self.register("columns", g.size, len(matrix[0]))
        return For(outer, For(lane, both_sides(matrix, read, held, lane, write), "vector"))

    def filter_vector(self, filters: Buffer, k: Expr, c: Expr, at: tuple[Expr, Expr]) -> Stmt:
        """Transform a vector of filters from `k` on: filters[place, row, column...], 0 beyond the last."""
        g, s = self.g, self.g.sizes
        row, column = at
        lane = Var("l", g.lanes)
        k = index.add(k, lane)

        weights = self.anchor.inputs[1]
        phase = unphased(c, weights.aval.ints[1], s.stride)

        def read(a: int, j: Var) -> Expr:
            row, column = (index.add(index.mul(i, s.stride), p) for i, p in ((a, phase[1]), (j, phase[2])))
            value = self.read(weights, (k, phase[0], row, column))
            exists = fits(row, weights.aval.ints[2], column, weights.aval.ints[3])
            exists = index.both(index.both(index.less(k, s.filters), index.less(c, s.channels)), exists)
            return guard(exists, value, ZERO)

        def write(i: Var, values: Sequence[Expr]) -> Stmt:
            first = index.mul(i, g.size)
            there = row, index.add(column, lane)
            return Seq(Store(filters, (index.add(first, a), *there), v) for a, v in enumerate(values))

        held = self.register("columns", g.size, s.taps)
        return For(lane, both_sides(g.matrices.weights, read, held, lane, write), "vector")

    def output_tile(self, sums: Buffer, number: Expr, t: Expr, first: Expr, filters: int) -> Stmt:
        """Transform the sums of one tile back and store what follows, for `filters` from `first` on."""
        g, s = self.g, self.g.sizes
        n, y, x = g.place(number)

        def arm(edge: bool) -> Stmt:
            outer, lane = Var("k", -(-filters // g.lanes)), Var("l", g.lanes)
            column = index.add(index.mul(outer, g.lanes), lane)
            k = index.add(first, column)
            totals = self.register("totals", g.m)

            def read(a: int, j: Var) -> Expr:
                return sums[index.add(j, a * g.size), t, column]

            def write(i: Var, values: Sequence[Expr]) -> Stmt:
                j = Var("j", g.m)
                row, there = index.add(y, i), index.add(x, j)
                condition = index.less(k, s.filters)
                if edge:
                    condition = index.both(fits(row, s.height, there, s.width), condition)
                stores = guard_leaves(self.results(totals[j, lane], (n, k, row, there)), condition)
                held = [Store(totals, (index.as_expr(a), lane), v) for a, v in enumerate(values)]
                return Seq((*held, For(j, stores, "unroll")))

            held = self.register("columns", g.m, g.size)
            return For(outer, For(lane, both_sides(g.matrices.output, read, held, lane, write), "vector"))

        last = g.m - 1
        whole = fits(index.add(y, last), s.height, index.add(x, last), s.width)
        return guarded(index.less(number, g.tiles), either(whole, arm))

    def output_rows(self, sums: Buffer, first: Expr, rows: int) -> tuple[Stmt, Buffer]:
        """Transform the sums of whole rows of tiles back, and store what follows row by row of the image.

        A vector of filters at a time is kept in scratch memory, which is returned: results whose filters do
        not lie together are then written a line at a time.
        """
        g, s = self.g, self.g.sizes
        line, t, i = Var("r", rows), Var("t", g.columns), Var("i", g.m)
        outer = Var("k", -(-s.filters // g.lanes))
        lane, written = Var("l", g.lanes), Var("l", g.lanes)
        lines = Buffer("lines", float32, (g.m, g.columns * g.m, g.lanes), space="scratch")
        first_filter = index.mul(outer, g.lanes)
        tile = index.add(index.mul(line, g.columns), t)

        def read(a: int, j: Var) -> Expr:
            return sums[index.add(j, a * g.size), tile, index.add(first_filter, lane)]

        def write(a: Var, values: Sequence[Expr]) -> Stmt:
            x = index.mul(t, g.m)
            return Seq(Store(lines, (a, index.add(x, b), lane), v) for b, v in enumerate(values))

        held = self.register("columns", g.m, g.size)
        back = both_sides(g.matrices.output, read, held, lane, write)
        number, x = index.add(first, line), Var("x", s.width)
        n, row = index.unflatten(number, (s.batch, g.rows))
        y, k = index.add(index.mul(row, g.m), i), index.add(first_filter, written)
        stores = guard_leaves(self.results(lines[i, x, written], (n, k, y, x)), index.less(k, s.filters))
        part = Schedule(For(x, For(written, stores, "vector")))
        many, few = part.split(x, g.lanes)
        part.unroll(few)
        if s.width % g.lanes:
            part.peel(many)
        exists = index.both(index.less(number, s.batch * g.rows), index.less(y, s.height))
        copied = For(i, guarded(exists, part.body))
        return nest((line, outer), Seq((For(t, For(lane, back, "vector")), copied))), lines

    # -- products --------------------------------------------------------------------------------------------
    def products(
        self, f: Factors, rows: int, steps: int, *,
        panels: int = 1, add: bool = False, beside: Beside = lambda number, count: (),
    ) -> Schedule:  # fmt: skip
        """Return the matrix products of all places in register tiles.

        `rows` is a multiple of the tile's; with `add` products are added to the sums there are. What `beside`
        returns for the number of a register tile, and how many there are, runs before that tile.
        """
        places, lanes, (height, vectors) = self.g.places, self.g.lanes, self.g.tile
        acc = self.register("acc", height, vectors)
        place, panel = Var("p", places), Var("q", panels)
        run, step = Var("r", rows // height), Var("c", steps)
        innermost: list[tuple[Var, Var, Var]] = []

        def over_tile(make: Callable[[Expr, Expr, Load], Stmt]) -> Stmt:
            i, j, lane = Var("i", height), Var("j", vectors), Var("l", lanes)
            innermost.append((i, j, lane))
            row, column = index.add(index.mul(run, height), i), index.add(index.mul(j, lanes), lane)
            return nest((i, j, lane), make(row, column, acc[i, j, lane]))

        def update(row: Expr, column: Expr, here: Load) -> Stmt:
            left, right = f.left(place, row, step), f.right(place, panel, column, step)
            return _set(here, call("fma", left, right, here))

        def keep(row: Expr, column: Expr, here: Load) -> Stmt:
            there = f.sums(place, row, panel, column)
            return _set(there, there + here if add else here)

        clear = over_tile(lambda row, column, here: _set(here, ZERO))
        added, kept = over_tile(update), over_tile(keep)
        number = index.flatten((place, panel, run), (places, panels, run.extent))
        first = beside(number, places * panels * run.extent)
        schedule = Schedule(nest((place, panel, run), Seq((*first, clear, For(step, added), kept))))
        for i, j, lane in innermost:
            schedule.unroll(i)
            schedule.unroll(j)
            schedule.vectorize(lane)
        outer, inner = schedule.split(step, UNROLL_K)
        schedule.unroll(inner)
        if steps % UNROLL_K:
            schedule.peel(outer)
        return schedule

    def zeros(self, row: Var, sums: Callable[[Expr, Expr, Expr], Load]) -> Stmt:
        """Clear the sums, by place, row and column, of one panel."""
        g = self.g
        place, v, lane = Var("p", g.places), Var("v", g.tile.vectors), Var("l", g.lanes)
        there = sums(place, row, index.add(index.mul(v, g.lanes), lane))
        return nest((place, row, v), For(lane, _set(there, ZERO), "vector"))


def _set(there: Load, value: Expr) -> Store:
    return Store(there.buffer, there.indices, value)


def unphased(c: Expr, channels: int, stride: int) -> tuple[Expr, Expr, Expr]:
    """Return the channel, and the row and column of its phase, of one of all channels of all phases."""
    row, column, channel = index.unflatten(c, (stride, stride, channels))
    return channel, row, column


def beside_packed(anchor: Node, seconds: float) -> float:
    """Return an estimate that compares with those of products over words, which 16-bit operands have."""
    return seconds if anchor.dtype is float32 else OF_SHORT * seconds


def stores_rows(x: GroupExpressions) -> bool:
    """Return whether the filters of some result do not lie together, but its rows do."""
    return any(k != 1 and column == 1 for k, _, column in steps_of_results(x))


def steps_of_results(x: GroupExpressions) -> list[tuple[int | None, ...]]:
    """Return how far apart neighbours along filters, rows and columns are stored; None where that varies."""
    where = tuple(fresh_axes(x.group.members[0].aval.ints))
    addresses = [index.offset(placed(x, r, where).access) for r in x.results]
    return [tuple(index.stride_of(a, v) for v in where[1:]) for a in addresses]


def unguarded(value: Expr) -> Expr:
    """Return what choices between what is there and 0 read where it is there."""
    while isinstance(value, Guard):
        value = value.value
    return value


def condition(value: Expr) -> Expr:
    """Return whether what choices between what is there and 0 read is there."""
    found: Expr = const(True, bool_)
    while isinstance(value, Guard):
        found, value = index.both(found, value.condition), value.value
    return found if isinstance(strip_cast(value), Load) else const(False, bool_)


def _widened(value: Expr) -> Expr:
    """Return a value in float32, of a choice both sides."""
    if isinstance(value, Guard):
        return guard(value.condition, _widened(value.value), _widened(value.otherwise))
    return value if value.dtype is float32 else cast(value, float32)


def is_contiguous(x: GroupExpressions, value: Node, axis: int) -> bool:
    """Return whether neighbours along an axis of a value are neighbours in memory."""
    where = [Var(f"i{k}", n) for k, n in enumerate(value.aval.ints)]
    read = unguarded(x.at(value, tuple(where)))
    return isinstance(read, Load) and index.stride_of(index.offset(read), where[axis]) == 1


def tile_scratch(name: str, places: int, rows: int, columns: int) -> Buffer:
    """Return memory for all places of tiles, an odd number of cache lines apart: they share no sets."""
    lines = -(-rows * columns // LINE)
    steps = (lines + 1 - lines % 2) * LINE, columns, 1
    return Buffer(name, float32, (places, rows, columns), steps, "scratch")


def fits(y: Expr, height: int, x: Expr, width: int) -> Expr:
    return index.both(index.less(y, height), index.less(x, width))


def either(whole: Expr, arm: Callable[[bool], Stmt]) -> Stmt:
    """Return the arm for whole tiles, and where not all are whole, one for those at the edge."""
    if isinstance(whole, Const):
        return arm(not whole.value)
    return If(whole, arm(False), arm(True))


def up(n: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return -(-n // step) * step


def divisor(n: int, most: int) -> int:
    """Return the greatest divisor of n that is at most `most`, at least 1."""
    return next(d for d in range(max(1, min(n, most)), 0, -1) if n % d == 0)
