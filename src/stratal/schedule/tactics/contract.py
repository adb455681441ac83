"""Sums of products of two operands in register tiles: matrix products, batched or not, and convolutions in
all three of their roles.

One operand is read in vectors along an output axis (`B`), the other one element at a time and broadcast
(`A`). Which tiles, blocks and copies suit a product is chosen here; `tiles.py` builds the loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final

from stratal.base.target import Target
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import fair_size, finished, reduction_order
from stratal.schedule.tactics.product import Product, product_of
from stratal.schedule.tactics.tiles import Copied, TiledProduct, Tiling

KIND = "contract"

BLOCK = 512  # products summed in one run
MANY_ROWS = 512  # rows of A that repay copying all of B before
FEW_PANELS = 8  # of B, which two or four threads share
FEW_ROWS = 16  # rows of A that read a large B side by side
COPIED_BLOCK = 256  # rows of B that are copied at a time
THIN_BLOCK = 32  # rows of B, at least, that few rows of A read side by side
THIN_PANEL = 4096  # bytes of B that are worth adding up a tile in memory
THIN_COLUMNS = 1024
RUN = 16  # tiles of rows that share a block of B
WIDE_RUN = 8  # tiles of columns that share a block of A: both blocks stay in the second cache
RUNS = 16  # that there should be, for all threads to share
LONG_ROWS = (16, 15, 14, 12, 10, 8)  # vectors of one row: pieces of B of 1 KB are fetched ahead
FEW_RUNS = 4  # where longer ones read memory better
PACK_CYCLES = (1.0, 3.0)  # an element copied, along its lines and across them

COPIES: Final[tuple[Copied, ...]] = ("", "before", "inside")  # by number, as parameters name them
DEPTHS: Final = (128, 256, 512, 1024)  # blocks of the reduction that measurements try
RUN_LENGTHS: Final = (1, 4, 16)
FAIR: Final = 1.3  # a register tile that takes more of the best one's cycles is not tried


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the product in tiles that suit its sizes."""
    product = product_of(x, target)
    yield _candidate(product, choose_tiling(product))


