"""Sum over axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import check_kind, linear_jvp, over_rows, refuse_host_only
from stratal.ops.reduce import family


@record
class Sum(Op):
    """Sum over `axes`, which vanish; 16-bit floats accumulate in float32, integers wrap. Of nothing, 0."""

    axes: tuple[int, ...]
    arity = 1
    by_parts = True

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uifc")
        return family.reduced_type(self.name, types[0], self.axes)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        return np.asarray(np.sum(family.widened(x), axis=self.axes)).astype(x.dtype)

    def cost(self, *types: TensorType) -> Cost:
        return family.reduction_cost(types, self.infer(*types))

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        return family.reduction("sum", types[0], self.axes)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.broadcast(ct, shape=inputs[0].shape, axes=family.kept(inputs[0].aval, self.axes))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from family.reduction_samples(cls, (float32, float64, int64))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "twice")
        yield Reject(cls((0,)), (TensorType(bool_, (2, 3)),), "takes")
