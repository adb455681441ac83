"""Systems of linear equations, inverses, determinants, powers and the exponential of matrices."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dims import known_equal, product, same_shape
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.linalg.operands import adjoint, identity, matrices, run, square
from stratal.linalg.results import SlogdetResult
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.shapes import (
    as_axes,
    broadcast_to,
    expand_dims,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    squeeze,
)
from stratal.tensor.functions.shapes import matrix_transpose as transposed
from stratal.tensor.tensor import Tensor, fresh


def _check(name: str, a: Tensor, b: Tensor) -> None:
    if b.ndim < 2 or not known_equal(a.shape[-1], b.shape[-2]):
        raise ShapeError(
            f"{name}: sizes of matrix and right-hand side differ", got=f"{a.type} and {b.type}",
            hint=f"the right-hand side should be [..., {a.shape[-1]}, k]; B[..., None] makes vectors columns",
        )  # fmt: skip


def _solved(op: str, name: str, x1: Any, x2: Any, **attributes: Any) -> Tensor:
    """Return X with A X = B. Where one A serves a stack of B, they are columns of one system."""
    a, b = square(name, x1), as_tensor(x2, name)
    _check(name, a, b)
    if a.ndim != 2 or b.ndim == 2:
        return run(op, *matrices(name, a, b), **attributes)
    turned = moveaxis(b, -2, 0)
    beside = reshape(turned, (turned.shape[0], product(turned.shape[1:])))
    return moveaxis(reshape(_solved(op, name, a, beside, **attributes), turned.shape), 0, -2)


def solve(x1: Any, x2: Any, /, *, left: bool = True) -> Tensor:
    """Return X with A X = B, or X A = B unless `left`.

    Shapes: A [..., n, n], B [n] or [..., n, k] ([..., k, n] on the right) -> as B; leading axes broadcast. As
    in PyTorch, B is a vector for each matrix where it has the shape of A without its last axis.
    Raises: LinAlgError, when computed, where a matrix is singular.
    """
    a, b = as_tensor(x1, "solve"), as_tensor(x2, "solve")
    if left and b.ndim > 1 and same_shape(b.shape, a.shape[:-1]):
        return squeeze(solve(a, expand_dims(b, axis=-1)), axis=-1)
    if b.ndim == 1:
        b = expand_dims(b, axis=-1 if left else 0)
        return squeeze(solve(x1, b, left=left), axis=-1 if left else -2)
    if not left:
        return transposed(solve(transposed(x1), transposed(b)))
    return _solved("solve", "solve", x1, b)


def solve_triangular(
    x1: Any, x2: Any, /, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Return X with A X = B, or X A = B unless `left`, where one triangle of A is read.

    Shapes: A [..., n, n], B [..., n, k] ([..., k, n] on the right) -> as B; leading axes broadcast.
    `unitriangular` takes the diagonal to be 1. Raises: LinAlgError, when computed, where the diagonal has a
    0.
    """
    if not left:
        options = {"upper": not upper, "unitriangular": unitriangular}
        return transposed(solve_triangular(transposed(x1), transposed(x2), **options))
    attributes = {"upper": bool(upper), "unit": bool(unitriangular)}
    return _solved("triangular_solve", "solve_triangular", x1, x2, **attributes)


def lu_solve(LU: Any, order: Any, B: Any, /) -> Tensor:
    """Return X with A X = B from what `lu_factor` returned for A [..., n, n]; B is [..., n, k]."""
    packed, b = square("lu_solve", LU), as_tensor(B, "lu_solve")
    _check("lu_solve", packed, b)
    packed, b = matrices("lu_solve", packed, b)
    places = expand_dims(broadcast_to(order, packed.shape[:-1]), axis=-1)
    b = take_along_axis(b, broadcast_to(places, b.shape), axis=-2)
    low = solve_triangular(packed, b, upper=False, unitriangular=True)
    return solve_triangular(packed, low, upper=True)


