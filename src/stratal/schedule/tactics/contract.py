"""Sums of products of two operands: matrix products, batched or not, and convolutions in any of their three roles.

One operand is read in vectors along an output axis (`B`), the other one element at a time and broadcast (`A`). A register tile of
`rows` x `vectors` accumulators stays in registers over the whole reduction; tiles that share a panel of B run one after another.
What follows the product on the same elements runs on the finished tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from stratal.base.dtypes import DType
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.compute import Compute, axes as fresh_axes
from stratal.loops.expr import Buffer, Expr, Load, Var, cast, const, guard, loads, substitute, transform
from stratal.loops.lowering import strip_cast
from stratal.loops.stmt import Stmt, Store, loaded, stored, substitute_stmt
from stratal.schedule.expressions import GroupExpressions, work
from stratal.schedule.primitives import Schedule, sequence
from stratal.schedule.result import Pack, Tactic
from stratal.schedule.tactics.common import (
    CHUNK_WORK,
    MAX_CHUNKS,
    distribute,
    finished,
    in_place_pairs,
    nest,
)

UNROLL_K = 4
FAR = 1024  # elements between rows of B beyond which they crowd into few cache sets and pages
DIRECT_WORK = 6  # epilogues up to this many operations are repeated in the unrolled tile


class Roles(NamedTuple):
    """What each loop does. `vector` is the axis in vectors; `a` and `b` are positions of the operands among the terms."""

    a: int
    b: int
    vector: Var
    rows: tuple[Var, ...]  # axes of A alone: the tile's rows
    outer: tuple[Var, ...]  # batch axes, and further axes of B
    reduce: tuple[Var, ...]


class Tile(NamedTuple):
    rows: int
    vectors: int


def choose_roles(terms: Sequence[Expr], axes: Sequence[Var], reduce: Sequence[Var], out: Buffer) -> Roles:
    """Choose the vector axis: contiguous in one operand and in the result if there is one, else in the operand."""
    loads = [strip_cast(t) for t in terms]
    offsets = [index.offset(e) for e in loads if isinstance(e, Load)]
    best: tuple[tuple[int, ...], int, Var] | None = None
    for v, step_out in zip(axes, out.strides, strict=True):
        mine = [index.depends(o, v) for o in offsets]
        if sum(mine) != 1:
            continue
        b = mine.index(True)
        contiguous = index.stride_of(offsets[b], v) == 1
        score = (int(contiguous and v.extent > 1), int(step_out == 1), min(v.extent, 64), b)
        if best is None or score > best[0]:
            best = (score, b, v)
    if best is None:
        v = axes[-1] if axes else Var("one", 1)
        best = ((), 1, v)
    _, b, vector = best
    a = 1 - b
    rows = [v for v in axes if v is not vector and not index.depends(offsets[b], v)]
    outer = [v for v in axes if v is not vector and v not in rows]
    steps = {v: abs(index.stride_of(offsets[a], v) or 0) or (1 << 40) for v in reduce}
    return Roles(a, b, vector, tuple(rows), tuple(outer), tuple(sorted(reduce, key=lambda v: -steps[v])))


def choose_tile(num_rows: int, num_columns: int, lanes: int, target: Target) -> Tile:
    """Choose the register tile with the least estimated time per element of the reduction.

    A tile needs rows x vectors accumulators, its vectors of B and one broadcast of A in registers. Two fused multiply-adds and two
    loads start each cycle; fewer than eight accumulators cannot hide the latency of a multiply-add.
    """
    best, cost = Tile(1, 1), math.inf
    for vectors in range(1, 5):
        for rows in range(1, 17):
            if rows * vectors + vectors + 1 > target.num_vector_registers or rows > num_rows:
                continue
            if (vectors - 1) * lanes >= num_columns:
                continue
            tiles = -(-num_rows // rows) * -(-num_columns // (vectors * lanes))
            cycles = max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.25
            if tiles * cycles < cost * 0.999:
                best, cost = Tile(rows, vectors), tiles * cycles
    return best


def schedule_contract(x: GroupExpressions, target: Target) -> Tactic:
    """Return the scheduled nest of a contraction and its epilogue, its name, and pairs that may share memory."""
    nest_ = ContractNest(x, target)
    schedule = nest_.schedule()
    return finished(schedule, "contract", nest_.in_place, nest_.packs)


class ContractNest:
    """Builds the nest of one contraction group."""

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.target = target
        self.anchor = x.group.members[0]
        compute = x.compute(self.anchor)
        self.axes = fresh_axes((v.extent for v in compute.axes), "i")
        reduce = fresh_axes((v.extent for v in compute.reduce), "k")
        terms = x.terms(self.anchor, tuple(self.axes), tuple(reduce))
        out = x.buffer(x.results[0])
        self.roles = choose_roles(terms, self.axes, reduce, out)
        self.compute: Compute = compute
        self.dtype: DType = compute.state_dtypes[0]
        self.lanes = max(1, target.vector_bits // 8 // max(4, self.dtype.itemsize))
        self.m = Var("m", math.prod(v.extent for v in self.roles.rows))
        rows = index.unflatten(self.m, tuple(v.extent for v in self.roles.rows))
        self.row_index: dict[Var, Expr] = dict(zip(self.roles.rows, rows, strict=True))
        self.where = tuple(substitute(self.axes, self.row_index))
        self.tile = choose_tile(self.m.extent, self.roles.vector.extent, self.lanes, target)
        self.packs: list[Pack] = []
        self.in_place: list[tuple[Buffer, Buffer]] = []
        if self._wants_packing(terms[self.roles.b]):
            terms[self.roles.b] = self._pack(terms[self.roles.b])
        self.terms = substitute(terms, self.row_index)

    def _wants_packing(self, term: Expr) -> bool:
        """Return whether B is better copied into panels: it is not contiguous along the vectors, or its rows lie far apart."""
        operand = strip_cast(term)
        if not isinstance(operand, Load):
            return True
        offset = index.offset(operand)
        if index.stride_of(offset, self.roles.vector) != 1:
            return self.roles.vector.extent > 1
        far = max((abs(index.stride_of(offset, v) or 0) for v in self.roles.reduce), default=0)
        return far >= FAR and self.m.extent >= 8 * self.tile.rows

    def _pack(self, term: Expr) -> Expr:
        """Copy B into panels as wide as a tile, each contiguous over the whole reduction; return the term that reads them."""
        vector = self.roles.vector
        width = min(self.tile.vectors * self.lanes, vector.extent)
        used = [v for v in (*self.roles.outer, *self.roles.reduce) if index.depends(term, v)]
        outer = [v for v in used if v in self.roles.outer]
        inner = [v for v in used if v in self.roles.reduce]
        panels = -(-vector.extent // width)
        shape = (*(v.extent for v in outer), panels, *(v.extent for v in inner), width)
        workspace = Buffer("packed", term.dtype, shape)
        panel, column = Var("p", panels), Var("c", width)
        position = index.add(index.mul(panel, width), column)
        (value,) = substitute((term,), {vector: position})
        value = guard(index.less(position, vector.extent), value, const(0, term.dtype))
        loops = [*outer, panel, *inner]
        body = Store(workspace, (*outer, panel, *inner, column), value)
        s = Schedule(nest([*loops, column], body))
        many, lane = s.split(column, self.lanes)
        s.vectorize(lane)
        s.reorder(*outer, panel, many, *inner)
        total = math.prod(shape)
        distribute(s, [*outer, panel], max(1.0, 2.0 * total / math.prod(v.extent for v in [*outer, panel])))
        self.packs.append(Pack(workspace, s.body, tuple(s.steps)))
        at = (*outer, index.floordiv(vector, width), *inner, index.mod(vector, width))
        return workspace[at]

    def schedule(self) -> Schedule:
        r = self.roles
        loops = [*r.outer, *((self.m, r.vector) if self._rows_first() else (r.vector, self.m))]
        shape = tuple(v.extent for v in loops)
        acc = Buffer("acc", self.dtype, shape, space="register")
        direct = self._direct()
        tile = acc if direct else Buffer("tile", self.dtype, shape, space="scratch")
        combiner = self.compute.combiner
        assert combiner is not None
        (zero,) = combiner.identity((self.dtype,))
        stages: list[tuple[tuple[Var, ...], Stmt]] = []
        here: tuple[Expr, ...] = tuple(loops)
        stages.append(((), Store(acc, here, zero)))
        stages.append((r.reduce, Store(acc, here, combiner.combine((acc[here],), self.terms)[0])))
        if not direct:
            stages.append(((), Store(tile, here, acc[here])))
        results = self._results(tile[here])
        self.in_place = self._in_place(results)
        stages.append(((), results))
        if any(v.extent == 0 for v in r.reduce):
            del stages[1]
        s, heads = self._tiles(stages, loops, unrolled=len(stages) - (0 if direct else 1))
        s.local = [acc] if direct else [acc, tile]
        s.shrink(acc, heads, "register")
        if not direct:
            s.shrink(tile, heads, "scratch")
        s.branch(heads[-2], below=heads[-1])
        s.branch(heads[-1])
        self._distribute(s, heads)
        return s

    def _in_place(self, results: Stmt) -> list[tuple[Buffer, Buffer]]:
        """Return what the epilogue may overwrite: values it alone reads, each element where it is written."""
        operands = {e.buffer for e in loads(self.terms)}
        reads = [b for b in loaded(results) if b not in operands]
        return in_place_pairs(results, reads, stored(results))

    def _rows_first(self) -> bool:
        """Return whether neighbouring tiles should follow C's rows: right once all of B stays in the cache."""
        depth = math.prod(v.extent for v in self.roles.reduce)
        b_bytes = depth * self.roles.vector.extent * self.dtype.itemsize
        return b_bytes <= self.target.l2_bytes // 4

    def _tiles(
        self, stages: Sequence[tuple[tuple[Var, ...], Stmt]], loops: Sequence[Var], unrolled: int
    ) -> tuple[Schedule, list[Var]]:
        """Split every stage into the same tiles and run the stages tile by tile."""
        parts: list[Stmt] = []
        heads: list[list[Var]] = []
        steps: list[str] = []
        for k, (reduce, stmt) in enumerate(stages):
            fresh = [Var(v.name, v.extent) for v in loops]
            part = Schedule(nest([*fresh, *reduce], substitute_stmt(stmt, dict(zip(loops, fresh, strict=True)))))
            place = {old: new for old, new in zip(loops, fresh, strict=True)}
            n, m = place[self.roles.vector], place[self.m]
            no, ni = part.split(n, self.tile.vectors * self.lanes)
            nj, nl = part.split(ni, self.lanes)
            mo, mi = part.split(m, self.tile.rows)
            order = [*fresh[:-2], *((mo, no) if fresh[-1] is n else (no, mo))]
            part.reorder(*order, *reduce, mi, nj, nl)
            if k < unrolled:
                part.unroll(mi)
                part.unroll(nj)
            part.vectorize(nl)
            if reduce:
                self._unroll_reduction(part, list(reduce))
                steps = part.steps
            parts.append(part.body)
            heads.append(order)
        s = Schedule(sequence(*parts))
        s.steps += steps
        return s, [s.merge(*(h[d] for h in heads)) for d in range(len(heads[0]))]

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

    def _direct(self) -> bool:
        """Return whether the epilogue is small enough to repeat for every register of the tile."""
        self.x.local[self.anchor] = Buffer("stand", self.anchor.dtype, self.anchor.aval.ints)
        self.x.forget()
        at = [self.x.at(r, self.where) for r in self.x.results]
        return work(at) <= DIRECT_WORK and len(at) <= 2

    def _results(self, total: Expr) -> Stmt:
        stand = self.x.local[self.anchor]
        value = cast(total, self.anchor.dtype)
        parts: list[Stmt] = []
        for r in self.x.results:
            (expr,) = transform(
                [self.x.at(r, self.where)], lambda e: value if isinstance(e, Load) and e.buffer is stand else None
            )
            parts.append(Store(self.x.buffer(r), self.where, expr))
        return sequence(*parts)

    def _distribute(self, s: Schedule, loops: list[Var]) -> None:
        """Make runs of tiles the chunks: neighbours share their panel of B."""
        depth = math.prod(v.extent for v in self.roles.reduce)
        tiles = math.prod(v.extent for v in loops)
        per_tile = 2.0 * depth * self.tile.rows * self.tile.vectors * self.lanes / 8
        p = loops[0]
        for v in loops[1:]:
            p = s.fuse(p, v)
        if tiles * per_tile < 2 * CHUNK_WORK:
            return
        chunks = int(min(MAX_CHUNKS, max(1, tiles * per_tile // CHUNK_WORK), tiles))
        chunk, _ = s.split(p, -(-tiles // chunks))
        s.parallel(chunk)


