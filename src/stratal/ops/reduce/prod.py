"""Product over axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, product
from stratal.base.dtypes import bfloat16, bool_, float32, float64, int64
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import check_kind, over_rows, refuse_host_only
from stratal.ops.reduce import family


@record
class Prod(Op):
    """Product over `axes`, which vanish; 16-bit floats multiply in float32, integers wrap. Of nothing, 1.

    Its derivative multiplies the others together instead of dividing, so it is right at zeros.
    """

    axes: tuple[int, ...]
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uifc")
        return family.reduced_type(self.name, types[0], self.axes)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        wide = family.widened(x)
        return np.asarray(np.prod(wide, axis=self.axes, dtype=wide.dtype)).astype(x.dtype)

    def cost(self, *types: TensorType) -> Cost:
        return family.reduction_cost(types, self.infer(*types))

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        return family.reduction("prod", types[0], self.axes)

    def others(self, b: Builder, x: Node) -> Node:
        """Return for each element the product of the others it is multiplied with."""
        kept = family.kept(x.aval, self.axes)
        perm = kept + self.axes
        rows = b.permute(x, perm=perm)
        shape = rows.shape
        flat = b.reshape(rows, shape=(*shape[: len(kept)], product(shape[len(kept) :])))
        axis, ndim, length = len(kept), len(kept) + 1, flat.shape[-1]
        if not (isinstance(length, int) and length == 0):
            flat = b.mul(*(_exclusive(b, flat, axis, ndim, reverse) for reverse in (False, True)))
        inverse = tuple(perm.index(a) for a in range(len(perm)))
        return b.op("permute", b.reshape(flat, shape=shape), perm=inverse)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        others = self.others(b, inputs[0])
        if ct.dtype.is_complex:
            others = b.conj(others)
        return [b.mul(family.spread(b, ct, inputs[0].aval, self.axes), others)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return b.op("sum", b.mul(tangents[0], self.others(b, inputs[0])), axes=self.axes)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from family.reduction_samples(cls, (float32, float64, int64, bfloat16))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "twice")
        yield Reject(cls((0,)), (TensorType(bool_, (2, 3)),), "takes")


def _exclusive(b: Builder, x: Node, axis: int, ndim: int, reverse: bool) -> Node:
    """Return the product of all before (after, if `reverse`) each element of the last axis."""
    running = b.cumprod(x, axis=axis, reverse=reverse)
    size = x.shape[axis]
    start, stop, low, high = ([0] * ndim, list(x.shape), [0] * ndim, [0] * ndim)
    if reverse:
        start[axis], high[axis] = 1, 1
    else:
        stop[axis], low[axis] = size - 1, 1
    cut = b.slice(running, start=tuple(start), stop=tuple(stop), step=(1,) * ndim)
    one = b.const(1, x.dtype)
    return b.op("pad", cut, one, low=tuple(low), high=tuple(high), interior=(0,) * ndim)
