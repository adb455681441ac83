"""What each scalar function of `expr.FUNCTIONS` computes, to the bit, on NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import VerifyError

Array = np.ndarray[Any, Any]


def apply(fn: str, args: Sequence[Array], dtype: DType) -> Array:
    """Return `fn(*args)` of result dtype `dtype`, element by element."""
    if fn == "cast":
        return cast(args[0], dtype)
    if fn == "bitcast":
        return np.ascontiguousarray(args[0]).view(dtype.np).reshape(args[0].shape)
    if fn in ("shl", "shr"):
        return _shift(fn, args[0], args[1])
    exact = _EXACT.get(fn)
    if exact is None:
        raise VerifyError(f"interpreter: no scalar function is called {fn!r}")
    return np.asarray(exact(*args)).astype(dtype.np, copy=False)


def cast(x: Array, dtype: DType) -> Array:
    """Convert: float to integer truncates and saturates, NaN gives 0; integers wrap; to bool is `x != 0`."""
    source = as_dtype(x.dtype)
    if dtype.is_bool:
        return np.asarray(x != 0)
    if not (source.is_float and dtype.is_integer):
        return np.asarray(x).astype(dtype.np)
    wide = np.trunc(x.astype(np.float64))
    low, high = np.iinfo(dtype.np).min, np.iinfo(dtype.np).max
    inside = (wide >= float(low)) & (wide < float(high) + (1 if dtype.bits < 64 else 0))
    result = np.where(inside, wide, 0).astype(dtype.np)
    result = np.where(wide < float(low), low, result)
    return np.asarray(np.where((wide >= float(high)) & ~inside, high, result)).astype(dtype.np)


def _shift(fn: str, x: Array, by: Array) -> Array:
    width = as_dtype(x.dtype).bits
    over = (by < 0) | (by.astype(np.uint64) >= width)
    safe = np.where(over, 0, by).astype(x.dtype)
    if fn == "shl":
        return np.where(over, 0, np.left_shift(x, safe)).astype(x.dtype)
    sign = np.where(x < 0, -1, 0).astype(x.dtype)
    return np.where(over, sign, np.right_shift(x, safe)).astype(x.dtype)


def _idiv(a: Array, b: Array) -> Array:
    """Integer division towards zero; the least integer by -1 wraps."""
    one = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return np.where(b == 0, 0, a // one)
    with np.errstate(over="ignore"):
        quotient = a // one
    inexact = (quotient * one != a) & ((a < 0) != (one < 0))
    return np.where(b == 0, 0, quotient + inexact)


def _irem(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a - _idiv(a, b) * b)


def _mulhi(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return np.asarray((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(bits))
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + ((a0 * b0) >> shift)
    other = a0 * b1 + (middle & low)
    return np.asarray(a1 * b1 + (middle >> shift) + (other >> shift))


def _ldexp(a: Array, b: Array) -> Array:
    most = 2048 if a.dtype == np.float64 else 256
    whole = np.where(np.isnan(b), 0, np.clip(b, -most, most)).astype(np.int32)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(a, whole))


def _word(*parts: Array) -> Array:
    """Return words that hold the bits of their parts, the first lowest."""
    bits = 8 * parts[0].dtype.itemsize
    word: Array = np.zeros((), np.uint32)
    for k, part in enumerate(parts):
        word = word | (part.view(f"u{part.dtype.itemsize}").astype(np.uint32) << np.uint32(bits * k))
    return np.asarray(word).view(np.int32)


def _dot4(total: Array, a: Array, b: Array) -> Array:
    """Add four products to a sum: bytes of `a` are unsigned, those of `b` signed."""
    for k in range(4):
        unsigned = (a >> np.int32(8 * k)) & np.int32(255)
        signed = (b << np.int32(24 - 8 * k)) >> np.int32(24)
        total = total + unsigned * signed
    return np.asarray(total)


def _pick8(index: Array, *values: Array) -> Array:
    return np.asarray(np.choose(index & np.uint32(7), values))


# -- fused multiply-add ----------------------------------------------------------------------------------


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _to_odd(s: Array, error: Array) -> Array:
    """Return s + error rounded to odd: an inexact result ends in a set bit, so rounding twice is harmless."""
    bits = s.view(np.int64)
    even = ((bits & 1) == 0) & (error != 0)
    away = (error > 0) == (s > 0)
    return np.where(even, (bits + np.where(away, 1, -1)), bits).view(np.float64)


def _fma32_to_odd(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32 as float64, rounded to odd."""
    product = a.astype(np.float64) * b.astype(np.float64)
    s, error = _two_sum(product, np.asarray(c, np.float64))
    odd = _to_odd(np.asarray(s, order="C"), np.asarray(error, order="C"))
    return np.where(np.isfinite(s) & (s != 0), odd, s)


