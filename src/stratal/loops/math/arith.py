"""What the math functions share: short names for scalar functions, polynomials, bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Union

from stratal.base.dtypes import float32
from stratal.loops.expr import Const, Expr, alike, call, const

NAN: Final = float("nan")
INF: Final = float("inf")
Operand = Union[Expr, float]
"""A number takes the dtype of the other operands."""


def like(value: float, x: Expr) -> Const:
    """Return the constant `value` of the dtype of `x`."""
    return const(value, x.dtype)


def either(x: Expr, single: float, double: float) -> Const:
    """Return the constant for the precision of `x`."""
    return const(single if x.dtype is float32 else double, x.dtype)


def fma(a: Expr, b: Operand, c: Operand) -> Expr:
    return call("fma", *alike(a, b, c))


def ldexp(a: Expr, n: Expr) -> Expr:
    """Return a * 2^n; a is near 1, 0 or NaN."""
    return call("ldexp", a, n)


def sqrt(x: Expr) -> Expr:
    """Return the correctly rounded square root."""
    return call("sqrt", x)


def select(condition: Expr, yes: Operand, no: Operand) -> Expr:
    return call("select", condition, *alike(yes, no))


def eq(a: Expr, b: Operand) -> Expr:
    return call("eq", *alike(a, b))


def ne(a: Expr, b: Operand) -> Expr:
    return call("ne", *alike(a, b))


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return `c[0] + c[1]*x + ...` by Horner's rule: the fewest operations; loops overlap its latency."""
    result: Expr = like(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def at_most(x: Expr, high: float) -> Expr:
    """Return the smaller of x and a constant; NaN passes. One `min` instruction where the target has it."""
    return select(x > high, high, x)


def at_least(x: Expr, low: float) -> Expr:
    """Return the larger of x and a constant; NaN passes."""
    return select(x < low, low, x)
