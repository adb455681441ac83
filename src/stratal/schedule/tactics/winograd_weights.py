"""Winograd's algorithm for the gradients of 3x3 filters at stride 1.

The derivative of `y = output [(weights g) * (input d)]` by g is

    dg = weights^T [(output^T dy) * (input d)]

so each place of a tile sums one outer product over all tiles: channels by filters, in register tiles. A chunk
is a block of channels by a panel of filters, whose sums stay in the cache, over a part of the tiles; block
after block of these is transformed into the worker's scratch memory. Several parts leave their sums to a
second kernel, which adds them up in order and transforms them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Load, Var
from stratal.loops.stmt import For, Seq, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import MAX_CHUNKS, finished, nest
from stratal.schedule.tactics.contract import choose_tile
from stratal.schedule.tactics.tiles import UNROLL_K
from stratal.schedule.tactics.winograd import PER_GATHER, PER_PLACE, SLOWER
from stratal.schedule.tactics.winograd_stages import (
    Factors,
    Geometry,
    Image,
    Sizes,
    Stages,
    beside_packed,
    divisor,
    fits,
    is_contiguous,
    is_plain,
    tile_scratch,
    up,
)
from stratal.schedule.winograd_matrices import both_sides, outputs, transposed

KIND = "contract"

WEIGHTS: Final = "winograd of weights"
CHANNELS: Final = 64  # of a chunk: with 64 filters, sums take half of a second-level cache
MIN_CHUNKS: Final = 8  # something for every thread to do
SUMS_BYTES: Final = 8 << 20  # all parts may leave behind
BLOCK: Final = 32  # tiles transformed at a time
TAPS: Final = 3


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the gradients of filters from tiles of 2x2 and 4x4 gradients of the outputs."""
    found = gradient_sizes(x.group.members[0])
    if found is None or not settings.winograd.value:
        return
    for m in outputs(TAPS):
        lanes = target.lanes(float32.itemsize)
        tile = choose_tile(min(found.channels, CHANNELS), found.filters, lanes, target)
        g = Geometry(found, m, target, tile)
        cut = Cut(g)
        seconds = cut.cycles(_gathers(x, g)) / (target.ghz * 1e9) + cut.moving()
        seconds = beside_packed(x.group.members[0], seconds)
        parameters = (("m", m), ("parts", cut.parts), ("tiles", cut.block))
        operations = 2.0 * g.places * g.tiles * found.channels * found.filters
        yield Candidate(WEIGHTS, seconds, partial(gradient, cut=cut), parameters, operations)


def gradient_sizes(anchor: Node) -> Sizes | None:
    """Return the extents of the convolution whose filters' gradient a node is; None for any other node.

    Batch and channels are exchanged there: it convolves x [C, N, H, W] with dy [K, N, height, width].
    """
    if not is_plain(anchor):
        return None
    c, k, *window = anchor.aval.ints
    _, n, height, width = anchor.inputs[1].aval.ints
    if window != [TAPS, TAPS] or 0 in (n, k, height, width, c):
        return None
    return Sizes(n, c, k, height, width)


