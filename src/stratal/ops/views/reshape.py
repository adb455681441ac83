"""Reshape: the same elements in row-major order under another shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dims import Dim, Shape, known_equal, product
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import const
from stratal.loops.index import flatten, unflatten
from stratal.ops.families import Movement, over_rows, refuse_host_only


@record
class Reshape(Movement):
    """Give `x` the shape `shape`, elements in row-major order. The front end resolves -1."""

    shape: Shape
    arity = 1
    dim_attributes = ("shape",)

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("reshape: a size is negative", got=str(self.shape))
        if not known_equal(x.size, product(self.shape)):
            raise ShapeError(
                "reshape: number of elements differs",
                got=f"{x} to {list(self.shape)}: {x.size} and {product(self.shape)} elements",
            )
        return x.with_shape(self.shape)

    def ref(self, *arrays: Array) -> Array:
        return arrays[0].reshape(tuple(int(n) for n in self.shape))

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        (x,) = arguments(*types)
        shape = types[0].with_shape(self.shape).ints
        out = fresh_axes(shape)
        if 0 in shape:  # no element to find a place for
            return Compute((x,), out, x.dtype, const(0, x.dtype))
        return Compute((x,), out, x.dtype, x[unflatten(flatten(tuple(out), shape), x.shape)])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.reshape(ct, shape=inputs[0].shape)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, shape=(size, *self.shape))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
            ((2, 3), (3, 2)), ((2, 3), (6,)), ((6,), (1, 2, 3)), ((4, 6), (8, 3)), ((2, 3, 4), (2, 12)),
            ((1,), ()), ((), (1, 1)), ((0, 4), (3, 0)), ((0,), (2, 0, 5)), ((1, 5, 1), (5,)),
            ((6, 35), (14, 15)),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for source, target in shapes:
                yield Sample(cls(target), (TensorType(dtype, source),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((4,)), (TensorType(float32, (2, 3)),), "elements")
        yield Reject(cls((-1, 3)), (TensorType(float32, (2, 3)),), "negative")
        yield Reject(cls((0,)), (TensorType(float32, ()),), "elements")
