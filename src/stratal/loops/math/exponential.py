"""exp, exp2, expm1 and the sigmoid: range reduction to |r| <= ln(2)/2, a polynomial, an exponent put back.

The exponent n = rint(x / ln 2) is read off the low bits of `x / ln 2 + magic`. Polynomials are minimax
fits (Remez in 160-bit arithmetic) rounded coefficient by coefficient, lowest first, the others fitted again.
e^x of float32, the inner loop of softmax, counts eighths of an octave and looks up what they stand for: a
polynomial of half the degree does, and half the operations that wait for each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.dtypes import float32, uint32
from stratal.loops.expr import Expr, call, const
from stratal.loops.math.arith import (
    NAN,
    at_least,
    at_most,
    either,
    fma,
    ldexp,
    like,
    polynomial,
    select,
    sqrt,
)
from stratal.loops.math.floats import (
    float32_bits,
    format_of,
    from_bits,
    keep_tiny,
    power_of_two,
    to_bits,
    with_sign,
)
from stratal.loops.math.logarithm import log1p

# e^r, degree 11, |r| <= 0.3466: relative error 2^-57.1
_EXP64: Final = (
    1.0, 1.0, 0.5000000000000011, 0.16666666666666438, 0.041666666666525805, 0.008333333333473771,
    0.0013888888944851374, 0.00019841269559888911, 2.4801491799439387e-05, 2.755752970355712e-06,
    2.7630727515161686e-07, 2.5021522088006333e-08,
)  # fmt: skip
# 2^r, degree 6 / 11, |r| <= 1/2: relative error 2^-27.5 / 2^-54.8
_EXP2_32: Final = (
    1.0, 0.6931472420692444, 0.24022655189037323, 0.05550272762775421, 0.009617066010832787,
    0.0013417837908491492, 0.00015820724365767092,
)  # fmt: skip
_EXP2_64: Final = (
    1.0, 0.6931471805599457, 0.240226506959101, 0.05550410866478796, 0.009618129107606071,
    0.0013333558153978957, 0.00015403530445696112, 1.5252726972637718e-05, 1.321543903261365e-06,
    1.0180758024747576e-07, 7.07342836097452e-09, 4.071750784581232e-10,
)  # fmt: skip
# 2^r, degree 6, |r| <= 1/2, float64 coefficients: relative error 2^-29.0
_EXP2_SHORT: Final = (
    1.0000000005550227, 0.693147205766193, 0.24022646886105592, 0.055503287123437675,
    0.009618489249378552, 0.0013399957598568578, 0.00015345786977111412,
)  # fmt: skip
# (e^r - 1 - r) / r^2, degree 5 / 10, |r| <= 0.3466: relative error of e^r - 1 2^-31.0 / 2^-56.6
_EXPM1_32: Final = (
    0.5, 0.1666666567325592, 0.04166646674275398, 0.008333643898367882, 0.001393509330227971,
    0.00019664200954139233,
)  # fmt: skip
_EXPM1_64: Final = (
    0.5, 0.16666666666666677, 0.0416666666666666, 0.008333333333321187, 0.00138888888887677,
    0.0001984126988845745, 2.480158816764965e-05, 2.7557239894557637e-06, 2.7555833302144883e-07,
    2.5111267005193544e-08, 2.1607741539696644e-09,
)  # fmt: skip

# 2^((k + d)/8), k = 0 .. 7, for the d = -0.0296 at which all eight are nearly float32: relative error 2^-28.4
_EIGHTHS: Final = (
    0.9974389672279358, 1.0877149105072021, 1.1861615180969238, 1.293518304824829, 1.410591721534729,
    1.5382611751556396, 1.677485704421997, 1.8293111324310303,
)  # fmt: skip
# e^r / 2^(d/8) - 1, degree 3, |r| <= ln(2)/16: relative error of e^r 2^-25.7
_EXPM1_EIGHTH: Final = (
    0.0025675881188362837, 1.0025676488876343, 0.5013623237609863, 0.167078897356987,
)  # fmt: skip

_LOG2E: Final = 1.4426950408889634
_LN2_32: Final = (0.6931471824645996, -1.9046542121259336e-09)  # ln 2 in two float32
_LN2_64: Final = (0.6931471805599453, 2.3190468138462996e-17)  # and in two float64
_LOWEST32: Final = -104.0  # e^x of float32 is 0 below
_LIFT: Final = 32  # e^-104 * 2^32 is a normal number, and so are all factors of it


class _Reduced(NamedTuple):
    """x = n*ln(2) + r; the low bits of `bits` are n + the offset asked for."""

    n: Expr
    r: Expr
    bits: Expr


def _magic(x: Expr, offset: int = 0) -> Expr:
    return either(x, 1.5 * 2.0**23 + offset, 1.5 * 2.0**52 + offset)


def _reduce(x: Expr, offset: int = 0) -> _Reduced:
    shifted = fma(x, either(x, _LOG2E, _LOG2E), _magic(x, offset))
    n = shifted - _magic(x, offset)
    high, low = _LN2_32 if x.dtype is float32 else _LN2_64
    r = fma(n, -low, fma(n, -high, x))
    return _Reduced(n, r, to_bits(shifted))


class _Eighths(NamedTuple):
    """x = n*ln(2) + r, n in eighths; e^r = 2^(d/8) * (1 + p); the low bits of `bits` count eighths."""

    n: Expr
    p: Expr
    bits: Expr


def _eighths(x: Expr) -> _Eighths:
    magic = like(1.5 * 2.0**20, x)
    shifted = fma(x, _LOG2E, magic)
    n = shifted - magic
    high, low = _LN2_32
    r = fma(n, -low, fma(n, -high, x))
    return _Eighths(n, polynomial(r, _EXPM1_EIGHTH), to_bits(shifted))


def _power_of_eighths(bits: Expr, lift: int = 0) -> Expr:
    """Return 2^(lift + (n + d)/8) for the n in the low bits: whole octaves are added to the exponent.

    What the last three bits add there, the table lacks.
    """
    whole = [float32_bits(v) + (lift << 23) - (k << 20) for k, v in enumerate(_EIGHTHS)]
    return from_bits(call("pick8", bits, *(const(w, uint32) for w in whole)) + (bits << 20))


def _exp(x: Expr) -> Expr:
    """Return e^x for x that is not far above the range."""
    if x.dtype is float32:
        n, p, bits = _eighths(x)
        part = call("pick8", bits, *(like(v, x) for v in _EIGHTHS))
        return ldexp(_vanish(fma(part, p, part), x, _LOWEST32), call("floor", n))
    reduced = _reduce(x)
    return ldexp(_vanish(polynomial(reduced.r, _EXP64), x, -746.0), reduced.n)


def exp_below(x: Expr) -> Expr:
    """Return e^x, bit for bit as `exp` does, for a float32 that is not above 65.

    One product rounds what is smaller than the smallest normal number; nothing before it is that small.
    """
    _, p, bits = _eighths(x)
    power = _power_of_eighths(bits, _LIFT)
    return _vanish(fma(power, p, power), x, _LOWEST32) * 2.0**-_LIFT


def exp_near(x: Expr) -> Expr:
    """Return e^x, bit for bit as `exp` does, for a float32 from -87 to 88 or NaN."""
    _, p, bits = _eighths(x)
    power = _power_of_eighths(bits)
    return fma(power, p, power)


def _vanish(p: Expr, x: Expr, low: float) -> Expr:
    """Return 0 instead of p where x < low: p may be NaN there, and a product that underflows would cost 150
    cycles a vector; masked scores are full of them.
    """
    return select(x < low, 0.0, p)


def exp_of_sum(x: Expr, low: Expr) -> Expr:
    """Return e^(x + low) of float64 for a small `low`; x must be where e^x is not far out of range."""
    reduced = _reduce(x)
    return ldexp(polynomial(reduced.r + low, _EXP64), reduced.n)


def exp(x: Expr) -> Expr:
    """Return e^x."""
    return _exp(at_most(x, 89.0 if x.dtype is float32 else 710.0))


def exp2(x: Expr) -> Expr:
    """Return 2^x."""
    high, low = (129.0, -151.0) if x.dtype is float32 else (1025.0, -1076.0)
    clipped = at_most(x, high)
    n = clipped + _magic(x) - _magic(x)
    p = polynomial(clipped - n, _EXP2_32 if x.dtype is float32 else _EXP2_64)
    return ldexp(_vanish(p, x, low), n)


def exp2_below(x: Expr) -> Expr:
    """Return 2^x of a float32 below 127, 0 below -125: nothing underflows, and half the work of `exp2`."""
    magic = _magic(x, format_of(x).bias)
    shifted = x + magic
    power = polynomial(x - (shifted - magic), _EXP2_32) * power_of_two(to_bits(shifted))
    return select(x < -125.0, 0.0, power)


def exp2_double(x: Expr) -> Expr:
    """Return 2^x of a float64 to 2^-29, for |x| < 1000: float32 results that are rounded once."""
    magic = _magic(x, format_of(x).bias)
    shifted = x + magic
    return polynomial(x - (shifted - magic), _EXP2_SHORT) * power_of_two(to_bits(shifted))


def expm1_quarter(x: Expr) -> Expr:
    """Return (e^x - 1) / 4, finite as long as e^x / 2 is: what the hyperbolic functions are made of."""
    x = at_least(at_most(x, 89.5 if x.dtype is float32 else 710.6), -20.0 if x.dtype is float32 else -40.0)
    reduced = _reduce(x, format_of(x).bias - 2)
    r, scale = reduced.r, power_of_two(reduced.bits)
    q = fma(r * r, polynomial(r, _EXPM1_32 if x.dtype is float32 else _EXPM1_64), r)
    return fma(scale, q, scale - 0.25)


def expm1(x: Expr) -> Expr:
    """Return e^x - 1 without cancellation near 0."""
    return keep_tiny(x, 4.0 * expm1_quarter(x), 2.0**-60 if x.dtype is not float32 else 2.0**-30)


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + e^-x), accurate to the last subnormal: e^-|x| never overflows."""
    one = like(1.0, x)
    below = -abs(x)
    z = exp_below(below) if x.dtype is float32 else _exp(below)
    return select(x < 0.0, z, one) / (one + z)


