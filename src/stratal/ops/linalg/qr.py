"""The QR factorisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dims import known_equal
from stratal.base.dtypes import float16, float32, float64
from stratal.base.errors import NotDifferentiableError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class QR(family.OnMatrices):
    """Q with orthonormal columns and upper triangular R, A = Q R, with the signs LAPACK gives.

    Shapes: A [..., m, n] -> Q [..., m, k], R [..., k, n], k = min(m, n), or m where `complete`. Derivatives
    are those of matrices whose first k columns are independent; the columns a complete Q has beyond A's are
    arbitrary and have none. See: Walter and Lehmann, "Algorithmic differentiation of linear algebra
    functions", 2010.
    """

    complete: bool = False
    name = "qr"
    arity = 1

    def infer(self, *types: TensorType) -> TupleType:
        family.check_matrix(self.name, *types)
        *batch, m, n = types[0].shape
        k = m if self.complete else family.smaller(m, n)
        return TupleType((types[0].with_shape((*batch, m, k)), types[0].with_shape((*batch, k, n))))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        return chosen().qr(arrays[0], self.complete)

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        """(dQ + Q S) R^-H, where S is the upper triangle of dR R^H - Q^H dQ, mirrored."""
        q, head, tail = self.factors(b, out)
        d_q, d_r = ct
        d_tail = None
        if tail is not None and d_r is not None:  # A = Q (U V): V = Q^H A2
            k, n = d_r.shape[-2:]
            d_v = matrices.columns(b, d_r, k, n)
            d_tail = matrices.times(b, q, d_v)
            d_q = matrices.total(b, d_q, matrices.times(b, q, tail, matrices.adjoint(b, d_v)))
            d_r = matrices.columns(b, d_r, 0, k)
        inner = matrices.total(
            b,
            None if d_r is None else matrices.times(b, d_r, matrices.adjoint(b, head)),
            None if d_q is None else b.neg(matrices.times(b, matrices.adjoint(b, q), d_q)),
        )
        if inner is None:
            return [None]
        mirrored = matrices.hermitian(b, matrices.adjoint(b, inner))
        left = matrices.total(b, d_q, matrices.times(b, q, mirrored))
        result = (
            matrices.divided(b, left, matrices.adjoint(b, head), lower=True) if left is not None else None
        )
        if tail is None or result is None:
            return [result]
        return [b.concatenate(result, b.like(tail, 0) if d_tail is None else d_tail, axis=tail.aval.ndim - 1)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        """With C = Q^H dA R^-1 and skew W of its lower triangle: dQ = dA R^-1 - Q (C - W), dR = (C - W) R."""
        q, head, tail = self.factors(b, out)
        change = tangents[0]
        if change is None:
            return [None, None]
        k, n = head.shape[-1], change.shape[-1]
        ratio = change if tail is None else matrices.columns(b, change, 0, k)
        ratio = matrices.divided(b, ratio, head, lower=False)
        inner = matrices.times(b, matrices.adjoint(b, q), ratio)
        low = matrices.strictly_lower(b, inner)
        skew = b.sub(low, matrices.adjoint(b, low))
        if skew.dtype.is_complex:
            turn = b.sub(inner, matrices.cast(b, matrices.real(b, inner), inner.dtype))
            skew = matrices.on_diagonal(b, skew, turn)
        rest = b.sub(inner, skew)
        d_q, d_r = b.sub(ratio, matrices.times(b, q, rest)), matrices.times(b, rest, head)
        if tail is not None:
            d_v = b.add(
                matrices.times(b, matrices.adjoint(b, d_q), matrices.times(b, q, tail)),
                matrices.times(b, matrices.adjoint(b, q), matrices.columns(b, change, k, n)),
            )
            d_r = b.concatenate(d_r, d_v, axis=d_v.aval.ndim - 1)
        return [d_q, d_r]

    def factors(self, b: Builder, out: Node) -> tuple[Node, Node, Node | None]:
        """Return Q, the leading square part of R, and what a wide R has at its right."""
        q, r = b.items(out)
        m, k, n = q.shape[-2], *r.shape[-2:]
        if not known_equal(m, n) and self.complete and m > n:
            raise NotDifferentiableError(
                "qr: the complete factorisation of tall matrices is not differentiable", got=str(q.aval),
                hint="mode='reduced' leaves out the columns of Q that are arbitrary",
            )  # fmt: skip
        if known_equal(k, n):
            return q, r, None
        return q, matrices.columns(b, r, 0, k), matrices.columns(b, r, k, n)

    def cost(self, *types: TensorType) -> Cost:
        """Householder reflections, applied to A and to the identity."""
        return family.cubic(types, 8 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (4, 2), (2, 4), (2, 2, 2), (1, 1), (0, 2), (0, 0), (0, 2, 2)):
                types = family.types_of(dtype, shape)
                yield Sample(cls(), types, draw=family.draw_matrices(types))
        for shape in ((2, 4), (3, 3), (4, 2)):
            types = family.types_of(float64, shape)
            yield Sample(cls(True), types, draw=family.draw_matrices(types), smooth=shape != (4, 2))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,)), "two axes")
        yield Reject(cls(), family.types_of(float16, (3, 3)), "takes")