_SPLIT: Final = float((1 << 27) + 1)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the product of moderate numbers and its rounding error (Veltkamp, Dekker)."""
    p = a * b
    ta, tb = _SPLIT * a, _SPLIT * b
    ah, bh = ta - (ta - a), tb - (tb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """Round once: mantissas are multiplied exactly, the addend is scaled to them, the sum is rounded.

    See: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
    """
    a, b, c = (np.asarray(x, np.float64, order="C") for x in np.broadcast_arrays(a, b, c))
    (ma, ea), (mb, eb), (mc, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    e = ea + eb
    gap = np.clip(ec - e, -300, 300)
    high, low = _two_product(ma, mb)
    u, u_low = _two_sum(np.ldexp(mc, gap), low)
    v, v_low = _two_sum(high, u)
    tail = _to_odd(*_two_sum(u_low, v_low))
    result = np.ldexp(v + tail, e)
    result = np.where(ec - e > 300, c, result)
    special = ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c) | (a == 0) | (b == 0) | (v + tail == 0)
    only_c_infinite = np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c)  # the product alone may overflow
    result = np.where(special, np.where(only_c_infinite, c, a * b + c), result)
    for k in np.argwhere(~special & (np.abs(result) < 2.0**-1020)):  # ldexp would round a second time
        result[tuple(k)] = _fma_fraction(*(float(x[tuple(k)]) for x in (a, b, c)))
    return result


def _fma_fraction(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact.numerator / exact.denominator


def _fma(a: Array, b: Array, c: Array) -> Array:
    return _fma32_to_odd(a, b, c).astype(np.float32) if a.dtype == np.float32 else _fma64(a, b, c)


# -- products of bfloat16 --------------------------------------------------------------------------------


_LEAST: Final = np.finfo(np.float32).smallest_normal


def _pair(re: Array, im: Array) -> Array:
    re, im = np.broadcast_arrays(re, im)
    return np.stack([re, im], -1).view(np.result_type(re.dtype, np.complex64))[..., 0]


def _dot2(total: Array, a: Array, b: Array) -> Array:
    """Add the products of the upper and of the lower bfloat16 halves of words to a sum."""
    total = _normal(np.asarray(total, np.float64))
    for bits in (16, 0):
        x, y = (((w.view(np.uint32) >> np.uint32(bits)) << np.uint32(16)).view(np.float32) for w in (a, b))
        total = _normal(_fma32_to_odd(_normal(x), _normal(y), total))
    return total


def _normal(x: Array) -> Array:
    """Round to float32; what is below its least normal number even with 24 bits of its own becomes 0."""
    scale = np.float64(2.0**64)  # far from where float32 itself loses bits
    tiny = (np.abs(x) < 1) & (np.abs((x * scale).astype(np.float32)) < _LEAST * scale)
    return np.where(tiny, np.copysign(0.0, x), x).astype(np.float32)


_EXACT: Final[dict[str, Callable[..., Array]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "fma": _fma,
    "ldexp": _ldexp, "neg": np.negative, "abs": np.abs, "min": np.minimum, "max": np.maximum,
    "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "idiv": _idiv,
    "irem": _irem, "floordiv": np.floor_divide, "mod": np.mod, "mulhi": _mulhi, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "pick8": _pick8, "bytes4": _word,
    "dot4": _dot4, "halves2": _word, "dot2": _dot2, "pair": _pair, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "select": np.where,
}  # fmt: skip
