"""Slice, pad and concatenate: boxes taken of tensors, put into borders, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, Shape, known_equal
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import Expr, Var, const, guard
from stratal.loops.index import add, both, floordiv, less, mul, sub, within
from stratal.ops.families import Movement, RowWise, check_axis, over_rows, repeated
from stratal.ops.linear.family import multiple


@record
class Slice(Movement):
    """Take `x[start:stop:step]` on every axis, with 0 <= start <= stop <= size and step > 0.

    The front end resolves negative and missing bounds; a negative step is a `flip` and a slice.
    """

    start: Shape
    stop: Shape
    step: tuple[int, ...]
    arity = 1
    dim_attributes = ("start", "stop")
    cases = (
        ((6,), (1,), (5,), (1,)), ((6,), (1,), (6,), (2,)), ((7,), (0,), (7,), (3,)),
        ((4, 5), (1, 0), (3, 5), (1, 2)), ((4, 5), (0, 0), (4, 5), (1, 1)),
        ((4,), (2,), (2,), (1,)), ((0, 3), (0, 1), (0, 3), (1, 1)),
        ((1, 9), (0, 2), (1, 9), (1, 4)), ((), (), (), ()), ((40, 33), (3, 1), (39, 32), (1, 1)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if not len(self.start) == len(self.stop) == len(self.step) == x.ndim:
            raise AttributeValueError("slice: needs a start, stop and step per axis",
                                      got=f"{self.start}, {self.stop}, {self.step} for {x}")  # fmt: skip
        for k, (low, high, step) in enumerate(zip(self.start, self.stop, self.step, strict=True)):
            if step <= 0:
                raise AttributeValueError("slice: a step must be positive", got=f"{step} on axis {k}",
                                          hint="flip the axis, then slice")  # fmt: skip
            if not (_at_most(0, low) and _at_most(low, high) and _at_most(high, x.shape[k])):
                raise ShapeError("slice: bounds must satisfy 0 <= start <= stop <= size",
                                 got=f"{low}:{high} on axis {k} of {x}")  # fmt: skip
        return x.with_shape(self.sizes())

    def sizes(self) -> list[Dim]:
        """Return the number of elements taken on each axis."""
        return [(hi - lo + s - 1) // s for lo, hi, s in zip(self.start, self.stop, self.step, strict=True)]

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(arrays[0][tuple(map(slice, self.start, self.stop, self.step))])

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        out = fresh_axes(types[0].with_shape(self.sizes()).ints)
        where = tuple(
            add(mul(v, step), int(low)) for v, low, step in zip(out, self.start, self.step, strict=True)
        )
        return Compute((x,), out, x.dtype, x[where])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0].aval
        last = [
            0 if known_equal(m, 0) else (m - 1) * s + 1 for m, s in zip(self.sizes(), self.step, strict=True)
        ]
        high = tuple(n - lo - taken for n, lo, taken in zip(x.shape, self.start, last, strict=True))
        between = tuple(s - 1 for s in self.step)
        return [b.pad(ct, b.const(0, x.dtype), low=self.start, high=high, interior=between)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        start, stop, step = (0, *self.start), (size, *self.stop), (1, *self.step)
        return over_rows(self, b, size, mapped, inputs, start=start, stop=stop, step=step)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (4,))
        yield Reject(cls((0,), (5,), (1,)), (x,), "bounds")
        yield Reject(cls((-1,), (3,), (1,)), (x,), "bounds")
        yield Reject(cls((3,), (1,), (1,)), (x,), "bounds")
        yield Reject(cls((3,), (1,), (-1,)), (x,), "positive")
        yield Reject(cls((0, 0), (1, 1), (1, 1)), (x,), "per axis")


def _at_most(a: Dim, b: Dim) -> bool:
    """Return whether a <= b. Raises: ShapeError where the bounds of symbols do not decide it."""
    return known_equal(a, b) or b - a >= 0


@record
class Pad(Movement):
    """Surround `x` by the scalar second operand: `low` before, `high` after, `interior` between two elements.

    Sizes are not negative; what a negative pad would cut off, `slice` takes.
    """

    low: Shape
    high: Shape
    interior: tuple[int, ...]
    arity = 2
    dim_attributes = ("low", "high")

    def infer(self, *types: TensorType) -> TensorType:
        x, value = types
        if value.ndim != 0 or value.dtype is not x.dtype:
            raise DTypeError("pad: the value must be a scalar of the same dtype", got=f"{x}, {value}")
        if not len(self.low) == len(self.high) == len(self.interior) == x.ndim:
            raise AttributeValueError("pad: needs low, high and interior per axis",
                                      got=f"{self.low}, {self.high}, {self.interior} for {x}")  # fmt: skip
        for k, sizes in enumerate(zip(self.low, self.high, self.interior, strict=True)):
            if any(n < 0 for n in sizes):
                raise ShapeError("pad: a size is negative", got=f"{sizes} on axis {k}", hint="slice cuts off")
        return x.with_shape(lo + s + hi for lo, s, hi in zip(self.low, self.spans(x), self.high, strict=True))

    def spans(self, x: TensorType) -> list[Dim]:
        """Return on each axis the distance from the first element to one past the last."""
        return [
            0 if known_equal(n, 0) else n if between == 0 else (n - 1) * (between + 1) + 1
            for n, between in zip(x.shape, self.interior, strict=True)
        ]

    def ref(self, *arrays: Array) -> Array:
        x, value = arrays
        spans = [max((n - 1) * (i + 1) + 1, 0) for n, i in zip(x.shape, self.interior, strict=True)]
        shape = [int(lo) + s + int(hi) for lo, s, hi in zip(self.low, spans, self.high, strict=True)]
        out = np.full(shape, value, x.dtype)
        inside = zip(self.low, spans, self.interior, strict=True)
        out[tuple(slice(lo, lo + s, i + 1) for lo, s, i in inside)] = x
        return out

    def lower(self, *types: TensorType) -> Lowered:
        x, value = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        inside: Expr = const(0 not in x.shape, bool_)
        where = []
        low = types[0].with_shape(self.low).ints
        for v, n, lo, between in zip(out, x.shape, low, self.interior, strict=True):
            position, step = sub(v, lo), between + 1
            inside = both(inside, within(position, 0, max(n - 1, 0) * step + 1))
            inside = both(inside, multiple(position, step))
            where.append(floordiv(position, step))
        return Compute((x, value), out, x.dtype, guard(inside, x[tuple(where)], value[()]))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0].aval
        stop = tuple(lo + s for lo, s in zip(self.low, self.spans(x), strict=True))
        by_x = b.slice(ct, start=self.low, stop=stop, step=tuple(i + 1 for i in self.interior))
        if not b.needed(1):
            return [by_x, None]
        inner = b.full(x.with_dtype(bool_), True)
        inside = b.pad(inner, b.const(False), low=self.low, high=self.high, interior=self.interior)
        border = b.select(inside, b.like(ct, 0), ct)
        return [by_x, b.sum(border, axes=tuple(range(x.ndim)))]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        """Pad with what differs from row to row by choosing it wherever the border is."""
        value = inputs[1]
        x = inputs[0] if mapped[0] else repeated(b, size, inputs[0])
        around = {"low": (0, *self.low), "high": (0, *self.high), "interior": (0, *self.interior)}
        if not mapped[1]:
            return b.op("pad", x, value, **around)
        inside = b.pad(b.full(x.aval.with_dtype(bool_), True), b.const(False), **around)
        padded = b.pad(x, b.const(0, x.dtype), **around)
        return b.op("select", inside, padded, b.broadcast(value, shape=padded.shape, axes=(0,)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
            ((3,), (1,), (2,), (0,)), ((2, 3), (1, 0), (0, 2), (0, 0)), ((4,), (0,), (0,), (2,)),
            ((2, 3), (1, 2), (1, 0), (1, 2)), ((2, 2), (0, 0), (0, 0), (0, 0)),
            ((0, 2), (1, 0), (2, 1), (0, 1)),
            ((), (), (), ()), ((1,), (0,), (1,), (3,)), ((30, 31), (1, 1), (1, 1), (0, 0)),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for shape, low, high, interior in cases:
                yield Sample(cls(low, high, interior), (TensorType(dtype, shape), TensorType(dtype, ())))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, value = TensorType(float32, (4,)), TensorType(float32, ())
        yield Reject(cls((-1,), (0,), (0,)), (x, value), "negative")
        yield Reject(cls((0,), (0,), (-1,)), (x, value), "negative")
        yield Reject(cls((0,), (0,), (0,)), (x, TensorType(float64, ())), "scalar")
        yield Reject(cls((0,), (0,), (0,)), (x, TensorType(float32, (1,))), "scalar")
        yield Reject(cls((0, 0), (0, 0), (0, 0)), (x, value), "per axis")


@record
class Concatenate(Movement, RowWise):
    """Join one or more tensors along `axis`; the other sizes agree."""

    axis: int

    def infer(self, *types: TensorType) -> TensorType:
        if not types:
            raise ShapeError("concatenate: takes at least one operand", got="none")
        first = types[0]
        check_axis(self.name, first, self.axis)
        total: Dim = 0
        for x in types:
            if x.dtype is not first.dtype:
                raise DTypeError("concatenate: operands differ in dtype", got=", ".join(map(str, types)))
            if x.ndim != first.ndim or self.others(x) != self.others(first):
                raise ShapeError(
                    f"concatenate: sizes differ off axis {self.axis}", got=", ".join(map(str, types))
                )
            total = total + x.shape[self.axis]
        return first.with_shape((*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def others(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the sizes that must agree."""
        return x.shape[: self.axis] + x.shape[self.axis + 1 :]

    def ref(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=self.axis)

    def lower(self, *types: TensorType) -> Lowered:
        args = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        pieces: list[tuple[int, Expr]] = []
        start = 0
        for x in args:
            if x.shape[self.axis]:
                where = [sub(v, start) if k == self.axis else v for k, v in enumerate(out)]
                pieces.append((start, x[tuple(where)]))
                start += x.shape[self.axis]
        body = _choose(pieces, out[self.axis]) if pieces else args[0][tuple(out)]
        return Compute(args, out, args[0].dtype, body)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        cotangents: list[Node | None] = []
        step = (1,) * ct.aval.ndim
        at: Dim = 0
        for k, x in enumerate(inputs):
            start: list[Dim] = [0] * ct.aval.ndim
            stop = list(ct.shape)
            start[self.axis], at = at, at + x.shape[self.axis]
            stop[self.axis] = at
            piece = b.slice(ct, start=tuple(start), stop=tuple(stop), step=step) if b.needed(k) else None
            cotangents.append(piece)
        return cotangents

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = (
            (0, ((2,), (3,))), (1, ((2, 3), (2, 1), (2, 2))), (0, ((2, 3),)), (0, ((0, 3), (2, 3))),
            (1, ((2, 0), (2, 0))), (1, ((1, 2, 1), (1, 3, 1))), (1, ((0, 2), (0, 3))),
            (0, ((1,),) * 7), (1, ((5, 17), (5, 16))),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for axis, shapes in cases:
                yield Sample(cls(axis), tuple(TensorType(dtype, s) for s in shapes))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 3))
        yield Reject(cls(0), (), "at least one")
        yield Reject(cls(2), (x, x), "range")
        yield Reject(cls(0), (x, TensorType(float32, (2, 4))), "differ off axis")
        yield Reject(cls(0), (x, TensorType(float64, (2, 3))), "dtype")
        yield Reject(cls(0), (x, TensorType(float32, (2,))), "differ off axis")
        yield Reject(cls(1), (x, TensorType(float32, (2,))), "differ off axis")


def _choose(pieces: Sequence[tuple[int, Expr]], position: Var) -> Expr:
    """Return the piece that holds `position`, by a balanced tree of guards.

    What stands after `otherwise` is evaluated everywhere, so each piece guards its own start.
    """
    if len(pieces) == 1:
        start, piece = pieces[0]
        return guard(less(start - 1, position), piece, const(0, piece.dtype))
    half = len(pieces) // 2
    return guard(
        less(position, pieces[half][0]), _choose(pieces[:half], position), _choose(pieces[half:], position)
    )
