"""The nest of a product in register tiles, for given tiles, blocks, runs and copies.

A register tile of `rows` x `vectors` accumulators stays in registers over a block of the reduction; tiles
that share a panel of B run one after another. What follows the product on the same elements runs on the
finished tile. The loops around a tile are those of Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication", 2008.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from stratal.base.dtypes import bool_
from stratal.base.log import decide
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Guard, Var, const, guard
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import Stmt, Store, substitute_stmt
from stratal.schedule.guard_hoisting import hoist, only_where
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Pack
from stratal.schedule.tactics.common import (
    NEIGHBOURS,
    cut_tails,
    distribute,
    distribute_runs,
    nest,
    unroll_neighbours,
)
from stratal.schedule.tactics.product import Product, step_of

UNROLL_K = 4
PANELS_AT_ONCE = 16  # written side by side while packing what is contiguous across them
DIRECT_WORK = 6  # epilogues up to this many operations are repeated in the unrolled tile

FETCH_CYCLES = 1000  # a tile must take to fetch at its start what its epilogue reads and writes

Copied = Literal["", "before", "inside"]


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
        vector = p.roles.vector
        b_stays = p.depth * vector.extent * p.dtype.itemsize <= p.target.l2_bytes // 4  # in the cache
        self.by_rows = b_stays and not t.depth and t.copy_b != "inside"  # neighbouring tiles follow C's rows
        self.loops = [*p.roles.outer, *((p.m, vector) if self.by_rows else (vector, p.m))]
        self.terms = list(p.terms)
        self.copies: list[Copy] = []  # made inside
        self._copy(p.roles.b, p.roles.vector, self.width, t.copy_b, "second operand")
        self._copy(p.roles.a, p.m, t.rows, t.copy_a, "first operand")
        self.counted = p.counted
        if self.counted is not None:  # what stands under it needs no choice of its own
            self.terms = [e.value if isinstance(e, Guard) else e for e in self.terms]

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
        together = [v for v in inner if step_of(value, v) == 1]  # what lies so, at most one
        loops = [*outer, panel, *inner, column]
        inside = index.less(position, along.extent)  # nobody reads beyond the end
        s = Schedule(nest(loops, guard_leaves(Store(copy, tuple(loops), value), inside)))
        many, lane = s.split(column, self.p.lanes)
        s.vectorize(lane)
        loops = [*outer, panel]
        if not near:  # stay in the same lines from one step of the reduction to the next
            s.reorder(*outer, panel, many, *(v for v in inner if v not in together), *together)
            for v in together:
                s.unroll(many)
                unroll_neighbours(s, v)
        else:
            # read whole lines, and each page once
            block, one = s.split(panel, min(PANELS_AT_ONCE, -(-panels // 4)))
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
        fetches = [] if blocks or not self._long() else p.fetches()
        if fetches:
            inmost.append(self._part(sequence(*fetches), unroll=True))
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
        self, first: list[Part], block: list[Part], inmost: list[Part], last: list[Part],
        temporaries: list[Buffer]
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
        t = self.t  # runs of tiles are the chunks: neighbours share their panel of B
        per_run = 2.0 * self.p.depth * t.rows * self.width / 8 * t.run_rows * t.run_columns
        distribute_runs(s, runs, per_run)
        return s

    def _long(self) -> bool:
        """Return whether a tile takes long enough for memory to arrive meanwhile."""
        operations = 2 * self.p.depth * self.t.rows * self.width
        return operations / self.p.target.flops_per_cycle >= FETCH_CYCLES

    def _stored(self) -> list[Var]:
        """Return the axes of a tile in memory: vectors lie along the last."""
        vector = self.p.roles.vector
        return [*(v for v in self.loops if v is not vector), vector]

    def _update(self, acc: Buffer, at: tuple[Expr, ...]) -> Stmt:
        """Add one product to its accumulator, where the last block reaches that far."""
        new = self.p.combiner.combine((acc[at],), self.terms)[0]
        made: Stmt = Store(acc, at, new)
        if self.counted is not None:
            made = only_where([self.counted], made)
        return guard_leaves(made, self.inside)

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
        if self.counted is not None:
            (self.counted,) = substitute((self.counted,), {v: position})
        self.copies = [
            Copy(c.buffer, tuple(at), guard(self.inside, term, const(0, term.dtype)), c.along, c.width)
            for c in self.copies
            for *at, term in [substitute((*c.at, c.term), {v: position})]
        ]

    def _copying(self, c: Copy, blocks: Sequence[Var], inner: Sequence[Var]) -> Part:
        """Return the stage that copies a panel of an operand."""
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
        made = guard_leaves(Store(c.buffer, at, value), index.less(padded, c.along.extent))
        outer, again, steps = ([fresh[v] for v in vs] for vs in (p.roles.outer, blocks, used))
        part = Schedule(nest([*outer, padded, across, *again, *steps], made))  # type: ignore[list-item]
        number, one = part.split(padded, c.width)
        runs, tile = part.split(number, run)
        around = [*outer, across, runs] if along_rows else [*outer, runs, across]
        many, lane = part.split(one, p.lanes)
        together = [fresh[v] for v in used if step_of(c.term, c.along) != 1 == step_of(c.term, v)]
        if together:  # as in a copy made before
            rest = [v for v in steps if v not in together]
            part.reorder(*around, *again, tile, many, *rest, *together, lane)  # type: ignore[arg-type]
            part.unroll(many)
            for v in together:
                assert isinstance(v, Var)
                few = unroll_neighbours(part, v)
                if v.extent % NEIGHBOURS:
                    part.peel(few)  # beyond the end of a block lies the next one
        else:
            part.reorder(*around, *again, *steps, tile, many, lane)  # type: ignore[arg-type]
        part.vectorize(lane)
        return Part(part, around, again, [])  # type: ignore[arg-type]

    def _part(
        self, stmt: Stmt, blocks: Sequence[Var] = (), reduce: Sequence[Var] = (), *, unroll: bool = False
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
            if self.counted is not None:
                hoist(part, [*runs, *again, *tiles])
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
