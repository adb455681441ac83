"""sinh, cosh, tanh and their inverses, made of expm1 and log1p so that nothing cancels near 0 or overflows early."""

from __future__ import annotations

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr
from stratal.loops.math.arith import (
    NAN,
    absolute,
    add,
    at_most,
    copysign,
    div,
    fma,
    gt,
    keep_tiny,
    like,
    lt,
    mul,
    select,
    sqrt,
    sub,
)
from stratal.loops.math.exponential import expm1_quarter
from stratal.loops.math.logarithm import log1p

_LN2 = 0.6931471805599453


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent: e/(e + 2) with e = exp(2|x|) - 1."""
    a = absolute(x)
    e = mul(expm1_quarter(at_most(add(a, a), 20.0 if x.dtype is float32 else 40.0)), like(2.0, x))
    return keep_tiny(x, copysign(div(e, add(e, like(1.0, x))), x), _tiny(x))


def sinh(x: Expr) -> Expr:
    """Return the hyperbolic sine: (e + e/(e + 1))/2 with e = exp(|x|) - 1."""
    e = expm1_quarter(absolute(x))
    half = add(e, div(e, fma(e, like(4.0, x), like(1.0, x))))
    return keep_tiny(x, copysign(mul(half, like(2.0, x)), x), _tiny(x))


def cosh(x: Expr) -> Expr:
    """Return the hyperbolic cosine: (exp(|x|) + exp(-|x|))/2."""
    e = expm1_quarter(absolute(x))
    grown = fma(e, like(4.0, x), like(1.0, x))
    return fma(e, like(2.0, x), add(like(0.5, x), div(like(0.5, x), grown)))


def asinh(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = absolute(x)
    large = gt(a, like(2.0**30, x))
    root = sqrt(fma(a, a, like(1.0, x)))
    near = fma(a, div(a, add(root, like(1.0, x))), a)
    result = add(log1p(select(large, a, near)), select(large, like(_LN2, x), like(0.0, x)))
    return keep_tiny(x, copysign(result, x), _tiny(x))


def acosh(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    large = gt(x, like(2.0**30, x))
    t = sub(x, like(1.0, x))
    near = add(t, sqrt(fma(t, t, add(t, t))))
    result = add(log1p(select(large, t, near)), select(large, like(_LN2, x), like(0.0, x)))
    return select(lt(x, like(1.0, x)), like(NAN, x), result)


def atanh(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; infinite at +-1, NaN beyond."""
    a = absolute(x)
    result = mul(like(0.5, x), log1p(div(add(a, a), sub(like(1.0, x), a))))
    return keep_tiny(x, copysign(result, x), _tiny(x))


def _tiny(x: Expr) -> float:
    """Return a bound below which an odd function with slope 1 at 0 equals its argument."""
    return 2.0**-13 if x.dtype is float32 else 2.0**-28


__all__ = ["acosh", "asinh", "atanh", "cosh", "sinh", "tanh"]
