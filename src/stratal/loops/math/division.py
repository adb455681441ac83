"""Division and remainder with Python's and NumPy's signs, and signs, classes and neighbours of floats."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import bool_, float32, float64
from stratal.loops.expr import Expr, call, cast, const
from stratal.loops.math.arith import (
    INF,
    NAN,
    absolute,
    add,
    any_of,
    both,
    copysign,
    div,
    eq,
    fma,
    format_of,
    from_bits,
    gt,
    like,
    lt,
    mul,
    ne,
    neg,
    select,
    sub,
    to_bits,
)

_STEPS: Final = 2  # for float64: each takes 52 bits off the quotient, which is below 2^2098


def _fmod_size(a: Expr, b: Expr, steps: int) -> Expr:
    """Return a mod b of float64, both not negative, exactly, for quotients below 2^(50 * steps); NaN beyond.

    A rounded quotient q leaves a remainder a - q*b that float64 holds exactly, so fma finds it without error;
    it may be negative, or the next step may take off what the last one rounded away.
    """
    r = a
    for _ in range(steps):
        r = fma(neg(call("trunc", div(r, b))), b, r)
    r = select(lt(r, like(0.0, r)), add(r, b), r)
    r = select(lt(a, b), a, r)
    return select(lt(absolute(r), b), r, like(NAN, r))


def fmod(x: Expr, y: Expr) -> Expr:
    """Return the remainder with the sign of x, as in C, exactly; NaN for a float64 quotient over 2^100."""
    a, b = cast(absolute(x), float64), cast(absolute(y), float64)
    size = _fmod_size(a, b, 1 if x.dtype is float32 else _STEPS)
    return copysign(cast(call("far_mod", a, b, size) if x.dtype is float32 else size, x.dtype), x)


def is_far_quotient(a: Expr, b: Expr) -> Expr:
    """Return whether one step does not find a remainder, which is a number."""
    return both(both(gt(a, mul(b, like(2.0**50, b))), lt(a, like(INF, a))), gt(b, like(0.0, b)))


def far_mod(a: Expr, b: Expr) -> Expr:
    """Return such a remainder of numbers float32 holds: their quotient is below 2^277."""
    return _fmod_size(a, b, 6)


def remainder(x: Expr, y: Expr) -> Expr:
    """Return x - floor(x/y)*y with the sign of y, as in Python; NaN for y = 0 or infinite x."""
    return _adjusted(fmod(x, y), y)


def _adjusted(r: Expr, y: Expr) -> Expr:
    zero = like(0.0, y)
    moved = select(ne(lt(r, zero), lt(y, zero)), add(r, y), r)
    return select(eq(r, zero), copysign(zero, y), moved)


def floor_divide(x: Expr, y: Expr) -> Expr:
    """Return floor(x/y), exact where the rounded quotient would be off by one; x/y for y = 0."""
    zero, one = like(0.0, x), like(1.0, x)
    r = fmod(x, y)
    crossing = both(ne(r, zero), ne(lt(r, zero), lt(y, zero)))
    quotient = div(sub(x, r), y)
    quotient = select(crossing, sub(quotient, one), quotient)
    low = call("floor", quotient)
    nearest = select(gt(sub(quotient, low), like(0.5, x)), add(low, one), low)
    whole = select(eq(quotient, zero), copysign(zero, div(x, y)), nearest)
    return select(eq(y, zero), div(x, y), whole)


def integer_floor_divide(x: Expr, y: Expr) -> Expr:
    """Return floor(x/y) of integers; 0 for y = 0."""
    if x.dtype.kind == "u":
        return call("idiv", x, y)
    zero = const(0, x.dtype)
    r = call("irem", x, y)
    crossing = both(ne(r, zero), lt(call("xor", r, y), zero))
    return sub(call("idiv", x, y), cast(crossing, x.dtype))


def integer_remainder(x: Expr, y: Expr) -> Expr:
    """Return x - floor(x/y)*y of integers, with the sign of y; 0 for y = 0."""
    r = call("irem", x, y)
    if x.dtype.kind == "u":
        return r
    zero = const(0, x.dtype)
    return select(both(ne(r, zero), lt(call("xor", r, y), zero)), add(r, y), r)


def sign(x: Expr) -> Expr:
    """Return -1, 0 or 1; NaN for NaN and 0 for -0."""
    zero, one = const(0, x.dtype), const(1, x.dtype)
    positive = select(gt(x, zero), one, zero)
    if x.dtype.kind == "u":
        return positive
    value = select(lt(x, zero), const(-1, x.dtype), positive)
    return select(ne(x, x), x, value) if x.dtype.is_float else value


def isnan(x: Expr) -> Expr:
    """Return whether x is NaN."""
    return ne(x, x) if x.dtype.is_float else const(False, bool_)


def isinf(x: Expr) -> Expr:
    """Return whether x is an infinity."""
    return eq(absolute(x), like(INF, x)) if x.dtype.is_float else const(False, bool_)


def isfinite(x: Expr) -> Expr:
    """Return whether x is neither NaN nor infinite."""
    return lt(absolute(x), like(INF, x)) if x.dtype.is_float else const(True, bool_)


def round_half_even(x: Expr) -> Expr:
    """Return the nearest whole number, ties to even."""
    return call("rint", x) if x.dtype.is_float else x


def nextafter(x: Expr, y: Expr) -> Expr:
    """Return the neighbour of x in the direction of y."""
    form = format_of(x)
    bits, one = to_bits(x), const(1, form.bits)
    grows = eq(lt(x, y), gt(x, like(0.0, x)))
    stepped = from_bits(select(grows, add(bits, one), sub(bits, one)))
    smallest = copysign(from_bits(one), y)
    moved = select(eq(x, like(0.0, x)), smallest, stepped)
    return select(any_of(ne(x, x), ne(y, y)), like(NAN, x), select(eq(x, y), y, moved))
