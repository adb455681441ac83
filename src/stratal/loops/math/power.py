"""Powers: float x^y with the special values of IEEE 754, integer powers by squaring, and 1/sqrt."""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import float32, float64
from stratal.base.errors import VerifyError
from stratal.loops.expr import Expr, call, cast, const
from stratal.loops.math.arith import (
    INF,
    NAN,
    absolute,
    add,
    any_of,
    at_least,
    at_most,
    both,
    div,
    eq,
    fma,
    gt,
    like,
    lt,
    mul,
    ne,
    neg,
    polynomial,
    select,
    signbit,
    sqrt,
    sub,
)
from stratal.loops.math.exponential import exp2_double, exp_of_sum
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
    s = add(a, b)
    t = sub(s, a)
    return _Pair(s, add(sub(a, sub(s, t)), sub(b, t)))


def _product(a: _Pair, b: _Pair) -> _Pair:
    high = mul(a.high, b.high)
    return _Pair(high, fma(a.high, b.low, fma(a.low, b.high, fma(a.high, b.high, neg(high)))))


def _log_pair(a: Expr) -> _Pair:
    """Return log(a) to about 2^-65 for a positive finite float64."""
    exponent, f = split(a)
    two = like(2.0, a)
    u = add(two, f)
    u_low = sub(f, sub(u, two))
    inverse = div(like(1.0, a), u)
    s = mul(f, inverse)
    s_low = mul(fma(neg(s), u_low, fma(neg(s), u, f)), inverse)
    sp = _Pair(s, s_low)
    z = _product(sp, sp)
    t = mul(z.high, polynomial(z.high, _ATANH_TAIL))
    lead = like(_TWO_THIRDS[0], a)
    p = add(lead, t)
    series = _product(_product(sp, z), _Pair(p, add(add(sub(lead, p), t), like(_TWO_THIRDS[1], a))))
    first = _two_sum(mul(exponent, like(_LN2[0], a)), mul(two, s))
    second = _two_sum(first.high, series.high)
    low = add(add(first.low, second.low), fma(two, s_low, fma(exponent, like(_LN2[1], a), series.low)))
    high = add(second.high, low)
    return _Pair(high, add(sub(second.high, high), low))


def _power64(a: Expr, y: Expr) -> Expr:
    """Return a^y for a > 0 and a != 1; a may be 0 or infinite."""
    logarithm = _log_pair(a)
    edge = any_of(eq(a, like(0.0, a)), eq(a, like(INF, a)))
    ends = select(eq(a, like(0.0, a)), like(-INF, a), like(INF, a))
    high = mul(y, select(edge, ends, logarithm.high))
    low = fma(y, logarithm.low, fma(y, logarithm.high, neg(high)))
    moderate = lt(absolute(high), like(1000.0, a))
    return exp_of_sum(at_least(at_most(high, 710.0), -746.0), select(moderate, low, like(0.0, a)))


def _power32(a: Expr, y: Expr) -> Expr:
    """Return a^y in float64 for float32 operands widened: short series, one rounding at the end."""
    fields = fields_of(a)
    f = sub(mantissa_of(fields, a), like(1.0, a))
    exact = fma(f, polynomial(f, _LOG2_SHORT), exponent_of(fields, a))
    edge = any_of(eq(a, like(0.0, a)), eq(a, like(INF, a)))
    ends = select(eq(a, like(0.0, a)), like(-INF, a), like(INF, a))
    x = at_least(at_most(mul(y, select(edge, ends, exact)), 200.0), -200.0)
    return exp2_double(x)


def pow(x: Expr, y: Expr) -> Expr:
    """Return x^y of floats, with the special values of IEEE 754: 1 for y = 0 or x = 1 even for NaN."""
    a, zero, one = absolute(x), like(0.0, x), like(1.0, x)
    if x.dtype is float32:
        size = cast(_power32(cast(a, float64), cast(y, float64)), float32)
    else:
        size = _power64(a, y)
    size = select(eq(a, one), one, size)
    whole = eq(call("rint", y), y)
    half = mul(y, like(0.5, x))
    odd = both(whole, ne(call("rint", half), half))
    value = select(both(odd, signbit(x)), neg(size), size)
    undefined = both(both(lt(x, zero), gt(x, like(-INF, x))), call("not", whole))
    undefined = any_of(undefined, any_of(ne(x, x), ne(y, y)))
    value = select(undefined, like(NAN, x), value)
    return select(any_of(eq(y, zero), eq(x, one)), one, value)


def rsqrt(x: Expr) -> Expr:
    """Return 1 / sqrt(x): two correctly rounded operations."""
    return div(like(1.0, x), sqrt(x))


def power_by_squaring(x: Expr, exponent: int) -> Expr:
    """Return x^exponent for a constant by about log2(exponent) products; a negative one inverts a float."""
    if exponent < 0:
        if not x.dtype.is_float:
            raise VerifyError("power: a negative exponent of an integer", got=str(exponent))
        return div(like(1.0, x), power_by_squaring(x, -exponent))
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else mul(result, x)
        exponent >>= 1
        if exponent:
            x = mul(x, x)
    return const(1, x.dtype) if result is None else result


def integer_power(x: Expr, y: Expr) -> Expr:
    """Return x^y of integers, wrapped; a negative y gives 1/x^y rounded to 0 (and 0 for x = 0)."""
    dtype = x.dtype
    one, zero = const(1, dtype), const(0, dtype)
    result: Expr = one
    square = x
    for bit in range(dtype.bits if dtype.kind == "u" else dtype.bits - 1):
        taken = call("ne", call("and", y, const(1 << bit, dtype)), zero)
        result = select(taken, mul(result, square), result)
        square = mul(square, square)
    if dtype.kind == "u":
        return result
    minus = const(-1, dtype)
    parity = select(call("ne", call("and", y, one), zero), minus, one)
    inverse = select(call("eq", x, one), one, select(call("eq", x, minus), parity, zero))
    return select(lt(y, zero), inverse, result)
