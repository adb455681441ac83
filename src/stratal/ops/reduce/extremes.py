"""Greatest and least over axes, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import cast
from stratal.ops.families import check_kind, over_rows
from stratal.ops.reduce import family


def check_not_empty(name: str, type_: TensorType, axes: Sequence[int]) -> None:
    """Refuse to search an axis of size 0. Raises: ShapeError."""
    for axis in axes:
        if known_equal(type_.shape[axis], 0):
            raise ShapeError(f"{name}: nothing to choose from along axis {axis}", got=str(type_))


class Extreme(Op):
    """What reduce_max and reduce_min share. Among k equal extremes each gets 1/k of the cotangent."""

    axes: tuple[int, ...]
    arity = 1
    combiner: ClassVar[str]

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uif")
        result = family.reduced_type(self.name, types[0], self.axes)
        check_not_empty(self.name, types[0], self.axes)
        return result

    def ref(self, *arrays: Array) -> Array:
        function = np.max if self.combiner == "max" else np.min
        return np.asarray(function(family.widened(arrays[0]), axis=self.axes)).astype(arrays[0].dtype)

    def cost(self, *types: TensorType) -> Cost:
        return family.reduction_cost(types, self.infer(*types))

    def lower(self, *types: TensorType) -> Lowered:
        return family.reduction(self.combiner, types[0], self.axes)

    def shares(self, b: Builder, out: Node, x: Node) -> Node:
        """Return each element's share of its extreme: 1/k for one of k equal ones, else 0."""
        chosen = b.cast(b.eq(x, family.spread(b, out, x.aval, self.axes)), dtype=x.dtype)
        return b.op("div", chosen, family.spread(b, b.sum(chosen, axes=self.axes), x.aval, self.axes))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        return [b.mul(family.spread(b, ct, x.aval, self.axes), self.shares(b, out, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return b.op("sum", b.mul(tangents[0], self.shares(b, out, inputs[0])), axes=self.axes)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in family.reduction_samples(cls, (float32, float64, int64, uint8, bfloat16, float16)):
            if all(sample.types[0].shape[a] != 0 for a in sample.op.axes):  # type: ignore[attr-defined]
                yield sample
        yield Sample(cls((1,)), (TensorType(float32, (0, 3)),))  # type: ignore[call-arg]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(float32, (2, 3)),), "axis")  # type: ignore[call-arg]
        yield Reject(cls((1,)), (TensorType(float32, (2, 0)),), "nothing to choose")  # type: ignore[call-arg]
        yield Reject(cls((0,)), (TensorType(bool_, (2, 3)),), "takes")  # type: ignore[call-arg]


@record
class ReduceMax(Extreme):
    """The greatest element over `axes`, which vanish; NaN if any is NaN."""

    axes: tuple[int, ...]
    name = "reduce_max"
    combiner = "max"


@record
class ReduceMin(Extreme):
    """The least element over `axes`, which vanish; NaN if any is NaN."""

    axes: tuple[int, ...]
    name = "reduce_min"
    combiner = "min"


class ArgExtreme(Op):
    """What argmax and argmin share."""

    axis: int
    arity = 1
    not_differentiable = "an index does not change with small changes of the values"

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uif")
        result = family.reduced_type(self.name, types[0], (self.axis,), int64)
        check_not_empty(self.name, types[0], (self.axis,))
        return result

    def ref(self, *arrays: Array) -> Array:
        function = np.argmax if self.name == "argmax" else np.argmin
        return np.asarray(function(family.widened(arrays[0]), axis=self.axis)).astype(np.int64)

    def cost(self, *types: TensorType) -> Cost:
        return family.reduction_cost(types, self.infer(*types))

    def lower(self, *types: TensorType) -> Lowered:
        """Reduce (value, index) pairs, the index 32 bits wide so that its lanes pair up with float32."""
        (x,) = arguments(types[0])
        variables = fresh_axes(types[0].ints)
        scanned = variables[self.axis]
        value = cast(x[tuple(variables)], types[0].dtype.compute)
        index = cast(scanned, int32) if scanned.extent < 1 << 31 else scanned
        return Compute(
            (x,),
            [v for v in variables if v is not scanned],
            int64,
            (value, index),
            reduce=(scanned,),
            combiner=f"first_{self.name}",
            result=1,
        )

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axis=self.axis + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, int64, uint8, bfloat16):
            for shape, axis in (
                ((4,), 0),
                ((2, 3), 0),
                ((2, 3, 5), 1),
                ((3, 1), 1),
                ((0, 2), 1),
                ((40, 33), 1),
            ):
                yield Sample(cls(axis), (TensorType(dtype, shape),), smooth=False)  # type: ignore[call-arg]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)),), "axis")  # type: ignore[call-arg]
        yield Reject(cls(1), (TensorType(float32, (2, 0)),), "nothing to choose")  # type: ignore[call-arg]
        yield Reject(cls(0), (TensorType(bool_, (2, 3)),), "takes")  # type: ignore[call-arg]


@record
class ArgMax(ArgExtreme):
    """The index of the greatest element along `axis`, the first of equal ones; of the first NaN if any."""

    axis: int


@record
class ArgMin(ArgExtreme):
    """The index of the least element along `axis`, the first of equal ones; of the first NaN if any."""

    axis: int
