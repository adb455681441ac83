"""Powers: float x^y with the special values of IEEE 754, integer powers by squaring, and 1/sqrt."""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import float32, float64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Expr, call, cast, const
from stratal.loops.math.arith import INF, NAN, at_least, at_most, eq, fma, like, ne, polynomial, select, sqrt
from stratal.loops.math.exponential import exp2_double, exp_of_sum
from stratal.loops.math.floats import from_bits, signbit, to_bits, with_sign
from stratal.loops.math.logarithm import exponent_of, fields_of, mantissa_of, split

# log2(1 + f)/f, degree 11, |f| <= 1/3: relative error 2^-33.2 (Remez; for float32 powers)
_LOG2_SHORT: Final = (
    1.4426950407475005, -0.7213475196226867, 0.4808984377955168, -0.3606739690406105,
    0.2885295903702881, -0.24043414189829368, 0.20645423014270364, -0.18079617481596935,
    0.15432626360056984, -0.13754999562317197, 0.17607935129587304, -0.1658146364787821,
)  # fmt: skip
# (2 atanh(s) - 2s)/s^3 = 2/3 + z*Q(z), z = s^2 <= 0.0402: Q, degree 7; error of the whole below 2^-65
_ATANH_TAIL: Final = (
    0.39999999999999714, 0.2857142857158264, 0.22222222190299204, 0.1818182161145485,
    0.15384402366076586, 0.13341265743772343, 0.11590546040484764, 0.12582547573500646,
)  # fmt: skip
_TWO_THIRDS: Final = (0.6666666666666666, 3.700743415417188e-17)
_LN2: Final = (0.693147180369123816490, 1.90821492927058770002e-10)


class _Pair(NamedTuple):
    """An unevaluated sum of two float64."""

    high: Expr
    low: Expr


def _two_sum(a: Expr, b: Expr) -> _Pair:
    s = a + b
    t = s - a
    return _Pair(s, a - (s - t) + (b - t))


def _product(a: _Pair, b: _Pair) -> _Pair:
    high = a.high * b.high
    return _Pair(high, fma(a.high, b.low, fma(a.low, b.high, fma(a.high, b.high, -high))))


def _log_pair(a: Expr) -> _Pair:
    """Return log(a) to about 2^-65 for a positive finite float64."""
    exponent, f = split(a)
    two = like(2.0, a)
    u = two + f
    u_low = f - (u - two)
    inverse = 1.0 / u
    s = f * inverse
    s_low = fma(-s, u_low, fma(-s, u, f)) * inverse
    sp = _Pair(s, s_low)
    z = _product(sp, sp)
    t = z.high * polynomial(z.high, _ATANH_TAIL)
    lead = like(_TWO_THIRDS[0], a)
    p = lead + t
    series = _product(_product(sp, z), _Pair(p, lead - p + t + _TWO_THIRDS[1]))
    first = _two_sum(exponent * _LN2[0], two * s)
    second = _two_sum(first.high, series.high)
    low = first.low + second.low + fma(two, s_low, fma(exponent, _LN2[1], series.low))
    high = second.high + low
    return _Pair(high, second.high - high + low)


def _power64(a: Expr, y: Expr) -> Expr:
    """Return a^y for a > 0 and a != 1; a may be 0 or infinite."""
    logarithm = _log_pair(a)
    edge = eq(a, 0.0) | eq(a, INF)
    ends = select(eq(a, 0.0), like(-INF, a), INF)
    high = y * select(edge, ends, logarithm.high)
    low = fma(y, logarithm.low, fma(y, logarithm.high, -high))
    moderate = abs(high) < 1000.0
    return exp_of_sum(at_least(at_most(high, 710.0), -746.0), select(moderate, low, 0.0))


def _power32(a: Expr, y: Expr) -> Expr:
    """Return a^y in float64 for float32 operands widened: short series, one rounding at the end."""
    fields = fields_of(a)
    f = mantissa_of(fields, a) - 1.0
    exact = fma(f, polynomial(f, _LOG2_SHORT), exponent_of(fields, a))
    edge = eq(a, 0.0) | eq(a, INF)
    ends = select(eq(a, 0.0), like(-INF, a), INF)
    x = at_least(at_most(y * select(edge, ends, exact), 200.0), -200.0)
    return exp2_double(x)


