"""erf, erfc and erfcx; their inverses, and quantiles of the normal distribution, which are the same."""

from __future__ import annotations

import math
from functools import reduce
from typing import Final

from stratal.base.dtypes import float32, float64
from stratal.loops.expr import Expr, call, cast
from stratal.loops.math.arith import INF, NAN, at_least, at_most, eq, fma, like, polynomial, select, sqrt
from stratal.loops.math.exponential import exp, exp2_double
from stratal.loops.math.floats import copysign, in_float64, to_bits, with_sign
from stratal.loops.math.logarithm import log, log_of_normal

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
    inverse = one / (a + centre)
    q = (a - centre) * inverse
    missed = fma(-q, a, fma(-centre, q + one, a))  # a - 4 - q*(a + 4)
    series = polynomial(fma(inverse, missed, q), _ERFC64)
    denominator = fma(a, two, one)
    low = fma(a, two, one - denominator)
    reciprocal = one / denominator
    quotient = series * reciprocal
    missed = fma(-quotient, low, fma(-quotient, denominator, series))
    square = a * a
    lost = fma(-quotient, fma(a, a, -square), missed * reciprocal)
    bell = exp(-square)
    return fma(bell, quotient, bell * lost)


def _erfc_positive32(a: Expr) -> Expr:
    """Return erfc(a) for a float32 a >= 0 widened to float64, where a^2 is exact."""
    centre = like(3.0, a)
    series = polynomial((a - centre) / (a + centre), _ERFC32)
    return exp2_double(a * a * -_LOG2E) * series / fma(a, 2.0, 1.0)


def _erf_positive32(a: Expr) -> Expr:
    """Return erf(a) of a float32 from 0 to 3.93 by a polynomial, its coefficients those of the nearest of
    eight centres. All have a slope of 1 on top, which keeps the last bit near 0, where that is most of it.
    """
    magic = like(1.5 * 2.0**23, a)
    shifted = fma(a, 1 / _ERF32_STEP, magic)
    t = fma(shifted - magic, -_ERF32_STEP, a)
    first, *others = (call("pick8", to_bits(shifted), *(like(c, a) for c in row)) for row in _ERF32)
    slope = reduce(lambda higher, c: fma(higher, t, c), reversed(others))
    return fma(slope, t, t + first)


def erf(x: Expr) -> Expr:
    """Return the error function."""
    a, one = abs(x), like(1.0, x)
    if x.dtype is float32:
        return with_sign(_erf_positive32(at_most(a, _ERF32_LAST)), x)
    near = fma(a, polynomial(a * a, _ERF64), a)
    far = one - _erfc_positive(at_most(a, 6.0))
    return with_sign(select(a < one, near, far), x)


def erfc(x: Expr) -> Expr:
    """Return 1 - erf(x) without cancellation for large x."""
    a = at_most(abs(x), 10.5 if x.dtype is float32 else 28.0)
    if x.dtype is not float32:
        near = 1.0 - fma(x, polynomial(x * x, _ERF64), x)
        tail = _erfc_positive(a)
        far = select(x < 0.0, 2.0 - tail, tail)
        return select(a < 0.5, near, far)
    tail = _erfc_positive32(cast(a, float64))
    return cast(select(x < 0.0, 2.0 - tail, tail), float32)


def _erfcx_far(a: Expr) -> Expr:
    """Return erfcx(a) for a >= 26 by its asymptotic series in -1/(2a^2), whose terms fall below 2^-57."""
    inverse = 1.0 / a
    place = inverse * inverse * -0.5
    return inverse * 0.5641895835477563 * polynomial(place, (1, 1, 3, 15, 105, 945, 10395, 135135))


