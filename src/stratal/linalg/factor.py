"""Factorisations of matrices."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.linalg.operands import adjoint, matrix, of_triangle, run, square
from stratal.linalg.results import EighResult, EigResult, LUFactorResult, LUResult, QRResult, SVDResult
from stratal.tensor.functions.creation import arange, eye, zeros
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import expand_dims, narrow
from stratal.tensor.functions.triangles import tril, triu
from stratal.tensor.tensor import Tensor


def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """Return the lower triangular L with L L^H = A, or the upper triangular L^H, of positive definite
    matrices.

    Shapes: [..., n, n] -> [..., n, n]. Only the triangle of A is read that the factor has. Gradients are
    Hermitian, as PyTorch's. Raises: LinAlgError, when computed, where a matrix is not positive definite.
    """
    low: Tensor = run("cholesky", of_triangle(square("cholesky", x), upper))
    return adjoint(low) if upper else low


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Return Q with orthonormal columns and upper triangular R: A = Q R.

    Shapes: [..., m, n] -> Q [..., m, k], R [..., k, n]; k = min(m, n) in mode "reduced", m in "complete"; in
    mode "r" Q is empty. The complete factorisation of tall matrices is not differentiable.
    """
    if mode not in ("reduced", "complete", "r"):
        raise AttributeValueError("qr: mode is reduced, complete or r", got=repr(mode))
    t = matrix("qr", x)
    q, r = run("qr", t, complete=mode == "complete")
    return QRResult(zeros((0,), dtype=t.dtype) if mode == "r" else q, r)


# -- LU ------------------------------------------------------------------------------------------------------
def lu_factor(x: Any, /) -> LUFactorResult:
    """Return L, without its ones, and U in one matrix, and the order of rows: A[order] = L U.

    Shapes: [..., m, n] -> [..., m, n] and int64 [..., m]. Singular matrices have a 0 on the diagonal of U;
    their gradient is an error.
    """
    return LUFactorResult(*run("lu", matrix("lu_factor", x)))


def lu(x: Any, /) -> LUResult:
    """Return P, L and U with A = P L U: a permutation, unit lower and upper triangular matrices.

    Shapes: [..., m, n] -> P [..., m, m], L [..., m, k], U [..., k, n], k = min(m, n).
    """
    packed, order = run("lu", matrix("lu", x))
    m, k = packed.shape[-2], min(packed.shape[-2:])
    place = expand_dims(arange(m), axis=-1) == expand_dims(order, axis=-2)
    low = tril(narrow(packed, -1, 0, k), -1) + eye(m, k, dtype=packed.dtype)
    return LUResult(cast(place, packed.dtype), low, triu(narrow(packed, -2, 0, k)))


# -- eigenvalues ---------------------------------------------------------------------------------------------
def _triangle(name: str, x: Any, UPLO: str) -> Tensor:
    """Return matrices whose lower triangles say all."""
    if UPLO not in ("L", "U", "l", "u"):
        raise AttributeValueError(f"{name}: UPLO is L or U", got=repr(UPLO))
    return of_triangle(square(name, x), UPLO in "Uu")


def eigh(x: Any, /, UPLO: str = "L") -> EighResult:
    """Return the real eigenvalues of Hermitian matrices, ascending, and orthonormal eigenvectors as columns.

    Shapes: [..., n, n] -> w [..., n], V [..., n, n]: A V = V diag(w). UPLO names the triangle of A that is
    read, the lower "L" or the upper "U"; gradients are Hermitian, as PyTorch's. The gradient through V is not
    finite where eigenvalues are equal, and means something only if the phases of vectors do not matter.
    Raises: LinAlgError, when computed, for NaN and infinite elements.
    """
    return EighResult(*run("eigh", _triangle("eigh", x, UPLO)))


def eigvalsh(x: Any, /, UPLO: str = "L") -> Tensor:
    """Return the real eigenvalues of Hermitian matrices, ascending: [..., n, n] -> [..., n]. See `eigh`."""
    return run("eigh", _triangle("eigvalsh", x, UPLO), vectors=False)


def eig(x: Any, /) -> EigResult:
    """Return the complex eigenvalues of square matrices and eigenvectors of norm 1 as columns.

    Shapes: [..., n, n] -> w [..., n], V [..., n, n]: A V = V diag(w). The order is LAPACK's. The gradient
    through V is not finite where eigenvalues are equal, and means something only if the phases of vectors do
    not matter. Raises: LinAlgError, when computed, for NaN and infinite elements.
    """
    return EigResult(*run("eig", square("eig", x)))


def eigvals(x: Any, /) -> Tensor:
    """Return the complex eigenvalues of square matrices: [..., n, n] -> [..., n]. See `eig`."""
    return run("eig", square("eigvals", x), vectors=False)


# -- singular values -----------------------------------------------------------------------------------------
def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Return orthonormal U and Vh and singular values, descending: A = U diag(S) Vh.

    Shapes: [..., m, n] -> U [..., m, m], S [..., k], Vh [..., n, n], k = min(m, n); U [..., m, k] and Vh
    [..., k, n] unless `full_matrices`. The gradient through U and Vh is not finite where singular values are
    equal (or 0), and means something only if the common phases of vectors do not matter. Raises: LinAlgError,
    when computed, for NaN and infinite elements.
    """
    return SVDResult(*run("svd", matrix("svd", x), full=bool(full_matrices)))


def svdvals(x: Any, /) -> Tensor:
    """Return the singular values of matrices, descending: [..., m, n] -> [..., min(m, n)]."""
    return run("svd", matrix("svdvals", x), vectors=False)
