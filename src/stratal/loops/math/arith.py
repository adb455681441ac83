"""What the math functions share: short names for scalar functions, polynomials, bit fields, signs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from stratal.base.dtypes import DType, float32, float64, uint32, uint64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Const, Expr, call, cast, const

NAN: Final = float("nan")
INF: Final = float("inf")


class Format(NamedTuple):
    """A float format: its unsigned twin, mantissa bits, exponent bias and smallest normal number."""

    dtype: DType
    bits: DType
    mantissa: int
    bias: int
    smallest: float

    @property
    def sign(self) -> int:
        return 1 << (self.bits.bits - 1)


FORMATS: Final = {
    float32.name: Format(float32, uint32, 23, 127, 2.0**-126),
    float64.name: Format(float64, uint64, 52, 1023, 2.0**-1022),
}


def format_of(x: Expr) -> Format:
    """Return the format of a float32 or float64 expression."""
    found = FORMATS.get(x.dtype.name)
    if found is None:
        raise VerifyError("math: takes float32 or float64", got=str(x.dtype), hint="cast 16-bit floats first")
    return found


def like(value: float, x: Expr) -> Const:
    """Return the constant `value` of the dtype of `x`."""
    return const(value, x.dtype)


def either(x: Expr, single: float, double: float) -> Const:
    """Return the constant for the precision of `x`."""
    return const(single if x.dtype is float32 else double, x.dtype)


def add(a: Expr, b: Expr) -> Expr:
    return call("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return call("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    return call("div", a, b)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return call("fma", a, b, c)


def ldexp(a: Expr, n: Expr) -> Expr:
    """Return a * 2^n; a is near 1, 0 or NaN."""
    return call("ldexp", a, n)


def neg(a: Expr) -> Expr:
    return call("neg", a)


def absolute(a: Expr) -> Expr:
    return call("abs", a)


def sqrt(x: Expr) -> Expr:
    """Return the correctly rounded square root."""
    return call("sqrt", x)


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return call("select", condition, yes, no)


def lt(a: Expr, b: Expr) -> Expr:
    return call("lt", a, b)


def gt(a: Expr, b: Expr) -> Expr:
    return call("gt", a, b)


def eq(a: Expr, b: Expr) -> Expr:
    return call("eq", a, b)


def ne(a: Expr, b: Expr) -> Expr:
    return call("ne", a, b)


def both(a: Expr, b: Expr) -> Expr:
    return call("and", a, b)


def any_of(a: Expr, b: Expr) -> Expr:
    return call("or", a, b)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return `c[0] + c[1]*x + ...` by Horner's rule: the fewest operations; loops overlap its latency."""
    result: Expr = like(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, like(c, x))
    return result


def at_most(x: Expr, high: float) -> Expr:
    """Return the smaller of x and a constant; NaN passes. One `min` instruction where the target has it."""
    limit = like(high, x)
    return select(gt(x, limit), limit, x)


def at_least(x: Expr, low: float) -> Expr:
    """Return the larger of x and a constant; NaN passes."""
    limit = like(low, x)
    return select(lt(x, limit), limit, x)


def to_bits(x: Expr) -> Expr:
    """Return the bits of a float as the unsigned integer of its width."""
    return call("bitcast", x, dtype=format_of(x).bits)


def from_bits(bits: Expr) -> Expr:
    """Return the float with these bits."""
    return call("bitcast", bits, dtype=float32 if bits.dtype is uint32 else float64)


def float32_bits(value: float) -> int:
    """Return the bits of a number as a float32."""
    return int(np.float32(value).view(np.uint32))


def shl(a: Expr, by: int) -> Expr:
    return call("shl", a, const(by, a.dtype))


def shr(a: Expr, by: int) -> Expr:
    return call("shr", a, const(by, a.dtype))


def sign_bit(x: Expr) -> Expr:
    """Return the bits of x with all but the sign cleared."""
    return call("and", to_bits(x), const(format_of(x).sign, format_of(x).bits))


def flip_sign(x: Expr, sign: Expr) -> Expr:
    """Negate x where the sign bit of the unsigned `sign` is set; its other bits are zero."""
    return from_bits(call("xor", to_bits(x), sign))


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """Return |magnitude| with the sign of `sign`."""
    return with_sign(absolute(magnitude), sign)


def with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """Return a magnitude that is not negative with the sign of `sign`."""
    return from_bits(call("or", to_bits(magnitude), sign_bit(sign)))


def signbit(x: Expr) -> Expr:
    """Return whether the sign bit is set, also for -0 and NaN."""
    form = format_of(x)
    return ne(sign_bit(x), const(0, form.bits))


def power_of_two(biased: Expr) -> Expr:
    """Return the float whose exponent field is the low bits of `biased`; the bit above them must be 0."""
    return from_bits(shl(biased, 23 if biased.dtype is uint32 else 52))


def in_double(f: Expr) -> Expr:
    return cast(f, float64)


def in_float64(function: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """Let a function of a float64 take a float32, too: it computes in float64 and rounds once."""

    @functools.wraps(function)
    def widened(x: Expr) -> Expr:
        return function(x) if x.dtype is float64 else cast(function(cast(x, float64)), x.dtype)

    return widened


def keep_tiny(x: Expr, result: Expr, tiny: float) -> Expr:
    """Return x itself where |x| is so small that f(x) = x: keeps -0 and subnormals."""
    return select(lt(absolute(x), like(tiny, x)), x, result)