@in_float64
def erfcx(x: Expr) -> Expr:
    """Return exp(x^2) erfc(x), which falls as 1/x where erfc underflows."""
    a, one, two = abs(x), like(1.0, x), like(2.0, x)
    near = at_most(a, 26.0)
    series = polynomial((near - 4.0) / (near + 4.0), _ERFC64)
    tail = select(a < 26.0, series / fma(near, two, one), _erfcx_far(a))
    below = at_most(a, 30.0)
    square = below * below
    bell = exp(square)
    exact = fma(bell, fma(below, below, -square), bell)  # what rounding the square lost
    bell = select(bell < INF, exact, bell)
    return select(x < 0.0, two * bell - tail, tail)


# -- quantiles -----------------------------------------------------------------------------------------------
# In the middle a polynomial in x^2, in the tails one in r = sqrt(-2 log p) (after Wichura, algorithm AS 241,
# 1988; these are Chebyshev interpolations in 60 digits). All compute in float64 and round once, but for
# erfinv of float32, which is twice a polynomial in -log(1 - x^2) (after Giles, GPU Computing Gems, 2012).


# ndtri(1/2 + x/2) / x in 32/9 x^2 - 1, |x| <= 3/4, degree 22: 2^-54.7
_CENTRE: Final = (
    1.3633324743487374, 0.13218344571930307, 0.0278475002155367, 0.007315745728935942, 0.002135070581730464,
    0.0006626284632388269, 0.00021410598388606108, 7.117615099063233e-05, 2.4166465258637757e-05,
    8.340139978875508e-06, 2.9158323949598926e-06, 1.0301719526289235e-06, 3.6718214306553354e-07,
    1.3199395831875786e-07, 4.7696497439335954e-08, 1.707102193670653e-08, 6.229339544805848e-09,
    2.571475446256949e-09, 9.478773140399233e-10, 1.4787717147257127e-10, 5.401883916540626e-11,
    1.0085580054532344e-10, 3.7668531307871773e-11,
)  # fmt: skip
# -ndtri(p) in (2r - 7)/3, r = sqrt(-2 log p), 2 <= r <= 5, degree 22: 2^-52.1
_NEAR: Final = (
    2.849777501782414, 1.6699313447255717, -0.0521818440835022, 0.017113918615612525, -0.005832330664410529,
    0.0020423750293705927, -0.0007308789645265626, 0.00026641978158885684, -9.869203285199277e-05,
    3.707955495940708e-05, -1.4103800198733318e-05, 5.421159345219968e-06, -2.1034041041146185e-06,
    8.253012742844541e-07, -3.250159968663279e-07, 1.241347181063363e-07, -4.937460497490027e-08,
    2.489157046814847e-08, -1.0031917314453762e-08, 4.336870891310091e-10, -1.598731586223703e-10,
    1.5081064612712364e-09, -6.15872451721035e-10,
)  # fmt: skip
# -ndtri(p) in (2r - 19)/9, 5 <= r <= 14, degree 24: 2^-54.0
_MIDDLE: Final = (
    9.162895182857289, 4.611862528453537, -0.042205099066390084, 0.016750627731862887,
    -0.006836338943186699, 0.0028405445663618883, -0.0011952155084031814, 0.0005076633411299949,
    -0.0002172253021632352, 9.35111545577735e-05, -4.0461284357773864e-05, 1.758795605616609e-05,
    -7.675048533396752e-06, 3.3541680232922765e-06, -1.4740415711282564e-06, 6.660561600632533e-07,
    -2.9477206301050713e-07, 1.0707131583171458e-07, -4.7422963201221324e-08, 4.441239577128587e-08,
    -2.0003835699808564e-08, -5.647846465916216e-09, 2.5942887065663302e-09, 4.144493267317506e-09,
    -1.879702770819011e-09,
)  # fmt: skip
# -ndtri(p) / r in (1/r - 27/560) 560/13, 14 <= r <= 40, degree 16: 2^-51.8
_FAR: Final = (
    0.9907889646750336, -0.007768428546180357, -0.0013453975804431381, 8.142333882545876e-05,
    -1.0493984361929163e-05, 2.027495488680448e-06, -4.866317463903723e-07, 1.335385298218832e-07,
    -4.011950204557296e-08, 1.2829789627191894e-08, -4.3189462664169675e-09, 1.5779126562320666e-09,
    -5.724251926539645e-10, 1.4075184759466657e-10, -5.150894630978911e-11, 6.047560107102326e-11,
    -2.4089189901272645e-11,
)  # fmt: skip
# erfinv(x) / x in w - 3/2 and in w - 21/2, w = -log(1 - x^2) <= 5 and >= 5, degree 9: 2^-25.3 and 2^-24.6
_SINGLE_NEAR: Final = (
    1.2520638704299927, 0.25036245584487915, 0.0008796065812930465, -0.0020923104602843523,
    0.0001778004370862618, 2.3218526621349156e-05, -5.3892899813945405e-06, -3.172289453345911e-08,
    1.0666897054534275e-07, -9.568027259376777e-09,
)  # fmt: skip
_SINGLE_FAR: Final = (
    3.0742058753967285, 0.15509864687919617, -0.0035624864976853132, 0.00015552551485598087,
    -7.583141723443987e-06, 3.049407268918003e-07, -4.243153828298318e-09, -1.8253406564028296e-09,
    4.944341602808322e-10, -4.113752394285797e-11,
)  # fmt: skip
_LN2: Final = math.log(2.0)


