"""Sums over runs of equal indices, in the order that sorts them.

Every chunk adds up an equal share of the sorted indices, however long the runs are, in registers along the
inner axes; what makes the summed values (a gather, a scale) is computed on the way. A run that began in an
earlier chunk goes to a row of its own, which a second small kernel adds on, chunk after chunk. Shares follow
from sizes alone, so bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from stratal.base.dtypes import int64
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Expr, Load, Var, call, cast, const, loads
from stratal.loops.stmt import For, If, Prefetch, Seq, Stmt, Store, guarded
from stratal.schedule.expressions import GroupExpressions, by_stride, work
from stratal.schedule.primitives import guard_leaves, sequence
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics.common import CHUNK_WORK, MAX_CHUNKS, lanes_of

KIND = "segments"

AHEAD = 8  # indices between a slice's fetch and its sum
REGISTERS = 0.75  # share of the registers that hold sums: of a wider slice, each chunk takes a part


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is so far."""
    yield Candidate("segments", 0.0, lambda x: SegmentNest(x, target).tactic())


class SegmentNest:
    """Builds the two kernels of one segmented sum."""

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.target = target
        (self.anchor,) = x.results
        self.values, rows, starts, *order = self.anchor.inputs
        self.rows, self.starts, self.order = x.buffer(rows), x.buffer(starts), [x.buffer(o) for o in order]
        self.out = x.buffer(self.anchor)
        self.dtype = self.anchor.dtype
        self.count, self.num_rows = self.rows.shape[0] - 2, self.out.shape[0]
        inner = fresh_axes(self.out.shape[1:])
        self.axes = by_stride(inner, Buffer("slice", self.dtype, self.out.shape[1:], self.out.strides[1:]))
        self.logical = inner
        self.size = math.prod(self.out.shape[1:])
        self.lanes = max(1, min(lanes_of(target, [self.dtype]), self.size))
        num_vectors = -(-self.size // self.lanes)
        self.blocks = -(-num_vectors // int(REGISTERS * target.num_vector_registers))
        self.vectors = -(-num_vectors // max(1, self.blocks))
        self.chunks = self._num_chunks()
        self.share = -(-self.count // self.chunks)
        self.chunks = -(-self.count // max(1, self.share)) or 1
        self.acc = Buffer("acc", self.dtype, (self.vectors, self.lanes), space="register")
        self.begun = Buffer("begun", self.dtype, (self.chunks, self.size))

    def _num_chunks(self) -> int:
        """Return into how many shares the indices are cut."""
        k = Var("k", max(1, self.count))
        value = self.x.at(self.values, (k, *self.logical))
        total = self.count * self.size * (2 + work([value])) / 4 + 8 * self.count
        return int(max(1, min(MAX_CHUNKS, total // CHUNK_WORK)))

    # -- places ----------------------------------------------------------------------------------------------
    def _row(self, position: Expr, shift: int = 0) -> Expr:
        """Return the row of a sorted position; -1 before the first and after the last."""
        return cast(self.rows[index.add(position, 1 + shift),], int64)

    def _source(self, position: Expr) -> Expr:
        """Return where the slice of a sorted position stands."""
        return cast(self.order[0][position,], int64) if self.order else position

    def _over(self, block: Expr, build: object) -> Stmt:
        """Run a statement for every vector of a block; `build(slot, element)` makes it."""
        u, lane = Var("u", self.vectors), Var("l", self.lanes)
        first = index.mul(block, self.vectors * self.lanes)
        element = index.add(index.add(first, index.mul(u, self.lanes)), lane)
        stmt: Stmt = build((u, lane), element)  # type: ignore[operator]
        return For(u, For(lane, guard_leaves(stmt, index.less(element, self.size)), "vector"), "unroll")

    def _slice(self, element: Expr) -> tuple[Expr, ...]:
        """Return the inner indices of an element, counted as it lies in memory."""
        found = index.unflatten(element, tuple(v.extent for v in self.axes))
        place = dict(zip(self.axes, found, strict=True))
        return tuple(place[v] for v in self.logical)

    # -- kernels ---------------------------------------------------------------------------------------------
    def tactic(self) -> Tactic:
        steps = (
            f"{self.chunks} shares of {self.share} sorted indices",
            f"slices in {self.blocks} x {self.vectors} x {self.lanes} lanes",
        )
        body = self._sums()
        if self.chunks == 1:
            return Tactic(body, (self.acc,), "segments", steps)
        shares = Pack(self.begun, body, steps, (self.acc,), "segments")
        return Tactic(self._joined(), (), "segments joined", steps, packs=(shares,))

    def _sums(self) -> Stmt:
        """Return the first kernel: rows nobody names are 0, runs are added up."""
        if not self.size or not self.num_rows:
            return Seq(())
        chunk = Var("chunk", self.chunks * self.blocks)
        part, block = index.unflatten(chunk, (self.chunks, self.blocks))
        return For(chunk, self._by_block(block, lambda b: self._block(part, b)), "parallel")

    def _by_block(self, block: Expr, build: Callable[[Expr], Stmt]) -> Stmt:
        """Run what `build` makes of a block; of the last apart, where its end is then known."""
        if self.blocks == 1 or self.size % (self.vectors * self.lanes) == 0:
            return build(block)
        full = build(call("min", block, index.as_expr(self.blocks - 2)))
        return If(index.less(block, self.blocks - 1), full, build(index.as_expr(self.blocks - 1)))

    def _block(self, part: Expr, block: Expr) -> Stmt:
        """Return what a chunk does to one block of all slices: the last share is shorter."""
        last = self.count - (self.chunks - 1) * self.share
        body = self._share(part, block, self.share)
        if last != self.share:
            rest = self._share(part, block, last)
            body = If(index.less(part, self.chunks - 1), body, rest) if self.chunks > 1 else rest
        return sequence(self._unnamed(part, block), body)

    def _unnamed(self, part: Expr, block: Expr) -> Stmt:
        """Fill the chunk's share of the rows with 0 where nothing is added up."""
        share = -(-self.num_rows // self.chunks)
        r = Var("r", share)
        row = index.add(index.mul(part, share), r)
        zero = self._over(block, lambda _, e: Store(self.out, (row, *self._slice(e)), const(0, self.dtype)))
        starts, ends = self.starts[(row,)], self.starts[(index.add(row, 1),)]
        empty: Stmt = If(call("eq", starts, ends), zero)
        return For(r, guarded(index.less(row, self.num_rows), empty))

    def _share(self, part: Expr, block: Expr, count: int) -> Stmt:
        """Add up `count` sorted indices in registers.

        The sum so far is written after each: stores to lines at hand cost less than a branch at the end of
        each run that no processor foresees.
        """
        if not count:
            return Seq(())
        zero = const(0, self.dtype)
        first = index.mul(part, self.share)
        k = Var("k", count)
        place = index.add(first, k)
        row = self._row(place)
        source = self._source(place)
        fresh = call("ne", row, self._row(place, -1))

        def step(slot: tuple[Expr, ...], e: Expr) -> Stmt:
            before = call("select", fresh, zero, self.acc[slot])
            value = self.x.at(self.values, (source, *self._slice(e)))
            return Store(self.acc, slot, before + value)

        u, lane = Var("u", self.vectors), Var("l", self.lanes)
        clear = For(u, For(lane, Store(self.acc, (u, lane), zero), "vector"), "unroll")
        write = self._over(block, lambda s, e: Store(self.out, (row, *self._slice(e)), self.acc[s]))
        if self.chunks > 1:
            kept = self._over(block, lambda s, e: Store(self.begun, (part, e), self.acc[s]))
            write = If(call("eq", self._row(first, -1), row), kept, write)
        return sequence(clear, For(k, sequence(*self._fetched(place, block), self._over(block, step), write)))

    def _fetched(self, place: Expr, block: Expr) -> list[Stmt]:
        """Bring the slices of a later index near where an array chooses them: no processor foresees which.

        Slices of one vector need none: enough of their loads start early by themselves.
        """
        if self.vectors == 1:
            return []
        later = call("min", index.add(place, AHEAD), index.as_expr(self.count - 1))
        source = self._source(later)

        def fetch(_: tuple[Expr, ...], e: Expr) -> Stmt:
            read = loads([self.x.at(self.values, (source, *self._slice(e)))])
            return sequence(*(Prefetch(r.buffer, r.indices) for r in read if self._scattered(r)))

        return [self._over(block, fetch)]

    def _scattered(self, read: Load) -> bool:
        """Return whether a slice of a large array is read at a place that another array holds."""
        large = 2 * read.buffer.nbytes > self.target.l2_bytes
        return large and len(read.indices) > 1 and bool(loads(read.indices))

    def _joined(self) -> Stmt:
        """Return the second kernel: add on what belongs to runs that began in an earlier share."""
        c, block = Var("c", self.chunks - 1), Var("b", self.blocks)
        part = index.add(c, 1)
        first = index.mul(part, self.share)
        row = self._row(first)

        def join(_: tuple[Expr, ...], e: Expr) -> Stmt:
            at = (row, *self._slice(e))
            return Store(self.out, at, self.out[at] + self.begun[(part, e)])

        row_of_both = call("eq", self._row(first, -1), row)
        blocks = For(block, self._by_block(block, lambda b: self._over(b, join)))
        return For(c, If(row_of_both, blocks))
