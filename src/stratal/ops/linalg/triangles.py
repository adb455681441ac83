"""Factorisations into triangles: Cholesky, LU with row pivoting, QR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dims import known_equal
from stratal.base.dtypes import float64, int64
from stratal.base.errors import NotDifferentiableError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class Cholesky(family.OnMatrices):
    """The lower triangular L with A = L L^H of positive definite matrices [..., n, n].

    Only the lower triangle of A is read, so its cotangent lies there too. See: Murray, "Differentiation of
    the Cholesky decomposition", 2016.
    """

    arity = 1
    work = 1 / 3
    is_square = True
    shapes = ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 3, 3))
    positive = True

    def ref(self, *arrays: Array) -> Array:
        with family.refusing(self.name, "the matrix is not positive definite", arrays[0]):
            return chosen().cholesky(arrays[0])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """L^-H F(L^H ct) L^-1, where F takes the lower triangle and halves the diagonal."""
        upper = matrices.adjoint(b, out)
        inner = matrices.half_lower(b, matrices.times(b, upper, ct))
        outer = matrices.solved(b, upper, inner, lower=False)
        return [matrices.on_lower(b, matrices.divided(b, outer, out, lower=True))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """L F(L^-1 dA L^-H)."""
        assert tangents[0] is not None
        left = matrices.solved(b, out, matrices.hermitian(b, tangents[0]), lower=True)
        inner = matrices.divided(b, left, matrices.adjoint(b, out), lower=False)
        return matrices.times(b, out, matrices.half_lower(b, inner))


@record
class LU(family.OnMatrices):
    """L (below the diagonal, its own being 1) and U in one matrix, and the rows of A in the order of L U.

    Shapes: A [..., m, n] -> [..., m, n] and int64 `order` [..., m]: A[order] = L U. A singular A has a 0 on
    the diagonal of U; derivatives then do not exist, and say so. Wide and tall matrices are a square part
    with columns or rows that follow from it.
    """

    name = "lu"
    arity = 1
    work = 2 / 3
    shapes = (
        (3, 3), (2, 4), (4, 2), (2, 2, 2), (1, 1), (0, 0), (0, 3), (3, 0), (0, 2, 2), (40, 40),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TupleType:
        family.check_matrix(self.name, *types)
        return TupleType((types[0], TensorType(int64, types[0].shape[:-1])))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        return chosen().lu(arrays[0])

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Of square A: L^-H (tril(L^H dL, -1) + triu(dU U^H)) U^-H, rows back in their places."""
        packed, order = b.items(out)
        if ct[0] is None:
            return [None]
        head, below, right = _split(b, packed)
        d_head, d_below, d_right = _split(b, ct[0])
        low, up = matrices.adjoint(b, unit_lower(b, head)), matrices.adjoint(b, matrices.upper(b, head))
        d_low, d_up = matrices.strictly_lower(b, d_head), matrices.upper(b, d_head)
        if right is not None and d_right is not None:  # U2 = L^-1 A2
            d_right = matrices.solved(b, low, d_right, lower=False)
            d_low = b.sub(d_low, matrices.times(b, d_right, matrices.adjoint(b, right)))
        if below is not None and d_below is not None:  # L2 = A2 U^-1
            d_below = matrices.divided(b, d_below, up, lower=True)
            d_up = b.sub(d_up, matrices.times(b, matrices.adjoint(b, below), d_below))
        by_low, by_up = matrices.times(b, low, d_low), matrices.times(b, d_up, up)
        inner = b.add(matrices.strictly_lower(b, by_low), matrices.upper(b, by_up))
        outer = matrices.divided(b, matrices.solved(b, low, inner, lower=False), up, lower=True)
        back = b.item(b.sort(order, axis=order.aval.ndim - 1), 1)
        return [reordered(b, _join(b, outer, d_below, d_right), back)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        """Of square A, with M = L^-1 dA U^-1: dL = L tril(M, -1), dU = triu(M) U."""
        packed, order = b.items(out)
        assert tangents[0] is not None
        head, below, right = _split(b, packed)
        d_head, d_below, d_right = _split(b, reordered(b, tangents[0], order))
        low, up = unit_lower(b, head), matrices.upper(b, head)
        inner = matrices.divided(b, matrices.solved(b, low, d_head, lower=True), up, lower=False)
        d_low = matrices.times(b, low, matrices.strictly_lower(b, inner))
        d_up = matrices.times(b, matrices.upper(b, inner), up)
        if right is not None and d_right is not None:
            d_right = b.sub(d_right, matrices.times(b, d_low, right))
            d_right = matrices.solved(b, low, d_right, lower=True)
        if below is not None and d_below is not None:
            d_below = matrices.divided(b, b.sub(d_below, matrices.times(b, below, d_up)), up, lower=False)
        return [_join(b, b.add(d_low, d_up), d_below, d_right), None]


def _split(b: Builder, x: Node) -> tuple[Node, Node | None, Node | None]:
    """Return the leading square part, what tall matrices have below it, what wide ones have at its right."""
    m, n = x.shape[-2:]
    if known_equal(m, n):
        return x, None, None
    if m < n:
        return matrices.columns(b, x, 0, m), None, matrices.columns(b, x, m, n)
    return matrices.rows(b, x, 0, n), matrices.rows(b, x, n, m), None


def _join(b: Builder, head: Node, below: Node | None, right: Node | None) -> Node:
    """Undo `_split`."""
    parts = [head, *(p for p in (below, right) if p is not None)]
    axis = head.aval.ndim - (1 if below is None else 2)
    return head if len(parts) == 1 else b.op("concatenate", *parts, axis=axis)


def unit_lower(b: Builder, packed: Node) -> Node:
    """Return L, its ones written out."""
    return matrices.on_diagonal(b, matrices.strictly_lower(b, packed), b.like(packed, 1))


def reordered(b: Builder, x: Node, order: Node) -> Node:
    """Return the rows of each matrix in the order given for it."""
    index = matrices.as_column(b, order, x.shape)
    return b.op("gather_along", x, index, axis=x.aval.ndim - 2)


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
    work = 8 / 3  # Householder reflections, applied to A and to the identity
    shapes = family.ANY_SHAPE

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
        assert change is not None
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

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        for shape in ((2, 4), (3, 3), (4, 2)):
            types = family.types_of(float64, shape)
            yield Sample(cls(True), types, draw=family.draw_matrices(types), smooth=shape != (4, 2))
