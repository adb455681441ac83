"""The kernels of scatters: who copies `x`, who writes the updates, and what may run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratal.base.dims import as_int, product
from stratal.base.dtypes import int64
from stratal.base.types import TensorType
from stratal.loops.compute import LoopBody, Stage, fresh_axes
from stratal.loops.expr import Buffer, Expr, Var, index_const
from stratal.loops.index import add, less, mul, unflatten
from stratal.loops.stmt import For, If, Seq, Stmt, Store, guarded, substitute_stmt
from stratal.ops.indexing import family

_BLOCKS = (128, 64, 32, 16)  # widths a scatter's trailing axes are cut into, so that chunks run in parallel
_ANY_BLOCKS = range(250, 49, -1)  # the same, where none of those divides them
ENOUGH_CHUNKS = 8  # with fewer, one thread would copy much of `x` alone
LONG_SLICE = 16  # elements: of a slice that long, the last writer is looked for before anything is copied
CHUNKS = 64  # that many slabs or slices are dealt out in


class Place:
    """The loop variables of one chunk of a scatter: its slab, which update, which trailing element."""

    def __init__(self, shape: tuple[int, ...], axis: int, count: int) -> None:
        before, after = as_int(product(shape[:axis])), as_int(product(shape[axis + 1 :]))
        self.block = next((w for w in (*_BLOCKS, *_ANY_BLOCKS) if after % w == 0 and after > w), after)
        num_blocks = after // self.block if self.block else 0
        self.chunk = Var("chunk", before * num_blocks)
        self.update = Var("update", count)
        self.row = Var("row", shape[axis])
        self.lane = Var("lane", self.block)
        where = unflatten(self.chunk, (before, num_blocks))
        self.before = unflatten(where[0], shape[:axis])
        self.after = unflatten(add(mul(where[1], self.block), self.lane), shape[axis + 1 :])

    def lanes(self, stmt: Stmt) -> Stmt:
        """Run a statement for each trailing element of the chunk."""
        if self.block == 1:
            return substitute_stmt(stmt, {self.lane: index_const(0)})
        return For(self.lane, stmt, "parallel")


Update = Callable[[Place, Buffer, Buffer], tuple[Expr, Expr]]


def scatter_body(name: str, kind: str, axis: int, x: TensorType, count: int, update: Update) -> LoopBody:
    """Return the kernel: copy each slab of `x`, then combine `count` updates into it, in order.

    `update(place, indices, updates)` gives the index along `axis` and the value of one update. Chunks own
    disjoint slabs, so the order of updates is the index order whatever the number of threads. Where slabs are
    few, all threads copy `x` first.
    """

    def build(args: Sequence[Buffer], outs: Sequence[Buffer]) -> object:
        (source, indices, updates), out = args, outs[0]
        place = Place(x.ints, axis, count)
        index, value = update(place, indices, updates)
        at = (*place.before, index, *place.after)
        write = For(place.update, place.lanes(Store(out, at, family.combine(kind, out[at], value))))
        if place.chunk.extent < ENOUGH_CHUNKS and 0 not in x.ints:
            return [Stage(_copy(source, out)), Stage(For(place.chunk, write, "parallel"))]
        at = (*place.before, place.row, *place.after)
        copy = place.lanes(Store(out, at, source[at]))
        copy = For(place.row, copy, "parallel" if place.block == 1 else "serial")
        return _dealt(place.chunk, Seq((copy, write)))

    return LoopBody(build, (family.check(name, 1, x.ints[axis]),))


def _dealt(var: Var, stmt: Stmt) -> Stmt:
    """Run a statement for each value of a variable, side by side in a moderate number of chunks."""
    if var.extent <= 4 * CHUNKS:
        return For(var, stmt, "parallel")
    share = -(-var.extent // CHUNKS)
    chunk, k = Var("chunk", -(-var.extent // share)), Var("k", share)
    each = add(mul(chunk, share), k)
    stmt = guarded(less(each, var.extent), substitute_stmt(stmt, {var: each}))
    return For(chunk, For(k, stmt), "parallel")


def _copy(source: Buffer, out: Buffer) -> Stmt:
    """Return loops that copy everything, in any order."""
    axes = fresh_axes(out.shape)
    stmt: Stmt = Store(out, tuple(axes), source[tuple(axes)])
    for var in reversed(axes):
        stmt = For(var, stmt, "parallel")
    return stmt


def slices_body(name: str, axis: int, x: TensorType, index: TensorType) -> LoopBody:
    """Return the kernels that set whole slices: find who writes each last, then copy every slice once.

    `writer` holds for each place of the axis the number of the update that stands there in the end, -1 where
    `x` stays.
    """

    def build(args: Sequence[Buffer], outs: Sequence[Buffer]) -> list[Stage]:
        (source, indices, updates), out = args, outs[0]
        size, count = x.ints[axis], as_int(product(index.shape))
        writer = Buffer("writer", int64, (size,))
        row, update = Var("row", size), Var("update", count)
        at = family.as_index(indices[unflatten(update, index.ints)])
        clear = For(row, Store(writer, (row,), index_const(-1)), "parallel")
        name_it = For(update, Store(writer, (at,), update))
        return [Stage(Seq((clear, name_it))), Stage(_slices(writer, source, updates, out))]

    def _slices(writer: Buffer, source: Buffer, updates: Buffer, out: Buffer) -> Stmt:
        outer, inner = x.ints[: axis + 1], x.ints[axis + 1 :]
        slice_, lane = Var("slice", as_int(product(outer))), Var("lane", as_int(product(inner)))
        *before, row = unflatten(slice_, outer)
        after = unflatten(lane, inner)
        who = writer[row,]
        given = updates[(*before, *unflatten(who, index.ints), *after)]
        here = (*before, row, *after)
        one = If(
            who >= 0,
            For(lane, Store(out, here, given), "parallel"),
            For(lane, Store(out, here, source[here]), "parallel"),
        )
        return _dealt(slice_, one)

    return LoopBody(build, (family.check(name, 1, x.ints[axis]),))
