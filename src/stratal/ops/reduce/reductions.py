"""Sums, products, extremes and truth over axes, and where extremes are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import known_equal, product, upper_bound
from stratal.base.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import cast
from stratal.ops.families import Linear, RowWise, check_kind, records, widened
from stratal.ops.reduce import family
from stratal.ops.reduce.family import Reduction


@record
class Sum(Linear, Reduction):
    """Sum over `axes`, which vanish; 16-bit floats accumulate in float32, integers wrap. Of nothing, 0."""

    by_parts = True
    kinds = "uifc"
    combiner = "sum"
    dtypes = (float32, float64, int64)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        return np.asarray(np.sum(widened(x), axis=self.axes)).astype(x.dtype)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.broadcast(ct, shape=inputs[0].shape, axes=family.kept(inputs[0].aval, self.axes))]


# -- products ------------------------------------------------------------------------------------------------
@record
class Prod(Reduction):
    """Product over `axes`, which vanish; 16-bit floats multiply in float32, integers wrap. Of nothing, 1.

    Its derivative multiplies the others together instead of dividing, so it is right at zeros.
    """

    kinds = "uifc"
    combiner = "prod"
    dtypes = (float32, float64, int64, bfloat16)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        wide = widened(x)
        return np.asarray(np.prod(wide, axis=self.axes, dtype=wide.dtype)).astype(x.dtype)

    def others(self, b: Builder, x: Node) -> Node:
        """Return for each element the product of the others it is multiplied with."""
        kept = family.kept(x.aval, self.axes)
        perm = kept + self.axes
        rows = b.permute(x, perm=perm)
        shape = rows.shape
        flat = b.reshape(rows, shape=(*shape[: len(kept)], product(shape[len(kept) :])))
        axis, length = len(kept), flat.shape[-1]
        if not (isinstance(length, int) and length == 0):
            flat = b.mul(*(_exclusive(b, flat, axis, reverse) for reverse in (False, True)))
        inverse = tuple(perm.index(a) for a in range(len(perm)))
        return b.permute(b.reshape(flat, shape=shape), perm=inverse)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        others = self.others(b, inputs[0])
        if ct.dtype.is_complex:
            others = b.conj(others)
        return [b.mul(family.spread(b, ct, inputs[0], self.axes), others)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return b.sum(b.mul(tangents[0], self.others(b, inputs[0])), axes=self.axes)


def _exclusive(b: Builder, x: Node, axis: int, reverse: bool) -> Node:
    """Return the product of all before (after, if `reverse`) each element along an axis."""
    return family.shifted(b, b.cumprod(x, axis=axis, reverse=reverse), axis, 1, later=not reverse)


# -- extremes ------------------------------------------------------------------------------------------------
def check_not_empty(name: str, type_: TensorType, axes: Sequence[int]) -> None:
    """Refuse to search an axis of size 0. Raises: ShapeError."""
    for axis in axes:
        if known_equal(type_.shape[axis], 0):
            raise ShapeError(f"{name}: nothing to choose from along axis {axis}", got=str(type_))


class Extreme(Reduction):
    """What reduce_max and reduce_min share. Among k equal extremes each gets 1/k of the cotangent."""

    kinds = "uif"
    dtypes = (float32, float64, int64, uint8, bfloat16, float16)

    def infer(self, *types: TensorType) -> TensorType:
        result = super().infer(*types)
        check_not_empty(self.name, types[0], self.axes)
        return result

    def ref(self, *arrays: Array) -> Array:
        function = np.max if self.combiner == "max" else np.min
        return np.asarray(function(widened(arrays[0]), axis=self.axes)).astype(arrays[0].dtype)

    def shares(self, b: Builder, out: Node, x: Node) -> Node:
        """Return each element's share of its extreme: 1/k for one of k equal ones, else 0."""
        chosen = b.cast(b.eq(x, family.spread(b, out, x, self.axes)), dtype=x.dtype)
        return b.div(chosen, family.spread(b, b.sum(chosen, axes=self.axes), x, self.axes))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        return [b.mul(family.spread(b, ct, x, self.axes), self.shares(b, out, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return b.sum(b.mul(tangents[0], self.shares(b, out, inputs[0])), axes=self.axes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in cls.dtypes:
            for shape, axes in family.CASES:
                if all(shape[a] != 0 for a in axes):
                    yield Sample(cls(axes), (TensorType(dtype, shape),))
        yield Sample(cls((1,)), (TensorType(float32, (0, 3)),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield from super().rejects()
        yield Reject(cls((1,)), (TensorType(float32, (2, 0)),), "nothing to choose")


extreme = records(__name__, Extreme)
extreme("reduce_max", "The greatest element over `axes`, which vanish; NaN if any is NaN.", combiner="max")
extreme("reduce_min", "The least element over `axes`, which vanish; NaN if any is NaN.", combiner="min")


@dataclass(frozen=True, repr=False)
class ArgExtreme(RowWise):
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
        return np.asarray(function(widened(arrays[0]), axis=self.axis)).astype(np.int64)

    def cost(self, *types: TensorType) -> Cost:
        return super().cost(*types)._replace(flops=float(upper_bound(types[0].size)))

    def lower(self, *types: TensorType) -> Lowered:
        """Reduce (value, index) pairs, the index 32 bits wide so that its lanes pair up with float32."""
        (x,) = arguments(types[0])
        variables = fresh_axes(types[0].ints)
        scanned = variables[self.axis]
        value = cast(x[tuple(variables)], types[0].dtype.compute)
        index = cast(scanned, int32) if scanned.extent < 1 << 31 else scanned
        return Compute(
            (x,), [v for v in variables if v is not scanned], int64, (value, index), reduce=(scanned,),
            combiner=f"first_{self.name}", result=1,
        )  # fmt: skip

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases = (((4,), 0), ((2, 3), 0), ((2, 3, 5), 1), ((3, 1), 1), ((0, 2), 1), ((40, 33), 1))
        for dtype in (float32, float64, int64, uint8, bfloat16):
            for shape, axis in cases:
                yield Sample(cls(axis), (TensorType(dtype, shape),), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls(1), (TensorType(float32, (2, 0)),), "nothing to choose")
        yield Reject(cls(0), (TensorType(bool_, (2, 3)),), "takes")


@record
class ArgMax(ArgExtreme):
    """The index of the greatest element along `axis`, the first of equal ones; of the first NaN if any."""


@record
class ArgMin(ArgExtreme):
    """The index of the least element along `axis`, the first of equal ones; of the first NaN if any."""


# -- truth ---------------------------------------------------------------------------------------------------
class Truth(Reduction):
    """What any and all share."""

    not_differentiable = "a truth value has no derivative"
    kinds = "b"
    dtypes = (bool_,)

    def ref(self, *arrays: Array) -> Array:
        function = np.any if self.combiner == "any" else np.all
        return np.asarray(function(arrays[0], axis=self.axes))


truth = records(__name__, Truth)
truth("any", "Whether any element over `axes` holds; of nothing, false.", combiner="any")
truth("all", "Whether every element over `axes` holds; of nothing, true.", combiner="all")