# -- hyperbolic functions ------------------------------------------------------------------------------------
# Made of expm1 and log1p: nothing cancels near 0 or overflows early.


_LN2: Final = 0.6931471805599453
# (tanh(t)/t - 1)/t^2 in t^2, degree 4, |t| <= 0.6 (Remez, as in `exponential`): relative error 2^-28.1
_TANH32: Final = (
    -0.33333292603492737, 0.13331757485866547, -0.05376815423369408, 0.020738929510116577,
    -0.005824568681418896,
)  # fmt: skip


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent."""
    a = abs(x)
    return with_sign(_tanh32(a) if x.dtype is float32 else _tanh64(a), x)


def _tanh32(a: Expr) -> Expr:
    """1 - 2/(exp(2a) + 1), the faster of the two; near 0, where it cancels, an odd polynomial."""
    z, one = a * a, like(1.0, a)
    near = fma(a * z, polynomial(z, _TANH32), a)
    grown = exp_near(at_most(a + a, 20.0))
    far = one - 2.0 / (grown + one)
    return select(a < 0.6, near, far)


def _tanh64(a: Expr) -> Expr:
    """e/(e + 2) with e = exp(2a) - 1."""
    e = expm1_quarter(at_most(a + a, 40.0)) * 2.0
    return keep_tiny(a, e / (e + 1.0), _tiny(a))


def sinh(x: Expr) -> Expr:
    """Return the hyperbolic sine: (e + e/(e + 1))/2 with e = exp(|x|) - 1."""
    e = expm1_quarter(abs(x))
    half = e + e / fma(e, 4.0, 1.0)
    return keep_tiny(x, with_sign(half * 2.0, x), _tiny(x))


def cosh(x: Expr) -> Expr:
    """Return the hyperbolic cosine: (exp(|x|) + exp(-|x|))/2."""
    e = expm1_quarter(abs(x))
    grown = fma(e, 4.0, 1.0)
    return fma(e, 2.0, 0.5 + 0.5 / grown)


def asinh(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = abs(x)
    large = a > either(x, 2.0**30, 2.0**60)
    root = sqrt(fma(a, a, 1.0))
    near = fma(a, a / (root + 1.0), a)
    result = log1p(select(large, a, near)) + select(large, like(_LN2, x), 0.0)
    return keep_tiny(x, with_sign(result, x), _tiny(x))


def acosh(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    large = x > either(x, 2.0**30, 2.0**60)
    t = x - 1.0
    near = t + sqrt(fma(t, t, t + t))
    result = log1p(select(large, t, near)) + select(large, like(_LN2, x), 0.0)
    return select(x < 1.0, NAN, result)


def atanh(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; infinite at +-1, NaN beyond."""
    a = abs(x)
    result = 0.5 * log1p((a + a) / (1.0 - a))
    return keep_tiny(x, with_sign(result, x), _tiny(x))


def _tiny(x: Expr) -> float:
    """Return a bound below which an odd function with slope 1 at 0 equals its argument."""
    return 2.0**-13 if x.dtype is float32 else 2.0**-28
