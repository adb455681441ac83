"""Slices whose place is computed at run time, and writing one back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, Shape, as_int, known_equal, upper_bound
from stratal.base.dtypes import bfloat16, bool_, float32, float64, int32, int64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import Buffer, Expr, call, const, guard, index_const
from stratal.loops.index import add, both, sub, within
from stratal.ops.families import or_zeros, with_axis

CASES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5,), (3,)), ((4, 3), (2, 3)), ((3, 4, 5), (1, 2, 5)), ((3, 2), (0, 2)), ((), ()),
)  # fmt: skip
DTYPES = (float32, float64, int32, bfloat16, bool_)  # of samples


def check_starts(name: str, x: TensorType, starts: Sequence[TensorType]) -> None:
    """One int64 scalar per axis. Raises: ShapeError, DTypeError."""
    if len(starts) != x.ndim:
        raise ShapeError(f"{name}: takes one start per axis", got=f"{len(starts)} for {x}")
    for start in starts:
        if start.ndim or start.dtype is not int64:
            raise DTypeError(f"{name}: a start is an int64 scalar", got=str(start))


def check_sizes(name: str, x: TensorType, sizes: Shape) -> None:
    """A window as large as `x` at most. Raises: ShapeError."""
    if len(sizes) != x.ndim:
        raise ShapeError(f"{name}: takes one size per axis", got=f"{sizes} for {x}")
    for size, n in zip(sizes, x.shape, strict=True):
        if not known_equal(size, n) and isinstance(size, int) and isinstance(n, int) and not 0 <= size <= n:
            raise ShapeError(f"{name}: a size is larger than its axis or negative", got=f"{sizes} for {x}")


def placed(starts: Sequence[Array], shape: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices at the starts, moved to lie inside."""
    first = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(f, f + m) for f, m in zip(first, sizes, strict=True))


def clamped(start: Buffer, n: int, size: int) -> Expr:
    """Return a start moved to [0, n - size]."""
    if n == size:
        return index_const(0)
    return call("min", call("max", start[()], index_const(0)), index_const(n - size))


def clamped_rows(b: Builder, starts: Node, n: Dim, size: Dim) -> Node:
    """Return the starts of all rows, each moved to [0, n - size]."""
    return b.max(b.min(starts, b.like(starts, n - size)), b.like(starts, 0))


