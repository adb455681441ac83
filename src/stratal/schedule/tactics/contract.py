"""Sums of products of two operands in register tiles: matrix products, batched or not, and convolutions in
all three of their roles.

One operand is read in vectors along an output axis (`B`), the other one element at a time and broadcast
(`A`). A register tile of `rows` x `vectors` accumulators stays in registers over a block of the reduction;
tiles that share a panel of B run one after another. What follows the product on the same elements runs on the
finished tile. The loops around a tile are those of Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from stratal.base.dtypes import bool_
from stratal.base.log import decide
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var, const, guard
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import Stmt, Store, substitute_stmt
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import (
    cut_tails,
    distribute,
    distribute_runs,
    finished,
    nest,
    reduction_order,
)
from stratal.schedule.tactics.product import Product, step_of

KIND = "contract"

UNROLL_K = 4
PANELS_AT_ONCE = 16  # written side by side while packing what is contiguous across them
BLOCK = 512  # products summed in one run
MANY_ROWS = 512  # rows of A that repay copying all of B before
FEW_ROWS = 16  # rows of A that do not repay copying B at all
FAR_BYTES = 1024  # between lines that then crowd into few sets of the first cache
COPIED_BLOCK = 256  # rows of B that are copied at a time
THIN_BLOCK = 32  # rows of B that few rows of A read side by side
THIN_COLUMNS = 1024
RUN = 16  # tiles of rows that share a block of B
RUNS = 16  # that there should be, for all threads to share
FEW_RUNS = 4  # where longer ones read memory better
DIRECT_WORK = 6  # epilogues up to this many operations are repeated in the unrolled tile
PACK_CYCLES = (1.0, 3.0)  # an element copied, along its lines and across them

Copied = Literal["", "before", "inside"]
COPIES: Final[tuple[Copied, ...]] = ("", "before", "inside")  # by number, as parameters name them
DEPTHS: Final = (128, 256, 512, 1024)  # blocks of the reduction that measurements try
RUN_LENGTHS: Final = (1, 4, 16)
FAIR: Final = 1.3  # a register tile that takes more of the best one's cycles is not tried


class Tiling(NamedTuple):
    """How a product is cut.

    `depth` products are summed in registers before they are added up in memory (0: all of them); `run_rows`
    x `run_columns` tiles share a block of either operand.
    """

    rows: int
    vectors: int
    depth: int = 0
    run_rows: int = 1
    run_columns: int = 1
    copy_a: Copied = ""
    copy_b: Copied = ""


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the product in tiles that suit its sizes."""
    product = Product(x, target)
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
    numbers = {**t._asdict(), "copy_a": COPIES.index(t.copy_a), "copy_b": COPIES.index(t.copy_b)}
    return Candidate(
        "tiles",
        cycles_of(p, t, copying) / (p.target.ghz * 1e9),
        partial(schedule_contract, target=p.target, tiling=t),
        tuple(numbers.items()),
        p.operations,
    )


def schedule_contract(x: GroupExpressions, target: Target, tiling: Tiling) -> Tactic:
    """Return the scheduled nest of a contraction and its epilogue, with pairs that may share memory."""
    product = Product(x, target)
    tiles = TiledProduct(product, tiling)
    schedule = tiles.schedule()
    schedule.steps.append(reduction_order(product.roles.reduce))
    return finished(schedule, "contract", product.in_place, tiles.packs)


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
    return [
        (rows, vectors)
        for vectors in (1, 2, 3, 4, 6)
        for rows in range(1, min(16, num_rows) + 1)
        if rows * vectors + vectors + 1 <= target.num_vector_registers and (vectors - 1) * lanes < num_columns
    ] or [(1, 1)]


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
    tiles *= p.widening([k for k, c in ((p.roles.a, t.copy_a), (p.roles.b, t.copy_b)) if c])
    return p.num_outer * p.depth * tiles + (
        _copy_cycles(p, t.copy_a, t.copy_b) if copying is None else copying
    )


def _copy_cycles(p: Product, copy_a: Copied, copy_b: Copied) -> float:
    cycles = 0.0
    for k, copied, along in ((p.roles.b, copy_b, p.roles.vector), (p.roles.a, copy_a, p.m)):
        if copied:
            size = math.prod(v.extent for v in p.used(k, (*p.roles.outer, *p.roles.reduce))) * along.extent
            cycles += size * PACK_CYCLES[p.step(k, along) != 1]
    return cycles


