"""Bessel functions of the first and second kind of orders 0 and 1.

J up to 8 is a polynomial in x^2 times the distances to the zeros there, right near them, too. Beyond 8 all
are Hankel's P and Q (DLMF 10.17), polynomials in 1/x^2 (Chebyshev interpolations in 60 digits). There, and of
Y near its zeros, errors are absolute: ten units in the last place of sqrt(2/(pi x)). From 2^46 on they are
NaN, as sin is. All compute in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from stratal.loops.expr import Expr
from stratal.loops.math.arith import INF, NAN, at_least, at_most, eq, fma, like, polynomial, select, sqrt
from stratal.loops.math.floats import in_float64
from stratal.loops.math.logarithm import log
from stratal.loops.math.trigonometric import cos, sin

# J0(x) / ((x^2 - z1^2)(x^2 - z2^2)) in x^2/32 - 1, 0 <= x <= 8, degree 20: 2^-49.8
_J0_NEAR: Final = (
    0.0011434937743762545, -0.002119794289479692, 0.0015636431645931661, -0.0006415390646406127,
    0.00016977200713997844, -3.157342540223125e-05, 4.366932324640495e-06, -4.67712802150037e-07,
    3.998839345546345e-08, -2.794862919041946e-09, 1.6276489334239341e-10, -8.023536459990524e-12,
    3.3923485118595014e-13, -1.2440413339063488e-14, 3.995441678020023e-16, -1.1332991623086942e-17,
    2.860132397744936e-19, -6.464505684745833e-21, 1.3162352987393787e-22, -2.430234528770547e-24,
    4.076353585764966e-26,
)  # fmt: skip
# J1(x) / (x (x^2 - z1^2)(x^2 - z2^2)) in x^2/32 - 1, 0 <= x <= 8, degree 20: 2^-49.7
_J1_NEAR: Final = (
    0.00019498936985895625, -0.0002697522746716368, 0.00015860016799369874, -5.408003239085507e-05,
    1.224217365301561e-05, -1.98909351591414e-06, 2.442522260751993e-07, -2.3521922546334205e-08,
    1.8268547695516101e-09, -1.1696932385965018e-10, 6.2847337863832514e-12, -2.8755486449848285e-13,
    1.1343174508974347e-14, -3.8985765240782847e-16, 1.1781264118682199e-17, -3.155356366666049e-19,
    7.54261781754763e-21, -1.6192687784258302e-22, 3.13950257508726e-24, -5.531765488423708e-26,
    8.874401211055546e-28,
)  # fmt: skip
_J0_ZEROS: Final = ((2.404825557695773, -1.176691651530894e-16), (5.520078110286311, 8.088597146146722e-17))
_J1_ZEROS: Final = (
    (3.8317059702075125, -1.5269184090088067e-16),
    (7.015586669815619, -9.414165653410389e-17),
)
# Hankel's P0(x) in 128/x^2 - 1, x >= 8, degree 16: 2^-54.9
_P0: Final = (
    0.9994572757882514, -0.0005363673192124544, 6.137416080147316e-06, -2.052744816241847e-07,
    1.2803760643765527e-08, -1.2121175397632387e-09, 1.5501031623277306e-10, -2.4885879886040313e-11,
    4.774194760716374e-12, -1.0559200308529556e-12, 2.628292382283331e-13, -7.433414459381035e-14,
    2.2496505052905487e-14, -5.022572014306621e-15, 1.5386206733130882e-15, -1.807298313931467e-15,
    7.350444257917073e-16,
)  # fmt: skip
# Hankel's Q0(x) x in 128/x^2 - 1, x >= 8, degree 16: 2^-56.1
_Q0: Final = (
    -0.1244409110361076, 0.0005466519279469407, -1.1817110661147355e-05, 5.684971887581595e-07,
    -4.5349728966920805e-08, 5.146225288488137e-09, -7.57628304565726e-10, 1.3626504283207647e-10,
    -2.8725844755160364e-11, 6.878291492635617e-12, -1.8339045114650923e-12, 5.567148812560102e-13,
    -1.7832030063448594e-13, 3.771288919010056e-14, -1.1693242090386086e-14, 1.710320962675908e-14,
    -7.218360113134326e-15,
)  # fmt: skip
# Hankel's P1(x) in 128/x^2 - 1, x >= 8, degree 16: 2^-54.8
_P1: Final = (
    1.000907026278083, 0.0008988049416696415, -7.959694698475189e-06, 2.4536766229099787e-07,
    -1.4708512149606304e-08, 1.3603051022209457e-09, -1.7131567136707768e-10, 2.720741467552732e-11,
    -5.177636081837852e-12, 1.1380435620721625e-12, -2.8186164081410236e-13, 7.935229176428875e-14,
    -2.3929928130712386e-14, 5.351750644207653e-15, -1.6372430135899271e-15, 1.9034900419832615e-15,
    -7.727101731204575e-16,
)  # fmt: skip
# Hankel's Q1(x) x in 128/x^2 - 1, x >= 8, degree 16: 2^-54.4
_Q1: Final = (
    0.37421499221959104, -0.0007697167057635553, 1.4569614809790596e-05, -6.633568567176821e-07,
    5.136106059346064e-08, -5.72088424924852e-09, 8.316027538802133e-10, -1.4819750517181264e-10,
    3.102320803514244e-11, -7.387822831643017e-12, 1.9610177986100478e-12, -5.927406301565385e-13,
    1.8924089191941929e-13, -4.014899685258535e-14, 1.2439975392787296e-14, -1.798455986235278e-14,
    7.577127062490529e-15,
)  # fmt: skip
# Y0(x) - 2/pi log(x) J0(x) in x^2/32 - 1, 0 < x <= 8, degree 20 (absolute): 2^-52.8
_Y0_REST: Final = (
    -0.382250654459425, -0.8284358903604587, 1.6470964788745466, 0.14412632369302442, -1.0775477338215995,
    0.6721770783431723, -0.2189574709617165, 0.046367047681347105, -0.007025741057269826,
    0.0008061586060550243, -7.279541882784531e-05, 5.321318633837185e-06, -3.2185077885300416e-07,
    1.6391065111231336e-08, -7.130516901238508e-10, 2.6818364947987268e-11, -8.810558668651596e-13,
    2.5508609608974215e-14, -6.559181488360024e-16, 1.5112579990526814e-17, -3.125113590210735e-19,
)  # fmt: skip
# (Y1(x) - 2/pi (log(x) J1(x) - 1/x)) / x in x^2/32 - 1, 0 < x <= 8 (absolute): 2^-55.8
_Y1_REST: Final = (
    0.07075985882118005, -0.24337743079193114, 0.023367571720993584, 0.23507209206669755,
    -0.19639839859930425, 0.07854786922242545, -0.01962875683309943, 0.003422490739918046,
    -0.00044381734351146775, 4.46743301291431e-05, -3.6009998744473516e-06, 2.3804929913922338e-07,
    -1.3153322399203955e-08, 6.169742573016101e-10, -2.4887660128888838e-11, 8.728846995968639e-13,
    -2.6871299490566476e-14, 7.320630407550111e-16, -1.7777678745874505e-17, 3.8801194972378364e-19,
    -7.62432988774668e-21,
)  # fmt: skip
LARGEST: Final = 2.0**46


def _place(a: Expr) -> Expr:
    """Return where a lies for the polynomials up to 8."""
    near = at_most(a, 8.0)
    return fma(near * near, 1 / 32, -1.0)


def _first_near(a: Expr, series: Sequence[float], zeros: Sequence[tuple[float, float]]) -> Expr:
    """Return J(a) up to 8, of order 1 over a."""
    near = at_most(a, 8.0)
    result = polynomial(_place(a), series)
    for high, low in zeros:
        off = near - high - low
        result = result * (off * (near + high))
    return result


def _far(a: Expr, p: Sequence[float], q: Sequence[float], order: int, second: bool) -> Expr:
    """Return J(a) or Y(a) beyond 8: P cos(t) - Q sin(t) or P sin(t) + Q cos(t) times sqrt(2/(pi a)), where t
    is a - pi/4 or a - 3pi/4.
    """
    large = at_least(a, 8.0)
    inverse = 1.0 / large
    place = fma(inverse * inverse, 128.0, -1.0)
    plain, shifted = polynomial(place, p), polynomial(place, q) * inverse
    plus, minus = sin(large) + cos(large), sin(large) - cos(large)
    cosine, sine = (plus, minus) if order == 0 else (minus, -plus)
    if second:
        turned = fma(plain, sine, shifted * cosine)
    else:
        turned = fma(plain, cosine, -(shifted * sine))
    result = turned * sqrt(inverse * (1 / math.pi))
    result = select(a < LARGEST, result, NAN)
    return select(eq(a, INF), 0.0, result)


@in_float64
def j0(x: Expr) -> Expr:
    """Return the Bessel function of the first kind of order 0."""
    a = abs(x)
    return select(a < 8.0, _first_near(a, _J0_NEAR, _J0_ZEROS), _far(a, _P0, _Q0, 0, False))


@in_float64
def j1(x: Expr) -> Expr:
    """Return the Bessel function of the first kind of order 1."""
    a = abs(x)
    far = _far(a, _P1, _Q1, 1, False)
    far = select(x < 0.0, -far, far)
    return select(a < 8.0, x * _first_near(a, _J1_NEAR, _J1_ZEROS), far)


def _second(x: Expr, near: Expr, far: Expr) -> Expr:
    """Return Y(x): minus infinity at 0, NaN below."""
    result = select(x < 8.0, near, far)
    pole = select(eq(x, 0.0), like(-INF, x), NAN)
    return select(like(0.0, x) < x, result, pole)


@in_float64
def y0(x: Expr) -> Expr:
    """Return the Bessel function of the second kind of order 0; minus infinity at 0, NaN below."""
    first = _first_near(x, _J0_NEAR, _J0_ZEROS)
    near = fma(2 / math.pi * log(x), first, polynomial(_place(x), _Y0_REST))
    return _second(x, near, _far(x, _P0, _Q0, 0, True))


@in_float64
def y1(x: Expr) -> Expr:
    """Return the Bessel function of the second kind of order 1; minus infinity at 0, NaN below."""
    first = x * _first_near(x, _J1_NEAR, _J1_ZEROS)
    rest = fma(log(x), first, -(1.0 / x))
    near = fma(like(2 / math.pi, x), rest, x * polynomial(_place(x), _Y1_REST))
    return _second(x, near, _far(x, _P1, _Q1, 1, True))