def draw(*types: TensorType) -> Draw:
    """Return a drawing of tensors and of starts, some of them outside."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        arrays = []
        for k, t in enumerate(types):
            start = k > 0 and t == TensorType(int64)
            whole = start or not t.dtype.is_float
            x = rng.integers(-2, 6, t.ints) if whole else rng.uniform(-2, 2, t.ints)
            arrays.append(np.asarray(x).astype(t.dtype.np))
        return arrays

    return values


@record
class DynamicSlice(Op):
    """x[start : start + size] on every axis: int64 scalar operands, each moved to [0, n - size]."""

    sizes: Shape
    by_parts = True
    name = "dynamic_slice"
    dim_attributes = ("sizes",)

    def infer(self, *types: TensorType) -> TensorType:
        if not types:
            raise ShapeError("dynamic_slice: takes a tensor and its starts", got="nothing")
        check_starts(self.name, types[0], types[1:])
        check_sizes(self.name, types[0], self.sizes)
        return types[0].with_shape(self.sizes)

    def ref(self, *arrays: Array) -> Array:
        x, *starts = arrays
        return np.array(x[placed(starts, x.shape, tuple(map(as_int, self.sizes)))])

    def lower(self, *types: TensorType) -> Lowered:
        x, *starts = arguments(*types)
        out = fresh_axes(map(as_int, self.sizes))
        at = [add(clamped(s, n, v.extent), v) for s, n, v in zip(starts, types[0].ints, out, strict=True)]
        return Compute((x, *starts), out, x.dtype, x[tuple(at)])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, *starts = inputs
        return [b.dynamic_update(b.like(x, 0), ct, *starts), *[None] * len(starts)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else b.op(self.name, tangents[0], *inputs[1:], sizes=self.sizes)

    def cost(self, *types: TensorType) -> Cost:
        """The elements taken, not the tensor they are taken from."""
        nbytes = float(self.infer(*types).nbytes)
        return Cost(nbytes / types[0].dtype.itemsize, nbytes, nbytes)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        """Take each axis at places of the row's own where starts differ from row to row."""
        if not any(mapped[1:]):
            x, *starts = inputs
            return b.op(self.name, x, b.const(0, int64), *starts, sizes=(size, *self.sizes))
        x, *starts = with_axis(b, size, mapped, inputs)
        for axis, (start, taken) in enumerate(zip(starts, self.sizes, strict=True), 1):
            n = x.shape[axis]
            if not known_equal(n, taken):
                shape = (*x.shape[:axis], taken, *x.shape[axis + 1 :])
                first = b.broadcast(clamped_rows(b, start, n, taken), shape=shape, axes=(0,))
                places = b.add(first, b.iota(shape=shape, axis=axis, dtype=int64))
                x = b.op("gather_along", x, places, axis=axis)
        return x

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in DTYPES:
            for shape, sizes in CASES:
                types = (TensorType(dtype, shape), *[TensorType(int64)] * len(shape))
                yield Sample(cls(sizes), types, draw=draw(*types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, start = TensorType(float32, (4, 3)), TensorType(int64)
        yield Reject(cls((2, 3)), (x, start), "one start")
        yield Reject(cls((2, 3)), (x, start, TensorType(int32)), "int64 scalar")
        yield Reject(cls((2,)), (x, start, start), "one size")
        yield Reject(cls((5, 3)), (x, start, start), "larger")


@record
class DynamicUpdate(Op):
    """`x` with `update` written at the given starts, int64 scalars each moved to [0, n - size].

    Operands: x, update, one start per axis.
    """

    by_parts = True
    name = "dynamic_update"

    def infer(self, *types: TensorType) -> TensorType:
        if len(types) < 2:
            raise ShapeError(
                "dynamic_update: takes a tensor, an update and starts", got=f"{len(types)} operands"
            )
        x, update, *starts = types
        if update.dtype is not x.dtype:
            raise DTypeError(
                "dynamic_update: operands differ in dtype", got=f"{x}, {update}", hint="cast one side"
            )
        check_starts(self.name, x, starts)
        check_sizes(self.name, x, update.shape)
        return x

    def ref(self, *arrays: Array) -> Array:
        x, update, *starts = arrays
        out = np.array(x)
        out[placed(starts, x.shape, update.shape)] = update
        return out

    def lower(self, *types: TensorType) -> Lowered:
        x, update, *starts = arguments(*types)
        out = fresh_axes(types[0].ints)
        inside: Expr = const(True, bool_)
        at = []
        for s, n, m, v in zip(starts, types[0].ints, types[1].ints, out, strict=True):
            at.append(sub(v, clamped(s, n, m)))
            inside = both(inside, within(at[-1], 0, m))
        return Compute((x, update, *starts), out, x.dtype, guard(inside, update[tuple(at)], x[tuple(out)]))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        _, update, *starts = inputs
        kept = b.dynamic_update(ct, b.like(update, 0), *starts)
        return [kept, b.dynamic_slice(ct, *starts, sizes=update.shape), *[None] * len(starts)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return b.op(self.name, *or_zeros(b, tangents[:2], inputs[:2]), *inputs[2:])

    def cost(self, *types: TensorType) -> Cost:
        """The elements written; what stays need not move."""
        written = float(types[1].nbytes)
        return Cost(float(upper_bound(types[1].size)), written, written)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        """Stretch the update over each axis, and choose it where the row's own starts place it."""
        x, update, *starts = inputs
        if not any(mapped[2:]):
            x, update = with_axis(b, size, mapped[:2], (x, update))
            return b.op(self.name, x, update, b.const(0, int64), *starts)
        x, update, *starts = with_axis(b, size, mapped, inputs)
        if known_equal(update.aval.size, 0):
            return x
        inside = b.full(x.aval.with_dtype(bool_), True)
        for axis, start in enumerate(starts, 1):
            n, written = x.shape[axis], update.shape[axis]
            first = clamped_rows(b, start, n, written)

            def places(shape: Shape, axis: int = axis, first: Node = first) -> Node:
                position = b.iota(shape=shape, axis=axis, dtype=int64)
                return b.op("sub", position, b.broadcast(first, shape=shape, axes=(0,)))

            at, last = places(x.shape), b.full(x.aval.with_dtype(int64), written)
            within_update = b.op("and", b.ge(at, b.like(at, 0)), b.lt(at, last))
            inside = b.op("and", inside, within_update)
            at = places((*update.shape[:axis], n, *update.shape[axis + 1 :]))
            nearest = b.max(b.min(at, b.like(at, written - 1)), b.like(at, 0))
            update = b.gather_along(update, nearest, axis=axis)
        return b.op("select", inside, update, x)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in DTYPES:
            for shape, sizes in CASES:
                tensors = (TensorType(dtype, shape), TensorType(dtype, sizes))
                types = (*tensors, *[TensorType(int64)] * len(shape))
                yield Sample(cls(), types, draw=draw(*types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, start = TensorType(float32, (4, 3)), TensorType(int64)
        yield Reject(cls(), (x, x, start), "one start")
        yield Reject(cls(), (x, TensorType(float64, (2, 3)), start, start), "dtype")
        yield Reject(cls(), (x, TensorType(float32, (5, 3)), start, start), "larger")
        yield Reject(cls(), (x, x, start, TensorType(float32)), "int64 scalar")
