"""The pseudo-inverse and least squares, for matrices of any shape and rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import known_equal
from stratal.base.dtypes import float16, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class PInv(family.OnMatrices):
    """The pseudo-inverse, for which singular values up to `cutoff` times the largest are 0.

    Shapes: A [..., m, n], real cutoff [...] -> [..., n, m]. An op of its own, since its derivative exists
    where those of singular vectors do not: while the rank stays, it is made of products. See: Golub and
    Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
    separate", 1973.
    """

    name = "pinv"
    arity = 2
    work = 24.0  # a singular value decomposition and a product

    def infer(self, *types: TensorType) -> TensorType:
        x, cutoff = types
        family.check_matrix(self.name, x)
        if cutoff != TensorType(x.dtype.real, x.shape[:-2]):
            raise ShapeError(f"{self.name}: takes one real cutoff per matrix", got=f"{x} and {cutoff}")
        return x.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))

    def ref(self, *arrays: Array) -> Array:
        x, cutoff = arrays
        with family.refusing(self.name, family.NO_CONVERGENCE, x):
            return pseudo_inverse(x, cutoff)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """(I - A P) ct^H P P^H + P^H P ct^H (I - P A) - P^H ct P^H."""
        x, (p, p_h, ct_h) = inputs[0], (out, matrices.adjoint(b, out), matrices.adjoint(b, ct))
        left = matrices.times(b, ct_h, p)
        left = matrices.times(b, b.sub(left, matrices.times(b, x, matrices.times(b, p, left))), p_h)
        right = matrices.times(b, p, ct_h)
        right = matrices.times(b, p_h, b.sub(right, matrices.times(b, matrices.times(b, right, p), x)))
        turned = matrices.times(b, p_h, ct, p_h)
        return [b.sub(b.add(left, right), turned), None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """P P^H dA^H (I - A P) + (I - P A) dA^H P^H P - P dA P."""
        if tangents[0] is None:
            return None
        x, (p, p_h, d_h) = inputs[0], (out, matrices.adjoint(b, out), matrices.adjoint(b, tangents[0]))
        left = matrices.times(b, p, matrices.times(b, p_h, d_h))
        left = b.sub(left, matrices.times(b, matrices.times(b, left, x), p))
        right = matrices.times(b, matrices.times(b, d_h, p_h), p)
        right = b.sub(right, matrices.times(b, p, matrices.times(b, x, right)))
        return b.op("sub", b.add(left, right), matrices.times(b, p, tangents[0], p))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in family.ANY_SHAPE:
                types = (TensorType(dtype, shape), TensorType(dtype.real, shape[:-2]))
                yield Sample(cls(), types, draw=_draw(types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,), ()), "two axes")
        yield Reject(cls(), family.types_of(float16, (3, 3), ()), "takes")
        yield Reject(cls(), family.types_of(float32, (3, 3), (1,)), "cutoff")
        mixed = (TensorType(float32, (3, 3)), TensorType(float64, ()))
        yield Reject(cls(), mixed, "cutoff")


def pseudo_inverse(a: Array, cutoff: Array) -> Array:
    """Return [..., n, m] for A [..., m, n] and the cutoff of each. Raises: Refused."""
    u, s, vh = chosen().svd(a, False)
    kept = s > cutoff[..., None] * s.max(axis=-1, keepdims=True, initial=0)
    inverse = np.divide(1, s, where=kept, out=np.zeros_like(s))
    left, right = (np.swapaxes(f, -1, -2).conj() for f in (vh, u))
    return np.asarray(left * inverse[..., None, :] @ right)


@record
class LeastSquares(family.OnMatrices):
    """The X of least norm among those of least |A X - B|: pinv(A) B, without the pseudo-inverse.

    Shapes: A [..., m, n], B [..., m, k], real cutoff [...] -> [..., n, k]; singular values up to `cutoff`
    times the largest count as 0. A QR factorisation finds X where the rank is plainly min(m, n), the singular
    value decomposition elsewhere. Derivatives are those of P B, P = pinv(A), while the rank stays.
    """

    name = "lstsq"
    arity = 3

    def infer(self, *types: TensorType) -> TensorType:
        a, x, cutoff = types
        family.check_matrix(self.name, a, x)
        if a.shape[:-2] != x.shape[:-2] or not known_equal(a.shape[-2], x.shape[-2]):
            raise ShapeError(f"{self.name}: A and B have as many rows", got=f"{a} and {x}")
        if cutoff != TensorType(a.dtype.real, a.shape[:-2]):
            raise ShapeError(f"{self.name}: takes one real cutoff per matrix", got=f"{a} and {cutoff}")
        return x.with_shape((*x.shape[:-2], a.shape[-1], x.shape[-1]))

    def ref(self, *arrays: Array) -> Array:
        a, b, cutoff = arrays
        with family.refusing(self.name, family.NO_CONVERGENCE, a):
            x, plain = chosen().least_squares(a, b, cutoff)
            if not plain.all():
                x[~plain] = pseudo_inverse(a[~plain], cutoff[~plain]) @ b[~plain]
        return x

    def solved(self, b: Builder, a: Node, x: Node, cutoff: Node) -> Node:
        """Return pinv(A) X."""
        return b.op(self.name, a, x, cutoff)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """With Z = P^H ct: Z for B, (B - A X) (P Z)^H + (P^H X) (ct - A^H Z)^H - Z X^H for A."""
        a, x, cutoff = inputs
        adjoint = matrices.adjoint(b, a)
        z = self.solved(b, adjoint, ct, cutoff)
        if not b.needed(0):
            return [None, z, None]
        left = b.sub(x, matrices.times(b, a, out))
        left = matrices.times(b, left, matrices.adjoint(b, self.solved(b, a, z, cutoff)))
        right = matrices.adjoint(b, b.sub(ct, matrices.times(b, adjoint, z)))
        right = matrices.times(b, self.solved(b, adjoint, out, cutoff), right)
        turned = matrices.times(b, z, matrices.adjoint(b, out))
        return [b.sub(b.add(left, right), turned), z, None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """P (dB - dA X + P^H dA^H (B - A X)) + (I - P A) dA^H P^H X."""
        (a, x, cutoff), (d_a, d_x, _) = inputs, tangents
        if d_a is None:
            return None if d_x is None else self.solved(b, a, d_x, cutoff)
        adjoint, d_h = matrices.adjoint(b, a), matrices.adjoint(b, d_a)
        rest = matrices.times(b, d_h, b.sub(x, matrices.times(b, a, out)))
        change = b.sub(self.solved(b, adjoint, rest, cutoff), matrices.times(b, d_a, out))
        change = change if d_x is None else b.add(change, d_x)
        beside = matrices.times(b, d_h, self.solved(b, adjoint, out, cutoff))
        inside = b.sub(change, matrices.times(b, a, beside))
        return b.op("add", self.solved(b, a, inside, cutoff), beside)

    def cost(self, *types: TensorType) -> Cost:
        """A QR factorisation, and products with B."""
        own = family.cubic(types, 8 / 3)
        return own._replace(flops=own.flops + 4 * family.cubic(types[1:], 1.0).flops)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for a, x in (((3, 3), (3, 2)), ((4, 2), (4, 3)), ((2, 4), (2, 1)), ((2, 3, 2), (2, 3, 1)),
                         ((1, 1), (1, 1)), ((0, 2), (0, 1)), ((2, 0), (2, 1)), ((0, 0), (0, 2)),
                         ((0, 3, 2), (0, 3, 1)), ((3, 2), (3, 0))):  # fmt: skip
                types = (*family.types_of(dtype, a, x), TensorType(dtype.real, a[:-2]))
                yield Sample(cls(), types, draw=_draw(types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,), (3, 1), ()), "two axes")
        yield Reject(cls(), family.types_of(float16, (3, 3), (3, 1), ()), "takes")
        yield Reject(cls(), family.types_of(float32, (3, 2), (2, 1), ()), "rows")
        yield Reject(cls(), family.types_of(float32, (3, 3), (3, 1), (1,)), "cutoff")
        mixed = (*family.types_of(float32, (3, 3), (3, 1)), TensorType(float64, ()))
        yield Reject(cls(), mixed, "cutoff")


def _draw(types: tuple[TensorType, ...]) -> Draw:
    """Return a drawing of matrices and of a cutoff."""
    *matrices, cutoff = types
    first = family.draw_matrices(matrices)
    return lambda rng: [*first(rng), np.full(cutoff.ints, 0.01, cutoff.dtype.np)]
