"""The gamma function, its logarithm and the derivatives of that: digamma and the polygamma functions.

All compute in float64 and round once. Near their zeros and poles: a polynomial (Chebyshev interpolation in 60
digits); further out Stirling's series, its tail fitted the same way; below 0 the reflection formulas (DLMF
5.5.3, 5.5.4, 5.15.6): near a zero between two poles, right to the last place of what is subtracted there.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, NamedTuple

from stratal.loops.expr import Expr, call
from stratal.loops.math.arith import INF, NAN, at_most, eq, fma, like, ne, polynomial, select
from stratal.loops.math.exponential import exp
from stratal.loops.math.floats import in_float64
from stratal.loops.math.logarithm import log
from stratal.loops.math.power import pow, power_by_squaring
from stratal.loops.math.trigonometric import sin

# log gamma(x) / ((x - 1)(x - 2)) in x - 2, 1 <= x <= 3, degree 28: 2^-55.1
LGAMMA_NEAR: Final = (
    0.42278433509846713, -0.1003173016743539, 0.032965000621155816, -0.012384192193374183,
    0.004998641164698706, -0.0021081308338353785, 0.0009153769221939477, -0.0004057073998333553,
    0.00018255264018626728, -8.309510094797398e-05, 3.8168877217049974e-05, -1.7661849545809686e-05,
    8.22227252824938e-06, -3.8465374565754054e-06, 1.8077244952477939e-06, -8.554195306752008e-07,
    4.0491176292722286e-07, -1.8624721164419038e-07, 8.858800462314761e-08, -5.1889381335192836e-08,
    2.4876913129422816e-08, -9.172949166290702e-10, 3.821541398410965e-10, -8.87711600370437e-09,
    4.305220610785349e-09, 2.444386936885692e-09, -1.1901740908188623e-09, -8.152852870624974e-10,
    3.9592899392841773e-10,
)  # fmt: skip
# x (log gamma(x) - (x - 1/2) log x + x - log(2 pi)/2) in 18/x^2 - 1, x >= 3, degree 12: 2^-54.4
_LOG_FAR: Final = (
    0.08318136697655197, -0.00014970021836480926, 2.183424338304515e-06, -7.74892429164511e-08,
    4.741691466796754e-09, -4.2388084888547385e-10, 5.021969750147554e-11, -7.404783585189273e-12,
    1.2994321646038895e-12, -2.557484642219363e-13, 5.754908712103469e-14, -2.0050813277241965e-14,
    5.751396901346369e-15,
)  # fmt: skip
# gamma(x) in 2x - 5, 2 <= x <= 3, degree 18: 2^-56.1
_NEAR: Final = (
    1.329340388179137, 0.46736726081304275, 0.1636396444953342, 0.03173390585514297, 0.0068545771251349846,
    0.0008862743935868174, 0.0001623813035302355, 1.255781630359203e-05, 2.9471645624078416e-06,
    7.698733132057326e-09, 5.989256720464963e-08, -6.250638688617285e-09, 1.7709351083641292e-09,
    -3.1278701519239715e-10, 6.610055434151668e-11, -1.2749381203874657e-11, 2.5712964846175904e-12,
    -6.341884673822122e-13, 1.2699606500558757e-13,
)  # fmt: skip
# gamma(x) exp(x) x^(1/2 - x) in 6/x - 1, x >= 3, degree 14: 2^-59.0
_FAR: Final = (
    2.5416530133843818, 0.03520393970060071, 0.00014823145829169666, -3.0463096244740638e-05,
    7.082745082997558e-07, 1.8160057440259638e-07, -2.2062268193771385e-08, -1.0837010018517036e-09,
    6.549619782625314e-10, -6.197407772607905e-11, -1.3897835316153e-11, 5.5331725733370174e-12,
    -4.877764633241065e-13, -2.2565435968480317e-13, 7.338591695684156e-14,
)  # fmt: skip
_ROOT: Final = (1.4616321449683622, 9.549995429965697e-17)  # of digamma
# digamma(x) / (x - root) in 2x - 3, 1 <= x <= 2, degree 22: 2^-54.2
_DIGAMMA_NEAR: Final = (
    0.9510558760318328, -0.2118137106407303, 0.060135621060196744, -0.018550615381735115,
    0.005936795278305649, -0.0019350666648590097, 0.0006368880303257201, -0.00021074841140458636,
    6.995018873950506e-05, -2.325824239445257e-05, 7.741232223504057e-06, -2.57809436305308e-06,
    8.589127353033379e-07, -2.86315275846934e-07, 9.542050972688906e-08, -3.163020268955334e-08,
    1.0542687624027994e-08, -3.7075072647122386e-09, 1.2358072433984831e-09, -2.7619635330317715e-10,
    9.206434499177992e-11, -8.498137230186096e-11, 2.832706668021759e-11,
)  # fmt: skip
# x^2 (log x - 1/(2x) - digamma(x)) in 8/x^2 - 1, x >= 2, degree 18: 2^-53.2
_DIGAMMA_FAR: Final = (
    0.08234693724440534, -0.0009367704342563345, 4.483905295280206e-05, -4.099379362249397e-06,
    5.576415338028201e-07, -9.975976488760714e-08, 2.182967303029965e-08, -5.575932767748433e-09,
    1.6103255041371209e-09, -5.156867522500473e-10, 1.7919213934262403e-10, -6.229779948073581e-11,
    2.3920561759164983e-11, -1.6581050115325952e-11, 7.95310119036776e-12, 2.3961774811559324e-12,
    -1.5425512624726962e-12, -2.224659023336636e-12, 1.2092786511223703e-12,
)  # fmt: skip
_PI: Final = math.pi
_STIRLING: Final = 0.5 * math.log(2 * math.pi) - 0.5


class _Turn(NamedTuple):
    """sin and cos of pi times what is left of a number without the nearest whole one, and that one."""

    sine: Expr
    cosine: Expr
    whole: Expr


def _turn(a: Expr) -> _Turn:
    whole = call("rint", a)
    left, pi = a - whole, like(_PI, a)
    return _Turn(sin(left * pi), sin((0.5 - abs(left)) * pi), whole)


@in_float64
def lgamma(x: Expr) -> Expr:
    """Return log|gamma(x)|; infinity at 0, -1, -2, ... and at both ends."""
    a, one = abs(x), like(1.0, x)
    small, logarithm = a < one, log(a)
    first = select(small, a, a - one)  # y - 1 and y - 2 for y = a + 1 or a, in [1, 3]
    second = select(small, a - one, a - 2.0)
    close = first * second * polynomial(at_most(second, 1.0), LGAMMA_NEAR)
    close = close - select(small, logarithm, 0.0)
    inverse = one / at_most(a, 1e300)
    place = at_most(fma(inverse * inverse, 18.0, -1.0), 1.0)
    tail = fma(polynomial(place, _LOG_FAR), inverse, _STIRLING)
    distant = fma(a - 0.5, logarithm - one, tail)
    above = select(a < 3.0, close, distant)
    sine = abs(_turn(a).sine)
    below = math.log(_PI) - log(sine) - logarithm - above
    below = select(eq(sine, 0.0), INF, below)
    result = select(x < -1e-20, below, above)  # nearer to 0 it is -log|x| on both sides
    return select(eq(a, INF), a, result)


@in_float64
def gamma(x: Expr) -> Expr:
    """Return the gamma function: infinity of the sign of 0 there, NaN at -1, -2, ... and -infinity."""
    a, one, two = abs(x), like(1.0, x), like(2.0, x)
    up = select(a < one, two, select(a < two, one, 0.0))
    series = polynomial(at_most(fma(a + up, two, -5.0), 1.0), _NEAR)
    divisor = select(a < two, select(a < one, a * (a + one), a), one)
    limited = at_most(a, 200.0)
    power = pow(limited, fma(limited, 0.5, -0.25))
    place = at_most(fma(one / limited, 6.0, -1.0), 1.0)
    near = a < 3.0
    # gamma = head * tail: both are finite where their product overflows
    head = select(near, series / divisor, power * polynomial(place, _FAR))
    tail = select(near, one, power * exp(-limited))
    turn = _turn(a)
    halved = turn.whole * 0.5
    sine = select(ne(call("floor", halved), halved), -turn.sine, turn.sine)
    below = -_PI / sine / (limited * head) / tail
    pole = eq(a, turn.whole)
    result = select(x < 0.0, select(pole, NAN, below), head * tail)
    beyond = select(x < 0.0, NAN, a)
    return select(eq(a, 0.0), one / x, select(eq(a, INF), beyond, result))


@in_float64
def digamma(x: Expr) -> Expr:
    """Return the derivative of log gamma: infinite at 0, NaN at -1, -2, ... and -infinity."""
    a, one = abs(x), like(1.0, x)
    high, low = _ROOT
    small = a < one
    off = select(small, a - (high - 1.0), a - high)
    place = fma(a, 2.0, select(small, like(-1.0, a), -3.0))
    inverse = one / a
    close = (off - low) * polynomial(at_most(place, 1.0), _DIGAMMA_NEAR)
    close = close - select(small, inverse, 0.0)
    square = inverse * inverse
    tail = polynomial(at_most(fma(square, 8.0, -1.0), 1.0), _DIGAMMA_FAR)
    distant = fma(inverse, -0.5, log(a)) - square * tail
    above = select(a < 2.0, close, distant)
    turn = _turn(a)
    reflected = above + inverse + _PI * turn.cosine / turn.sine
    below = select(eq(turn.sine, 0.0), NAN, reflected)
    result = select(x < 0.0, below, above)
    return select(a < 1e-20, -(one / x), result)  # 1/x is all there is of it


# -- derivatives of digamma ----------------------------------------------------------------------------------
_TERMS: Final = 10  # of the Euler-Maclaurin series


def _bernoulli(count: int) -> list[Fraction]:
    """Return the Bernoulli numbers B0, B1, ..., by their recurrence."""
    found = [Fraction(1)]
    for m in range(1, count):
        found.append(-sum((math.comb(m + 1, k) * found[k] for k in range(m)), Fraction(0)) / (m + 1))
    return found


def _series(m: int) -> list[float]:
    """Return B_2j (m + 2j - 2)! / ((2j)! (m - 1)!) for j = 1, 2, ...: what 1/y^(2j - 1) is multiplied by."""
    numbers = _bernoulli(2 * _TERMS + 1)
    rising = [Fraction(math.factorial(m + 2 * j - 2), math.factorial(m - 1)) for j in range(1, _TERMS + 1)]
    return [float(numbers[2 * j] * r / math.factorial(2 * j)) for j, r in enumerate(rising, 1)]


def _cotangent_derivative(n: int) -> list[float]:
    """Return the n-th derivative of cot(t) as a polynomial in cot(t): d cot = -(1 + cot^2) dt."""
    poly = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(poly)][1:]
        poly = [-(a + b) for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return [float(c) for c in poly]


def polygamma(n: int, x: Expr) -> Expr:
    """Return the n-th derivative of digamma, n > 0: (-1)^(n+1) n! sum of 1/(x + k)^(n+1) over k = 0, 1, ...

    The first terms are added up, the others are an Euler-Maclaurin series (DLMF 25.11.28).
    """
    return in_float64(lambda v: _polygamma(n, v))(x)


def _polygamma(n: int, x: Expr) -> Expr:
    m, zero, one = n + 1, like(0.0, x), like(1.0, x)
    negative = x < zero
    w = select(negative, one - x, x)
    start = 10 + n
    y = w + float(start)
    inverse = one / y
    square = inverse * inverse
    series = fma(inverse, 0.5, 1.0 / n)
    total = power_by_squaring(inverse, n) * fma(polynomial(square, _series(m)), square, series)
    for k in reversed(range(start)):
        total = total + power_by_squaring(one / (w + float(k)), m)
    total = select(eq(w, INF), zero, total)
    sign = -1.0 if m % 2 else 1.0
    above = total * (sign * math.factorial(n))
    turn = _turn(x)
    cotangent = turn.cosine / turn.sine
    turned = polynomial(cotangent, _cotangent_derivative(n)) * _PI ** (n + 1)
    reflected = (above if n % 2 == 0 else -above) - turned
    pole = like(INF if n % 2 else NAN, x)
    return select(negative, select(eq(turn.sine, zero), pole, reflected), above)
