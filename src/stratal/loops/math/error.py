"""erf and erfc."""

from __future__ import annotations

from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr, cast
from stratal.loops.math.arith import (
    absolute,
    add,
    at_most,
    copysign,
    div,
    fma,
    in_double,
    like,
    lt,
    mul,
    neg,
    polynomial,
    select,
    sub,
    with_sign,
)
from stratal.loops.math.exponential import exp, exp2_double, expm1_moderate

_LOG2E: Final = 1.4426950408889634
# log(erfc(a))/a + 1, degree 8, 0 <= a <= 3.93: relative error of erf 2^-27.8. One branch and no division:
# this is the inner loop of GELU.
_LOG_ERFC32: Final = (
    -0.12837916612625122, -0.6366195678710938, -0.10277630388736725, 0.019147822633385658,
    0.0001695034879958257, -0.0016756739933043718, 0.0006373607902787626, -0.00011886011634487659,
    9.387763384438585e-06,
)  # fmt: skip
_ERF32_LAST: Final = 3.93
# erf(x)/x - 1 in x^2, degree 12, |x| <= 1: relative error 2^-56.3
_ERF64: Final = (
    0.1283791670955126, -0.376126389031841, 0.11283791670971098, -0.026866170648031148,
    0.005223977652692709, -0.0008548328535813517, 0.00012055386194155262, -1.492688148915029e-05,
    1.6481059397507444e-06, -1.6557136823775e-07, 1.601329090746891e-08, -1.6465046672094007e-09,
    1.4344191495600172e-10,
)  # fmt: skip
# (1 + 2a) exp(a^2) erfc(a) in q = (a - c)/(a + c), a >= 0: c = 3, degree 10: 2^-28.7; 4, 22: 2^-53.7
_ERFC32: Final = (
    1.2530080596632371, -0.13562114341253584, -0.04756245715164243, 0.12964650188738325,
    -0.11926999171084862, 0.06829582034886302, -0.023802844304573797, 0.002562686252713358,
    0.002009540711682122, -0.0007646474640474081, -0.00026308733740047785,
)  # fmt: skip
_ERFC64: Final = (
    1.2329951186255526, -0.1396211168405629, 0.015379652102619764, 0.0680970542547366,
    -0.10103906603630115, 0.0937328349968239, -0.0663303658125639, 0.03716751556185176,
    -0.01619773404842424, 0.0050319697635733, -0.0007577734048624597, -0.00019925556127627854,
    0.00015062247156695058, -2.4402941487048815e-05, -1.122528300339218e-05, 5.717295241818102e-06,
    3.0195631121271856e-07, -8.342404364550518e-07, 6.238919369608018e-08, 1.1456135761513052e-07,
    -7.778923785496763e-09, -1.3386283861909585e-08, -1.7176267300665925e-09,
)  # fmt: skip


def _erfc_positive(a: Expr) -> Expr:
    """Return erfc(a) of float64 for a >= 0; what q, 1 + 2a, the quotient and a^2 lose is put back."""
    centre, one, two = like(4.0, a), like(1.0, a), like(2.0, a)
    inverse = div(one, add(a, centre))
    q = mul(sub(a, centre), inverse)
    missed = fma(neg(q), a, fma(neg(centre), add(q, one), a))  # a - 4 - q*(a + 4)
    series = polynomial(fma(inverse, missed, q), _ERFC64)
    denominator = fma(a, two, one)
    low = fma(a, two, sub(one, denominator))
    reciprocal = div(one, denominator)
    quotient = mul(series, reciprocal)
    missed = fma(neg(quotient), low, fma(neg(quotient), denominator, series))
    square = mul(a, a)
    lost = fma(neg(quotient), fma(a, a, neg(square)), mul(missed, reciprocal))
    bell = exp(neg(square))
    return fma(bell, quotient, mul(bell, lost))


def _erfc_positive32(a: Expr) -> Expr:
    """Return erfc(a) for a float32 a >= 0 widened to float64, where a^2 is exact."""
    centre = like(3.0, a)
    series = polynomial(div(sub(a, centre), add(a, centre)), _ERFC32)
    return div(mul(exp2_double(mul(mul(a, a), like(-_LOG2E, a))), series), fma(a, like(2.0, a), like(1.0, a)))


def erf(x: Expr) -> Expr:
    """Return the error function."""
    a, one = absolute(x), like(1.0, x)
    if x.dtype is float32:
        a = at_most(a, _ERF32_LAST)
        return copysign(expm1_moderate(fma(a, polynomial(a, _LOG_ERFC32), neg(a))), x)
    near = fma(a, polynomial(mul(a, a), _ERF64), a)
    far = sub(one, _erfc_positive(at_most(a, 6.0)))
    return with_sign(select(lt(a, one), near, far), x)


def erfc(x: Expr) -> Expr:
    """Return 1 - erf(x) without cancellation for large x."""
    a = at_most(absolute(x), 10.5 if x.dtype is float32 else 28.0)
    if x.dtype is not float32:
        near = sub(like(1.0, x), fma(x, polynomial(mul(x, x), _ERF64), x))
        tail = _erfc_positive(a)
        far = select(lt(x, like(0.0, x)), sub(like(2.0, x), tail), tail)
        return select(lt(a, like(0.5, x)), near, far)
    tail = _erfc_positive32(in_double(a))
    return cast(select(lt(x, like(0.0, x)), sub(like(2.0, tail), tail), tail), float32)
