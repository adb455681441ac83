"""sinh, cosh, tanh and their inverses, made of expm1 and log1p: nothing cancels near 0 or overflows early."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr
from stratal.loops.math.arith import (
    NAN,
    absolute,
    add,
    at_most,
    div,
    either,
    fma,
    gt,
    keep_tiny,
    like,
    lt,
    mul,
    polynomial,
    select,
    sqrt,
    sub,
    with_sign,
)
from stratal.loops.math.exponential import exp_near, expm1_quarter
from stratal.loops.math.logarithm import log1p

_LN2: Final = 0.6931471805599453
# (tanh(t)/t - 1)/t^2 in t^2, degree 4, |t| <= 0.6 (Remez, as in `exponential`): relative error 2^-28.1
_TANH32: Final = (
    -0.33333292603492737, 0.13331757485866547, -0.05376815423369408, 0.020738929510116577,
    -0.005824568681418896,
)  # fmt: skip


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent."""
    a = absolute(x)
    return with_sign(_tanh32(a) if x.dtype is float32 else _tanh64(a), x)


def _tanh32(a: Expr) -> Expr:
    """1 - 2/(exp(2a) + 1), the faster of the two; near 0, where it cancels, an odd polynomial."""
    z, one = mul(a, a), like(1.0, a)
    near = fma(mul(a, z), polynomial(z, _TANH32), a)
    grown = exp_near(at_most(add(a, a), 20.0))
    far = sub(one, div(like(2.0, a), add(grown, one)))
    return select(lt(a, like(0.6, a)), near, far)


def _tanh64(a: Expr) -> Expr:
    """e/(e + 2) with e = exp(2a) - 1."""
    e = mul(expm1_quarter(at_most(add(a, a), 40.0)), like(2.0, a))
    return keep_tiny(a, div(e, add(e, like(1.0, a))), _tiny(a))


def sinh(x: Expr) -> Expr:
    """Return the hyperbolic sine: (e + e/(e + 1))/2 with e = exp(|x|) - 1."""
    e = expm1_quarter(absolute(x))
    half = add(e, div(e, fma(e, like(4.0, x), like(1.0, x))))
    return keep_tiny(x, with_sign(mul(half, like(2.0, x)), x), _tiny(x))


def cosh(x: Expr) -> Expr:
    """Return the hyperbolic cosine: (exp(|x|) + exp(-|x|))/2."""
    e = expm1_quarter(absolute(x))
    grown = fma(e, like(4.0, x), like(1.0, x))
    return fma(e, like(2.0, x), add(like(0.5, x), div(like(0.5, x), grown)))


def asinh(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = absolute(x)
    large = gt(a, either(x, 2.0**30, 2.0**60))
    root = sqrt(fma(a, a, like(1.0, x)))
    near = fma(a, div(a, add(root, like(1.0, x))), a)
    result = add(log1p(select(large, a, near)), select(large, like(_LN2, x), like(0.0, x)))
    return keep_tiny(x, with_sign(result, x), _tiny(x))


def acosh(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    large = gt(x, either(x, 2.0**30, 2.0**60))
    t = sub(x, like(1.0, x))
    near = add(t, sqrt(fma(t, t, add(t, t))))
    result = add(log1p(select(large, t, near)), select(large, like(_LN2, x), like(0.0, x)))
    return select(lt(x, like(1.0, x)), like(NAN, x), result)


def atanh(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; infinite at +-1, NaN beyond."""
    a = absolute(x)
    result = mul(like(0.5, x), log1p(div(add(a, a), sub(like(1.0, x), a))))
    return keep_tiny(x, with_sign(result, x), _tiny(x))


def _tiny(x: Expr) -> float:
    """Return a bound below which an odd function with slope 1 at 0 equals its argument."""
    return 2.0**-13 if x.dtype is float32 else 2.0**-28
