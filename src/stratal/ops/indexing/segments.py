"""Sums over equal indices: sort the indices once, then add up each run of equal ones.

    scatter(add, zeros[n, c...], index[m], x[m, c...])  =  segment_sum(x[order], rows, starts)
    with rows, starts, order = segments(index, iota(m), size=n)

`segments` depends on the index, and on what is carried along with it: sums over one index share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, upper_bound
from stratal.base.dtypes import bfloat16, bool_, float32, float64, int32, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.op import Array, Draw, Op, Reject, Sample, record
from stratal.loops.compute import Compute, LoopBody, Stage, arguments, fresh_axes
from stratal.loops.expr import Buffer, Var, call, cast, const, guard
from stratal.loops.index import add, as_expr, less, mul
from stratal.loops.stmt import For, Seq, Stmt, Store, guarded
from stratal.ops.indexing import family

MOST = (1 << 31) - 2  # rows and indices that int32 numbers
MOST_PARTS = 8
FEW_ROWS = 1 << 11  # so few counters cost nothing


@record
class Segments(Op):
    """Indices sorted, where the run of each row starts, and numbers carried along with the indices; stable.

    Shapes: index [m], carried [m]... -> rows int32[m + 2], starts int32[size + 1], carried [m]... Indices lie
    in [0, size).

    `rows[k + 1]` is the k-th index; -1 stands before the first and after the last, so that nobody tests for
    the ends. It is a counting sort, in parts that depend on sizes alone.
    """

    size: int
    not_batched = "the compiler makes it of a scatter, after batches are formed"
    not_differentiable = "the compiler makes it of a scatter, after derivatives are taken"

    def infer(self, *types: TensorType) -> TupleType:
        if not types:
            raise ShapeError("segments: takes at least one operand", got="none")
        index, *carried = types
        family.check_indices(self.name, index)
        if any(t.ndim != 1 or _differ(t.shape[0], index.shape[0]) for t in types):
            raise ShapeError("segments: operands have one axis of one size", got=", ".join(map(str, types)))
        if max(self.size, upper_bound(index.shape[0])) > MOST:
            raise AttributeValueError("segments: int32 numbers the rows", got=f"{index}, {self.size} rows")
        rows, starts = (TensorType(int32, (n,)) for n in (index.shape[0] + 2, self.size + 1))
        return TupleType([rows, starts, *carried])

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        index, *carried = arrays
        family.check_in_range(self.name, index, self.size)
        order = np.argsort(index, kind="stable")
        rows = np.full(len(index) + 2, -1, np.int32)
        rows[1:-1] = index[order]
        starts = np.searchsorted(rows[1:-1], np.arange(self.size + 1)).astype(np.int32)
        return rows, starts, *(x[order] for x in carried)

    def lower(self, *types: TensorType) -> Lowered:
        return LoopBody(_counting_sort, (family.check("scatter", 0, self.size),))

    def cost(self, *types: TensorType) -> Cost:
        """Two passes over the indices, one over the rows."""
        count, size = upper_bound(types[0].shape[0]), self.size
        carried = float(sum(t.nbytes for t in types[1:]))
        return Cost(2.0 * count + size, 2.0 * types[0].nbytes + carried, 4.0 * (count + size) + carried)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, count, size in (
            (int64, 40, 7), (int32, 5, 9), (uint8, 33, 20), (int64, 1, 1), (int64, 0, 3), (int64, 0, 0),
            (int64, 8 * FEW_ROWS + 3, 50),
        ):  # fmt: skip
            for carried in ((), (float32, int64), (bool_,)) if count < FEW_ROWS else ((bool_,),):
                types = tuple(TensorType(d, (count,)) for d in (dtype, *carried))
                yield Sample(cls(size), types, draw=_drawn_indices(types, size))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(3), (TensorType(float32, (4,)),), "integers")
        yield Reject(cls(3), (TensorType(int64, (4, 2)),), "one axis")
        yield Reject(cls(3), (TensorType(int64, (4,)), TensorType(float32, (5,))), "one size")
        yield Reject(cls(3), (), "at least one")
        yield Reject(cls(1 << 31), (TensorType(int64, (4,)),), "int32")


def num_parts(count: int, size: int) -> int:
    """Return how many parts of the indices are counted apart: few, so that counters are the lesser work."""
    parts = 1
    while parts < MOST_PARTS and count >= 4 * parts * max(size, FEW_ROWS):
        parts *= 2
    return parts


def _counting_sort(args: Sequence[Buffer], outs: Sequence[Buffer]) -> list[Stage]:
    """Count the indices of each row by part; add up the counts; put each index where its row has come to."""
    (index, *carried), (rows, starts, *along) = args, outs
    count, size = index.shape[0], starts.shape[0] - 1
    parts = num_parts(count, size)
    share = -(-count // parts)
    counts = Buffer("counts", int32, (parts, size))
    end = const(-1, int32)
    part, row, i = Var("part", parts), Var("row", size), Var("i", share)
    place = add(mul(part, share), i)
    at = family.as_index(index[place,])
    used = (part, at)

    def each(stmt: Stmt) -> Stmt:
        return For(i, guarded(less(place, count), stmt))

    clear = For(row, Store(counts, (part, row), const(0, int32)), "parallel")
    counted = each(Store(counts, used, counts[used] + 1))
    to = family.as_index(counts[used])
    put: list[Stmt] = [
        Store(rows, (add(to, 1),), cast(at, int32)),
        *(Store(there, (to,), here[place,]) for here, there in zip(carried, along, strict=True)),
        Store(counts, used, counts[used] + 1),
    ]
    ends: list[Stmt] = [Store(rows, (as_expr(k),), end) for k in (0, count + 1)]
    return [
        Stage(For(part, Seq((clear, counted)), "parallel")),
        _running(counts, starts, ends),
        Stage(For(part, each(Seq(put)), "parallel")),
    ]


def _running(counts: Buffer, starts: Buffer, ends: Sequence[Stmt]) -> Stage:
    """Turn counts into places: of each row, then of each part of it."""
    parts, size = counts.shape
    total, mine = (Buffer(name, int32, (), space="register") for name in ("total", "mine"))
    row, part = Var("row", size), Var("part", parts)
    of_part: list[Stmt] = [
        Store(mine, (), counts[part, row]),
        Store(counts, (part, row), total[()]),
        Store(total, (), total[()] + mine[()]),
    ]
    of_row = Seq((Store(starts, (row,), total[()]), For(part, Seq(of_part), "unroll")))
    last = Store(starts, (as_expr(size),), total[()])
    body = Seq((*ends, Store(total, (), const(0, int32)), For(row, of_row), last))
    return Stage(body, (total, mine))


@record
class SegmentSum(Op):
    """Add up the slices of `x` of each row: out[r] = sum of x[k] over the k with rows[k + 1] = r, in order.

    Shapes: x [m, c...], rows [m + 2], starts [n + 1] -> [n, c...]; a row nobody names is 0. See `segments`
    for the last two. With an operand `order` [m] slices stand elsewhere: x[order[k]] is added instead.
    """

    name = "segment_sum"
    not_batched = "the compiler makes it of a scatter, after batches are formed"
    not_differentiable = "the compiler makes it of a scatter, after derivatives are taken"
    ulp = 1.0

    def infer(self, *types: TensorType) -> TensorType:
        if len(types) not in (3, 4):
            raise ShapeError("segment_sum: takes 3 or 4 operands", got=str(len(types)))
        x, rows, starts, *order = types
        if x.dtype.is_bool or x.dtype.compute is not x.dtype:
            raise DTypeError("segment_sum: takes what adds without rounding to 16 bits", got=str(x))
        if any(t.dtype is not int32 for t in (rows, starts, *order)):
            raise DTypeError("segment_sum: numbers of rows are int32", got=", ".join(map(str, types)))
        lists = x.ndim > 0 and all(t.ndim == 1 for t in types[1:])
        sizes = [(rows, 2), *((o, 0) for o in order)]
        if not lists or any(_differ(t.shape[0], x.shape[0] + more) for t, more in sizes):
            raise ShapeError("segment_sum: operands do not fit", got=", ".join(map(str, types)))
        return x.with_shape((starts.shape[0] - 1, *x.shape[1:]))

    def ref(self, *arrays: Array) -> Array:
        x, rows, starts, *order = arrays
        out = np.zeros((len(starts) - 1, *x.shape[1:]), x.dtype)
        np.add.at(out, rows[1:-1], x[order[0]] if order else x)
        return out

    def lower(self, *types: TensorType) -> Lowered:
        args = arguments(*types)
        x, rows, _, *order = args
        row, *inner = fresh_axes(self.infer(*types).ints)
        k = Var("k", x.shape[0])
        source = family.as_index(order[0][k,]) if order else k
        mine = call("eq", family.as_index(rows[add(k, 1),]), row)
        term = guard(mine, x[(source, *inner)], const(0, x.dtype))
        return Compute(args, (row, *inner), x.dtype, (term,), reduce=(k,), combiner="sum")

    def cost(self, *types: TensorType) -> Cost:
        """Each slice once, each row once."""
        out = self.infer(*types)
        return Cost(float(upper_bound(types[0].size)), float(sum(t.nbytes for t in types)), float(out.nbytes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, int64):
            for count, size, inner in (
                (40, 7, (3,)), (9, 30, (2, 20)), (5, 3, ()), (0, 3, (2,)), (3, 1, (0,)), (1, 1, (1,)),
                (70, 4, (200,)),
            ):  # fmt: skip
                for shapes in (((count + 2,), (size + 1,)), ((count + 2,), (size + 1,), (count,))):
                    types = (TensorType(dtype, (count, *inner)), *(TensorType(int32, s) for s in shapes))
                    yield Sample(cls(), types, draw=_drawn_segments(types, size))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, rows, starts, order = TensorType(float32, (4, 2)), *(TensorType(int32, (n,)) for n in (6, 3, 4))
        yield Reject(cls(), (TensorType(bfloat16, (4, 2)), rows, starts), "16 bits")
        yield Reject(cls(), (x, TensorType(int64, (6,)), starts), "int32")
        yield Reject(cls(), (x, starts, starts), "fit")
        yield Reject(cls(), (x, rows, starts, starts), "fit")
        yield Reject(cls(), (x, rows, starts, order, order), "operands")


def _differ(a: Dim, b: Dim) -> bool:
    """Return whether two sizes differ for sure: symbols of one size may have been named apart."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def _drawn_indices(types: Sequence[TensorType], size: int) -> Draw:
    """Return a drawing of indices and of what is carried along with them."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        bounds = (max(size, 1), *(2 for _ in types[1:]))
        return [rng.integers(0, n, t.ints).astype(t.dtype.np) for n, t in zip(bounds, types, strict=True)]

    return values


def _drawn_segments(types: Sequence[TensorType], size: int) -> Draw:
    """Return a drawing of values and of the segments of drawn indices."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        x, _, _, *order = types
        drawn = rng.integers(-9, 9, x.ints) if x.dtype.is_integer else rng.uniform(-2, 2, x.ints)
        index = rng.integers(0, max(size, 1), x.ints[0])
        places = [np.arange(x.ints[0], dtype=np.int32) for _ in order]
        return [np.asarray(drawn).astype(x.dtype.np), *Segments(size).ref(index, *places)]

    return values
