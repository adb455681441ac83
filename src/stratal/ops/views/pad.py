"""Pad: a border of one value around a tensor and between its elements, as a view with a predicate."""

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
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Expr, call, const, guard, index_const
from stratal.loops.index import both, floordiv, mod, sub, within
from stratal.ops.families import Movement, refuse_host_only, repeated


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
        refuse_host_only(self, types)
        x, value = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        inside: Expr = const(0 not in x.shape, bool_)
        where = []
        for v, n, lo, between in zip(
            out, x.shape, types[0].with_shape(self.low).ints, self.interior, strict=True
        ):
            position, step = sub(v, lo), between + 1
            inside = both(inside, within(position, 0, max(n - 1, 0) * step + 1))
            inside = both(inside, _is_zero(mod(position, step)))
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


def _is_zero(index: Expr) -> Expr:
    zero = index_const(0)
    return const(True, bool_) if index is zero else call("eq", index, zero)
