"""Reading at computed places along one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import DType, bfloat16, bool_, float32, float64, int32, int64, uint8
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import Var
from stratal.ops.families import RowWise, cast_to, moved_axis
from stratal.ops.indexing import family


@dataclass(frozen=True, repr=False)
class Reading(RowWise):
    """What gather and gather_along share: they read `x` at indices along `axis`, which lie in [0, n)."""

    axis: int
    arity = 2
    by_parts = True
    function: ClassVar[Callable[..., Array]]  # of NumPy
    scatter: ClassVar[str]  # the transpose
    integers: ClassVar[tuple[DType, ...]]  # of the indices of samples
    cases: ClassVar[tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...]]  # x, axis, indices

    def infer(self, *types: TensorType) -> TensorType:
        x, index = types
        family.check_axis(self.name, x, self.axis)
        family.check_indices(self.name, index)
        return x

    def ref(self, *arrays: Array) -> Array:
        x, index = arrays
        family.check_in_range(self.name, index, x.shape[self.axis])
        return np.asarray(type(self).function(x, index.astype(np.int64), axis=self.axis))

    def where(self, out: Sequence[Var], ndim: int) -> tuple[Sequence[Var], Sequence[Var]]:
        """Return the axes of the result that say which of `ndim` axes of indices, and those behind `axis`."""
        raise NotImplementedError

    def lower(self, *types: TensorType) -> Lowered:
        x, index = arguments(*types)
        out = fresh_axes(self.infer(*types).ints)
        which, behind = self.where(out, len(index.shape))
        element = x[(*out[: self.axis], family.as_index(index[tuple(which)]), *behind)]
        check = family.check(self.name, 1, x.shape[self.axis])
        return Compute((x, index), out, x.dtype, element, checks=(check,))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, index = inputs
        return [family.summed_at(b, self.scatter, x, index, ct, self.axis), None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else b.op(self.name, tangents[0], inputs[1], axis=self.axis)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, integer in zip((float32, float64, int64, bfloat16, bool_), cls.integers, strict=True):
            for shape, axis, index in cls.cases:
                types = (TensorType(dtype, shape), TensorType(integer, index))
                yield Sample(cls(axis), types, draw=family.draw(types, shape[axis]))


@record
class Gather(Reading):
    """Take whole slices along `axis`: x[..., indices, ...], as numpy.take. Indices lie in [0, n).

    Shapes: x [a..., n, c...], indices [i...] -> [a..., i..., c...].
    """

    function = np.take
    scatter = "scatter"
    integers = (int64, int32, int64, uint8, int64)
    cases = (
        ((5,), 0, ()), ((5, 3), 0, (4,)), ((2, 5), 1, (2, 3)), ((2, 4, 3), 1, (5,)), ((1, 1), 0, (3,)),
        ((3, 2), 0, (0,)), ((3, 0), 0, (2,)), ((6, 33), 0, (7,)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x, index = super().infer(*types), types[1]
        return x.with_shape(x.shape[: self.axis] + index.shape + x.shape[self.axis + 1 :])

    def where(self, out: Sequence[Var], ndim: int) -> tuple[Sequence[Var], Sequence[Var]]:
        return out[self.axis : self.axis + ndim], out[self.axis + ndim :]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        x, index = inputs
        if not mapped[1]:
            return b.op("gather", x, index, axis=self.axis + 1)
        if not mapped[0]:
            return moved_axis(b, b.gather(x, index, axis=self.axis), self.axis, 0)
        flat = family.along_slices(b, index, x, self.axis + 1)
        shape = (*x.shape[: self.axis + 1], *index.shape[1:], *x.shape[self.axis + 2 :])
        return b.op("reshape", b.gather_along(x, flat, axis=self.axis + 1), shape=shape)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)), TensorType(int64, (2,))), "axis")
        yield Reject(cls(0), (TensorType(float32, (2, 3)), TensorType(float32, (2,))), "integers")


@record
class GatherAlong(Reading):
    """Take single elements along `axis`: out[..., k, ...] = x[..., indices[..., k, ...], ...].

    As numpy.take_along_axis: `indices` has the shape of `x` but for `axis`. Indices lie in [0, n).
    """

    name = "gather_along"
    function = np.take_along_axis
    scatter = "scatter_along"
    integers = (int64, int32, int64, int64, int64)
    cases = (
        ((5,), 0, (3,)), ((5, 3), 0, (4, 3)), ((2, 5), 1, (2, 1)), ((2, 4, 3), 1, (2, 6, 3)),
        ((1, 1), 0, (1, 1)), ((3, 2), 0, (0, 2)), ((0, 2), 1, (0, 2)), ((5, 33), 0, (3, 33)),
        ((3, 33), 1, (3, 40)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x, index = super().infer(*types), types[1]
        family.check_same_but(self.name, x, index, self.axis)
        return x.with_shape(index.shape)

    def where(self, out: Sequence[Var], ndim: int) -> tuple[Sequence[Var], Sequence[Var]]:
        return out, out[self.axis + 1 :]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, index = inputs
        if known_equal(index.shape[self.axis], 1):  # one element per row: no scatter needed, and it fuses
            return [self._spread(b, x, index, ct), None]
        return super().vjp(b, ct, out, *inputs)

    def _spread(self, b: Builder, x: Node, index: Node, ct: Node) -> Node:
        """Return the cotangent where its row's one index points, 0 elsewhere."""
        all_axes = tuple(range(x.aval.ndim))
        places = b.iota(shape=x.shape, axis=self.axis, dtype=int64)
        chosen = b.broadcast(cast_to(b, index, int64), shape=x.shape, axes=all_axes)
        wide = b.broadcast(ct, shape=x.shape, axes=all_axes)
        return b.select(b.eq(places, chosen), wide, b.like(x, 0))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 3))
        yield Reject(cls(2), (x, TensorType(int64, (2, 3))), "axis")
        yield Reject(cls(0), (x, TensorType(float32, (2, 3))), "integers")
        yield Reject(cls(0), (x, TensorType(int64, (2, 2))), "shape")
        yield Reject(cls(0), (x, TensorType(int64, (2,))), "shape")
