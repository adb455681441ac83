"""Which factorisations do the work: LAPACK's own functions where they are found, else what NumPy has."""

from __future__ import annotations

from typing import Protocol

from stratal.graph.op import Array
from stratal.ops.linalg import by_lapack, by_numpy
from stratal.ops.linalg.library import library


class Factorisations(Protocol):
    """Functions on stacks of matrices [..., m, n] of LAPACK's dtypes.

    Raises: Refused, with the place of the matrix.
    """

    def lu(self, a: Array, /) -> tuple[Array, Array]:
        """Return L (below the diagonal, its own being 1) and U in one, and the rows of A in the order of L U.

        Shapes: A [..., m, n] -> [..., m, n] and int64 [..., m].
        """

    def slogdet(self, a: Array, /) -> tuple[Array, Array]:
        """Return sign (or phase) and logarithm of the size of determinants: A [..., n, n] -> [...], twice."""

    def det(self, a: Array, /) -> Array:
        """Return determinants: A [..., n, n] -> [...]."""

    def solve(self, a: Array, b: Array, /) -> Array:
        """Return X with A X = B: A [..., n, n], B [..., n, k]. What is singular is refused."""

    def solve_triangular(self, a: Array, b: Array, lower: bool, unit: bool, /) -> Array:
        """Return X with A X = B, where one triangle of A is read: A [..., n, n], B [..., n, k]."""

    def cholesky(self, a: Array, /) -> Array:
        """Return lower triangular L with A = L L^H. Lower triangles are read. What has none is refused."""

    def qr(self, a: Array, complete: bool, /) -> tuple[Array, Array]:
        """Return Q [..., m, k], R [..., k, n], k = min(m, n) or m."""

    def eigh(self, a: Array, /) -> tuple[Array, Array]:
        """Return eigenvalues, ascending, and eigenvectors of Hermitian matrices, of their lower triangles."""

    def eigvalsh(self, a: Array, /) -> Array:
        """Return eigenvalues of Hermitian matrices."""

    def eig(self, a: Array, /) -> tuple[Array, Array]:
        """Return complex eigenvalues and eigenvectors."""

    def eigvals(self, a: Array, /) -> Array:
        """Return complex eigenvalues."""

    def svd(self, a: Array, full: bool, /) -> tuple[Array, Array, Array]:
        """Return U, S, Vh."""

    def least_squares(self, a: Array, b: Array, cutoff: Array, /) -> tuple[Array, Array]:
        """Return X of least |A X - B|, and of which matrices: those far from a rank below min(m, n).

        Shapes: A [..., m, n], B [..., m, k], least ratio of singular values [...] -> [..., n, k], bool [...].
        """

    def svdvals(self, a: Array, /) -> Array:
        """Return singular values."""


def chosen() -> Factorisations:
    """Return the quicker of the two that is there."""
    return by_numpy if library() is None else by_lapack
