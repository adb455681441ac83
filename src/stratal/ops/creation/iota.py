"""Iota: each element its own position along one axis."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stratal.base.dims import Shape
from stratal.base.dtypes import DType, bool_, float16, float32, int8, int32, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import cast


@record
class Iota(Op):
    """0, 1, 2, ... along `axis` of `shape`, the same along the others; integers wrap, floats round."""

    shape: Shape
    axis: int
    dtype: DType
    arity = 0
    dim_attributes = ("shape",)
    not_differentiable = "it depends on no input"
    not_batched = "it depends on no input"

    def infer(self, *types: TensorType) -> TensorType:
        if not 0 <= self.axis < len(self.shape):
            raise AttributeValueError(
                "iota: axis out of range", got=f"axis {self.axis} of {len(self.shape)} dimensions"
            )
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("iota: a size is negative", got=str(self.shape))
        if self.dtype.is_bool or self.dtype.is_complex:
            raise DTypeError("iota: takes unsigned, signed, float", got=str(self.dtype))
        return TensorType(self.dtype, self.shape)

    def ref(self, *arrays: Array) -> Array:
        shape = tuple(int(n) for n in self.shape)
        count = np.arange(shape[self.axis], dtype=np.int64).astype(self.dtype.np)
        column = count.reshape([-1 if k == self.axis else 1 for k in range(len(shape))])
        return np.broadcast_to(column, shape)

    def lower(self, *types: TensorType) -> Lowered:
        out = fresh_axes(self.infer().ints)
        return Compute((), out, self.dtype, cast(out[self.axis], self.dtype))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (int64, int32, float32, float16, uint8, int8):
            for shape, axis in (
                ((5,), 0),
                ((2, 3), 0),
                ((2, 3), 1),
                ((0, 4), 1),
                ((1, 3, 1), 1),
                ((300,), 0),
            ):
                yield Sample(cls(shape, axis, dtype), (), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,), 1, int64), (), "axis")
        yield Reject(cls((-2,), 0, int64), (), "negative")
        yield Reject(cls((2,), 0, bool_), (), "takes")
