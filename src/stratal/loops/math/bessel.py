"""Modified Bessel functions of orders 0 and 1, as they are, and times exp(-|x|) or exp(x).

Polynomials in x up to 8 (2 for K, where a logarithm is apart) and in 1/x beyond (Chebyshev interpolations in
60 digits). All compute in float64 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from stratal.loops.expr import Expr
from stratal.loops.math.arith import INF, NAN, at_least, at_most, eq, fma, like, polynomial, select, sqrt
from stratal.loops.math.exponential import exp
from stratal.loops.math.floats import in_float64, with_sign
from stratal.loops.math.logarithm import log

# exp(-x) I0(x) in x/4 - 1, 0 <= x <= 8, degree 28: 2^-53.8
_I0_NEAR: Final = (
    0.2070019212239867, -0.11300432688620536, 0.09451562853995125, -0.08904344136077733,
    0.08734341617550884, -0.08496338091542556, 0.07927522590752974, -0.06954119563154397,
    0.05677703201501785, -0.04298594929673067, 0.03017791206221918, -0.019682655784004566,
    0.011960077703464203, -0.006792394821044967, 0.0036171271654272855, -0.0018119029764120445,
    0.0008563135177565376, -0.0003828654139905961, 0.0001624084559061418, -6.55678677969644e-05,
    2.5198651465609148e-05, -9.183910794736519e-06, 3.232396382443255e-06, -1.1419495259048662e-06,
    3.659216730162776e-07, -8.594601526025913e-08, 2.679771004975793e-08, -1.631130691668671e-08,
    4.394426308340083e-09,
)  # fmt: skip
# exp(-x) I0(x) sqrt(x) in 16/x - 1, x >= 8, degree 23: 2^-53.8
_I0_FAR: Final = (
    0.4021765094450081, 0.0033605519836678913, 0.00013621607438951463, 1.114303378845176e-05,
    1.4838476780922646e-06, 2.9735992084667734e-07, 8.872014585661555e-08, 3.932512321137824e-08,
    2.156780676115673e-08, 7.559364098665437e-09, -6.856484545962442e-09, -1.3427511481900905e-08,
    -5.0175940345046716e-09, 7.600254486433509e-09, 6.522264862032271e-09, -3.5862834111582305e-09,
    -4.5305710768621196e-09, 1.6084886155781772e-09, 2.163681278413876e-09, -6.327909921997027e-10,
    -6.494591114401118e-10, 1.7698085539456536e-10, 9.114760157514253e-11, -2.4421972688131832e-11,
)  # fmt: skip
# exp(-x) I1(x) / x in x/4 - 1, 0 <= x <= 8, degree 30: 2^-50.2
_I1_NEAR: Final = (
    0.044687709875608835, -0.06112433802966629, 0.06805759990951162, -0.06848260620582547,
    0.06376740371340577, -0.05528003922705145, 0.044674572621297426, -0.03367135551992345,
    0.023686016957069872, -0.015571309256761071, 0.00958396215685903, -0.0055345677592584745,
    0.0030057623826419107, -0.0015388749695928036, 0.0007445124987600121, -0.00034117472470779683,
    0.00014842079087416368, -6.142655661897402e-05, 2.423470540495527e-05, -9.131776664168443e-06,
    3.2924557329085607e-06, -1.1381555648107214e-06, 3.774988459780846e-07, -1.1994064721626751e-07,
    3.685261019396175e-08, -1.122403584956652e-08, 3.19001022454089e-09, -7.278385771188532e-10,
    1.9897866775946007e-10, -9.50499529391487e-11, 2.3182083168309976e-11,
)  # fmt: skip
# exp(-x) I1(x) sqrt(x) in 16/x - 1, x >= 8, degree 23: 2^-53.8
_I1_FAR: Final = (
    0.38939845902587233, -0.009749577193235765, -0.00021923576383137776, -1.5038547198221758e-05,
    -1.8349102493990178e-06, -3.4838563464253135e-07, -1.0001075046243961e-07, -4.3128498031006734e-08,
    -2.3394122958362557e-08, -8.432168972932417e-09, 6.84757829926934e-09, 1.4051746928735543e-08,
    5.5720183980930355e-09, -7.687251308765992e-09, -6.9444186339873875e-09, 3.501765193290176e-09,
    4.763780078020254e-09, -1.5218214060680734e-09, -2.2624401109204446e-09, 5.870664618471487e-10,
    6.7727478454462e-10, -1.6283264322621244e-10, -9.491890392992048e-11, 2.2421768596847442e-11,
)  # fmt: skip
# K0(x) + log(x/2) I0(x) in x^2/2 - 1, 0 < x <= 2, degree 12: 2^-46.2
_K0_NEAR: Final = (
    -0.30362077291575545, 0.3404973210133806, 0.07177701034240512, 0.005053392643196092,
    0.00018280555827901256, 4.054506619948951e-06, 6.093361934165666e-08, 6.623013294285161e-10,
    5.452107597454735e-12, 3.5184166087692545e-14, 1.8282151310516728e-16, 7.814803107927666e-19,
    2.7963848204832025e-21,
)  # fmt: skip
# x (K1(x) - log(x/2) I1(x)) in x^2/2 - 1, 0 < x <= 2, degree 12: 2^-54.0
_K1_NEAR: Final = (
    0.8850882877295894, -0.3322409552403131, -0.24383852886774365, -0.027854235219771848,
    -0.0013831688466153067, -3.891869064369595e-05, -7.08113377018352e-07, -9.032127548326542e-09,
    -8.532735136401994e-11, -6.213805758701212e-13, -3.5960194151005866e-15, -1.694031375872967e-17,
    -6.622878173089246e-20,
)  # fmt: skip
# exp(x) K0(x) sqrt(x) in 4/x - 1, x >= 2, degree 26: 2^-56.2
_K0_FAR: Final = (
    1.2185953385133905, -0.03107146182488956, 0.0030328918102739684, -0.00047976905676177953,
    9.95605474833179e-05, -2.473520469856151e-05, 7.002244501469854e-06, -2.1911758298158814e-06,
    7.427907784929485e-07, -2.689222882101184e-07, 1.0289639495514684e-07, -4.126177693056258e-08,
    1.7243919486226528e-08, -7.536587919571339e-09, 3.3817802903756824e-09, -1.3876925452165377e-09,
    6.354560597694219e-10, -6.19955377160385e-10, 3.360195816719327e-10, 2.3064033964405703e-10,
    -1.472844638563888e-10, -2.71854364299908e-10, 1.6222643666724992e-10, 1.1023898044608679e-10,
    -6.667676805752231e-11, -2.8693049171860142e-11, 1.7088091602994506e-11,
)  # fmt: skip
# exp(x) K1(x) sqrt(x) in 4/x - 1, x >= 2, degree 26: 2^-55.4
_K1_FAR: Final = (
    1.363151890371342, 0.10334973775386527, -0.005566729880073119, 0.0007357241549033262,
    -0.0001395902196312159, 3.28438657068089e-05, -8.96120614398344e-06, 2.73003931168027e-06,
    -9.067203469612786e-07, 3.2299816462037967e-07, -1.219688795067239e-07, 4.837802386556985e-08,
    -2.0031192903927542e-08, 8.680511006575475e-09, -3.86764387075988e-09, 1.5871116313418612e-09,
    -7.237465098138615e-10, 6.857859248283152e-10, -3.6979880002823807e-10, -2.4610190645570503e-10,
    1.5739303945667333e-10, 2.945269891421564e-10, -1.754037725101976e-10, -1.1908900034003334e-10,
    7.1921009035841e-11, 3.109186281922316e-11, -1.848303606967482e-11,
)  # fmt: skip


def _scaled(a: Expr, near: Sequence[float], far: Sequence[float], odd: bool) -> Expr:
    """Return exp(-a) I(a) for a >= 0."""
    close = polynomial(fma(at_most(a, 8.0), 0.25, -1.0), near)
    inverse = 1.0 / at_least(a, 8.0)
    distant = polynomial(fma(inverse, 16.0, -1.0), far) * sqrt(inverse)
    return select(a < 8.0, a * close if odd else close, distant)


def _unscaled(value: Expr, a: Expr) -> Expr:
    """Multiply by exp(a) in two steps, the first of which does not overflow before the result does."""
    half = exp(at_most(a, 1400.0) * 0.5)
    return select(eq(a, INF), a, value * half * half)


@in_float64
def i0e(x: Expr) -> Expr:
    """Return exp(-|x|) I0(x)."""
    return _scaled(abs(x), _I0_NEAR, _I0_FAR, False)


@in_float64
def i1e(x: Expr) -> Expr:
    """Return exp(-|x|) I1(x)."""
    return with_sign(_scaled(abs(x), _I1_NEAR, _I1_FAR, True), x)


@in_float64
def i0(x: Expr) -> Expr:
    """Return the modified Bessel function of the first kind of order 0."""
    a = abs(x)
    return _unscaled(_scaled(a, _I0_NEAR, _I0_FAR, False), a)


@in_float64
def i1(x: Expr) -> Expr:
    """Return the modified Bessel function of the first kind of order 1."""
    a = abs(x)
    return with_sign(_unscaled(_scaled(a, _I1_NEAR, _I1_FAR, True), a), x)


def _third(x: Expr, order: int, scaled: bool) -> Expr:
    """Return K(x), or exp(x) K(x): infinite at 0, NaN below."""
    near = at_most(x, 2.0)
    place = fma(near * near, 0.5, -1.0)
    tiny = near < 1e-300  # half of which may underflow
    half = log(near * select(tiny, like(1.0, x), 0.5))
    half = half - select(tiny, like(math.log(2), x), 0.0)
    other = _scaled(near, _I1_NEAR if order else _I0_NEAR, _I1_FAR if order else _I0_FAR, bool(order)) * exp(
        near
    )
    if order:
        small = fma(half, other, polynomial(place, _K1_NEAR) / near)
    else:
        small = fma(-half, other, polynomial(place, _K0_NEAR))
    inverse = 1.0 / at_least(x, 2.0)
    series = polynomial(fma(inverse, 4.0, -1.0), _K1_FAR if order else _K0_FAR)
    large = series * sqrt(inverse)
    if scaled:
        small = small * exp(near)
    else:
        large = large * exp(-x)
    result = select(x < 2.0, small, large)
    pole = select(eq(x, 0.0), like(INF, x), NAN)
    return select(like(0.0, x) < x, result, pole)


@in_float64
def k0(x: Expr) -> Expr:
    """Return the modified Bessel function of the second kind of order 0."""
    return _third(x, 0, False)


@in_float64
def k0e(x: Expr) -> Expr:
    """Return exp(x) K0(x)."""
    return _third(x, 0, True)


@in_float64
def k1(x: Expr) -> Expr:
    """Return the modified Bessel function of the second kind of order 1."""
    return _third(x, 1, False)


@in_float64
def k1e(x: Expr) -> Expr:
    """Return exp(x) K1(x)."""
    return _third(x, 1, True)
