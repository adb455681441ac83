"""Sorting along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import upper_bound
from stratal.base.dtypes import bfloat16, bool_, complex64, float32, float64, int64, uint8
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import check_kind
from stratal.ops.indexing import family


@record
class Sort(Op):
    """The elements along `axis` in order and the int64 indices they came from; stable both ways, NaN last."""

    axis: int
    descending: bool = False
    arity = 1
    not_lowered = "sorting needs a buffer to merge into; NumPy's sort runs as a host call"

    def infer(self, *types: TensorType) -> TupleType:
        x = types[0]
        check_kind(self.name, x.dtype, "buif")
        family.check_axis(self.name, x, self.axis)
        return TupleType((x, x.with_dtype(int64)))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        x = arrays[0]
        key = x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else x
        if self.descending:  # a key that reverses the order but keeps equals equal and NaN last
            key = np.invert(key) if x.dtype.kind in "iub" else -key
        order = np.argsort(key, axis=self.axis, kind="stable").astype(np.int64, copy=False)
        return np.take_along_axis(x, order, axis=self.axis), order

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, order = inputs[0], b.item(out, 1)
        if ct[0] is None:
            return [None]
        return [b.scatter_along(b.like(x, 0), order, ct[0], kind="set", axis=self.axis)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        if tangents[0] is None:
            return [None, None]
        return [b.gather_along(tangents[0], b.item(out, 1), axis=self.axis), None]

    def cost(self, *types: TensorType) -> Cost:
        """n log n comparisons per row."""
        x = types[0]
        rounds = math.log2(max(upper_bound(x.shape[self.axis]), 2))
        return Cost(upper_bound(x.size) * rounds, float(x.nbytes), float(x.nbytes + upper_bound(x.size) * 8))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, int64, uint8, bfloat16, bool_):
            for shape, axis in (
                ((7,), 0),
                ((4, 5), 0),
                ((4, 5), 1),
                ((2, 3, 4), 1),
                ((0, 3), 0),
                ((3, 1), 1),
            ):
                for descending in (False, True):
                    yield Sample(cls(axis, descending), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls(0), (TensorType(float32, ()),), "axis")
        yield Reject(cls(0), (TensorType(complex64, (2, 3)),), "takes")
