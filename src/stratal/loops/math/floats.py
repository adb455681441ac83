"""Floats as bits: their formats, signs and exponents; and in which precision functions compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from stratal.base.dtypes import DType, float32, float64, uint32, uint64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Expr, call, cast
from stratal.loops.math.arith import ne, select


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


def to_bits(x: Expr) -> Expr:
    """Return the bits of a float as the unsigned integer of its width."""
    return call("bitcast", x, dtype=format_of(x).bits)


def from_bits(bits: Expr) -> Expr:
    """Return the float with these bits."""
    return call("bitcast", bits, dtype=float32 if bits.dtype is uint32 else float64)


def float32_bits(value: float) -> int:
    """Return the bits of a number as a float32."""
    return int(np.float32(value).view(np.uint32))


def sign_bit(x: Expr) -> Expr:
    """Return the bits of x with all but the sign cleared."""
    return to_bits(x) & format_of(x).sign


def flip_sign(x: Expr, sign: Expr) -> Expr:
    """Negate x where the sign bit of the unsigned `sign` is set; its other bits are zero."""
    return from_bits(to_bits(x) ^ sign)


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """Return |magnitude| with the sign of `sign`."""
    return with_sign(abs(magnitude), sign)


def with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """Return a magnitude that is not negative with the sign of `sign`."""
    return from_bits(to_bits(magnitude) | sign_bit(sign))


def signbit(x: Expr) -> Expr:
    """Return whether the sign bit is set, also for -0 and NaN."""
    return ne(sign_bit(x), 0)


def power_of_two(biased: Expr) -> Expr:
    """Return the float whose exponent field is the low bits of `biased`; the bit above them must be 0."""
    return from_bits(biased << (23 if biased.dtype is uint32 else 52))


def in_float64(function: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """Let a function of a float64 take a float32, too: it computes in float64 and rounds once."""

    @functools.wraps(function)
    def widened(x: Expr) -> Expr:
        return function(x) if x.dtype is float64 else cast(function(cast(x, float64)), x.dtype)

    return widened


def keep_tiny(x: Expr, result: Expr, tiny: float) -> Expr:
    """Return x itself where |x| is so small that f(x) = x: keeps -0 and subnormals."""
    return select(abs(x) < tiny, x, result)
