"""Determinants, powers and the exponential of matrices."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.linalg.operands import identity, run, square
from stratal.linalg.results import SlogdetResult
from stratal.linalg.solve import inv
from stratal.tensor.tensor import Tensor


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
            result = t if result is None else result @ t
        left //= 2
        t = t @ t if left else t
    return identity(t) if result is None else result


def matrix_exp(x: Any, /) -> Tensor:
    """Return the exponential of square matrices: [..., n, n] -> [..., n, n]; NaN for what is not finite."""
    result: Tensor = run("matrix_exp", square("matrix_exp", x))
    return result
