"""Sums over equal indices: sort the indices once, then add up each run of equal ones.

    scatter(add, zeros[n, c...], index[m], x[m, c...])  =  segment_sum(x, *segments(index, size=n))

`segments` depends on the index alone, so that all sums over one index share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, Shape, upper_bound
from stratal.base.dtypes import DType, bfloat16, float32, float64, int32, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw, Op, Reject, Sample, record
from stratal.loops.compute import Check, Compute, LoopBody, Stage, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Buffer, Const, Var, call, cast, const, guard
from stratal.loops.index import add, as_expr, less, mul
from stratal.loops.stmt import For, If, Seq, Stmt, Store
from stratal.ops.families import refuse_host_only
from stratal.ops.indexing import family

MOST = (1 << 31) - 2  # rows and indices that int32 numbers
MOST_PARTS = 8
FEW_ROWS = 1 << 11  # so few counters cost nothing
_MADE_LATE = "the compiler makes it of a scatter, after derivatives are taken"


@record
class Segments(Op):
    """Indices sorted, each with the place it stood at, and where the run of each row starts; stable.

    Shapes: index [m] -> pairs int32[m + 2, 2], starts int32[size + 1]. Indices lie in [0, size).

    `pairs[k + 1]` is the k-th index and its place; -1 stands before the first and after the last, so that
    nobody tests for the ends. It is a counting sort, in parts that depend on sizes alone.
    """

    size: int
    arity = 1
    not_differentiable = "its results are integers"

    def infer(self, *types: TensorType) -> TupleType:
        (index,) = types
        family.check_indices(self.name, index)
        if index.ndim != 1:
            raise ShapeError("segments: takes indices along one axis", got=str(index))
        if max(self.size, upper_bound(index.shape[0])) > MOST:
            raise AttributeValueError("segments: int32 numbers the rows", got=f"{index}, {self.size} rows")
        shapes: tuple[Shape, ...] = ((index.shape[0] + 2, 2), (self.size + 1,))
        return TupleType([TensorType(int32, s) for s in shapes])

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        (index,) = arrays
        family.check_in_range(self.name, index, self.size)
        order = np.argsort(index, kind="stable")
        pairs = np.full((len(index) + 2, 2), -1, np.int32)
        pairs[1:-1, 0], pairs[1:-1, 1] = index[order], order
        return pairs, np.searchsorted(pairs[1:-1, 0], np.arange(self.size + 1)).astype(np.int32)

    def lower(self, *types: TensorType) -> Lowered:
        return LoopBody(_counting_sort, (Check(0, self.size, family.message("scatter", self.size)),))

    def cost(self, *types: TensorType) -> Cost:
        """Two passes over the indices, one over the rows."""
        count, size = upper_bound(types[0].shape[0]), self.size
        return Cost(2.0 * count + size, 2.0 * types[0].nbytes, 4.0 * (2 * count + size))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, count, size in (
            (int64, 40, 7), (int32, 5, 9), (uint8, 33, 20), (int64, 1, 1), (int64, 0, 3), (int64, 0, 0),
            (int64, 8 * FEW_ROWS + 3, 50),
        ):  # fmt: skip
            yield Sample(cls(size), (TensorType(dtype, (count,)),), draw=_drawn_index(count, size, dtype))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(3), (TensorType(float32, (4,)),), "integers")
        yield Reject(cls(3), (TensorType(int64, (4, 2)),), "one axis")
        yield Reject(cls(1 << 31), (TensorType(int64, (4,)),), "int32")


def num_parts(count: int, size: int) -> int:
    """Return how many parts of the indices are counted apart: few, so that counters are the lesser work."""
    parts = 1
    while parts < MOST_PARTS and count >= 4 * parts * max(size, FEW_ROWS):
        parts *= 2
    return parts


def _counting_sort(args: Sequence[Buffer], outs: Sequence[Buffer]) -> list[Stage]:
    """Count the indices of each row by part; add up the counts; put each index where its row has come to."""
    (index,), (pairs, starts) = args, outs
    count, size = index.shape[0], starts.shape[0] - 1
    parts = num_parts(count, size)
    share = -(-count // parts)
    counts = Buffer("counts", int32, (parts, size))
    one, end = const(1, int32), const(-1, int32)
    part, row, i = Var("part", parts), Var("row", size), Var("i", share)
    place = add(mul(part, share), i)
    at = family.as_index(index[place,])
    used = (part, at)

    def each(stmt: Stmt) -> Stmt:
        inside = less(place, count)
        return For(i, stmt if isinstance(inside, Const) else If(inside, stmt))

    clear = For(row, Store(counts, (part, row), const(0, int32)), "parallel")
    counted = each(Store(counts, used, call("add", counts[used], one)))
    to = add(family.as_index(counts[used]), 1)
    put: list[Stmt] = [
        Store(pairs, (to, as_expr(0)), cast(at, int32)),
        Store(pairs, (to, as_expr(1)), cast(place, int32)),
        Store(counts, used, call("add", counts[used], one)),
    ]
    ends: list[Stmt] = [Store(pairs, (as_expr(k), as_expr(n)), end) for k in (0, count + 1) for n in (0, 1)]
    return [
        Stage(For(part, Seq((clear, counted)), "parallel"), counts),
        _running(counts, starts, ends),
        Stage(For(part, each(Seq(put)), "parallel"), counts),
    ]


def _running(counts: Buffer, starts: Buffer, ends: Sequence[Stmt]) -> Stage:
    """Turn counts into places: of each row, then of each part of it."""
    parts, size = counts.shape
    total, mine = (Buffer(name, int32, (), space="register") for name in ("total", "mine"))
    row, part = Var("row", size), Var("part", parts)
    of_part: list[Stmt] = [
        Store(mine, (), counts[part, row]),
        Store(counts, (part, row), total[()]),
        Store(total, (), call("add", total[()], mine[()])),
    ]
    of_row = Seq((Store(starts, (row,), total[()]), For(part, Seq(of_part), "unroll")))
    last = Store(starts, (as_expr(size),), total[()])
    body = Seq((*ends, Store(total, (), const(0, int32)), For(row, of_row), last))
    return Stage(body, counts, (total, mine))


@record
class SegmentSum(Op):
    """Add up the slices of `x` of each row: out[r] = sum of x[p] over the pairs (r, p), in their order.

    Shapes: x [m, c...], pairs [m + 2, 2], starts [n + 1] -> [n, c...]; a row nobody names is 0. See
    `segments` for the last two.
    """

    name = "segment_sum"
    arity = 3
    not_differentiable = _MADE_LATE
    ulp = 1.0

    def infer(self, *types: TensorType) -> TensorType:
        x, pairs, starts = types
        if x.dtype.is_bool or x.dtype.compute is not x.dtype:
            raise DTypeError("segment_sum: takes what adds without rounding to 16 bits", got=str(x))
        if pairs.dtype is not int32 or starts.dtype is not int32:
            raise DTypeError("segment_sum: pairs and starts are int32", got=f"{pairs}, {starts}")
        if x.ndim == 0 or starts.ndim != 1 or pairs.ndim != 2 or _differ(pairs.shape[0], x.shape[0] + 2):
            raise ShapeError("segment_sum: x, pairs and starts do not fit", got=f"{x}, {pairs}, {starts}")
        return x.with_shape((starts.shape[0] - 1, *x.shape[1:]))

    def ref(self, *arrays: Array) -> Array:
        x, pairs, starts = arrays
        out = np.zeros((len(starts) - 1, *x.shape[1:]), x.dtype)
        np.add.at(out, pairs[1:-1, 0], x[pairs[1:-1, 1]])
        return out

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        x, pairs, starts = arguments(*types)
        row, *inner = fresh_axes(self.infer(*types).ints)
        k = Var("k", x.shape[0])
        of, source = (family.as_index(pairs[add(k, 1), as_expr(n)]) for n in (0, 1))
        term = guard(call("eq", of, row), x[(source, *inner)], const(0, x.dtype))
        return Compute((x, pairs, starts), (row, *inner), x.dtype, (term,), reduce=(k,), combiner="sum")

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
                shapes: tuple[Shape, ...] = ((count + 2, 2), (size + 1,))
                types = (TensorType(dtype, (count, *inner)), *(TensorType(int32, s) for s in shapes))
                yield Sample(cls(), types, draw=_drawn_segments(types, size))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, pairs, starts = TensorType(float32, (4, 2)), TensorType(int32, (6, 2)), TensorType(int32, (3,))
        yield Reject(cls(), (TensorType(bfloat16, (4, 2)), pairs, starts), "16 bits")
        yield Reject(cls(), (x, TensorType(int64, (6, 2)), starts), "int32")
        yield Reject(cls(), (x, starts, starts), "fit")
        yield Reject(cls(), (TensorType(float32, (5, 2)), pairs, starts), "fit")


def _differ(a: Dim, b: Dim) -> bool:
    """Return whether two sizes differ for sure: symbols of one size may have been named apart."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def _drawn_index(count: int, size: int, dtype: DType) -> Draw:
    return lambda rng: [rng.integers(0, max(size, 1), count).astype(dtype.np)]


def _drawn_segments(types: Sequence[TensorType], size: int) -> Draw:
    """Return a drawing of values and of the segments of drawn indices."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        t = types[0]
        x = rng.integers(-9, 9, t.ints) if t.dtype.is_integer else rng.uniform(-2, 2, t.ints)
        index = rng.integers(0, max(size, 1), t.ints[0])
        return [np.asarray(x).astype(t.dtype.np), *Segments(size).ref(index)]

    return values


def segmented(b: Builder, x: Node, index: Node, size: int) -> Node:
    """Return the sum of the slices of `x` with equal index, for each of `size` rows."""
    found: Node = b.segment_sum(x, *b.items(b.segments(index, size=size)))
    return found