def variants(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the product in other register tiles, blocks, runs and with other copies."""
    p = Product(x, target)
    chosen = choose_tiling(p)
    copies = [(a, b) for a in COPIES for b in COPIES if _may_copy(p, a, b)]
    copying = {(a, b): _copy_cycles(p, a, b) for a, b in copies}
    depths = sorted({0, chosen.depth, *(d for d in DEPTHS if d < p.depth)})
    for rows, vectors in _fair_tiles(p):
        num_rows, num_columns = -(-p.m.extent // rows), -(-p.roles.vector.extent // (vectors * p.lanes))
        run_rows = sorted({n for n in (*RUN_LENGTHS, num_rows, chosen.run_rows) if n <= num_rows})
        run_columns = sorted({n for n in (*RUN_LENGTHS, chosen.run_columns) if n <= num_columns})
        for depth, down, across, (a, b) in itertools.product(depths, run_rows, run_columns, copies):
            yield _candidate(p, Tiling(rows, vectors, depth, down, across, a, b), copying[a, b])


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return the product tiled as the parameters say."""
    if algorithm != "tiles" or set(parameters) != set(Tiling._fields):
        return None
    p = Product(x, target)
    rows, vectors, depth, down, across, a, b = (parameters[name] for name in Tiling._fields)
    if (rows, vectors) not in register_tiles(p.m.extent, p.roles.vector.extent, p.target, p.lanes):
        return None
    if depth < 0 or min(down, across) < 1 or not {a, b} <= set(range(len(COPIES))):
        return None
    tiling = Tiling(rows, vectors, depth, down, across, COPIES[a], COPIES[b])
    return _candidate(p, tiling) if tiling == choose_tiling(p) or _may_copy(p, COPIES[a], COPIES[b]) else None


def _candidate(p: Product, t: Tiling, copying: float | None = None) -> Candidate:
    target = p.target
    numbers = {**t._asdict(), "copy_a": COPIES.index(t.copy_a), "copy_b": COPIES.index(t.copy_b)}
    return Candidate(
        "tiles",
        cycles_of(p, t, copying) / (p.target.ghz * 1e9),
        lambda x: schedule_tiles(Product(x, target), t),
        tuple(numbers.items()),
        p.operations,
    )


def schedule_tiles(p: Product, tiling: Tiling, name: str = "contract") -> Tactic:
    """Return the scheduled nest of a product and its epilogue, with pairs that may share memory."""
    tiles = TiledProduct(p, tiling)
    schedule = tiles.schedule()
    schedule.steps.append(reduction_order(p.roles.reduce))
    return finished(schedule, name, p.in_place, [*p.packs, *tiles.packs])


# -- choosing ------------------------------------------------------------------------------------------------
def choose_tile(num_rows: int, num_columns: int, lanes: int, target: Target) -> tuple[int, int]:
    """Choose rows and vectors of the register tile with the least estimated time per element of the
    reduction.
    """
    best, cost = (1, 1), math.inf
    for vectors in (3, 4, 2, 1):  # of equal tiles 8 x 3: rows in eights pack well
        for rows in range(1, 17):
            if rows * vectors + vectors + 1 > target.num_vector_registers or rows > num_rows:
                continue
            if (vectors - 1) * lanes >= num_columns:
                continue
            cycles = tile_cycles(num_rows, num_columns, rows, vectors, lanes)
            if cycles < cost * 0.999:
                best, cost = (rows, vectors), cycles
    return best


def register_tiles(num_rows: int, num_columns: int, target: Target, lanes: int = 0) -> list[tuple[int, int]]:
    """Return rows and vectors of every register tile that fits the registers and the sizes."""
    lanes = lanes or target.lanes(4)
    tiles = [
        (rows, vectors)
        for vectors in (1, 2, 3, 4, 6)
        for rows in range(1, min(16, num_rows) + 1)
        if rows * vectors + vectors + 1 <= target.num_vector_registers
    ]
    if num_rows == 1:  # no registers for B, which is read once
        tiles += [(1, vectors) for vectors in LONG_ROWS if vectors < target.num_vector_registers]
    return [t for t in tiles if (t[1] - 1) * lanes < num_columns] or [(1, 1)]


def _fair_tiles(p: Product) -> list[tuple[int, int]]:
    """Return the register tiles that are not estimated to take much longer than the best."""
    rows, columns = p.m.extent, p.roles.vector.extent
    cycles = {
        t: tile_cycles(rows, columns, *t, p.lanes) for t in register_tiles(rows, columns, p.target, p.lanes)
    }
    return [t for t, c in cycles.items() if c <= FAIR * min(cycles.values())]


def _may_copy(p: Product, a: Copied, b: Copied) -> bool:
    """Return whether operands may be copied so: elements that windows share are copied once only."""
    for k, copied, along in ((p.roles.a, a, p.m), (p.roles.b, b, p.roles.vector)):
        operand = p.operand(k)
        if not copied:
            if k == p.roles.b and p.step(k, along) != 1 and along.extent > 1 and operand is not None:
                return False  # vectors would be gathered
            continue
        used = p.used(k, (*p.roles.outer, *p.roles.reduce))
        if operand is None or math.prod(v.extent for v in used) * along.extent > operand.buffer.size:
            return False
        if not p.panels(k):
            return False
    return True


def tile_cycles(num_rows: int, num_columns: int, rows: int, vectors: int, lanes: int) -> float:
    """Return the cycles all tiles take per element of the reduction.

    Two fused multiply-adds and two loads start each cycle; fewer than eight accumulators cannot hide the
    latency of a multiply-add; beyond eight rows their addresses no longer fit the integer registers.
    """
    tiles = -(-num_rows // rows) * -(-num_columns // (vectors * lanes))
    return tiles * (max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.25 + max(0, rows - 8) / 8)


def cycles_of(p: Product, t: Tiling, copying: float | None = None) -> float:
    """Estimate the cycles of a product on one core; `copying` are those of its copies, if known."""
    tiles = tile_cycles(p.m.extent, p.roles.vector.extent, t.rows, t.vectors, p.lanes)
    tiles *= p.slowing([k for k, c in ((p.roles.a, t.copy_a), (p.roles.b, t.copy_b)) if c])
    return p.num_outer * p.depth * tiles + (
        _copy_cycles(p, t.copy_a, t.copy_b) if copying is None else copying
    )


def _copy_cycles(p: Product, copy_a: Copied, copy_b: Copied) -> float:
    cycles = 0.0
    for k, copied, along in ((p.roles.b, copy_b, p.roles.vector), (p.roles.a, copy_a, p.m)):
        if copied == "inside" or (copied and not p.frozen[k]):
            size = math.prod(v.extent for v in p.used(k, (*p.roles.outer, *p.roles.reduce))) * along.extent
            cycles += size * PACK_CYCLES[p.step(k, along) != 1]
    return cycles


def choose_tiling(p: Product) -> Tiling:
    """Choose tiles, blocks and copies from the sizes and strides of a product.

    A is not copied: each of its lines, however far from the next, serves the neighbours of a tile, too.
    """
    rows, vectors = choose_tile(p.m.extent, p.roles.vector.extent, p.lanes, p.target)
    width, size = vectors * p.lanes, p.dtype.itemsize
    num_rows = max(1, -(-p.m.extent // rows))
    across = max(1, -(-p.roles.vector.extent // width))
    num_columns = max(1, across * p.num_outer)
    copy_b = _copy_of_b(p, vectors)
    if not copy_b and _thin(p, width):
        return _thin_tiling(p)
    if copy_b == "inside":  # lines of several panels are read at once
        depth = COPIED_BLOCK if p.depth > 2 * COPIED_BLOCK else 0
        room = p.target.l2_bytes // 4 // ((depth or p.depth) * width * size)
        panels = max(1, -(-p.roles.vector.extent // width))
        wide = max(1, min(room, num_columns // RUNS))
        wide = -(-panels // -(-panels // wide))  # runs of about equal length
        return Tiling(rows, vectors, depth, num_rows, wide, copy_b=copy_b)
    panel = min(BLOCK, max(256, p.target.l2_bytes // 4 // (width * size)))
    deep = p.depth > 2 * panel
    if not deep and not _streams_lines_of_a(p):
        wide = _panels_at_once(p, width, num_rows * num_columns) if copy_b else 1
        return Tiling(rows, vectors, run_columns=wide, copy_b=copy_b)
    run = rows_at_once(num_rows, num_columns)
    wide = max(1, min(WIDE_RUN, across, -(-num_rows // run) * num_columns // RUNS))
    return Tiling(rows, vectors, panel if deep else 0, run, wide, copy_b=copy_b)


def _step_along_reduction(p: Product, k: int) -> int:
    """Return how far apart, in elements, neighbours along the reduction lie in an operand, at most."""
    return max((abs(p.step(k, v) or 0) for v in p.roles.reduce), default=0)


def _streams_lines_of_a(p: Product) -> bool:
    """Return whether A comes from memory, each of its elements from a line of its own along the reduction.

    Then panels of B take turns over few rows of A: for each panel all of these lines would come again.
    """
    size = p.dtype.itemsize
    lines = _step_along_reduction(p, p.roles.a) * size >= p.target.cacheline_bytes
    return lines and p.num_outer * p.m.extent * p.depth * size > p.target.l3_bytes


def rows_at_once(num_rows: int, num_columns: int) -> int:
    """Return how many tiles of rows share a block of B, so that all threads have some."""
    return max(1, min(RUN, -(-num_rows // max(1, -(-RUNS // num_columns)))))


def _panels_at_once(p: Product, width: int, num_tiles: int) -> int:
    """Return how many panels of B a few rows of A run along: what follows reads longer lines then."""
    if p.m.extent >= MANY_ROWS:
        return 1
    room = p.target.l2_bytes // 4 // (p.depth * width * p.dtype.itemsize)
    return max(1, min(room, num_tiles // RUNS))


def _copy_of_b(p: Product, vectors: int) -> Copied:
    """Return whether B is copied into panels: it is not contiguous along the vectors, or is read often and
    lies scattered.
    """
    operand = p.operand(p.roles.b)
    if operand is None or not p.panels(p.roles.b):
        return ""  # a constant, or windows of a tile's rows
    if p.step(p.roles.b, p.roles.vector) != 1:
        if p.roles.vector.extent <= 1:
            return ""
        return "inside" if _copied_by_runs(p, vectors) else "before"
    far = _step_along_reduction(p, p.roles.b)
    used = p.used(p.roles.b, (*p.roles.outer, *p.roles.reduce))
    read = math.prod(v.extent for v in used) * p.roles.vector.extent
    if far <= vectors * p.lanes or p.depth * far * p.dtype.itemsize <= p.target.l1d_bytes:
        return ""
    if read > operand.buffer.size:
        return ""  # windows overlap: a copy would hold elements several times
    near = p.depth * far * p.dtype.itemsize <= p.target.l2_bytes // 4
    return "before" if p.frozen[p.roles.b] or (p.m.extent >= MANY_ROWS and not near) else ""


def _copied_by_runs(p: Product, vectors: int) -> bool:
    """Return whether the tiles of one run alone read a panel of B: copied there, it never leaves the second
    cache, where a copy made before would move from the cache of one thread to those of others.

    All rows of A are one run then, so there must be panels, or matrices of a batch, for all threads.
    """
    operand, used = p.operand(p.roles.b), p.used(p.roles.b, (*p.roles.outer, *p.roles.reduce))
    read = math.prod(v.extent for v in used) * p.roles.vector.extent
    if p.frozen[p.roles.b] or operand is None or read > operand.buffer.size:
        return False  # windows overlap
    if not set(p.roles.outer) <= set(used):
        return False
    width = vectors * p.lanes
    panels = -(-p.roles.vector.extent // width)
    if p.m.extent < MANY_ROWS:
        return p.num_outer * panels >= FEW_PANELS
    return p.num_outer >= RUNS and p.depth * panels * width * p.dtype.itemsize <= p.target.l2_bytes // 4


def _thin(p: Product, width: int) -> bool:
    """Return whether few rows read a large B: then its rows are read side by side, each once and in order."""
    far = _step_along_reduction(p, p.roles.b)
    return (
        p.m.extent <= FEW_ROWS
        and len(p.roles.reduce) == 1
        and p.step(p.roles.b, p.roles.vector) == 1
        and far > width
        and p.depth > 2 * THIN_BLOCK
        and p.depth * p.roles.vector.extent * p.dtype.itemsize > p.target.l1d_bytes
    )


def _long_row(p: Product) -> int:
    """Return the vectors of a tile of one row: many, and such that two threads have about as many each."""
    columns = p.roles.vector.extent
    few = [v for _, v in register_tiles(1, columns // FEW_RUNS, p.target, p.lanes)]
    long = [v for v in few if v in LONG_ROWS] or [max(few)]
    return min(long, key=lambda v: -(-columns // (2 * v * p.lanes)) * v)


def _thin_tile(p: Product) -> tuple[int, int]:
    """Return rows and vectors of the tiles of few rows. Each takes whole lines of B, whose rows lie far apart
    and drive each other out of the first cache: the other half of a line would have to come again.
    """
    rows, columns = p.m.extent, p.roles.vector.extent
    line = p.target.cacheline_bytes // (p.lanes * p.dtype.itemsize)  # of so many vectors
    whole = [t for t in register_tiles(rows, columns, p.target, p.lanes) if line > 1 and not t[1] % line]

    def cycles(tile: tuple[int, int]) -> float:
        height, vectors = tile
        pieces = [height] * (rows // height) + [rows % height] * (rows % height > 0)
        return sum(tile_cycles(r, columns, r, vectors, p.lanes) for r in pieces)

    return min(whole, key=cycles, default=choose_tile(rows, columns, p.lanes, p.target))


def _thin_tiling(p: Product) -> Tiling:
    """Return the tiles of few rows: a run of them reads long pieces of some rows of B."""
    rows, vectors = (1, _long_row(p)) if p.m.extent == 1 else _thin_tile(p)
    width = vectors * p.lanes
    panels = max(1, -(-p.roles.vector.extent // width))
    wide = fair_size(panels, min(-(-THIN_COLUMNS // width), -(-panels * p.num_outer // FEW_RUNS)))
    depth = max(THIN_BLOCK, THIN_PANEL // (width * p.dtype.itemsize))
    return Tiling(rows, vectors, depth, -(-p.m.extent // rows), wide)
