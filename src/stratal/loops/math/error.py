"""erf, erfc and erfcx."""

from __future__ import annotations

from functools import reduce
from typing import Final

from stratal.base.dtypes import float32
from stratal.loops.expr import Expr, call, cast
from stratal.loops.math.arith import (
    INF,
    absolute,
    add,
    at_most,
    div,
    fma,
    in_double,
    in_float64,
    like,
    lt,
    mul,
    neg,
    polynomial,
    select,
    sub,
    to_bits,
    with_sign,
)
from stratal.loops.math.exponential import exp, exp2_double

_LOG2E: Final = 1.4426950408889634
# erf(c + t) - t, degree 6 in t, around c = 0, 17/32, .. 119/32, |t| <= 17/64 (0.21 above the last): relative
# error of erf 2^-25.2. A row is what one power of t is multiplied by. This is the inner loop of GELU.
_ERF32_STEP: Final = 17 / 32
_ERF32_LAST: Final = 3.93
_ERF32: Final = (
    (0.0, 0.5475284457206726, 0.867058277130127, 0.975797712802887, 0.9973459839820862, 0.9998276829719543,
     0.9999934434890747, 0.9999998807907104),
    (0.12837916612625122, -0.14908580482006073, -0.6350966691970825, -0.9110124111175537,
     -0.9876591563224792, -0.9990267753601074, -0.9999563694000244, -0.9999988675117493),
    (-7.549684255536704e-07, -0.45204785466194153, -0.3877108693122864, -0.1418236494064331,
     -0.026226544752717018, -0.0025821407325565815, -0.00013773735554423183, -1.0616678082442377e-05),
    (-0.37608399987220764, -0.12357059866189957, 0.15294064581394196, 0.12104710936546326,
     0.03303901106119156, 0.004253641702234745, 0.0002819666115101427, 8.09752327768365e-06),
    (-0.0007490706630051136, 0.18346542119979858, 0.04802941903471947, -0.049175575375556946,
     -0.02629680559039116, -0.004891824908554554, -0.0004491313302423805, 0.00022504547087009996),
    (0.11859740316867828, -0.000990858767181635, -0.06475957483053207, -0.005647734273225069,
     0.012344088405370712, 0.0038491403684020042, 0.0004292113590054214, 6.193976878421381e-05),
    (-0.020211776718497276, -0.04752867668867111, 0.009576905518770218, 0.015705281868577003,
     -0.0022065627854317427, -0.0011855424381792545, 5.746762690250762e-05, -0.0022349695209413767),
)  # fmt: skip
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


def _erf_positive32(a: Expr) -> Expr:
    """Return erf(a) of a float32 from 0 to 3.93 by a polynomial, its coefficients those of the nearest of
    eight centres. All have a slope of 1 on top, which keeps the last bit near 0, where that is most of it.
    """
    magic = like(1.5 * 2.0**23, a)
    shifted = fma(a, like(1 / _ERF32_STEP, a), magic)
    t = fma(sub(shifted, magic), like(-_ERF32_STEP, a), a)
    first, *others = (call("pick8", to_bits(shifted), *(like(c, a) for c in row)) for row in _ERF32)
    slope = reduce(lambda higher, c: fma(higher, t, c), reversed(others))
    return fma(slope, t, add(t, first))


def erf(x: Expr) -> Expr:
    """Return the error function."""
    a, one = absolute(x), like(1.0, x)
    if x.dtype is float32:
        return with_sign(_erf_positive32(at_most(a, _ERF32_LAST)), x)
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


def _erfcx_far(a: Expr) -> Expr:
    """Return erfcx(a) for a >= 26 by its asymptotic series in -1/(2a^2), whose terms fall below 2^-57."""
    inverse = div(like(1.0, a), a)
    place = mul(mul(inverse, inverse), like(-0.5, a))
    return mul(
        mul(inverse, like(0.5641895835477563, a)), polynomial(place, (1, 1, 3, 15, 105, 945, 10395, 135135))
    )


@in_float64
def erfcx(x: Expr) -> Expr:
    """Return exp(x^2) erfc(x), which falls as 1/x where erfc underflows."""
    a, one, two = absolute(x), like(1.0, x), like(2.0, x)
    near = at_most(a, 26.0)
    series = polynomial(div(sub(near, like(4.0, x)), add(near, like(4.0, x))), _ERFC64)
    tail = select(lt(a, like(26.0, x)), div(series, fma(near, two, one)), _erfcx_far(a))
    below = at_most(a, 30.0)
    square = mul(below, below)
    bell = exp(square)
    exact = fma(bell, fma(below, below, neg(square)), bell)  # what rounding the square lost
    bell = select(lt(bell, like(INF, x)), exact, bell)
    return select(lt(x, like(0.0, x)), sub(mul(two, bell), tail), tail)
