"""What functions of several results return, under the names of the array API and of PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from stratal.tensor.tensor import Tensor


class QRResult(NamedTuple):
    """A = Q R."""

    Q: Tensor
    R: Tensor


class EighResult(NamedTuple):
    """Real eigenvalues, ascending, and orthonormal eigenvectors, as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EigResult(NamedTuple):
    """Complex eigenvalues and eigenvectors of norm 1, as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """A = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SlogdetResult(NamedTuple):
    """det A = sign exp(logabsdet)."""

    sign: Tensor
    logabsdet: Tensor


class LUResult(NamedTuple):
    """A = P L U."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactorResult(NamedTuple):
    """L below the diagonal and U on and above it, and the rows of A in the order of L U: A[order] = L U."""

    LU: Tensor
    order: Tensor


class LstsqResult(NamedTuple):
    """The least solution, its sums of squared residuals, the rank of A and its singular values."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor
