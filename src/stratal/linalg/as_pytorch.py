"""What PyTorch has outside of its `linalg`, as functions and methods of tensors, with its own arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from stratal.linalg.factor import cholesky, svdvals
from stratal.linalg.factor import qr as factorised
from stratal.linalg.factor import svd as decomposed
from stratal.linalg.operands import adjoint, matrix, run, square
from stratal.linalg.products import multi_dot
from stratal.linalg.rank import pinv
from stratal.linalg.results import QRResult
from stratal.linalg.solve import cholesky_inverse, cholesky_solve, det, inv, matrix_exp, matrix_power, slogdet
from stratal.tensor.api.explained import explain_all
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import FUNCTIONS, where
from stratal.tensor.tensor import Tensor

__all__ = [
    "chain_matmul", "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet",
    "matrix_exp", "matrix_power", "pinverse", "qr", "slogdet", "svd",
]  # fmt: skip


class SVDFactors(NamedTuple):
    """A = U diag(S) V^H: V itself, not its adjoint."""

    U: Tensor
    S: Tensor
    V: Tensor


def chain_matmul(*matrices: Any) -> Tensor:
    """Return the product of two or more matrices, see `linalg.multi_dot`."""
    return multi_dot(list(matrices))


def inverse(x: Any, /) -> Tensor:
    """Return the inverse of square matrices [..., n, n], see `linalg.inv`."""
    return inv(x)


def pinverse(x: Any, /, rcond: Any = 1e-15) -> Tensor:
    """Return the pseudo-inverse, see `linalg.pinv`, whose least ratio of singular values is another one."""
    return pinv(x, rcond)


def logdet(x: Any, /) -> Tensor:
    """Return the logarithm of determinants: [..., n, n] -> [...].

    -inf where a determinant is 0, NaN where it is negative; of complex matrices a complex logarithm.
    """
    sign, size = slogdet(square("logdet", x))
    if sign.dtype.is_complex:
        return run("complex", size, FUNCTIONS["atan2"](run("imag", sign), run("real", sign)))
    return where(sign < 0, float("nan"), size)


def qr(x: Any, /, some: bool = True) -> QRResult:
    """Return Q and R, see `linalg.qr`: the reduced ones if `some`, else the complete ones."""
    return factorised(x, mode="reduced" if some else "complete")


def svd(x: Any, /, some: bool = True, compute_uv: bool = True) -> SVDFactors:
    """Return U, S and V with A = U diag(S) V^H; `linalg.svd` returns V^H.

    Shapes: [..., m, n] -> U [..., m, k], S [..., k], V [..., n, k], k = min(m, n); unless `some` U [..., m,
    m] and V [..., n, n]; unless `compute_uv` zeros of those shapes.
    """
    if compute_uv:
        u, s, vh = decomposed(x, full_matrices=not some)
        return SVDFactors(u, s, adjoint(vh))
    t = matrix("svd", x)
    *batch, m, n = t.shape
    u, v = (zeros((*batch, k, k), dtype=t.dtype) for k in (m, n))
    return SVDFactors(u, svdvals(t), v)


explain_all(globals())
