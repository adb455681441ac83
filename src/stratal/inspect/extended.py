"""The math functions in extended precision (64-bit mantissa on x86): what measured errors are relative to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]


def extended_is_wider() -> bool:
    """Whether `np.longdouble` is precise enough to judge float64."""
    return bool(np.finfo(np.longdouble).nmant >= 63)


def _erf_series(x: Array) -> Array:
    """erf by 2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1)/(2n+1)!!, whose terms are all of one sign; |x| <= 3."""
    x = np.clip(x, -3, 3)
    term, total, square = x, x, x * x
    for n in range(1, 120):
        term = term * (2 * square) / (2 * n + 1)
        total = total + term
    return np.asarray(2 / np.sqrt(np.longdouble(_PI)) * np.exp(-square) * total)


def _erfc_fraction(x: Array) -> Array:
    """erfc for x >= 2 by its continued fraction, evaluated from its 200th term back."""
    x = np.maximum(x, 2)
    tail = x
    for n in range(200, 0, -1):
        tail = x + (np.longdouble(n) / 2) / tail
    return np.asarray(np.exp(-x * x) / tail / np.sqrt(np.longdouble(_PI)))


def _erf(x: Array) -> Array:
    a = np.abs(x)
    return np.where(np.isnan(x), x, np.where(a < 2, _erf_series(x), np.copysign(1 - _erfc_fraction(a), x)))


def _erfc(x: Array) -> Array:
    a = np.abs(x)
    tail = np.where(x > 0, _erfc_fraction(a), 2 - _erfc_fraction(a))
    return np.where(np.isnan(x), x, np.where(a < 2, 1 - _erf_series(x), tail))


_PI: Final = np.longdouble("3.14159265358979323846264338327950288")
REFERENCES: Final[dict[str, Callable[..., Array]]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "cos": np.cos, "cosh": np.cosh, "erf": _erf,
    "erfc": _erfc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "logistic": lambda x: 1 / (1 + np.exp(-x)), "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,    "sinh": np.sinh, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip
