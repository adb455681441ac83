"""Division and remainder with Python's and NumPy's signs, and signs and classes of floats."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import bool_, float32, float64
from stratal.loops.expr import Expr, call, cast, const
from stratal.loops.math.arith import INF, NAN, eq, fma, like, ne, select
from stratal.loops.math.floats import copysign

_STEPS: Final = 2  # for float64: each takes 52 bits off the quotient, which is below 2^2098


def _fmod_size(a: Expr, b: Expr, steps: int) -> Expr:
    """Return a mod b of float64, both not negative, exactly, for quotients below 2^(50 * steps); NaN beyond.

    A rounded quotient q leaves a remainder a - q*b that float64 holds exactly, so fma finds it without error;
    it may be negative, or the next step may take off what the last one rounded away.
    """
    r = a
    for _ in range(steps):
        r = fma(-call("trunc", r / b), b, r)
    r = select(r < 0.0, r + b, r)
    r = select(a < b, a, r)
    return select(abs(r) < b, r, NAN)


def fmod(x: Expr, y: Expr) -> Expr:
    """Return the remainder with the sign of x, as in C, exactly; NaN for a float64 quotient over 2^100."""
    a, b = cast(abs(x), float64), cast(abs(y), float64)
    size = _fmod_size(a, b, 1 if x.dtype is float32 else _STEPS)
    return copysign(cast(call("far_mod", a, b, size) if x.dtype is float32 else size, x.dtype), x)


def is_far_quotient(a: Expr, b: Expr) -> Expr:
    """Return whether one step does not find a remainder, which is a number."""
    return (a > b * 2.0**50) & (a < INF) & (b > 0.0)


def far_mod(a: Expr, b: Expr) -> Expr:
    """Return such a remainder of numbers float32 holds: their quotient is below 2^277."""
    return _fmod_size(a, b, 6)


def remainder(x: Expr, y: Expr) -> Expr:
    """Return x - floor(x/y)*y with the sign of y, as in Python; NaN for y = 0 or infinite x."""
    r, zero = fmod(x, y), like(0.0, y)
    moved = select(ne(r < zero, y < zero), r + y, r)
    return select(eq(r, zero), copysign(zero, y), moved)


def floor_divide(x: Expr, y: Expr) -> Expr:
    """Return floor(x/y), exact where the rounded quotient would be off by one; x/y for y = 0."""
    zero, one = like(0.0, x), like(1.0, x)
    r = fmod(x, y)
    crossing = ne(r, zero) & ne(r < zero, y < zero)
    quotient = (x - r) / y
    quotient = select(crossing, quotient - one, quotient)
    low = call("floor", quotient)
    nearest = select(quotient - low > 0.5, low + one, low)
    whole = select(eq(quotient, zero), copysign(zero, x / y), nearest)
    return select(eq(y, zero), x / y, whole)


def integer_floor_divide(x: Expr, y: Expr) -> Expr:
    """Return floor(x/y) of integers; 0 for y = 0."""
    if x.dtype.kind == "u":
        return call("idiv", x, y)
    zero = const(0, x.dtype)
    r = call("irem", x, y)
    crossing = ne(r, zero) & ((r ^ y) < zero)
    return call("idiv", x, y) - cast(crossing, x.dtype)


def integer_remainder(x: Expr, y: Expr) -> Expr:
    """Return x - floor(x/y)*y of integers, with the sign of y; 0 for y = 0."""
    r = call("irem", x, y)
    if x.dtype.kind == "u":
        return r
    zero = const(0, x.dtype)
    return select(ne(r, zero) & ((r ^ y) < zero), r + y, r)


def sign(x: Expr) -> Expr:
    """Return -1, 0 or 1; NaN for NaN and 0 for -0."""
    zero, one = const(0, x.dtype), const(1, x.dtype)
    positive = select(x > zero, one, zero)
    if x.dtype.kind == "u":
        return positive
    value = select(x < zero, -1, positive)
    return select(ne(x, x), x, value) if x.dtype.is_float else value


def isnan(x: Expr) -> Expr:
    """Return whether x is NaN."""
    return ne(x, x) if x.dtype.is_float else const(False, bool_)


def isinf(x: Expr) -> Expr:
    """Return whether x is an infinity."""
    return eq(abs(x), INF) if x.dtype.is_float else const(False, bool_)


def isfinite(x: Expr) -> Expr:
    """Return whether x is neither NaN nor infinite."""
    return abs(x) < INF if x.dtype.is_float else const(True, bool_)
