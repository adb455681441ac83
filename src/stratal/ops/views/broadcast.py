"""Broadcast: new axes and stretched axes, as a view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, Shape, known_equal
from stratal.base.dtypes import bool_, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import index_const
from stratal.ops.families import Movement, over_rows

MOST_ELEMENTS = 1 << 40  # a view of more would be looped over for hours; sizes come from mistakes
MOST_AXES = 64  # NumPy's limit


@record
class Broadcast(Movement):
    """Give `x` the shape `shape`: input axis k becomes output axis `axes[k]`; a size-1 axis stretches.

    `axes` must be strictly increasing, so a broadcast never permutes.
    """

    shape: Shape
    axes: tuple[int, ...]
    arity = 1
    dim_attributes = ("shape",)

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if len(self.axes) != x.ndim or any(a >= b for a, b in zip(self.axes, self.axes[1:], strict=False)):
            raise ShapeError(
                "broadcast: axes must be one per input axis and increasing", got=f"{self.axes} for {x}"
            )
        for k, a in enumerate(self.axes):
            if not 0 <= a < len(self.shape):
                raise ShapeError("broadcast: axis out of range", got=f"axis {a} of shape {self.shape}")
            if not known_equal(x.shape[k], 1) and not known_equal(x.shape[k], self.shape[a]):
                raise ShapeError(
                    "broadcast: a size is neither 1 nor the target's", got=f"{x} to {self.shape}"
                )
        elements = math.prod(n for n in self.shape if isinstance(n, int) and n)  # a symbol may be small
        if elements >= MOST_ELEMENTS or len(self.shape) > MOST_AXES:
            raise ShapeError(
                "broadcast: more elements, or more axes, than any run holds",
                got=f"{x} to {list(self.shape)}",
                hint=f"below 2^40 elements and {MOST_AXES} axes",
            )
        return x.with_shape(self.shape)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        expanded = [1] * len(self.shape)
        for k, a in enumerate(self.axes):
            expanded[a] = x.shape[k]
        return np.broadcast_to(x.reshape(expanded), tuple(int(n) for n in self.shape))

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        out = fresh_axes(int(n) for n in self.shape)
        where = tuple(  # an axis that does not stretch is its own, of one element too: readers see the place
            out[a] if n == self.shape[a] else index_const(0) for n, a in zip(x.shape, self.axes, strict=True)
        )
        return Compute((x,), out, x.dtype, x[where])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0].aval
        stretched = [a for k, a in enumerate(self.axes) if not known_equal(x.shape[k], self.shape[a])]
        new = [a for a in range(len(self.shape)) if a not in self.axes]
        summed = b.sum(ct, axes=tuple(sorted(stretched + new)))
        return [summed if not stretched else b.reshape(summed, shape=x.shape)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        axes = (0, *(a + 1 for a in self.axes))
        return over_rows(self, b, size, mapped, inputs, shape=(size, *self.shape), axes=axes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, bool_):
            yield Sample(cls((2, 3), (1,)), (TensorType(dtype, (3,)),))
            yield Sample(cls((2, 3), (0, 1)), (TensorType(dtype, (2, 1)),))
            yield Sample(cls((4, 2, 3), (1, 2)), (TensorType(dtype, (1, 3)),))
            yield Sample(cls((2, 0), ()), (TensorType(dtype, ()),))
            yield Sample(cls((), ()), (TensorType(dtype, ()),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2, 3), (0,)), (TensorType(float32, (4,)),), "neither 1")
        yield Reject(cls((2, 3), (1, 0)), (TensorType(float32, (3, 2)),), "increasing")
        yield Reject(cls((2, 3), (5,)), (TensorType(float32, (3,)),), "out of range")