def _quantile(x: Expr, tail: Expr) -> Expr:
    """Return the normal quantile of 1/2 + x/2, of the sign of x; `tail` is the logarithm of (1 - |x|)/2."""
    a = at_most(abs(x), 0.75)
    middle = a * polynomial(fma(a * a, 32.0 / 9.0, -1.0), _CENTRE)
    r = sqrt(-2.0 * tail)
    near = polynomial(fma(at_least(at_most(r, 5.0), 2.0), 2 / 3, -7 / 3), _NEAR)
    further = polynomial(fma(at_least(at_most(r, 14.0), 5.0), 2 / 9, -19 / 9), _MIDDLE)
    inverse = 1.0 / at_least(r, 14.0)
    far = r * polynomial(fma(inverse, 560 / 13, -27 / 13), _FAR)
    beyond = select(r < 5.0, near, select(r < 14.0, further, far))
    beyond = select(eq(tail, -INF), INF, beyond)
    size = select(abs(x) < 0.75, middle, beyond)
    return select(abs(x) > 1.0, NAN, with_sign(size, x))


@in_float64
def ndtri(p: Expr) -> Expr:
    """Return the number a normal variable lies below with probability p; infinite at 0 and 1, NaN beyond."""
    half, one = like(0.5, p), like(1.0, p)
    upper = p > half
    x = 2.0 * (p - half)
    inside = (p >= 0.0) & (p <= one)
    return select(inside, _quantile(x, log(select(upper, one - p, p))), NAN)


def erfinv(x: Expr) -> Expr:
    """Return the number whose erf is x; infinite at -1 and 1, NaN beyond."""
    return _erfinv32(x) if x.dtype is float32 else _erfinv64(x)


def _erfinv32(x: Expr) -> Expr:
    one, size = like(1.0, x), abs(x)
    w = -log_of_normal(fma(-x, x, one))
    near = polynomial(w - 1.5, _SINGLE_NEAR)
    far = polynomial(w - 10.5, _SINGLE_FAR)
    found = x * select(w < 5.0, near, far)
    edge = select(eq(size, one), copysign(like(INF, x), x), NAN)
    return select(size < one, found, edge)


def _erfinv64(x: Expr) -> Expr:
    tail = log(1.0 - abs(x)) - _LN2
    found = _quantile(x, tail) * math.sqrt(0.5)
    return select(abs(x) < 1e-300, x * (math.sqrt(math.pi) / 2), found)


@in_float64
def erfcinv(x: Expr) -> Expr:
    """Return the number whose erfc is x; infinite at 0 and 2, NaN beyond."""
    one = like(1.0, x)
    tail = log(select(x < one, x, 2.0 - x)) - _LN2
    inside = (x >= 0.0) & (x <= 2.0)
    found = _quantile(one - x, tail) * math.sqrt(0.5)
    return select(inside, found, NAN)
