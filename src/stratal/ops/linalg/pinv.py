"""The pseudo-inverse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
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

    def infer(self, *types: TensorType) -> TensorType:
        x, cutoff = types
        family.check_matrix(self.name, x)
        if cutoff != TensorType(family.real_of(x.dtype), x.shape[:-2]):
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

    def cost(self, *types: TensorType) -> Cost:
        """A singular value decomposition and a product."""
        return family.cubic(types, 24.0)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (4, 2), (2, 4), (2, 2, 2), (1, 1), (0, 2), (0, 0), (0, 2, 2)):
                types = (TensorType(dtype, shape), TensorType(family.real_of(dtype), shape[:-2]))
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


def _draw(types: tuple[TensorType, ...]) -> Draw:
    first = family.draw_matrices(types[:1])
    return lambda rng: [*first(rng), np.full(types[1].ints, 0.01, types[1].dtype.np)]
