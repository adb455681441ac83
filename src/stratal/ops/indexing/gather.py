"""Reading at computed places along one axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import bfloat16, bool_, float32, float64, int32, int64, uint8
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Check, Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.ops.families import moved_axis, over_rows, refuse_host_only
from stratal.ops.indexing import family


@record
class Gather(Op):
    """Take whole slices along `axis`: x[..., indices, ...], as numpy.take. Indices lie in [0, n).

    Shapes: x [a..., n, c...], indices [i...] -> [a..., i..., c...].
    """

    axis: int
    arity = 2
    by_parts = True

    def infer(self, *types: TensorType) -> TensorType:
        x, index = types
        family.check_axis(self.name, x, self.axis)
        family.check_indices(self.name, index)
        return x.with_shape(x.shape[: self.axis] + index.shape + x.shape[self.axis + 1 :])

    def ref(self, *arrays: Array) -> Array:
        x, index = arrays
        family.check_in_range(self.name, index, x.shape[self.axis])
        return np.asarray(np.take(x, index.astype(np.int64), axis=self.axis))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, index = inputs
        return [family.summed_at(b, "scatter", x, index, ct, self.axis), None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else b.op(self.name, tangents[0], inputs[1], axis=self.axis)

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        x, index = arguments(*types)
        variables = fresh_axes(self.infer(*types).ints)
        stop = self.axis + len(index.shape)
        at = family.as_index(index[tuple(variables[self.axis : stop])])
        bound = x.shape[self.axis]
        return Compute(
            (x, index),
            variables,
            x.dtype,
            x[(*variables[: self.axis], at, *variables[stop:])],
            checks=(Check(1, bound, family.message(self.name, bound)),),
        )

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
    def samples(cls) -> Iterable[Sample]:
        for dtype, integer in (
            (float32, int64),
            (float64, int32),
            (int64, int64),
            (bfloat16, uint8),
            (bool_, int64),
        ):
            for shape, axis, index in (
                ((5,), 0, ()), ((5, 3), 0, (4,)), ((2, 5), 1, (2, 3)), ((2, 4, 3), 1, (5,)),
                ((1, 1), 0, (3,)), ((3, 2), 0, (0,)), ((3, 0), 0, (2,)), ((6, 33), 0, (7,)),
            ):  # fmt: skip
                types = (TensorType(dtype, shape), TensorType(integer, index))
                yield Sample(cls(axis), types, draw=family.draw(types, shape[axis]))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)), TensorType(int64, (2,))), "axis")
        yield Reject(cls(0), (TensorType(float32, (2, 3)), TensorType(float32, (2,))), "integers")


@record
class GatherAlong(Op):
    """Take single elements along `axis`: out[..., k, ...] = x[..., indices[..., k, ...], ...].

    As numpy.take_along_axis: `indices` has the shape of `x` but for `axis`. Indices lie in [0, n).
    """

    axis: int
    name = "gather_along"
    arity = 2
    by_parts = True

    def infer(self, *types: TensorType) -> TensorType:
        x, index = types
        family.check_axis(self.name, x, self.axis)
        family.check_indices(self.name, index)
        family.check_same_but(self.name, x, index, self.axis)
        return x.with_shape(index.shape)

    def ref(self, *arrays: Array) -> Array:
        x, index = arrays
        family.check_in_range(self.name, index, x.shape[self.axis])
        return np.take_along_axis(x, index.astype(np.int64), axis=self.axis)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, index = inputs
        if known_equal(index.shape[self.axis], 1):  # one element per row: no scatter needed, and it fuses
            return [self._spread(b, x, index, ct), None]
        return [family.summed_at(b, "scatter_along", x, index, ct, self.axis), None]

    def _spread(self, b: Builder, x: Node, index: Node, ct: Node) -> Node:
        """Return the cotangent where its row's one index points, 0 elsewhere."""
        all_axes = tuple(range(x.aval.ndim))
        places = b.iota(shape=x.shape, axis=self.axis, dtype=int64)
        chosen = b.broadcast(family.cast_node(b, index, int64), shape=x.shape, axes=all_axes)
        return b.op(
            "select", b.eq(places, chosen), b.broadcast(ct, shape=x.shape, axes=all_axes), b.like(x, 0)
        )

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else b.op(self.name, tangents[0], inputs[1], axis=self.axis)

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        x, index = arguments(*types)
        variables = fresh_axes(index.shape)
        at = family.as_index(index[tuple(variables)])
        bound = x.shape[self.axis]
        return Compute(
            (x, index),
            variables,
            x.dtype,
            x[(*variables[: self.axis], at, *variables[self.axis + 1 :])],
            checks=(Check(1, bound, family.message(self.name, bound)),),
        )

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axis=self.axis + 1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype, integer in ((float32, int64), (float64, int32), (int64, int64), (bfloat16, int64)):
            for shape, axis, count in (
                ((5,), 0, 3), ((5, 3), 0, 4), ((2, 5), 1, 1), ((2, 4, 3), 1, 6), ((1, 1), 0, 1),
                ((3, 2), 0, 0), ((0, 2), 1, 2), ((5, 33), 0, 3), ((3, 33), 1, 40),
            ):  # fmt: skip
                index = (*shape[:axis], count, *shape[axis + 1 :])
                types = (TensorType(dtype, shape), TensorType(integer, index))
                yield Sample(cls(axis), types, draw=family.draw(types, shape[axis]))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 3))
        yield Reject(cls(2), (x, TensorType(int64, (2, 3))), "axis")
        yield Reject(cls(0), (x, TensorType(float32, (2, 3))), "integers")
        yield Reject(cls(0), (x, TensorType(int64, (2, 2))), "shape")
        yield Reject(cls(0), (x, TensorType(int64, (2,))), "shape")
