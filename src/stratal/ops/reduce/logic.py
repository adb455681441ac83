"""Whether any or all elements hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import bool_, float32
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import check_kind, over_rows
from stratal.ops.reduce import family


class Truth(Op):
    """What any and all share; `name` is also the combiner's."""

    axes: tuple[int, ...]
    arity = 1
    not_differentiable = "a truth value has no derivative"

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "b")
        return family.reduced_type(self.name, types[0], self.axes)

    def ref(self, *arrays: Array) -> Array:
        function = np.any if self.name == "any" else np.all
        return np.asarray(function(arrays[0], axis=self.axes))

    def cost(self, *types: TensorType) -> Cost:
        return family.reduction_cost(types, self.infer(*types))

    def lower(self, *types: TensorType) -> Lowered:
        return family.reduction(self.name, types[0], self.axes)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in family.reduction_samples(cls, (bool_,)):
            yield sample._replace(smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(bool_, (2, 3)),), "axis")  # type: ignore[call-arg]
        yield Reject(cls((0,)), (TensorType(float32, (2, 3)),), "takes")  # type: ignore[call-arg]


@record
class Any(Truth):
    """Whether any element over `axes` holds; of nothing, false."""

    axes: tuple[int, ...]


@record
class All(Truth):
    """Whether every element over `axes` holds; of nothing, true."""

    axes: tuple[int, ...]
