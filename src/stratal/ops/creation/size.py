"""The size of an axis as a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import bool_, float32, int64
from stratal.base.errors import AttributeValueError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.expr import const


@record
class Size(Op):
    """The size of one axis as an int64 scalar: what a graph reads where sizes are known only at run time."""

    axis: int
    arity = 1
    not_differentiable = "a size does not depend on the elements"

    def infer(self, *types: TensorType) -> TensorType:
        if not 0 <= self.axis < types[0].ndim:
            raise AttributeValueError("size: axis out of range", got=f"axis {self.axis} of {types[0]}")
        return TensorType(int64)

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(arrays[0].shape[self.axis], np.int64)

    def lower(self, *types: TensorType) -> Lowered:
        return Compute(arguments(*types), (), int64, const(types[0].ints[self.axis], int64))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return b.op("size", inputs[0], axis=self.axis + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, bool_):
            for shape, axis in (((5,), 0), ((2, 3), 1), ((0, 4), 0)):
                yield Sample(cls(axis), (TensorType(dtype, shape),), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(1), (TensorType(float32, (2,)),), "axis")