class Cut:
    """Chunks and blocks of the tiles."""

    def __init__(self, g: Geometry) -> None:
        self.g = g
        self.bands = -(-g.sizes.channels // CHANNELS)  # blocks of channels
        self.band = up(-(-g.sizes.channels // self.bands), g.lanes) if self.bands > 1 else g.sizes.channels
        self.rows = up(self.band, g.tile.rows)
        self.channels = up(self.rows, g.lanes)
        sums = 4 * g.places * self.rows * g.panel  # bytes, of one chunk
        few = max(1, -(-MIN_CHUNKS // self.pairs))
        self.parts = max(1, min(few, SUMS_BYTES // (sums * self.pairs), g.tiles // BLOCK))
        share = -(-g.tiles // self.parts)
        self.block = up(-(-share // -(-share // BLOCK)), UNROLL_K)
        self.blocks = -(-share // self.block)

    @property
    def pairs(self) -> int:
        """How many pairs of a panel of filters and a block of channels there are."""
        return self.g.panels * self.bands

    def corner(self, pair: Expr) -> tuple[Expr, Expr]:
        """Return the first channel and the first filter of a pair; neighbours share their filters."""
        band, panel = index.mod(pair, self.bands), index.floordiv(pair, self.bands)
        return index.mul(band, self.band), index.mul(panel, self.g.panel)

    def cycles(self, gathers: int) -> float:
        """Estimate products in registers and transforms, on one core."""
        g, s = self.g, self.g.sizes
        rows = self.parts * self.blocks * self.block
        per_step = max(g.tile.rows * g.tile.vectors / 2, 4) + 0.25  # as register tiles are priced
        added = g.tile.rows * g.tile.vectors * 2  # to sums in memory, once per block
        tiles = g.places * (self.rows // g.tile.rows) * self.pairs
        cycles = tiles * (SLOWER * rows * per_step + self.parts * self.blocks * added)
        vectors = rows * self.pairs * (self.channels // g.lanes + g.tile.vectors)
        vectors += s.channels * g.panels * g.tile.vectors * self.parts
        return cycles + vectors * g.places * PER_PLACE + self.bands * g.panels * gathers * PER_GATHER

    def moving(self) -> float:
        """Estimate the seconds that sums take between kernels."""
        if self.parts == 1:
            return 0.0
        g = self.g
        nbytes = 4.0 * g.places * self.rows * g.panel * self.pairs * self.parts
        return 2 * nbytes / g.target.bandwidth(nbytes)


def _gathers(x: GroupExpressions, g: Geometry) -> int:
    """Return how many vectors of operands lie scattered."""
    total = 0
    for operand, reads in zip(x.group.members[0].inputs, (g.places, g.m * g.m), strict=True):
        total += 0 if is_contiguous(x, operand, 0) else g.tiles * reads * -(-operand.aval.ints[0] // g.lanes)
    return total


def gradient(x: GroupExpressions, cut: Cut) -> Tactic:
    """Return the kernel that sums over tiles and transforms the sums back; two where there are parts."""
    g, stages = cut.g, Stages(x, cut.g)
    chunk = Var("z", cut.parts * cut.pairs)
    if cut.parts == 1:
        sums = tile_scratch("sums", g.places, cut.rows, g.panel)
    else:
        sums = Buffer("sums", float32, (chunk.extent, g.places, cut.rows + 1, g.panel))

    def at(z: Expr, place: Expr, row: Expr, column: Expr) -> Load:
        return sums[place, row, column] if cut.parts == 1 else sums[z, place, row, column]

    tiles = tile_scratch("tiles", g.places, cut.block, cut.channels)
    turned = tile_scratch("turned", g.places, cut.block, g.panel)
    summing = _summing(stages, cut, chunk, tiles, turned, at)
    steps = [*summing.steps, f"reduction in the order t, in {cut.parts} parts, of F({g.m}x{g.m}, 3x3)"]
    if cut.parts == 1:
        c = Var("c", cut.band)
        body = For(chunk, sequence(summing.body, For(c, _back(stages, cut, at, chunk, c))), "parallel")
        schedule = Schedule(body, [tiles, turned, sums, *stages.taken()])
        schedule.steps += steps
        return finished(schedule, "winograd", stages.in_place())
    local = (tiles, turned, *stages.taken())
    pack = Pack(sums, For(chunk, summing.body, "parallel"), tuple(steps), local, "winograd sums")
    pair, c = Var("q", cut.pairs), Var("c", cut.band)
    schedule = Schedule(nest((pair, c), _back(stages, cut, at, pair, c)))
    outer, _ = schedule.split(c, c.extent // divisor(c.extent, max(1, MAX_CHUNKS // cut.pairs)))
    schedule.parallel(schedule.fuse(pair, outer))
    schedule.local += stages.taken()
    schedule.steps += steps
    return finished(schedule, "winograd", stages.in_place(), [pack])


At = Callable[[Expr, Expr, Expr, Expr], Load]  # sums, by chunk, place, row and column


def _summing(stages: Stages, cut: Cut, chunk: Var, tiles: Buffer, turned: Buffer, at: At) -> Schedule:
    """Return the sums of one chunk: transform block after block of tiles, and add up their products."""
    g, s = cut.g, cut.g.sizes
    x, dy = stages.anchor.inputs
    c0, first = cut.corner(index.mod(chunk, cut.pairs))
    block, t, u = Var("b", cut.blocks), Var("t", cut.block), Var("u", cut.block)
    start = index.mul(index.floordiv(chunk, cut.pairs), cut.blocks * cut.block)
    start = index.add(start, index.mul(block, cut.block))

    def image(step: Var) -> tuple[Expr, tuple[Expr, Expr]]:
        n, row, column = g.place(g.clamped(index.add(start, step)))
        return n, (row, column)

    def value(c: Expr, row: Expr, column: Expr) -> Expr:
        return stages.read(x, (index.add(c0, c), image(t)[0], row, column))

    def change(k: Expr, row: Expr, column: Expr) -> Expr:
        return stages.read(dy, (index.add(first, k), image(u)[0], row, column))

    def has_channel(c: Expr) -> Expr:
        return index.less(index.add(c0, c), s.channels)

    def has_filter(k: Expr) -> Expr:
        return fits(index.add(first, k), s.filters, index.add(start, u), g.tiles)

    images = Image(value, has_channel, (s.height + TAPS - 1, s.width + TAPS - 1))
    changes = Image(change, has_filter, (s.height, s.width))
    ins = stages.tile(tiles, g.matrices.input, images, image(t)[1], t, cut.channels)
    outs = stages.tile(turned, transposed(g.matrices.output), changes, image(u)[1], u, g.panel)
    factors = Factors(
        lambda p, row, step: tiles[p, step, row],
        lambda p, _, column, step: turned[p, step, column],
        lambda p, row, _, column: at(chunk, p, row, column),
    )
    add = cut.blocks > 1
    product = stages.products(factors, cut.rows, cut.block, add=add)
    product.body = For(block, sequence(For(t, ins), For(u, outs), product.body))
    if add:
        product.body = sequence(stages.zeros(Var("c", cut.rows), partial(at, chunk)), product.body)
    return product


def _back(stages: Stages, cut: Cut, at: At, pair: Expr, c: Expr) -> Stmt:
    """Add up the parts of one channel and panel, transform them back, and store what follows from them."""
    g, s = cut.g, cut.g.sizes
    v, lane = Var("v", g.tile.vectors), Var("l", g.lanes)
    column = index.add(index.mul(v, g.lanes), lane)
    c0, first = cut.corner(pair)
    channel, k = index.add(c0, c), index.add(first, column)
    totals = stages.register("totals", TAPS)

    def read(a: int, j: Var) -> Expr:
        place = index.add(j, a * g.size)
        total: Expr = at(pair, place, c, column)
        for part in range(1, cut.parts):
            total = total + at(index.add(pair, part * cut.pairs), place, c, column)
        return total

    def write(i: Var, values: Sequence[Expr]) -> Stmt:
        j = Var("j", TAPS)
        stores = stages.results(totals[j, lane], (channel, k, i, j))
        stores = guard_leaves(stores, fits(channel, s.channels, k, s.filters))
        held = [Store(totals, (index.as_expr(a), lane), value) for a, value in enumerate(values)]
        return Seq((*held, For(j, stores, "unroll")))

    held = stages.register("columns", TAPS, g.size)
    body = both_sides(transposed(g.matrices.weights), read, held, lane, write)
    return For(v, For(lane, body, "vector"))
