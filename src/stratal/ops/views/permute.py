"""Permute: the axes in another order, as a view."""

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
from stratal.ops.families import Movement, over_rows, refuse_host_only


@record
class Permute(Movement):
    """Reorder axes: output axis k is input axis `perm[k]`."""

    perm: tuple[int, ...]
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if sorted(self.perm) != list(range(x.ndim)):
            raise AttributeValueError("permute: perm must name each axis once", got=f"{self.perm} for {x}")
        return x.with_shape(x.shape[a] for a in self.perm)

    def ref(self, *arrays: Array) -> Array:
        return np.transpose(arrays[0], self.perm)

    def inverse(self) -> tuple[int, ...]:
        """Return the permutation that undoes this one."""
        return tuple(self.perm.index(a) for a in range(len(self.perm)))

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        (x,) = arguments(*types)
        out = fresh_axes(x.shape[a] for a in self.perm)
        return Compute((x,), out, x.dtype, x[tuple(out[k] for k in self.inverse())])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.permute(ct, perm=self.inverse())]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, perm=(0, *(a + 1 for a in self.perm)))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        cases: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
            ((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 3, 4), (0, 2, 1)), ((), ()), ((5,), (0,)),
            ((0, 3), (1, 0)), ((1, 4, 1), (2, 1, 0)), ((17, 19), (1, 0)),
        )  # fmt: skip
        for dtype in (float32, float64, bool_, int64):
            for shape, perm in cases:
                yield Sample(cls(perm), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "once")
        yield Reject(cls((0,)), (TensorType(float32, (2, 3)),), "once")
        yield Reject(cls((0, -1)), (TensorType(float32, (2, 3)),), "once")
