"""Modified Bessel functions of the first kind of orders 0 and 1, as they are and divided by exp(|x|).

Polynomials in x up to 8 and in 1/x beyond (Chebyshev interpolations in 60 digits). All compute in float64 and
round once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratal.loops.expr import Expr
from stratal.loops.math.arith import (
    INF,
    absolute,
    at_least,
    at_most,
    div,
    eq,
    fma,
    in_float64,
    like,
    lt,
    mul,
    polynomial,
    select,
    sqrt,
    with_sign,
)
from stratal.loops.math.exponential import exp

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


def _scaled(a: Expr, near: Sequence[float], far: Sequence[float], odd: bool) -> Expr:
    """Return exp(-a) I(a) for a >= 0."""
    close = polynomial(fma(at_most(a, 8.0), like(0.25, a), like(-1.0, a)), near)
    inverse = div(like(1.0, a), at_least(a, 8.0))
    distant = mul(polynomial(fma(inverse, like(16.0, a), like(-1.0, a)), far), sqrt(inverse))
    return select(lt(a, like(8.0, a)), mul(a, close) if odd else close, distant)


def _unscaled(value: Expr, a: Expr) -> Expr:
    """Multiply by exp(a) in two steps, the first of which does not overflow before the result does."""
    half = exp(mul(at_most(a, 1400.0), like(0.5, a)))
    return select(eq(a, like(INF, a)), a, mul(mul(value, half), half))


@in_float64
def i0e(x: Expr) -> Expr:
    """Return exp(-|x|) I0(x)."""
    return _scaled(absolute(x), _I0_NEAR, _I0_FAR, False)


@in_float64
def i1e(x: Expr) -> Expr:
    """Return exp(-|x|) I1(x)."""
    return with_sign(_scaled(absolute(x), _I1_NEAR, _I1_FAR, True), x)


@in_float64
def i0(x: Expr) -> Expr:
    """Return the modified Bessel function of the first kind of order 0."""
    a = absolute(x)
    return _unscaled(_scaled(a, _I0_NEAR, _I0_FAR, False), a)


@in_float64
def i1(x: Expr) -> Expr:
    """Return the modified Bessel function of the first kind of order 1."""
    a = absolute(x)
    return with_sign(_unscaled(_scaled(a, _I1_NEAR, _I1_FAR, True), a), x)
