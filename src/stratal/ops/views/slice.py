"""Slice: a strided box of a tensor, as a view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, Shape, known_equal
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.index import add, mul
from stratal.ops.families import Movement, over_rows, refuse_host_only


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
        refuse_host_only(self, types)
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
        return [
            b.pad(
                ct,
                b.const(0, x.dtype),
                low=self.start,
                high=tuple(n - lo - taken for n, lo, taken in zip(x.shape, self.start, last, strict=True)),
                interior=tuple(s - 1 for s in self.step),
            )
        ]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        start, stop, step = (0, *self.start), (size, *self.stop), (1, *self.step)
        return over_rows(self, b, size, mapped, inputs, start=start, stop=stop, step=step)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
            ((6,), (1,), (5,), (1,)), ((6,), (1,), (6,), (2,)), ((7,), (0,), (7,), (3,)),
            ((4, 5), (1, 0), (3, 5), (1, 2)), ((4, 5), (0, 0), (4, 5), (1, 1)),
            ((4,), (2,), (2,), (1,)), ((0, 3), (0, 1), (0, 3), (1, 1)),
            ((1, 9), (0, 2), (1, 9), (1, 4)), ((), (), (), ()), ((40, 33), (3, 1), (39, 32), (1, 1)),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for shape, start, stop, step in cases:
                yield Sample(cls(start, stop, step), (TensorType(dtype, shape),))

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