def pow(x: Expr, y: Expr) -> Expr:
    """Return x^y of floats, with the special values of IEEE 754: 1 for y = 0 or x = 1 even for NaN."""
    a, zero, one = abs(x), like(0.0, x), like(1.0, x)
    if x.dtype is float32:
        size = cast(_power32(cast(a, float64), cast(y, float64)), float32)
    else:
        size = _power64(a, y)
    size = select(eq(a, one), one, size)
    whole = eq(call("rint", y), y)
    half = y * 0.5
    odd = whole & ne(call("rint", half), half)
    value = select(odd & signbit(x), -size, size)
    undefined = (x < zero) & (x > -INF) & ~whole
    undefined = undefined | (ne(x, x) | ne(y, y))
    value = select(undefined, NAN, value)
    return select(eq(y, zero) | eq(x, one), one, value)


def rsqrt(x: Expr) -> Expr:
    """Return 1 / sqrt(x): two correctly rounded operations."""
    return 1.0 / sqrt(x)


def power_by_squaring(x: Expr, exponent: int) -> Expr:
    """Return x^exponent for a constant by about log2(exponent) products; a negative one inverts a float."""
    if exponent < 0:
        if not x.dtype.is_float:
            raise VerifyError("power: a negative exponent of an integer", got=str(exponent))
        return 1.0 / power_by_squaring(x, -exponent)
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    return const(1, x.dtype) if result is None else result


def integer_power(x: Expr, y: Expr) -> Expr:
    """Return x^y of integers, wrapped; a negative y gives 1/x^y rounded to 0 (and 0 for x = 0)."""
    dtype = x.dtype
    one, zero = const(1, dtype), const(0, dtype)
    result: Expr = one
    square = x
    for bit in range(dtype.bits if dtype.kind == "u" else dtype.bits - 1):
        taken = call("ne", y & (1 << bit), zero)
        result = select(taken, result * square, result)
        square = square * square
    if dtype.kind == "u":
        return result
    minus = const(-1, dtype)
    parity = select(call("ne", y & one, zero), minus, one)
    inverse = select(call("eq", x, one), one, select(call("eq", x, minus), parity, zero))
    return select(y < zero, inverse, result)


# -- cube root -----------------------------------------------------------------------------------------------
# By a Newton step from y = x^(-1/3), which needs no division.


# The bits of x^(-1/3) are about these less a third of those of x: 1 - x y^3 is at most 0.1026
_GUESS: Final = {32: 0x54A1D5AD, 64: 0x553EE978D4FDF3B7}
# ((1 - e)^(-1/3) - 1) / e, degree 2 / 3, |e| <= 0.1026: relative error of y 2^-18.4 / 2^-23.3
_ROOT32: Final = (0.3333297669887543, 0.22348730266094208, 0.17441557347774506)
_ROOT64: Final = (0.3333290370830205, 0.2222157401301652, 0.17448799148031685, 0.14579822141693022)


def _third(bits: Expr) -> Expr:
    """Return about a third of an unsigned integer: 1/4 + 1/16 + 1/64 + ..."""
    third = (bits >> 2) + (bits >> 4)
    for shift in (4, 8, 16)[: 2 if bits.dtype.bits == 32 else 3]:
        third = third + (third >> shift)
    return third


def cbrt(x: Expr) -> Expr:
    """Return the cube root, of the sign of x."""
    single = x.dtype is float32
    one, third = like(1.0, x), like(1 / 3, x)
    size = abs(x)
    small = size < (2.0**-72 if single else 2.0**-900)  # what is left below would be subnormal
    a = select(small, size * 2.0**72, size)
    bits = to_bits(a)
    y = from_bits(_GUESS[x.dtype.bits] - _third(bits))
    e = fma(-(a * y), y * y, one)
    y = fma(y * e, polynomial(e, _ROOT32 if single else _ROOT64), y)
    if not single:
        e = fma(-(a * y), y * y, one)
        y = fma(y * e, third, y)
    square = y * y
    root = a * square
    left = fma(-root, root * root, a)
    root = fma(left, square * third, root)
    root = select(small, root * 2.0**-24, root)
    return with_sign(select(size < INF, root, size), x)
