"""Flip: some axes in reverse, as a view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim
from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import Compute, arguments
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.index import sub
from stratal.ops.families import Movement, over_rows, refuse_host_only


@record
class Flip(Movement):
    """Reverse the order of elements along `axes`."""

    axes: tuple[int, ...]
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if len(set(self.axes)) != len(self.axes) or not all(0 <= a < x.ndim for a in self.axes):
            raise AttributeValueError("flip: axes must be distinct and in range", got=f"{self.axes} for {x}")
        return x

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(np.flip(arrays[0], self.axes))

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        (x,) = arguments(*types)
        out = fresh_axes(x.shape)
        where = tuple(
            sub(n - 1, v) if k in self.axes else v for k, (v, n) in enumerate(zip(out, x.shape, strict=True))
        )
        return Compute((x,), out, x.dtype, x[where])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.flip(ct, axes=self.axes)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
            ((4,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3), (0, 1)), ((2, 3), ()),
            ((0, 3), (0, 1)), ((), ()), ((1, 5, 1), (0, 1)), ((9, 35), (1,)),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for shape, axes in cases:
                yield Sample(cls(axes), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(float32, (2, 3)),), "range")
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "distinct")
