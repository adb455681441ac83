"""Sums of products of two operands: matrix products, batched or not, and convolutions in any of their three
roles.

One operand is read in vectors along an output axis (`B`), the other one element at a time and broadcast
(`A`). A register tile of `rows` x `vectors` accumulators stays in registers over the whole reduction; tiles
that share a panel of B run one after another. What follows the product on the same elements runs on the
finished tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratal.base.dtypes import DType, bool_
from stratal.base.log import decide
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.compute import Compute
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Buffer, Expr, Load, Var, cast, const, guard, loads
from stratal.loops.lowering import strip_cast
from stratal.loops.rebuild import substitute, transform
from stratal.loops.stmt import Stmt, Store, loaded, stored, substitute_stmt
from stratal.schedule.expressions import GroupExpressions, work
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import (
    CHUNK_WORK,
    MAX_CHUNKS,
    cut_tails,
    distribute,
    finished,
    in_place_pairs,
    nest,
    reduction_order,
)

KIND = "contract"

UNROLL_K = 4
PANELS_AT_ONCE = 16  # written side by side while packing what is contiguous across them
BLOCK = 512  # products summed in one run
MANY_ROWS = 256  # rows of A that repay copying B
DIRECT_WORK = 6  # epilogues up to this many operations are repeated in the unrolled tile


class Roles(NamedTuple):
    """What each loop does.

    `vector` is the axis in vectors; `a` and `b` are positions of the operands among the terms.
    """

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
    """Choose the vector axis: contiguous in one operand and in the result if there is one, else in the
    operand.
    """
    operands = [strip_cast(t) for t in terms]
    offsets = [
        index.offset(e) if isinstance(e, Load) else index.as_expr(0) for e in operands
    ]  # else a constant
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

    A tile needs rows x vectors accumulators, its vectors of B and one broadcast of A in registers. Two fused
    multiply-adds and two loads start each cycle; fewer than eight accumulators cannot hide the latency of a
    multiply-add; beyond eight rows their addresses no longer fit the integer registers.
    """
    best, cost = Tile(1, 1), math.inf
    for vectors in (3, 4, 2, 1):  # of equal tiles 8 x 3: rows in eights pack well
        for rows in range(1, 17):
            if rows * vectors + vectors + 1 > target.num_vector_registers or rows > num_rows:
                continue
            if (vectors - 1) * lanes >= num_columns:
                continue
            tiles = -(-num_rows // rows) * -(-num_columns // (vectors * lanes))
            cycles = max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.25 + max(0, rows - 8) / 8
            if tiles * cycles < cost * 0.999:
                best, cost = Tile(rows, vectors), tiles * cycles
    return best


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the product as written, in register tiles."""
    anchor = x.group.members[0]
    cost = anchor.op.cost(*[i.aval for i in anchor.inputs])
    yield Candidate("tiles", target.seconds(cost), lambda x: schedule_contract(x, target))


def schedule_contract(x: GroupExpressions, target: Target) -> Tactic:
    """Return the scheduled nest of a contraction and its epilogue, its name, and pairs that may share memory.
    """
    nest_ = ContractNest(x, target)
    schedule = nest_.schedule()
    schedule.steps.append(reduction_order(nest_.roles.reduce))
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
        self.depth = math.prod(v.extent for v in reduce)
        self.packs: list[Pack] = []
        self.inside: Expr = const(True, bool_)  # where a step of the last, shorter block still counts
        self.in_place: list[tuple[Buffer, Buffer]] = []
        wants_a, wants_b = self._wants_rows(terms[self.roles.a]), self._wants_panels(terms[self.roles.b])
        if wants_b:
            terms[self.roles.b] = self._panels(terms[self.roles.b])
        self.terms = substitute(terms, self.row_index)
        if wants_a:
            self.terms[self.roles.a] = self._packed_rows(self.terms[self.roles.a])

    def _wants_panels(self, term: Expr) -> bool:
        """Return whether B is better copied into panels: it is not contiguous along the vectors, or is read
        often and lies scattered.
        """
        operand = strip_cast(term)
        if not isinstance(operand, Load):
            return False  # a constant
        offset = index.offset(operand)
        if index.stride_of(offset, self.roles.vector) != 1:
            return self.roles.vector.extent > 1
        width = self.tile.vectors * self.lanes
        far = max((abs(index.stride_of(offset, v) or 0) for v in self.roles.reduce), default=0)
        read = math.prod(v.extent for v in self._used(term)) * self.roles.vector.extent
        repeats = read > operand.buffer.size  # windows overlap: panels would hold elements several times
        return (
            far > width
            and not repeats
            and self.m.extent >= MANY_ROWS
            and self.depth * far * 4 > self.target.l1d_bytes
        )

    def _used(self, term: Expr) -> list[Var]:
        return [v for v in (*self.roles.outer, *self.roles.reduce) if index.depends(term, v)]

    def _panels(self, term: Expr) -> Expr:
        """Copy B into panels as wide as a tile, each contiguous over the whole reduction.

        Return the term that reads them.
        """
        width = min(self.tile.vectors * self.lanes, self.roles.vector.extent)
        self._note_pack(
            "second operand", width, "it is read in vectors, and lies scattered along them or the reduction"
        )
        return self._pack(term, self.roles.vector, width)

    def _note_pack(self, operand: str, width: int, why: str) -> None:
        choice = f"copied into panels of {width}"
        decide(
            "pack",
            f"{operand} of {self.anchor.op.name} {self.anchor.type}",
            choice,
            why,
            where=self.anchor.where,
        )

    def _wants_rows(self, term: Expr) -> bool:
        """Return whether A is better copied tile by tile: its rows are contiguous, but each step of the
        reduction is far away.
        """
        operand = strip_cast(term)
        if not isinstance(operand, Load) or not self.roles.reduce or not self.roles.rows:
            return False
        offset = index.offset(operand)
        far = min(abs(index.stride_of(offset, v) or 0) for v in self.roles.reduce) >= 2 * self.lanes
        if not far or self.roles.vector.extent < 2 * self.lanes or self.m.extent <= self.tile.rows:
            return False
        tile, row = Var("t", -(-self.m.extent // self.tile.rows)), Var("r", self.tile.rows)
        (offset,) = substitute((offset,), self.row_index)
        (offset,) = substitute((offset,), {self.m: index.add(index.mul(tile, self.tile.rows), row)})
        return index.stride_of(offset, row) == 1

    def _packed_rows(self, term: Expr) -> Expr:
        width = min(self.tile.rows, self.m.extent)
        self._note_pack("first operand", width, "each step of the reduction would be far from the last")
        return self._pack(term, self.m, width)

    def _pack(self, term: Expr, along: Var, width: int) -> Expr:
        """Copy an operand so that `width` steps of `along` lie together, then the reduction.

        Return the term that reads the copy.
        """
        used = self._used(term)
        outer = [v for v in used if v in self.roles.outer]
        inner = [v for v in used if v in self.roles.reduce]
        panels = -(-along.extent // width)
        shape = (*(v.extent for v in outer), panels, *(v.extent for v in inner), width)
        workspace = Buffer(f"packed{len(self.packs)}", term.dtype, shape)
        panel, column = Var("p", panels), Var("c", width)
        position = index.add(index.mul(panel, width), column)
        (value,) = substitute((term,), {along: position})
        near = index.stride_of(index.offset(strip_cast(value)), column) == 1  # type: ignore[arg-type]
        value = guard(index.less(position, along.extent), value, const(0, term.dtype))
        s = Schedule(
            nest([*outer, panel, *inner, column], Store(workspace, (*outer, panel, *inner, column), value))
        )
        many, lane = s.split(column, self.lanes)
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
        distribute(s, loops, max(1.0, 2.0 * math.prod(shape) / math.prod(v.extent for v in loops)))
        self.packs.append(Pack(workspace, s.body, tuple(s.steps)))
        return workspace[(*outer, index.floordiv(along, width), *inner, index.mod(along, width))]

    def schedule(self) -> Schedule:
        r = self.roles
        loops = [*r.outer, *((self.m, r.vector) if self._rows_first() else (r.vector, self.m))]
        axes = self._stored(loops)
        shape = tuple(v.extent for v in axes)
        acc = Buffer("acc", self.dtype, shape, space="register")
        direct = self._direct()
        tile = acc if direct else Buffer("tile", self.dtype, shape, space="scratch")
        combiner = self.compute.combiner
        assert combiner is not None
        (zero,) = combiner.identity((self.dtype,))
        stages: list[tuple[tuple[Var, ...], Stmt]] = []
        here: tuple[Expr, ...] = tuple(axes)
        stages.append(((), Store(acc, here, zero)))
        stages.append((r.reduce, Store(acc, here, combiner.combine((acc[here],), self.terms)[0])))
        if not direct:
            stages.append(((), Store(tile, here, acc[here])))
        results = self._results(tile[here])
        self.in_place = self._in_place(results)
        stages.append(((), results))
        if any(v.extent == 0 for v in r.reduce):
            del stages[1]
        elif self.depth > 2 * self._block_depth():
            return self._blocked(loops, zero)
        s, heads = self._tiles(stages, loops, unrolled=len(stages) - (0 if direct else 1))
        s.local = [acc] if direct else [acc, tile]
        s.shrink(acc, heads, "register")
        if not direct:
            s.shrink(tile, heads, "scratch")
        s.branch(heads[-2], below=heads[-1])
        s.branch(heads[-1])
        self._distribute(s, heads)
        return s

    def _stored(self, loops: Sequence[Var]) -> list[Var]:
        """Return the axes of a tile in memory: vectors lie along the last."""
        return [*(v for v in loops if v is not self.roles.vector), self.roles.vector]

    def _in_place(self, results: Stmt) -> list[tuple[Buffer, Buffer]]:
        """Return what the epilogue may overwrite: values it alone reads, each element where it is written."""
        operands = {e.buffer for e in loads(self.terms)}
        reads = [b for b in loaded(results) if b not in operands]
        return in_place_pairs(results, reads, stored(results))

    def _rows_first(self) -> bool:
        """Return whether neighbouring tiles should follow C's rows: right once all of B stays in the cache.
        """
        b_bytes = self.depth * self.roles.vector.extent * self.dtype.itemsize
        return b_bytes <= self.target.l2_bytes // 4

    def _block_depth(self) -> int:
        """Return how much of the reduction one block covers: a panel of B stays in the cache, and rounding
        errors stay small.
        """
        width = self.tile.vectors * self.lanes * self.dtype.itemsize
        return min(BLOCK, max(256, self.target.l2_bytes // 4 // width))

    def _blocked(self, loops: Sequence[Var], zero: Expr) -> Schedule:
        """Sum blocks of the reduction in registers and add them up in scratch, a run of tiles at a time.

        Two levels of summation: the error grows with the longer of the two, not with the whole depth (Higham,
        1993).
        """
        combiner = self.compute.combiner
        assert combiner is not None
        blocks, inner = self._split_reduction()
        axes = self._stored(loops)
        here: tuple[Expr, ...] = tuple(axes)
        there: tuple[Expr, ...] = (*blocks, *axes)
        sums = Buffer("sums", self.dtype, tuple(v.extent for v in axes))
        acc = Buffer("acc", self.dtype, tuple(v.extent for v in (*blocks, *axes)))
        results = self._results(sums[here])
        self.in_place = self._in_place(results)
        (added,) = combiner.merge((sums[here],), (acc[there],))
        parts = [
            self._part(loops, (), (), Store(sums, here, zero)),
            self._part(loops, blocks, (), Store(acc, there, zero), unroll=True),
            self._part(loops, blocks, inner, self._update(acc, there), unroll=True),
            self._part(loops, blocks, (), Store(sums, here, added), unroll=True),
            self._part(loops, (), (), results),
        ]
        s = Schedule(sequence(*(p.body for p, _, _, _ in parts)), [acc, sums])
        s.steps += [*parts[2][0].steps]
        heads, blocked, tiles = parts[1][1], parts[1][2], parts[1][3]
        s.merge_nests([[*h, *k, *t] for _, h, k, t in parts[1:4]])
        s.shrink(acc, [*heads, *blocked, *tiles], "register")
        outer = [parts[0][1], heads, parts[4][1]]
        s.merge_nests(outer)
        s.shrink(sums, outer[0], "scratch")
        for var in blocked:
            s.branch(var, below=tiles[-1])
        for var in reversed(outer[0]):
            s.branch(var, below=outer[0][-1])
        cut_tails(s)
        self._distribute(s, outer[0], blocks_of_tiles=True)
        return s

    def _update(self, acc: Buffer, at: tuple[Expr, ...]) -> Stmt:
        """Add one product to its accumulator, where the last block reaches that far."""
        combiner = self.compute.combiner
        assert combiner is not None
        return guard_leaves(Store(acc, at, combiner.combine((acc[at],), self.terms)[0]), self.inside)

    def _split_reduction(self) -> tuple[list[Var], list[Var]]:
        """Divide the reduction loops into those over blocks and those within one.

        A loop in between is split.
        """
        inner: list[Var] = []
        room = self._block_depth()
        for k in reversed(range(len(self.roles.reduce))):
            v = self.roles.reduce[k]
            if v.extent <= room:
                inner.insert(0, v)
                room //= v.extent
                continue
            blocks = list(self.roles.reduce[:k])
            factor = next(f for f in range(min(room, v.extent), 0, -1) if v.extent % f == 0)
            if not inner and factor < self._block_depth() // 8:
                factor = room  # the last block is shorter
            if factor > 1:
                o, i = Var(f"{v.name}b", -(-v.extent // factor)), Var(v.name, factor)
                position = index.add(index.mul(o, factor), i)
                self.inside = index.less(position, v.extent)
                self.terms = substitute(self.terms, {v: position})
                return [*blocks, o], [i, *inner]
            return [*blocks, v], inner
        return [], inner

    def _part(
        self,
        loops: Sequence[Var],
        blocks: Sequence[Var],
        reduce: Sequence[Var],
        stmt: Stmt,
        *,
        unroll: bool = False,
    ) -> tuple[Schedule, list[Var], list[Var], list[Var]]:
        """Return one stage split into runs of tiles: its nest, the loops over runs, over blocks, and over
        tiles of a run.
        """
        fresh = [Var(v.name, v.extent) for v in loops]
        again = [Var(v.name, v.extent) for v in blocks]
        values: dict[Var, Expr] = {
            **dict(zip(loops, fresh, strict=True)),
            **dict(zip(blocks, again, strict=True)),
        }
        part = Schedule(nest([*fresh, *again, *reduce], substitute_stmt(stmt, values)))
        place = dict(zip(loops, fresh, strict=True))
        n, m = place[self.roles.vector], place[self.m]
        no, ni = part.split(n, self.tile.vectors * self.lanes)
        mo, mi = part.split(m, self.tile.rows)
        mb, mt = part.split(mo, self._run_length())
        outer = [v for v in fresh if v is not n and v is not m]
        part.reorder(*outer, no, mb, *again, mt, *reduce, mi, ni)
        self._vectors(part, mi, ni, in_registers=unroll)
        if reduce:
            self._unroll_reduction(part, list(reduce))
        return part, [*outer, no, mb], again, [mt]

    def _vectors(self, part: Schedule, row: Var, column: Var, *, in_registers: bool) -> None:
        """Run a row of the tile in vectors.

        A tile that is in memory takes its row as one wide vector: the registers it is split into are
        independent work, which keeps the processor busy through long chains of dependent operations.
        """
        if in_registers:
            many, column = part.split(column, self.lanes)
            part.unroll(row)
            part.unroll(many)
        part.vectorize(column)

    def _run_length(self) -> int:
        """Return how many tiles of rows share a block of B, leaving enough runs for all threads."""
        rows = -(-self.m.extent // self.tile.rows)
        columns = -(-self.roles.vector.extent // (self.tile.vectors * self.lanes))
        runs = max(1, -(-8 // (columns * math.prod(v.extent for v in self.roles.outer))))
        return max(1, min(16, -(-rows // runs)))

    def _tiles(
        self, stages: Sequence[tuple[tuple[Var, ...], Stmt]], loops: Sequence[Var], unrolled: int
    ) -> tuple[Schedule, list[Var]]:
        """Split every stage into the same tiles and run the stages tile by tile."""
        parts: list[Stmt] = []
        heads: list[list[Var]] = []
        steps: list[str] = []
        for k, (reduce, stmt) in enumerate(stages):
            fresh = [Var(v.name, v.extent) for v in loops]
            part = Schedule(
                nest([*fresh, *reduce], substitute_stmt(stmt, dict(zip(loops, fresh, strict=True))))
            )
            place = dict(zip(loops, fresh, strict=True))
            n, m = place[self.roles.vector], place[self.m]
            no, ni = part.split(n, self.tile.vectors * self.lanes)
            mo, mi = part.split(m, self.tile.rows)
            order = [*fresh[:-2], *((mo, no) if fresh[-1] is n else (no, mo))]
            part.reorder(*order, *reduce, mi, ni)
            self._vectors(part, mi, ni, in_registers=k < unrolled)
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
                [self.x.at(r, self.where)],
                lambda e: value if isinstance(e, Load) and e.buffer is stand else None,
            )
            parts.append(Store(self.x.buffer(r), self.where, expr))
        return sequence(*parts)

    def _distribute(self, s: Schedule, loops: list[Var], *, blocks_of_tiles: bool = False) -> None:
        """Make runs of tiles the chunks: neighbours share their panel of B."""
        tiles = math.prod(v.extent for v in loops)
        per_tile = 2.0 * self.depth * self.tile.rows * self.tile.vectors * self.lanes / 8
        if blocks_of_tiles:
            per_tile *= self._run_length()
        p = loops[0]
        for v in loops[1:]:
            p = s.fuse(p, v)
        if tiles * per_tile < 2 * CHUNK_WORK:
            return
        chunks = int(min(MAX_CHUNKS, max(1, tiles * per_tile // CHUNK_WORK), tiles))
        chunk, _ = s.split(p, -(-tiles // chunks))
        s.parallel(chunk)
