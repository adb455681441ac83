"""Determinants, powers and the exponential of matrices."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.linalg.operands import identity, run, square
from stratal.linalg.results import SlogdetResult
from stratal.linalg.solve import inv
from stratal.tensor.creation import triu
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.linear import diagonal
from stratal.tensor.reductions import prod, sum
from stratal.tensor.shapes import expand_dims
from stratal.tensor.tensor import Tensor


def _eliminated(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonal of U, and the sign of the order of rows: -1 where pairs out of order are odd."""
    packed, order = run("lu", x)
    wrong = expand_dims(order, axis=-1) > expand_dims(order, axis=-2)
    pairs = sum(triu(cast(wrong, order.dtype), 1), axis=(-2, -1))
    return diagonal(packed, 0, -2, -1), cast(1 - 2 * (pairs % 2), packed.dtype)


def det(x: Any, /) -> Tensor:
    """Return the determinant of square matrices, by LU: [..., n, n] -> [...].

    Its gradient, the cofactors, exists for singular matrices too (second derivatives do not: a LinAlgError).
    """
    result: Tensor = run("det", square("det", x))
    return result


def slogdet(x: Any, /) -> SlogdetResult:
    """Return sign and logarithm of the size of the determinant: det A = sign exp(logabsdet).

    Shapes: [..., n, n] -> [...], twice; the logarithm is real. Of a singular matrix they are 0 and -inf.
    """
    pivots, sign = _eliminated(square("slogdet", x))
    size = FUNCTIONS["abs"](pivots)
    if pivots.dtype.is_complex:
        direction = pivots / cast(where(size == 0, 1.0, size), pivots.dtype)
    else:
        direction = FUNCTIONS["sign"](pivots)
    return SlogdetResult(prod(direction, axis=-1) * sign, sum(FUNCTIONS["log"](size), axis=-1))


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
            result = t if result is None else result @ t
        left //= 2
        t = t @ t if left else t
    return identity(t) if result is None else result


def matrix_exp(x: Any, /) -> Tensor:
    """Return the exponential of square matrices: [..., n, n] -> [..., n, n]; NaN for what is not finite."""
    result: Tensor = run("matrix_exp", square("matrix_exp", x))
    return result
