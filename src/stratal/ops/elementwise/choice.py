"""Select: one of two values by a condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import ALL, bool_, float32, float64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import pointwise
from stratal.loops.expr import call
from stratal.ops.families import SAMPLE_SHAPES, over_rows, refuse_host_only, same_types


@record
class Select(Op):
    """x where `condition` holds, else y. Both are computed, so hide a bad operand before it, not with it."""

    arity = 3
    by_parts = True

    def infer(self, *types: TensorType) -> TensorType:
        condition, x, y = types
        if not condition.dtype.is_bool:
            raise DTypeError("select: the condition must be bool", got=str(condition), hint="compare with 0")
        same_types(self.name, (x, y))
        if condition.shape != x.shape:
            raise ShapeError("select: condition and values differ in shape", got=f"{condition}, {x}, {y}")
        return x

    def ref(self, *arrays: Array) -> Array:
        condition, x, y = arrays
        return np.asarray(np.where(condition, x, y)).astype(x.dtype, copy=False)

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        return pointwise(types, types[1].dtype, lambda c, x, y: call("select", c, x, y))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        zero = b.like(ct, 0)
        by_x = b.select(inputs[0], ct, zero) if b.needed(1) else None
        by_y = b.select(inputs[0], zero, ct) if b.needed(2) else None
        return [None, by_x, by_y]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        _, x, y = tangents
        if x is None and y is None:
            return None
        zero = b.like(out, 0)
        moved: Node = b.select(inputs[0], zero if x is None else x, zero if y is None else y)
        return moved

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in ALL:
            for shape in SAMPLE_SHAPES if dtype in (float32, float64) else SAMPLE_SHAPES[:1]:
                yield Sample(cls(), (TensorType(bool_, shape), *(TensorType(dtype, shape),) * 2))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2,))
        yield Reject(cls(), (x, x, x), "bool")
        yield Reject(cls(), (TensorType(bool_, (3,)), x, x), "shape")
        yield Reject(cls(), (TensorType(bool_, (2,)), x, TensorType(float64, (2,))), "dtype")
