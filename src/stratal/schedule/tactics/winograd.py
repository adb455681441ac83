"""Winograd's algorithm for convolutions with filters of three to five taps: fewer products, for transforms of
both operands and of the result.

Tiles of m x m outputs are computed from tiles of the input that overlap by two (Lavin and Gray, 2015,
arXiv:1509.09308): transform tiles and filters, multiply them as one matrix product per place of the tile,
transform the products back. Vectors lie along channels throughout, so transforms are element-wise
arithmetic. There are two ways to keep what comes between in the cache:

    by tiles      chunks are blocks of tiles; a kernel that runs before transforms the filters
    by filters    chunks are panels of filters; a kernel that runs before transforms the tiles

The first is for many pixels and few filters, the second for few pixels and many filters. Where filters are
frozen, their transforms are kept, and panels of filters read those.

A convolution with strides becomes one without over the phases of its image, side by side as channels:

    phases[n, y, x, (p, q, c)] = image[n, c, y * stride + p, x * stride + q]

Filters have a phase for each too, with a tap of zero where theirs end. It is for images of few channels, as
the first convolution of a network has: their phases fill vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from stratal.base import settings
from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var, call, guard
from stratal.loops.stmt import For, Stmt, Store, guarded
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import MAX_CHUNKS, cut_tails, distribute, finished, nest
from stratal.schedule.tactics.contract import choose_tile, register_tiles
from stratal.schedule.tactics.winograd_stages import (
    PADDING,
    ZERO,
    Factors,
    Geometry,
    Sizes,
    Stages,
    beside_packed,
    condition,
    divisor,
    either,
    fits,
    is_contiguous,
    sizes,
    steps_of_results,
    stores_rows,
    tile_scratch,
    unguarded,
    unphased,
    up,
)
from stratal.schedule.winograd_matrices import outputs

KIND = "contract"

TILES: Final = "winograd by tiles"
FILTERS: Final = "winograd by filters"
KEPT: Final = "winograd by prepared filters"
MAX_TILES: Final = 36  # of a block: filters are read once per block
MIN_BLOCKS: Final = 8  # something for every thread to do
MIN_PANELS: Final = 4
MOST_TILES: Final = 256  # of a block that is tried
DEPTHS: Final = (32, 48, 64, 96, 128, 256)  # that are tried
DEPTH: Final = 64  # channels of a block of filters: with 64 filters, half of a second-level cache
SLOWER: Final = 1.2  # than at the peak: operands stream from the second-level cache
STORE: Final = 2  # cycles to clear and to store a vector of sums
PER_PLACE: Final = 4  # cycles to load, transform and store a vector, per place of its tile
PER_GATHER: Final = 10  # cycles to move a vector whose elements lie apart, their neighbours with them, and
FAR_GATHER: Final = 60  # where neighbours along rows lie apart, too: element by element


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield F(2x2, 3x3) and F(4x4, 3x3), by tiles and by filters, for the convolutions they compute."""
    found = _sizes(x)
    if found is None:
        return
    for m in outputs(found.taps, found.channels):
        g = Geometry(found, m, target)
        block = rows_of_tiles(g) if stores_rows(x) else 0
        if block and block != block_of(g):
            tile = choose_tile(block, found.filters, g.lanes, target)
            yield _candidate(x, Geometry(found, m, target, tile), TILES, block)
        yield from _ways(x, g, (block_of(g),), (DEPTH,))


