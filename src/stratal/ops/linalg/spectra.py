"""Eigenvalues and eigenvectors, of Hermitian matrices and of any; the singular value decomposition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stratal.base.cost import Cost
from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import DType
from stratal.base.types import TensorType, TupleType, Type
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.ops.families import COMPLEX_OF
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@dataclass(frozen=True, repr=False)
class Eigen(family.OnMatrices):
    """What both ops share: eigenvalues alone, or with eigenvectors."""

    vectors: bool = True
    arity = 1
    is_square = True
    arbitrary: ClassVar[str]  # the kinds of dtypes whose eigenvectors have arbitrary phases

    def basis(self, b: Builder, out: Node, x: Node) -> tuple[Node, Node]:
        """Return eigenvalues and eigenvectors, which also the derivative of eigenvalues alone needs."""
        w, v = b.items(out if self.vectors else b.op(self.name, x))
        return w, v

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in family.SQUARE:
                for vectors in (True, False):
                    types = family.types_of(dtype, shape)
                    draw = family.draw_matrices(types, positive=True)
                    smooth = not vectors or dtype.kind not in cls.arbitrary
                    yield Sample(cls(vectors), types, draw=draw, smooth=smooth)


@record
class Eigh(Eigen):
    """The eigenvalues of Hermitian matrices, ascending, and if `vectors` orthonormal eigenvectors.

    Shapes: A [..., n, n] -> real w [..., n], V [..., n, n]: A V = V diag(w). Only the lower triangle of A is
    read, so its cotangent lies there too. The derivative of V divides by differences of eigenvalues: it is
    not finite where two are equal, and means something only for functions that the phases of the vectors do
    not change. See: Giles, "An extended collection of matrix derivative results", 2008, 3.1.
    """

    arbitrary = "c"

    def infer(self, *types: TensorType) -> Type:
        family.check_square(self.name, *types)
        values = TensorType(types[0].dtype.real, types[0].shape[:-1])
        return TupleType((values, types[0])) if self.vectors else values

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        with family.refusing(self.name, family.NO_CONVERGENCE, arrays[0]):
            return chosen().eigh(arrays[0]) if self.vectors else chosen().eigvalsh(arrays[0])

    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """V (diag(dw) + V^H dV / E) V^H, E[i, j] = w[j] - w[i] off the diagonal."""
        w, v = self.basis(b, out, inputs[0])
        d_w, d_v = ct if self.vectors else (ct, None)
        inner = None if d_w is None else matrices.diagonal_matrix(b, d_w, v.dtype)
        if d_v is not None:
            turned = b.div(
                matrices.times(b, matrices.adjoint(b, v), d_v), matrices.cast(b, matrices.gaps(b, w), v.dtype)
            )
            inner = matrices.on_diagonal(b, turned, b.like(v, 0) if inner is None else inner)
        if inner is None:
            return [None]
        return [matrices.on_lower(b, matrices.times(b, v, inner, matrices.adjoint(b, v)))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        assert tangents[0] is not None
        w, v = self.basis(b, out, inputs[0])
        inner = matrices.times(b, matrices.adjoint(b, v), matrices.hermitian(b, tangents[0]), v)
        d_w = matrices.real(b, matrices.diagonal(b, inner))
        if not self.vectors:
            return d_w
        turned = b.div(inner, matrices.cast(b, matrices.gaps(b, w), v.dtype))
        return [d_w, matrices.times(b, v, matrices.on_diagonal(b, turned, b.like(v, 0)))]

    def cost(self, *types: TensorType) -> Cost:
        """Divide and conquer after tridiagonalisation."""
        return family.cubic(types, 9.0 if self.vectors else 4 / 3)


@record
class Eig(Eigen):
    """The complex eigenvalues of square matrices, in LAPACK's order, and if `vectors` eigenvectors.

    Shapes: A [..., n, n] -> complex w [..., n], V [..., n, n] with columns of norm 1: A V = V diag(w).
    Derivatives divide by differences of eigenvalues, as those of `eigh` do. See: Boeddeker et al., "On the
    computation of complex-valued gradients", 2017, 4.2.3.
    """

    arbitrary = "fc"

    def infer(self, *types: TensorType) -> Type:
        family.check_square(self.name, *types)
        x = types[0].with_dtype(COMPLEX_OF.get(types[0].dtype, types[0].dtype))
        values = x.with_shape(x.shape[:-1])
        return TupleType((values, x)) if self.vectors else values

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        with family.refusing(self.name, family.NO_CONVERGENCE, arrays[0]):
            return chosen().eig(arrays[0]) if self.vectors else chosen().eigvals(arrays[0])

    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """V^-H (diag(dw) + (V^H dV - V^H V diag(re(V^H dV))) / conj(E)) V^H, E[i, j] = w[j] - w[i]."""
        w, v = self.basis(b, out, inputs[0])
        d_w, d_v = ct if self.vectors else (ct, None)
        adjoint = matrices.adjoint(b, v)
        inner = None if d_w is None else matrices.diagonal_matrix(b, d_w, v.dtype)
        if d_v is not None:
            along = matrices.times(b, adjoint, d_v)
            length = matrices.as_row(
                b, matrices.cast(b, matrices.real(b, matrices.diagonal(b, along)), v.dtype), v.shape
            )
            across = b.sub(along, b.mul(matrices.times(b, adjoint, v), length))
            turned = b.div(across, b.conj(matrices.gaps(b, w)))
            inner = matrices.on_diagonal(b, turned, b.like(v, 0) if inner is None else inner)
        if inner is None:
            return [None]
        return [matrices.cast(b, b.solve(adjoint, matrices.times(b, inner, adjoint)), inputs[0].dtype)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        assert tangents[0] is not None
        w, v = self.basis(b, out, inputs[0])
        inner = b.solve(v, matrices.times(b, matrices.cast(b, tangents[0], v.dtype), v))
        d_w = matrices.diagonal(b, inner)
        if not self.vectors:
            return d_w
        turned = b.div(inner, matrices.gaps(b, w))
        moved = matrices.times(b, v, matrices.on_diagonal(b, turned, b.like(v, 0)))
        along = matrices.diagonal(b, matrices.times(b, matrices.adjoint(b, v), moved))
        length = matrices.as_row(b, matrices.cast(b, matrices.real(b, along), v.dtype), v.shape)
        return [d_w, b.sub(moved, b.mul(v, length))]

    def cost(self, *types: TensorType) -> Cost:
        """The QR algorithm."""
        return family.cubic(types, 25.0 if self.vectors else 10.0)


# -- singular values -----------------------------------------------------------------------------------------
@record
class SVD(family.OnMatrices):
    """Singular values, descending, and if `vectors` the orthonormal ones around them: A = U diag(S) Vh.

    Shapes: A [..., m, n] -> U [..., m, k], real S [..., k], Vh [..., k, n], k = min(m, n); with `full` U is
    [m, m] and Vh [n, n]. The derivative of U and Vh divides by S and by differences of its squares: it is not
    finite where two are equal, and means something only for functions that a choice of vectors (their common
    phases, any basis of those beyond k) does not change. See: Wan and Zhang, "Automatic differentiation for
    complex valued SVD", 2019.
    """

    full: bool = False
    vectors: bool = True
    name = "svd"
    arity = 1

    def infer(self, *types: TensorType) -> Type:
        family.check_matrix(self.name, *types)
        x = types[0]
        *batch, m, n = x.shape
        k = family.smaller(m, n)
        values = TensorType(x.dtype.real, (*batch, k))
        if not self.vectors:
            return values
        left, right = ((m, m), (n, n)) if self.full else ((m, k), (k, n))
        return TupleType((x.with_shape((*batch, *left)), values, x.with_shape((*batch, *right))))

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        with family.refusing(self.name, family.NO_CONVERGENCE, arrays[0]):
            return chosen().svd(arrays[0], self.full) if self.vectors else chosen().svdvals(arrays[0])

    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """U (skew(U^H dU)/E S + S skew(V^H dV)/E + diag dS) V^H, and what of dU, dV lies across U, V."""
        u, s, vh = b.items(out if self.vectors else b.svd(inputs[0]))
        d_u, d_s, d_vh = ct if self.vectors else (None, ct, None)
        k = s.shape[-1]
        d_v = None if d_vh is None else matrices.adjoint(b, d_vh)
        u, d_u = _narrowed(b, u, d_u, k)
        v, d_v = _narrowed(b, matrices.adjoint(b, vh), d_v, k)
        inner = None if d_s is None else matrices.diagonal_matrix(b, d_s, u.dtype)
        if d_u is not None or d_v is not None:
            inner = matrices.total(b, inner, _turned(b, u, s, v, d_u, d_v))
        if inner is None:
            return [None]
        left = matrices.times(b, u, inner)
        if d_u is not None and not known_equal(u.shape[-2], k):
            left = b.add(left, _across(b, u, s, d_u))
        result = matrices.times(b, left, matrices.adjoint(b, v))
        if d_v is not None and not known_equal(v.shape[-2], k):
            result = b.add(result, matrices.times(b, u, matrices.adjoint(b, _across(b, v, s, d_v))))
        return [result]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        """With M = U^H dA V: dS = diag M, dU = U (M S + S M^H) / E, dV = V (S M + M^H S) / E, and across."""
        u, s, vh = b.items(out if self.vectors else b.svd(inputs[0]))
        change = tangents[0]
        assert change is not None
        k = s.shape[-1]
        whole_u, whole_v = u, matrices.adjoint(b, vh)
        u, v = matrices.columns(b, u, 0, k), matrices.columns(b, whole_v, 0, k)
        by_v = matrices.times(b, change, v)
        inner = matrices.times(b, matrices.adjoint(b, u), by_v)
        d_s = matrices.real(b, matrices.diagonal(b, inner))
        if not self.vectors:
            return d_s
        scale = matrices.cast(b, s, u.dtype)
        wide, tall = matrices.as_row(b, scale, inner.shape), matrices.as_column(b, scale, inner.shape)
        gaps, none = _square_gaps(b, s, u.dtype), b.like(inner, 0)
        right, left = b.mul(inner, wide), b.mul(tall, inner)
        turn_u = b.div(b.add(right, matrices.adjoint(b, right)), gaps)
        turn_v = b.div(b.add(left, matrices.adjoint(b, left)), gaps)
        phase = b.sub(inner, matrices.adjoint(b, inner))  # 0 on the diagonal of real matrices
        phase = b.div(b.mul(phase, b.like(phase, 0.5)), wide) if phase.dtype.is_complex else none
        d_u = matrices.times(b, u, matrices.on_diagonal(b, turn_u, phase))
        d_v = matrices.times(b, v, matrices.on_diagonal(b, turn_v, none))
        if not known_equal(u.shape[-2], k):
            d_u = b.add(d_u, _across(b, u, s, by_v))
        if not known_equal(v.shape[-2], k):
            d_v = b.add(d_v, _across(b, v, s, matrices.times(b, matrices.adjoint(b, change), u)))
        return [_widened(b, whole_u, u, d_u), d_s, matrices.adjoint(b, _widened(b, whole_v, v, d_v))]

    def cost(self, *types: TensorType) -> Cost:
        """Divide and conquer after bidiagonalisation."""
        return family.cubic(types, 22.0 if self.vectors else 8 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in family.ANY_SHAPE:
                types = family.types_of(dtype, shape)
                draw = family.draw_matrices(types)
                for full, vectors in ((False, True), (True, True), (False, False)):
                    arbitrary = vectors and (dtype.is_complex or (full and shape in ((4, 2), (2, 4))))
                    yield Sample(cls(full, vectors), types, draw=draw, smooth=not arbitrary)


def _square_gaps(b: Builder, s: Node, dtype: DType) -> Node:
    return matrices.cast(b, matrices.gaps(b, b.mul(s, s)), dtype)


def _turned(b: Builder, u: Node, s: Node, v: Node, d_u: Node | None, d_v: Node | None) -> Node | None:
    """Return what turning the vectors among themselves gives: skew(U^H dU)/E S + S skew(V^H dV)/E."""
    scale, gaps, parts = matrices.cast(b, s, u.dtype), _square_gaps(b, s, u.dtype), []
    diagonal: Node | None = None
    for x, change, at in ((u, d_u, matrices.as_row), (v, d_v, matrices.as_column)):
        if change is None:
            continue
        inner = matrices.times(b, matrices.adjoint(b, x), change)
        skew = b.sub(inner, matrices.adjoint(b, inner))
        parts.append(b.mul(b.div(skew, gaps), at(b, scale, skew.shape)))
        if x is u and skew.dtype.is_complex:
            diagonal = b.div(b.mul(skew, b.like(skew, 0.5)), matrices.as_row(b, scale, skew.shape))
    found = matrices.total(b, *parts)
    assert found is not None
    return matrices.on_diagonal(b, found, b.like(found, 0) if diagonal is None else diagonal)


def _across(b: Builder, x: Node, s: Node, change: Node) -> Node:
    """Return the part of a change of orthonormal columns that is orthogonal to them all, over S."""
    inside = matrices.times(b, x, matrices.times(b, matrices.adjoint(b, x), change))
    scale = matrices.as_row(b, matrices.cast(b, s, x.dtype), x.shape)
    return b.op("div", b.op("sub", change, inside), scale)


def _narrowed(b: Builder, x: Node, d: Node | None, k: Dim) -> tuple[Node, Node | None]:
    """Return the first k of n orthonormal columns, and their cotangent.

    The others turn with them: dX2 = -X1 dX1^H X2, which adds -X2 d2^H X1 to the cotangent d1.
    """
    n = x.shape[-1]
    if known_equal(n, k):
        return x, d
    first, others = matrices.columns(b, x, 0, k), matrices.columns(b, x, k, n)
    if d is None:
        return first, None
    turned = matrices.times(b, others, matrices.adjoint(b, matrices.columns(b, d, k, n)), first)
    return first, b.sub(matrices.columns(b, d, 0, k), turned)


def _widened(b: Builder, x: Node, first: Node, d: Node) -> Node:
    """Return the tangent of all columns from that of the first."""
    k, n = first.shape[-1], x.shape[-1]
    if known_equal(n, k):
        return d
    others = matrices.columns(b, x, k, n)
    turned = b.neg(matrices.times(b, first, matrices.adjoint(b, d), others))
    return b.op("concatenate", d, turned, axis=x.aval.ndim - 1)
