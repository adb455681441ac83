"""The determinant, whose derivative also exists where the matrix is singular."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import known_equal
from stratal.base.dtypes import float32, int64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen
from stratal.ops.linalg.lu import reordered, unit_lower


@record
class Determinant(family.OnMatrices):
    """The determinants of square matrices: A [..., n, n] -> [...]; 1 of no rows, 0 of a singular matrix."""

    name = "det"
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        family.check_square(self.name, *types)
        return types[0].with_shape(types[0].shape[:-2])

    def ref(self, *arrays: Array) -> Array:
        return chosen().det(arrays[0])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """The cofactors, conjugated."""
        x = inputs[0]
        scale = b.broadcast(ct, shape=x.shape, axes=tuple(range(ct.aval.ndim)))
        return [b.mul(scale, _cofactors(b, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        if tangents[0] is None:
            return None
        each = b.mul(matrices.conjugate(b, _cofactors(b, inputs[0])), tangents[0])
        return b.op("sum", each, axes=(each.aval.ndim - 2, each.aval.ndim - 1))

    def cost(self, *types: TensorType) -> Cost:
        """Two thirds of a product of matrices."""
        return family.cubic(types, 2 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return family.square_samples(cls())

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,)), "two axes")
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")


def _cofactors(b: Builder, x: Node) -> Node:
    """Return the conjugated matrix of cofactors, det(A)^* A^-H, by one LU factorisation for both factors.

    A pivot of 0 counts as the rounding error of the largest element: what is divided by it was multiplied by
    it, so the cofactors of a singular matrix are right to about that error, too. PyTorch's are 0 there.
    """
    if known_equal(x.shape[-1], 0):
        return x
    packed, order = b.items(b.lu(x))
    size = b.reduce_max(b.abs(x), axes=(x.aval.ndim - 2, x.aval.ndim - 1))
    size = b.select(b.eq(size, b.like(size, 0)), b.like(size, 1), size)
    tiny = b.stop_gradient(b.mul(size, b.like(size, np.finfo(size.dtype.np).eps)))
    tiny = matrices.cast(b, b.broadcast(tiny, shape=x.shape, axes=tuple(range(size.aval.ndim))), x.dtype)
    packed = matrices.on_diagonal(b, packed, b.select(b.eq(packed, b.like(packed, 0)), tiny, packed))
    low = matrices.adjoint(b, unit_lower(b, packed))
    up = matrices.adjoint(b, matrices.upper(b, packed))
    one = matrices.on_diagonal(b, b.like(x, 0), b.like(x, 1))
    inverse = matrices.solved(b, low, matrices.solved(b, up, one, lower=True), lower=False, unit=True)
    product = b.op("prod", matrices.diagonal(b, packed), axes=(x.aval.ndim - 2,))
    product = matrices.conjugate(b, b.mul(product, matrices.cast(b, _sign(b, order), x.dtype)))
    back = b.item(b.sort(order, axis=order.aval.ndim - 1), 1)
    scale = b.broadcast(product, shape=x.shape, axes=tuple(range(product.aval.ndim)))
    cofactors: Node = b.mul(scale, reordered(b, inverse, back))
    return cofactors


def _sign(b: Builder, order: Node) -> Node:
    """Return 1 or, where an odd number of pairs is out of order, -1."""
    shape = (*order.shape, order.shape[-1])
    wrong = b.op("gt", matrices.as_column(b, order, shape), matrices.as_row(b, order, shape))
    pairs = matrices.strictly_upper(b, b.op("cast", wrong, dtype=int64))
    total = b.sum(pairs, axes=(len(shape) - 2, len(shape) - 1))
    odd = b.op("and", total, b.like(total, 1))
    sign: Node = b.sub(b.like(odd, 1), b.mul(odd, b.like(odd, 2)))
    return sign