def variants(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the same with other register tiles, blocks of tiles and blocks of channels."""
    found = _sizes(x)
    if found is None:
        return
    for m in outputs(found.taps, found.channels):
        for tile in register_tiles(Geometry(found, m, target).tiles, found.filters, target):
            g = Geometry(found, m, target, tile)
            step = g.tile.rows
            blocks = {block_of(g), *(step * k for k in (1, 2, 3, 4, 6, 8) if step * k <= MOST_TILES)}
            yield from _ways(x, g, sorted(blocks), DEPTHS)


def _ways(
    x: GroupExpressions, g: Geometry, blocks: Iterable[int], depths: Iterable[int]
) -> Iterator[Candidate]:
    """Yield the algorithm by tiles and by filters, and by filters that were transformed before."""
    for block in blocks:
        yield _candidate(x, g, TILES, block)
    for depth in depths:
        yield _candidate(x, g, FILTERS, depth)
    if filters_frozen(x):
        yield _candidate(x, g, KEPT, g.sizes.channels)


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return Winograd's algorithm cut as the parameters say."""
    found, by = _sizes(x), {TILES: "tiles", FILTERS: "depth", KEPT: "depth"}.get(algorithm)
    if found is None or by is None or set(parameters) != {"m", "rows", "vectors", by}:
        return None
    if algorithm == KEPT and (parameters["depth"] != found.channels or not filters_frozen(x)):
        return None
    m, tile, extent = parameters["m"], (parameters["rows"], parameters["vectors"]), parameters[by]
    if m not in outputs(found.taps, found.channels) or not (1 <= extent <= MOST_TILES or algorithm == KEPT):
        return None
    if tile not in register_tiles(Geometry(found, m, target).tiles, found.filters, target):
        return None
    return _candidate(x, Geometry(found, m, target, tile), algorithm, extent)


def _sizes(x: GroupExpressions) -> Sizes | None:
    return sizes(x.group.members[0]) if settings.winograd.value else None


def filters_frozen(x: GroupExpressions) -> bool:
    """Return whether the filters of a convolution seldom change: they are then transformed once."""
    zero = index.as_expr(0)
    return x.is_frozen(x.at(x.group.members[0].inputs[1], (zero, zero, zero, zero)))


def _candidate(x: GroupExpressions, g: Geometry, algorithm: str, extent: int) -> Candidate:
    by, seconds, make = {
        TILES: ("tiles", _seconds_by_tiles, partial(by_tiles, g=g, block=extent)),
        FILTERS: ("depth", _seconds_by_filters, partial(by_filters, g=g, depth=extent)),
        KEPT: ("depth", _seconds_by_prepared, partial(by_kept_filters, g=g)),
    }[algorithm]
    parameters = (("m", g.m), ("rows", g.tile.rows), ("vectors", g.tile.vectors), (by, extent))
    products = 2.0 * g.places * g.tiles * g.sizes.channels * g.sizes.filters
    by_rows = algorithm == TILES and whole_rows(x, g, extent)
    estimate = seconds(g, extent, filters_frozen(x)) + _scattering(x, g, by_rows=by_rows)
    return Candidate(algorithm, beside_packed(x.group.members[0], estimate), make, parameters, products)


# -- blocks of tiles ---------------------------------------------------------------------------------------
def by_tiles(x: GroupExpressions, g: Geometry, block: int) -> Tactic:
    """Return the kernel over blocks of tiles."""
    stages = Stages(x, g)
    s = g.sizes
    channels = up(s.channels, g.lanes)
    height = up(block, g.tile.rows)
    tiles = tile_scratch("tiles", g.places, height, channels)
    sums = tile_scratch("sums", g.places, height, g.panels * g.panel)
    packs = [*phases(stages), _filters(stages)]
    filters = packs[-1].workspace
    chunk, t, u = Var("b", -(-g.tiles // block)), Var("t", block), Var("u", block)
    number = index.add(index.mul(chunk, block), t)
    first = stages.input_tile(tiles, g.clamped(number), t, channels)
    factors = Factors(
        lambda p, row, c: tiles[p, row, c],
        lambda p, q, column, c: filters[p, index.add(index.mul(q, s.channels), c), column],
        lambda p, row, q, column: sums[p, row, index.add(index.mul(q, g.panel), column)],
    )
    following = index.mul(index.add(chunk, 1), block)  # the first tile of the next block
    fetch = partial(_fetched, stages, following, block)
    product = stages.products(factors, height, s.channels, panels=g.panels, beside=fetch)
    local = [tiles, sums]
    if whole_rows(x, g, block):
        rows = block // g.columns
        last, lines = stages.output_rows(sums, index.mul(chunk, rows), rows)
        local.append(lines)
    else:
        number = index.add(index.mul(chunk, block), u)
        last = For(u, stages.output_tile(sums, number, u, index.as_expr(0), s.filters))
    body = For(chunk, sequence(For(t, first), product.body, last), "parallel")
    return _finished(stages, body, local, product, packs)


def _fetched(stages: Stages, first: Expr, block: int, number: Expr, count: int) -> Sequence[Stmt]:
    """Bring near, in `count` steps, what a block reads from tile `first` on: step `number` of them.

    Memory has nothing to do while products are summed; transforms of tiles would wait for it.
    """
    g = stages.g
    rows = block * g.m
    share = Var("e", -(-rows // count))
    row = index.add(index.mul(number, share.extent), share)
    tile = g.clamped(index.add(first, index.floordiv(row, g.m)))
    fetch = stages.fetch_row(tile, index.mod(row, g.m))
    return () if fetch is None else (For(share, guarded(index.less(row, rows), fetch)),)


def block_of(g: Geometry) -> int:
    """Return how many tiles a block has: whole register tiles, in the cache, few idle in the last block."""
    step = g.tile.rows
    filters = 4 * g.places * g.sizes.channels * g.sizes.filters
    room = g.target.l2_bytes - (filters if filters < g.target.l2_bytes else 0)
    per_tile = 4 * g.places * (g.sizes.channels + g.sizes.filters)
    most = max(3 * step, min(MAX_TILES, room // per_tile))
    fit = range(step, most + 1, step)
    many = [t for t in fit if -(-g.tiles // t) >= MIN_BLOCKS and t >= 2 * step]
    return min(many or fit[:1], key=lambda t: -(-g.tiles // t) * (t + 3))


def whole_rows(x: GroupExpressions, g: Geometry, block: int) -> bool:
    """Return whether results are written row by row of the image: blocks are whole rows of tiles."""
    return stores_rows(x) and block % g.columns == 0


def rows_of_tiles(g: Geometry) -> int:
    """Return how many tiles a block of whole rows of tiles has; 0 where one row is too long for the cache."""
    s, lines = g.sizes, g.batch_rows
    per_tile = 4 * (g.places * (s.channels + s.filters) + g.m * g.m * g.lanes)
    room = g.target.l2_bytes * 3 // 4 // per_tile
    fit = range(1, max(1, min(MAX_TILES, room) // g.columns) + 1)
    many = [r for r in fit if -(-lines // r) >= MIN_BLOCKS] or fit[:1]

    def cost(rows: int) -> int:
        tiles = rows * g.columns
        height, _ = choose_tile(tiles, s.filters, g.lanes, g.target)
        return -(-lines // rows) * (up(tiles, height) + 3)

    return min(many, key=cost) * g.columns if g.columns <= room else 0


def _filters(stages: Stages) -> Pack:
    """Transform the filters: panels of them, contiguous over the channels."""
    g, channels = stages.g, stages.g.sizes.channels
    rows = g.panels * channels + 1  # one to spare: see PADDING
    filters = Buffer("filters", float32, (g.places, rows, g.panel))
    panel, v, c = Var("q", g.panels), Var("v", g.tile.vectors), Var("c", channels)
    column = index.mul(v, g.lanes)
    there = index.add(index.mul(panel, channels), c), column
    body = stages.filter_vector(filters, index.add(index.mul(panel, g.panel), column), c, there)
    schedule = Schedule(nest((panel, v, c), body))
    pieces = divisor(channels, MAX_CHUNKS // (g.panels * g.tile.vectors))
    outer, _ = schedule.split(c, channels // pieces)
    schedule.parallel(schedule.fuse(schedule.fuse(panel, v), outer))
    return Pack(filters, schedule.body, tuple(schedule.steps), stages.taken())


# -- panels of filters -------------------------------------------------------------------------------------
def by_filters(x: GroupExpressions, g: Geometry, depth: int) -> Tactic:
    """Return the kernel over panels of filters: their transforms never leave the cache."""
    blocks, depth = _blocks_of_channels(g, depth)
    rows = up(g.tiles, g.tile.rows)
    tiles = Buffer("tiles", float32, (g.places, rows, blocks * depth + PADDING))
    filters = Buffer("filters", float32, (g.places, depth + 1, g.panel), space="scratch")
    sums = tile_scratch("sums", g.places, rows, g.panel)
    stages = Stages(x, g)
    packs = [*phases(stages), _tiles(stages, tiles, blocks * depth)]
    panel, block, c, v = Var("q", g.panels), Var("b", blocks), Var("c", depth), Var("v", g.tile.vectors)
    first, column = index.mul(panel, g.panel), index.mul(v, g.lanes)
    channel = index.add(index.mul(block, depth), c)
    turned = stages.filter_vector(filters, index.add(first, column), channel, (c, column))
    factors = Factors(
        lambda p, row, c: tiles[p, row, index.add(index.mul(block, depth), c)],
        lambda p, q, column, c: filters[p, c, column],
        lambda p, row, q, column: sums[p, row, column],
    )
    product = stages.products(factors, rows, depth, add=True)
    t = Var("t", g.tiles)
    clear = stages.zeros(Var("t", rows), lambda p, row, column: sums[p, row, column])
    over = For(block, sequence(nest((v, c), turned), product.body))
    body = sequence(clear, over, For(t, stages.output_tile(sums, t, t, first, g.panel)))
    return _finished(stages, For(panel, body, "parallel"), [filters, sums], product, packs)


def by_kept_filters(x: GroupExpressions, g: Geometry) -> Tactic:
    """Return the kernel over panels of filters that were transformed before, as the tiles were."""
    channels, rows = g.sizes.channels, up(g.tiles, g.tile.rows)
    tiles = Buffer("tiles", float32, (g.places, rows, up(channels, g.lanes) + PADDING))
    sums = tile_scratch("sums", g.places, rows, g.panel)
    stages = Stages(x, g)
    packs = [*phases(stages), _filters(stages), _tiles(stages, tiles, up(channels, g.lanes))]
    filters, panel, t = packs[-2].workspace, Var("q", g.panels), Var("t", g.tiles)
    factors = Factors(
        lambda p, row, c: tiles[p, row, c],
        lambda p, q, column, c: filters[p, index.add(index.mul(panel, channels), c), column],
        lambda p, row, q, column: sums[p, row, column],
    )
    product = stages.products(factors, rows, channels)
    last = stages.output_tile(sums, t, t, index.mul(panel, g.panel), g.panel)
    body = For(panel, sequence(product.body, For(t, last)), "parallel")
    return _finished(stages, body, [sums], product, packs)


def _blocks_of_channels(g: Geometry, depth: int) -> tuple[int, int]:
    """Return how many blocks of at most `depth` the channels make, and the channels of each."""
    blocks = -(-g.sizes.channels // depth)
    return blocks, up(-(-g.sizes.channels // blocks), g.lanes)


def _tiles(stages: Stages, tiles: Buffer, channels: int) -> Pack:
    """Transform the tiles of the input; those after the last are copies of the last."""
    g, t = stages.g, Var("t", tiles.shape[1])
    schedule = Schedule(For(t, stages.input_tile(tiles, g.clamped(t), t, channels)))
    chunk, _ = schedule.split(t, t.extent // divisor(t.extent, MAX_CHUNKS))
    schedule.parallel(chunk)
    return Pack(tiles, schedule.body, tuple(schedule.steps), stages.taken())


# -- both --------------------------------------------------------------------------------------------------
def _finished(
    stages: Stages, body: Stmt, scratch: list[Buffer], product: Schedule, packs: list[Pack]
) -> Tactic:
    schedule = Schedule(body, [*scratch, *stages.taken()])
    m, taps = stages.g.m, stages.g.sizes.taps
    schedule.steps += [*product.steps, f"reduction in the order c, of F({m}x{m}, {taps}x{taps})"]
    return finished(schedule, "winograd", stages.in_place(), packs)


# -- estimates ---------------------------------------------------------------------------------------------
def _seconds_by_tiles(g: Geometry, block: int, frozen: bool) -> float:
    blocks, weights = -(-g.tiles // block), _transformed_bytes(g)
    moved = (blocks if frozen else 2 + blocks) * weights / g.target.bandwidth(weights)
    return _computing(g, blocks * up(block, g.tile.rows), g.sizes.channels, turned=not frozen) + moved


def _seconds_by_filters(g: Geometry, depth: int, frozen: bool) -> float:
    blocks, depth = _blocks_of_channels(g, depth)
    rows = up(g.tiles, g.tile.rows)
    return (_computing(g, rows, blocks * depth) + _moving_by_panels(g, blocks)) * _idle(g)


def _seconds_by_prepared(g: Geometry, depth: int, frozen: bool) -> float:
    rows, weights = up(g.tiles, g.tile.rows), _transformed_bytes(g)
    moved = _moving_by_panels(g, 1) + weights / g.target.bandwidth(weights)
    return (_computing(g, rows, depth, turned=False) + moved) * _idle(g)


def _transformed_bytes(g: Geometry) -> float:
    return 4.0 * g.places * g.sizes.channels * g.panels * g.panel


def _moving_by_panels(g: Geometry, blocks: int) -> float:
    """Estimate the seconds in which each panel reads all tiles and moves its sums, in blocks of channels."""
    rows = up(g.tiles, g.tile.rows)
    tiles, sums = 4.0 * g.places * rows * g.sizes.channels, 4.0 * g.places * rows * g.panel
    moved = (2 + g.panels) * tiles / g.target.bandwidth(tiles)
    return moved + 2 * blocks * g.panels * sums / g.target.bandwidth(sums)


def _idle(g: Geometry) -> float:
    """Return by what threads without a panel slow the others down."""
    return max(1.0, MIN_PANELS / g.panels)


def _computing(g: Geometry, rows: int, channels: int, *, turned: bool = True) -> float:
    """Estimate products in registers and transforms, of filters too where they are `turned` in every run, in
    seconds on one core.
    """
    s, tile = g.sizes, g.tile
    registers = tile.rows * tile.vectors
    per_tile = channels * (max(registers / 2, 4) + 0.25) + STORE * registers
    products = g.places * rows // tile.rows * g.panels * per_tile
    vectors = rows * (-(-s.channels // g.lanes) + -(-s.filters // g.lanes))
    filters = s.channels * g.panels * g.tile.vectors if turned else 0
    transforms = vectors * g.places * PER_PLACE + filters * (g.places * PER_PLACE + s.taps**2 * PER_GATHER)
    return (SLOWER * products + transforms) / (g.target.ghz * 1e9)


def _scattering(x: GroupExpressions, g: Geometry, *, by_rows: bool) -> float:
    """Estimate reading and writing elements one by one where channels do not lie together, in seconds."""
    s = g.sizes
    image, cycles = x.group.members[0].inputs[0], 0
    if s.stride == 1 and not is_contiguous(x, image, 1):
        each = PER_GATHER if is_contiguous(x, image, 3) else FAR_GATHER
        cycles += each * g.places * -(-s.channels // g.lanes)
    if not by_rows:
        scattered = [column for k, _, column in steps_of_results(x) if k != 1]
        each = sum(PER_GATHER if column == 1 else FAR_GATHER for column in scattered)
        cycles += each * g.m * g.m * -(-s.filters // g.lanes)
    return cycles * g.tiles * 1e-9 / g.target.ghz


# -- phases ------------------------------------------------------------------------------------------------
def phases(stages: Stages) -> list[Pack]:
    """Return the kernel that lays out the phases of the image, and let tiles be read from there.

    Returns nothing where there are no strides.
    """
    g, s = stages.g, stages.g.sizes
    if s.stride == 1:
        return []
    image = stages.anchor.inputs[0]
    _, channels, height, width = image.aval.ints
    rows, columns = (n * g.m + s.taps - 1 for n in (g.rows, g.columns))  # of whole tiles
    shape = (s.batch, rows, columns, up(s.channels, g.lanes))
    made = stages.phases = Buffer("phases", float32, shape)
    n, y, block = Var("n", shape[0]), Var("y", shape[1]), Var("x", -(-shape[2] // g.lanes))
    start = index.mul(block, g.lanes)
    if shape[2] >= g.lanes:  # the last vector overlaps the one before it
        start = call("min", start, index.as_expr(shape[2] - g.lanes))
    unrolled: list[Var] = []

    def element(channel: Expr, x: Expr, p: Expr, q: Expr) -> Expr:
        row, column = index.add(index.mul(y, s.stride), p), index.add(index.mul(x, s.stride), q)
        found = stages.read(image, (n, channel, row, column))
        return guard(fits(row, height, column, width), found, ZERO)

    def arm(edge: bool) -> Stmt:
        c, lane = Var("c", shape[3]), Var("l", g.lanes)
        unrolled.append(c)
        x = index.add(start, lane)
        channel, p, q = unphased(c, channels, s.stride)
        found = element(channel, x, p, q)
        found = guard(index.less(c, s.channels), found if edge else unguarded(found), ZERO)
        store = Store(made, (n, y, x, c), found)
        return For(c, For(lane, guard_leaves(store, index.less(x, shape[2])), "vector"))

    near, far = index.as_expr(0), index.as_expr(s.stride - 1)
    whole = index.both(
        condition(element(near, start, near, near)),
        condition(element(near, index.add(start, g.lanes - 1), far, far)),
    )
    schedule = Schedule(nest((n, y, block), either(whole, arm)))
    for c in unrolled:
        schedule.unroll(c)
    distribute(schedule, [n, y], 2.0 * shape[2] * shape[3])
    cut_tails(schedule)
    return [Pack(made, schedule.body, tuple(schedule.steps), stages.taken(), "phases")]
