"""log, log2, log1p: x = 2^e * (1 + f) with 1 + f in [2/3, 4/3), and a series for log(1 + f).

float32 uses a polynomial in f; float64 log(1 + f) = 2 atanh(f / (2 + f)), which needs fewer terms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr
from stratal.loops.math.arith import INF, NAN, eq, fma, like, polynomial, select
from stratal.loops.math.floats import format_of, from_bits, keep_tiny, to_bits

# (log(1+f) - f + f^2/2) / f^3, degree 8, |f| <= 1/3 (Remez, as in `exponential`): relative error 2^-30.0
_LOG32: Final = (
    0.3333333432674408, -0.24999810755252838, 0.1999976485967636, -0.166800856590271,
    0.14298953115940094, -0.12187859416007996, 0.10821978747844696, -0.12882550060749054,
    0.11729387938976288,
)  # fmt: skip
# (2 atanh(s) - 2s) / s^3 in s^2, degree 7, s^2 <= 0.0402: relative error 2^-62.2
_LOG64: Final = (
    0.6666666666666666, 0.40000000000022995, 0.28571428562009366, 0.22222223736990657,
    0.18181693640443114, 0.15390341928991358, 0.13184799407058814, 0.13776476095402546,
)  # fmt: skip
_LN2_32: Final = (0.6931471824645996, -1.9046542121259336e-09)  # each unit as the sum of two numbers
_LN2_64: Final = (0.6931471805599453, 2.3190468138462996e-17)
_LOG2E_32: Final = (1.4426950216293335, 1.925963033500011e-08)
_LOG2E_64: Final = (1.4426950408889634, 2.0355273740931033e-17)


class Split(NamedTuple):
    """x = 2^exponent * (1 + f), exponent as a float of the dtype of x."""

    exponent: Expr
    f: Expr


def _two_thirds(x: Expr) -> int:
    return 0x3F2AAAAB if x.dtype is float32 else 0x3FE5555555555555


def fields_of(x: Expr) -> Expr:
    """Return bits(x) - bits(2/3) + bits(1) of a positive normal x: the exponent field counts from 2/3."""
    form = format_of(x)
    return to_bits(x) + ((form.bias << form.mantissa) - _two_thirds(x))


def mantissa_of(fields: Expr, x: Expr) -> Expr:
    """Return x / 2^exponent in [2/3, 4/3)."""
    form = format_of(x)
    low = fields & ((1 << form.mantissa) - 1)
    return from_bits(low + _two_thirds(x))


def exponent_of(fields: Expr, x: Expr) -> Expr:
    """Return the exponent field as a float, through the mantissa of 2^23 or 2^52: no integer conversion."""
    form = format_of(x)
    anchor = 2.0**form.mantissa
    biased = (fields >> form.mantissa) | to_bits(like(anchor, x))
    return from_bits(biased) - (anchor + form.bias)


def split(x: Expr) -> Split:
    """Split a positive finite number, subnormal or not."""
    form = format_of(x)
    small = x < form.smallest
    scaled = select(small, x * (2.0**form.mantissa * 4), x)
    fields = fields_of(scaled)
    f = mantissa_of(fields, x) - 1.0
    raised = select(small, like(-form.mantissa - 2.0, x), 0.0)
    return Split(exponent_of(fields, x) + raised, f)


def _tail(f: Expr) -> Expr:
    """Return log(1 + f) - f."""
    if f.dtype is float32:
        return f * f * fma(f, polynomial(f, _LOG32), -0.5)
    s = f / (2.0 + f)
    z, half = s * s, 0.5 * (f * f)
    return s * (half + z * polynomial(z, _LOG64)) - half


def _joined(exponent: Expr, f: Expr) -> Expr:
    """Return exponent * ln 2 + log(1 + f)."""
    high, low = _LN2_32 if f.dtype is float32 else _LN2_64
    return fma(exponent, high, fma(exponent, low, _tail(f)) + f)


def _special(x: Expr, pole: float, result: Expr) -> Expr:
    """Patch the values at the pole, beyond it and at infinity."""
    at_pole = select(eq(x, pole), like(-INF, x), NAN)
    return select(x > pole, select(x < INF, result, x), at_pole)


def log(x: Expr) -> Expr:
    """Return the natural logarithm: -inf at 0, NaN below."""
    parts = split(x)
    return _special(x, 0.0, _joined(parts.exponent, parts.f))


def log_of_normal(x: Expr) -> Expr:
    """Return the natural logarithm of a positive normal number; anything finite for what is none."""
    fields = fields_of(x)
    return _joined(exponent_of(fields, x), mantissa_of(fields, x) - 1.0)


def log2(x: Expr) -> Expr:
    """Return the logarithm to base 2, exact at powers of two."""
    exponent, f = split(x)
    high, low = _LOG2E_32 if x.dtype is float32 else _LOG2E_64
    small = fma(f, low, _tail(f) * high)
    return _special(x, 0.0, exponent + fma(f, high, small))


def log1p(x: Expr) -> Expr:
    """Return log(1 + x) without cancellation: 2^-e is applied to 1 and x apart, so no bit of x is lost."""
    form = format_of(x)
    fields = fields_of(x + 1.0)
    field = fields & (((1 << (form.bits.bits - 1)) - 1) >> form.mantissa << form.mantissa)
    # 4 * 2^-e stays normal up to the largest x
    four = from_bits(((2 * form.bias + 2) << form.mantissa) - field)
    quarter = like(0.25, x)
    f = fma(x * quarter, four, fma(quarter, four, -1.0))
    result = _special(x, -1.0, _joined(exponent_of(fields, x), f))
    return keep_tiny(x, result, 2.0**-30 if x.dtype is float32 else 2.0**-60)
