"""Eigenvalues and eigenvectors, of Hermitian matrices and of any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stratal.base.cost import Cost
from stratal.base.dtypes import float16, float32
from stratal.base.types import TensorType, TupleType, Type
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class Eigh(family.OnMatrices):
    """The eigenvalues of Hermitian matrices, ascending, and if `vectors` orthonormal eigenvectors.

    Shapes: A [..., n, n] -> real w [..., n], V [..., n, n]: A V = V diag(w). Only the lower triangle of A is
    read, so its cotangent lies there too. The derivative of V divides by differences of eigenvalues: it is
    not finite where two are equal, and means something only for functions that the phases of the vectors do
    not change. See: Giles, "An extended collection of matrix derivative results", 2008, 3.1.
    """

    vectors: bool = True
    arity = 1

    def infer(self, *types: TensorType) -> Type:
        family.check_square(self.name, *types)
        values = TensorType(family.real_of(types[0].dtype), types[0].shape[:-1])
        return TupleType((values, types[0])) if self.vectors else values

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        with family.refusing(self.name, family.NO_CONVERGENCE, arrays[0]):
            return chosen().eigh(arrays[0]) if self.vectors else chosen().eigvalsh(arrays[0])

    def basis(self, b: Builder, out: Node, x: Node) -> tuple[Node, Node]:
        """Return eigenvalues and eigenvectors, which also the derivative of eigenvalues alone needs."""
        w, v = b.items(out if self.vectors else b.eigh(x))
        return w, v

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
        if tangents[0] is None:
            return [None, None] if self.vectors else None
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

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
                for vectors in (True, False):
                    types = family.types_of(dtype, shape)
                    draw = family.draw_matrices(types, positive=True)
                    phases = vectors and dtype.is_complex
                    yield Sample(cls(vectors), types, draw=draw, smooth=not phases)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")
        yield Reject(cls(), family.types_of(float16, (2, 2)), "takes")


@record
class Eig(family.OnMatrices):
    """The complex eigenvalues of square matrices, in LAPACK's order, and if `vectors` eigenvectors.

    Shapes: A [..., n, n] -> complex w [..., n], V [..., n, n] with columns of norm 1: A V = V diag(w).
    Derivatives divide by differences of eigenvalues, as those of `eigh` do. See: Boeddeker et al., "On the
    computation of complex-valued gradients", 2017, 4.2.3.
    """

    vectors: bool = True
    arity = 1

    def infer(self, *types: TensorType) -> Type:
        family.check_square(self.name, *types)
        x = types[0].with_dtype(family.COMPLEX_OF.get(types[0].dtype, types[0].dtype))
        values = x.with_shape(x.shape[:-1])
        return TupleType((values, x)) if self.vectors else values

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        with family.refusing(self.name, family.NO_CONVERGENCE, arrays[0]):
            return chosen().eig(arrays[0]) if self.vectors else chosen().eigvals(arrays[0])

    def basis(self, b: Builder, out: Node, x: Node) -> tuple[Node, Node]:
        """Return eigenvalues and eigenvectors, which also the derivative of eigenvalues alone needs."""
        w, v = b.items(out if self.vectors else b.eig(x))
        return w, v

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
        if tangents[0] is None:
            return [None, None] if self.vectors else None
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

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
                for vectors in (True, False):
                    types = family.types_of(dtype, shape)
                    draw = family.draw_matrices(types, positive=True)
                    yield Sample(cls(vectors), types, draw=draw, smooth=not vectors)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")
        yield Reject(cls(), family.types_of(float16, (2, 2)), "takes")