def choose_tiling(p: Product) -> Tiling:
    """Choose tiles, blocks and copies from the sizes and strides of a product."""
    rows, vectors = choose_tile(p.m.extent, p.roles.vector.extent, p.lanes, p.target)
    width, size = vectors * p.lanes, p.dtype.itemsize
    num_rows = max(1, -(-p.m.extent // rows))
    num_columns = max(1, -(-p.roles.vector.extent // width) * p.num_outer)
    copy_a: Copied = "before" if _scattered_rows(p, rows, vectors) else ""
    copy_b = _copy_of_b(p, vectors)
    if not copy_b and _thin(p, width):
        wide = max(1, min(THIN_COLUMNS // width, num_columns // FEW_RUNS))
        return Tiling(rows, vectors, THIN_BLOCK, num_rows, wide, copy_a, copy_b)
    if copy_b == "inside":  # lines of several panels are read at once
        depth = COPIED_BLOCK if p.depth > 2 * COPIED_BLOCK else 0
        room = p.target.l2_bytes // 4 // ((depth or p.depth) * width * size)
        wide = max(1, min(room, num_columns // RUNS))
        runs = max(1, -(-FEW_RUNS // -(-num_columns // wide)))
        return Tiling(rows, vectors, depth, -(-num_rows // runs), wide, copy_a, copy_b)
    panel = min(BLOCK, max(256, p.target.l2_bytes // 4 // (width * size)))
    if p.depth <= 2 * panel:
        return Tiling(rows, vectors, copy_a=copy_a, copy_b=copy_b)
    run = max(1, min(RUN, -(-num_rows // max(1, -(-RUNS // num_columns)))))
    return Tiling(rows, vectors, panel, run, copy_a=copy_a, copy_b=copy_b)


def _scattered_rows(p: Product, rows: int, vectors: int) -> bool:
    """Return whether A is better copied tile by tile: its rows are contiguous, but each step of the
    reduction is far away.
    """
    if p.operand(p.roles.a) is None or not p.roles.reduce or not p.roles.rows:
        return False
    far = min(abs(p.step(p.roles.a, v) or 0) for v in p.roles.reduce) >= 2 * p.lanes
    if not far or p.roles.vector.extent < 2 * p.lanes or p.m.extent <= rows:
        return False
    tile, row = Var("t", -(-p.m.extent // rows)), Var("r", rows)
    (term,) = substitute([p.terms[p.roles.a]], {p.m: index.add(index.mul(tile, rows), row)})
    return step_of(term, row) == 1


def _copy_of_b(p: Product, vectors: int) -> Copied:
    """Return whether B is copied into panels: it is not contiguous along the vectors, or is read often and
    lies scattered.
    """
    operand = p.operand(p.roles.b)
    if operand is None:
        return ""  # a constant
    if p.step(p.roles.b, p.roles.vector) != 1:
        return "before" if p.roles.vector.extent > 1 else ""
    far = max((abs(p.step(p.roles.b, v) or 0) for v in p.roles.reduce), default=0)
    used = p.used(p.roles.b, (*p.roles.outer, *p.roles.reduce))
    read = math.prod(v.extent for v in used) * p.roles.vector.extent
    near = far <= vectors * p.lanes or p.depth * far * 4 <= p.target.l1d_bytes
    if near or p.m.extent <= FEW_ROWS:
        return ""
    if read > operand.buffer.size:  # windows overlap: a copy of all would hold elements several times
        return "inside" if far * p.dtype.itemsize >= FAR_BYTES else ""
    return "before" if p.m.extent >= MANY_ROWS else "inside"


def _thin(p: Product, width: int) -> bool:
    """Return whether few rows read a large B: then its rows are read side by side, each once and in order."""
    far = max((abs(p.step(p.roles.b, v) or 0) for v in p.roles.reduce), default=0)
    return (
        p.m.extent <= FEW_ROWS
        and len(p.roles.reduce) == 1
        and p.step(p.roles.b, p.roles.vector) == 1
        and far > width
        and p.depth > 2 * THIN_BLOCK
        and p.depth * p.roles.vector.extent * p.dtype.itemsize > p.target.l1d_bytes
    )


# -- building ------------------------------------------------------------------------------------------------
class Part(NamedTuple):
    """One stage of the nest: loops over runs of tiles, blocks of the reduction, the tiles of a run."""

    nest: Schedule
    runs: list[Var]
    blocks: list[Var]
    tiles: list[Var]


class Copy(NamedTuple):
    """A panel of an operand that the kernel copies for itself: `buffer[at] = term`."""

    buffer: Buffer
    at: tuple[Expr, ...]
    term: Expr
    along: Var
    width: int


class TiledProduct:
    """Builds the nest of one product for a tiling."""

    def __init__(self, p: Product, t: Tiling) -> None:
        self.p = p
        self.t = t
        self.width = t.vectors * p.lanes
        self.packs: list[Pack] = []
        self.steps: list[str] = []
        self.inside: Expr = const(True, bool_)  # where a step of the last, shorter block still counts
        self.by_rows = not t.depth and t.copy_b != "inside" and self._b_stays()
        vector = p.roles.vector
        self.loops = [*p.roles.outer, *((p.m, vector) if self.by_rows else (vector, p.m))]
        self.terms = list(p.terms)
        self.copies: list[Copy] = []  # made inside
        self._copy(p.roles.b, p.roles.vector, self.width, t.copy_b, "second operand")
        self._copy(p.roles.a, p.m, t.rows, t.copy_a, "first operand")

    def _b_stays(self) -> bool:
        """Return whether neighbouring tiles should follow C's rows: all of B stays in the cache."""
        p = self.p
        return p.depth * p.roles.vector.extent * p.dtype.itemsize <= p.target.l2_bytes // 4

    # -- copies of operands ----------------------------------------------------------------------------------
    def _copy(self, k: int, along: Var, width: int, when: Copied, name: str) -> None:
        """Copy an operand: `width` steps of `along` lie together, then the reduction; read that."""
        if not when:
            return
        p, width = self.p, min(width, along.extent)
        decide(
            "pack", f"{name} of {p.anchor.op.name} {p.anchor.type}",
            f"copied into panels of {width}" + (", block by block" if when == "inside" else ""),
            "it lies scattered along the vectors or the reduction", where=p.anchor.where,
        )  # fmt: skip
        outer, inner = p.used(k, p.roles.outer), p.used(k, p.roles.reduce)
        panels = -(-along.extent // width)
        shape = (*(v.extent for v in outer), panels, *(v.extent for v in inner), width)
        name = f"panel{len(self.copies)}" if when == "inside" else f"packed{len(self.packs)}"
        copy = Buffer(name, self.terms[k].dtype, shape)
        at = (*outer, index.floordiv(along, width), *inner, index.mod(along, width))
        if when == "inside":
            self.copies.append(Copy(copy, at, self.terms[k], along, width))
        else:
            self.packs.append(self._pack(copy, self.terms[k], outer, inner, along, width))
        self.terms[k] = copy[at]

    def _pack(
        self, copy: Buffer, term: Expr, outer: Sequence[Var], inner: Sequence[Var], along: Var, width: int
    ) -> Pack:
        """Return a kernel of its own that fills a copy."""
        panels = -(-along.extent // width)
        panel, column = Var("p", panels), Var("c", width)
        position = index.add(index.mul(panel, width), column)
        (value,) = substitute((term,), {along: position})
        near = step_of(value, column) == 1
        value = guard(index.less(position, along.extent), value, const(0, term.dtype))
        s = Schedule(
            nest([*outer, panel, *inner, column], Store(copy, (*outer, panel, *inner, column), value))
        )
        many, lane = s.split(column, self.p.lanes)
        s.vectorize(lane)
        loops = [*outer, panel]
        if not near:
            s.reorder(
                *outer, panel, many, *inner
            )  # stay in the same lines from one step of the reduction to the next
        else:
            block, one = s.split(
                panel, min(PANELS_AT_ONCE, -(-panels // 4))
            )  # read whole lines, and each page once
            s.reorder(*outer, block, *inner, one, many)
            loops = [*outer, block]
        distribute(s, loops, max(1.0, 2.0 * copy.size / math.prod(v.extent for v in loops)))
        return Pack(copy, s.body, tuple(s.steps))

    # -- the nest --------------------------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        p = self.p
        blocks, inner = self._split_reduction() if self.t.depth else ([], list(p.roles.reduce))
        axes = self._stored()
        here: tuple[Expr, ...] = tuple(axes)
        there: tuple[Expr, ...] = (*blocks, *axes)
        acc = Buffer("acc", p.dtype, tuple(v.extent for v in (*blocks, *axes)), space="register")
        direct = not blocks and p.epilogue_work() <= DIRECT_WORK and len(p.x.results) <= 2
        tile = acc if direct else Buffer("tile", p.dtype, tuple(v.extent for v in axes), space="scratch")
        results = p.results(tile[here])
        first = [] if not blocks else [self._part(Store(tile, here, p.zero))]
        block = [self._copying(copy, blocks, inner) for copy in self.copies]
        inmost = [self._part(Store(acc, there, p.zero), blocks, unroll=True)]
        if all(v.extent for v in p.roles.reduce):
            inmost.append(self._part(self._update(acc, there), blocks, inner, unroll=True))
        if blocks:
            (added,) = p.combiner.merge((tile[here],), (acc[there],))
            inmost.append(self._part(Store(tile, here, added), blocks, unroll=True))
        elif not direct:
            inmost.append(self._part(Store(tile, here, acc[here]), unroll=True))
        last = [self._part(results, unroll=direct)]
        temporaries = [acc] if direct else [acc, tile]
        return self._joined(first, block, inmost, last, temporaries)

    def _joined(
        self,
        first: list[Part],
        block: list[Part],
        inmost: list[Part],
        last: list[Part],
        temporaries: list[Buffer],
    ) -> Schedule:
        """Run the stages together: each run of tiles, each block of it, each tile."""
        parts = [*first, *block, *inmost, *last]
        blocked = bool(first)
        s = Schedule(sequence(*(part.nest.body for part in parts)), temporaries)
        s.steps += self.steps
        s.merge_nests([part.runs for part in parts])
        s.merge_nests([part.blocks for part in (*block, *inmost)])
        tiles = [part.tiles for part in (inmost if blocked else [*inmost, *last])]
        s.merge_nests(tiles)
        runs, blocks = parts[0].runs, (block or inmost)[0].blocks
        around = [*runs, *blocks, *tiles[0]]
        s.shrink(temporaries[0], around, "register")
        for buffer in temporaries[1:]:
            s.shrink(buffer, runs if blocked else [*runs, *tiles[0]], "scratch")
        for copy in self.copies:
            s.local.append(copy.buffer)
            s.shrink(copy.buffer, [*runs, *blocks], "scratch")
        if any(var.extent == 0 for var in runs):
            return s
        for var in blocks:
            s.branch(var, below=blocks[-1])
        for var in reversed(runs):
            s.branch(var, below=runs[-1])
        cut_tails(s)
        self._distribute(s, runs)
        return s

    def _stored(self) -> list[Var]:
        """Return the axes of a tile in memory: vectors lie along the last."""
        vector = self.p.roles.vector
        return [*(v for v in self.loops if v is not vector), vector]

    def _update(self, acc: Buffer, at: tuple[Expr, ...]) -> Stmt:
        """Add one product to its accumulator, where the last block reaches that far."""
        new = self.p.combiner.combine((acc[at],), self.terms)[0]
        return guard_leaves(Store(acc, at, new), self.inside)

    def _split_reduction(self) -> tuple[list[Var], list[Var]]:
        """Divide the reduction loops into those over blocks and those within one.

        A loop in between is split. Two levels of summation: the error grows with the longer of the two, not
        with the whole depth (Higham, 1993).
        """
        inner: list[Var] = []
        reduce, room = self.p.roles.reduce, self.t.depth
        for k in reversed(range(len(reduce))):
            v = reduce[k]
            if v.extent <= room:
                inner.insert(0, v)
                room //= v.extent
                continue
            blocks = list(reduce[:k])
            factor = next(f for f in range(min(room, v.extent), 0, -1) if v.extent % f == 0)
            if not inner and factor < self.t.depth // 8:
                factor = room  # the last block is shorter
            if factor == 1:
                return [*blocks, v], inner
            o, i = Var(f"{v.name}b", -(-v.extent // factor)), Var(v.name, factor)
            self._in_blocks(v, index.add(index.mul(o, factor), i))
            return [*blocks, o], [i, *inner]
        return [], inner

    def _in_blocks(self, v: Var, position: Expr) -> None:
        """Read step `v` of the reduction at a position made of a block and a step in it."""
        self.inside = index.less(position, v.extent)
        self.terms = substitute(self.terms, {v: position})
        self.copies = [
            Copy(c.buffer, tuple(at), guard(self.inside, term, const(0, term.dtype)), c.along, c.width)
            for c in self.copies
            for *at, term in [substitute((*c.at, c.term), {v: position})]
        ]

    def _copying(self, c: Copy, blocks: Sequence[Var], inner: Sequence[Var]) -> Part:
        """Return the stage that copies a panel of an operand, zero beyond its end."""
        p, t = self.p, self.t
        along_rows = c.along is p.m
        tiles, run = -(-c.along.extent // c.width), t.run_rows if along_rows else t.run_columns
        others = -(-p.roles.vector.extent // (self.width * t.run_columns)) if along_rows else (
            -(-p.m.extent // (t.rows * t.run_rows))
        )  # fmt: skip
        across = Var("across", others)  # runs of the other axis: each makes the panel it reads
        padded = Var(c.along.name, tiles * c.width)
        used = [v for v in inner if any(index.depends(e, v) for e in c.at)]
        fresh: dict[Var, Expr] = {v: Var(v.name, v.extent) for v in (*p.roles.outer, *blocks, *used)}
        *at, value = substitute((*c.at, c.term), {**fresh, c.along: padded})
        value = guard(index.less(padded, c.along.extent), value, const(0, value.dtype))
        outer, again, steps = ([fresh[v] for v in vs] for vs in (p.roles.outer, blocks, used))
        part = Schedule(nest([*outer, padded, across, *again, *steps], Store(c.buffer, at, value)))  # type: ignore[list-item]
        number, one = part.split(padded, c.width)
        runs, tile = part.split(number, run)
        around = [*outer, across, runs] if along_rows else [*outer, runs, across]
        part.reorder(*around, *again, *steps, tile, one)  # type: ignore[arg-type]
        _, lane = part.split(one, p.lanes)
        part.vectorize(lane)
        return Part(part, around, again, [])  # type: ignore[arg-type]

    def _part(
        self,
        stmt: Stmt,
        blocks: Sequence[Var] = (),
        reduce: Sequence[Var] = (),
        *,
        unroll: bool = False,
    ) -> Part:
        """Return one stage split into runs of tiles."""
        fresh = {v: Var(v.name, v.extent) for v in (*self.loops, *blocks)}
        around = [fresh[v] for v in self.loops]
        again = [fresh[v] for v in blocks]
        part = Schedule(nest([*around, *again, *reduce], substitute_stmt(stmt, dict(fresh))))
        runs, tiles, row, column = self._tiled(part, around, fresh)
        part.reorder(*runs, *again, *tiles, *reduce, row, column)
        if unroll:
            many, column = part.split(column, self.p.lanes)
            part.unroll(row)
            part.unroll(many)
        part.vectorize(column)  # a tile in memory takes its row as one wide vector: independent chains
        if reduce:
            self._unroll_reduction(part, list(reduce))
            self.steps = part.steps
        return Part(part, runs, again, tiles)

    def _tiled(
        self, part: Schedule, around: Sequence[Var], fresh: dict[Var, Var]
    ) -> tuple[list[Var], list[Var], Var, Var]:
        """Split rows and columns into runs, tiles and what a tile holds."""
        m, n = fresh[self.p.m], fresh[self.p.roles.vector]
        no, ni = part.split(n, self.width)
        mo, mi = part.split(m, self.t.rows)
        nb, nt = part.split(no, self.t.run_columns)
        mb, mt = part.split(mo, self.t.run_rows)
        outer = [v for v in around if v is not n and v is not m]
        if self.by_rows:
            return [*outer, mb, nb], [mt, nt], mi, ni
        return [*outer, nb, mb], [nt, mt], mi, ni

    def _unroll_reduction(self, part: Schedule, reduce: list[Var]) -> None:
        """Collapse reduction loops that are contiguous in both operands, and unroll the innermost."""
        k = reduce.pop()
        while reduce:
            fused = part.try_fuse(reduce[-1], k)
            if fused is None:
                break
            k = fused
            reduce.pop()
        outer, inner = part.split(k, UNROLL_K)
        part.unroll(inner)
        if k.extent % UNROLL_K:
            part.peel(outer)

    def _distribute(self, s: Schedule, runs: list[Var]) -> None:
        """Make runs of tiles the chunks: neighbours share their panel of B."""
        p, t = self.p, self.t
        per_run = 2.0 * p.depth * t.rows * self.width / 8 * t.run_rows * t.run_columns
        distribute_runs(s, runs, per_run)