def cholesky_solve(B: Any, L: Any, /, upper: bool = False) -> Tensor:
    """Return X with A X = B from the factor `cholesky` returned for A [..., n, n]; B is [..., n, k]."""
    factor = square("cholesky_solve", L)
    low = adjoint(factor) if upper else factor
    return solve_triangular(adjoint(low), solve_triangular(low, B, upper=False), upper=True)


def cholesky_inverse(L: Any, /, upper: bool = False) -> Tensor:
    """Return the inverse of A from the factor `cholesky` returned for A [..., n, n]."""
    factor = square("cholesky_inverse", L)
    return cholesky_solve(identity(factor), factor, upper)


def inv(x: Any, /) -> Tensor:
    """Return the inverse of square matrices: [..., n, n] -> [..., n, n].

    Raises: LinAlgError, when computed, where a matrix is singular.
    """
    t = square("inv", x)
    return run("solve", t, identity(t))


def tensorinv(x: Any, /, ind: int = 2) -> Tensor:
    """Return the inverse for `tensordot` over `ind` axes: [a..., b...] -> [b..., a...].

    The first `ind` axes, a, hold as many elements as the others.
    """
    t = as_tensor(x, "tensorinv")
    if not 0 < ind <= t.ndim:
        raise AttributeValueError("tensorinv: ind is a positive number of axes", got=f"{ind} of {t.type}")
    first, rest = t.shape[:ind], t.shape[ind:]
    if math.prod(first) != math.prod(rest):
        raise ShapeError(
            "tensorinv: the first axes hold as many elements as the others", got=f"{t.type}, {ind}"
        )
    return reshape(inv(reshape(t, (math.prod(first), math.prod(rest)))), (*rest, *first))


def tensorsolve(x1: Any, x2: Any, /, axes: Any = None, *, dims: Any = None) -> Tensor:
    """Return X with tensordot(A, X, X.ndim) = B, for A [b..., x...] and B [b...].

    `axes` (PyTorch: `dims`) of A are moved to its end first.
    """
    a, b = as_tensor(x1, "tensorsolve"), as_tensor(x2, "tensorsolve")
    given = axes if dims is None else dims
    moved = () if given is None else as_axes("tensorsolve", given, a.ndim)
    a = permute_dims(a, [*(k for k in range(a.ndim) if k not in moved), *moved])
    count, shape = b.numel(), a.shape[b.ndim :]
    if a.numel() != count**2 or math.prod(shape) != count:
        raise ShapeError("tensorsolve: A maps as many elements as B has to B", got=f"{a.type} and {b.type}")
    return reshape(solve(reshape(a, (count, count)), ravel(b)), shape)


# -- determinants, powers, the exponential -------------------------------------------------------------------
def det(x: Any, /) -> Tensor:
    """Return the determinant of square matrices, by LU: [..., n, n] -> [...].

    Its gradient, the cofactors, exists for singular matrices too (second derivatives do not: a LinAlgError).
    """
    return run("det", square("det", x))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return sign and logarithm of the size of the determinant: det A = sign exp(logabsdet).

    Shapes: [..., n, n] -> [...], twice; the logarithm is real. Of a singular matrix they are 0 and -inf.
    """
    return SlogdetResult(*run("slogdet", square("slogdet", x)))


def matrix_power(x: Any, n: int, /) -> Tensor:
    """Return square matrices to an integer power, by repeated squaring: [..., n, n] -> [..., n, n].

    Raises: LinAlgError, when computed, for a negative power of a singular matrix.
    """
    t = square("matrix_power", x)
    if not hasattr(n, "__index__"):
        raise AttributeValueError("matrix_power: the power is an int", got=repr(n))
    left, t = abs(int(n)), inv(t) if n < 0 else t
    result = None
    while left:
        if left % 2:
            result = fresh(t) if result is None else result @ t
        left //= 2
        t = t @ t if left else t
    return identity(t) if result is None else result


def matrix_exp(x: Any, /) -> Tensor:
    """Return the exponential of square matrices: [..., n, n] -> [..., n, n]; NaN for what is not finite."""
    return run("matrix_exp", square("matrix_exp", x))
