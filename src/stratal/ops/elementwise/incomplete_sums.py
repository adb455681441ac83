"""The sums behind zeta and the incomplete gamma and beta functions, on float64 arrays.

Series and continued fractions run until every element has converged, on those alone that have not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.graph.op import Array

_EPS = 1e-17
_MOST = 20_000  # terms; far more than any sum here takes
_LARGE = 1000.0  # shape parameters from which incomplete gamma functions are integrals instead
_LGAMMA = np.frompyfunc(lambda x: math.lgamma(x) if x > 0 else math.inf, 1, 1)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_BERNOULLI = (
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
)


def _lgamma(x: Array) -> Array:
    return np.asarray(_LGAMMA(x), dtype=np.float64)


def zeta(s: Array, q: Array) -> Array:
    """Return the sum of 1/(q + k)^s by the Euler-Maclaurin formula (DLMF 25.11.28)."""
    first = 16
    y = q + first
    power = y**-s
    series: Any = y / (s - 1) + 0.5
    term: Any = s / y
    for j, c in enumerate(_BERNOULLI, 1):
        series = series + c * term / math.factorial(2 * j)
        term = term * (s + 2 * j - 1) * (s + 2 * j) / (y * y)
    total: Any = np.where(power == 0, 0.0, power * series)
    for k in reversed(range(first)):
        total = total + (q + k) ** -s
    total = np.where(np.isposinf(s), np.where(q > 1, 0.0, np.where(q == 1, 1.0, np.inf)), total)
    total = np.where(np.isposinf(q) & (s > 1), 0.0, total)
    pole = (s == 1) | ((q <= 0) & (q == np.floor(q)) & (s > 1))
    total = np.where((s < 1) | ((q <= 0) & ~pole), np.nan, np.where(pole, np.inf, total))
    return np.asarray(np.where(np.isnan(s) | np.isnan(q), np.nan, total))


# -- gamma ---------------------------------------------------------------------------------------------------
def gammainc(a: Array, x: Array) -> Array:
    """Return P(a, x)."""
    return _incomplete_gamma(a, x)[0]


def gammaincc(a: Array, x: Array) -> Array:
    """Return Q(a, x)."""
    return _incomplete_gamma(a, x)[1]


def _incomplete_gamma(a: Array, x: Array) -> tuple[Array, Array]:
    a, x = np.broadcast_arrays(a, x)
    lower, upper = np.full(a.shape, np.nan), np.full(a.shape, np.nan)

    def put(where: Array, function: Callable[[Array, Array], Array], first: Array, second: Array) -> None:
        if where.any():
            first[where] = function(a[where], x[where])
            second[where] = 1 - first[where]

    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    large, below = a >= _LARGE, x < a + 1
    tiny = inside & ~large & (x < 1.1) & (a < 0.5 * x + 0.3)
    put(inside & large & (x <= a), _lower_integral, lower, upper)
    put(inside & large & (x > a), _upper_integral, upper, lower)
    put(inside & ~large & below & ~tiny, _lower_series, lower, upper)
    put(inside & ~large & ~below & ~tiny, _upper_fraction, upper, lower)
    put(tiny, _upper_series, upper, lower)
    nothing = (x == 0) & (a > 0) | np.isposinf(a) & (x >= 0) & np.isfinite(x)
    everything = (a == 0) & (x > 0) | np.isposinf(x) & (a >= 0) & np.isfinite(a)
    for where, p in ((nothing, 0.0), (everything, 1.0)):
        lower[where], upper[where] = p, 1 - p
    return lower, upper


def _density(a: Array, x: Array) -> Array:
    """Return x^a exp(-x) / gamma(a), of large a by what is left of Stirling's formula."""
    small = np.exp(a * np.log(x) - x - _lgamma(a))
    wide, at = a.astype(np.longdouble), x.astype(np.longdouble)
    off = (at - wide) / wide
    tail = 1 / (12 * wide) - 1 / (360 * wide**3) + 1 / (1260 * wide**5) - 1 / (1680 * wide**7)
    big = np.exp(-wide * (off - np.log1p(off)) - tail) * np.sqrt(wide / (2 * np.pi))
    return np.asarray(np.where(a < 20, small, big), np.float64)


def _converged(step: Callable[[int, list[Array]], list[Array]], state: list[Array]) -> Array:
    """Run `step` of [total, change, ...] on the elements whose change still counts; return the totals."""
    total = np.array(state[0])
    left = np.arange(total.size)
    for k in range(1, _MOST):
        state = step(k, state)
        total[left] = state[0]
        going = np.abs(state[1]) > np.abs(state[0]) * _EPS
        if not going.any():
            break
        if not going.all():
            left, state = left[going], [v[going] for v in state]
    return total


def _lower_series(a: Array, x: Array) -> Array:
    """DLMF 8.11.4."""

    def step(k: int, state: list[Array]) -> list[Array]:
        total, term, a, x = state
        term = term * x / (a + k)
        return [total + term, term, a, x]

    return np.asarray(_density(a, x) / a * _converged(step, [np.ones_like(a), np.ones_like(a), a, x]))


def _upper_series(a: Array, x: Array) -> Array:
    """1 - x^a / gamma(a + 1) and the alternating rest of the series of P, DLMF 8.7.1: for small a and x."""

    def step(k: int, state: list[Array]) -> list[Array]:
        total, _, power, a, x = state
        power = -power * x / k
        return [total + power / (a + k), power / (a + k), power, a, x]

    ones = np.ones_like(a)
    rest = _converged(step, [0 * a, ones, ones, a, x])
    log_power = a * np.log(x) - _lgamma_above(a)
    return np.asarray(-np.expm1(log_power) - a * np.exp(log_power) * rest)


def _lgamma_above(a: Array) -> Array:
    """Return log gamma(1 + a), to the last place of small a: DLMF 5.7.3."""
    orders = np.arange(2, 45)
    values = (-1.0) ** orders * zeta(orders.astype(np.float64), np.ones(1)) / orders
    series = np.polynomial.polynomial.polyval(a, np.array([0, -np.euler_gamma, *values]))
    return np.asarray(np.where(a < 0.4, series, _lgamma(1 + a)))


def _upper_fraction(a: Array, x: Array) -> Array:
    """DLMF 8.9.2, by Lentz's algorithm."""
    b = x + 1 - a
    d = 1 / b

    def step(k: int, state: list[Array]) -> list[Array]:
        h, _, b, c, d, a = state
        top, b = -k * (k - a), b + 2
        d, c = _nonzero(top * d + b), _nonzero(b + top / c)
        d = 1 / d
        return [h * d * c, h * (d * c - 1), b, c, d, a]

    return np.asarray(_density(a, x) * _converged(step, [d, d, b, np.full_like(x, 1e300), d, a]))


def _nonzero(x: Array) -> Array:
    return np.asarray(np.where(x == 0, 1e-300, x))


def _lower_integral(a: Array, x: Array) -> Array:
    return _integral(a, x, -1)


def _upper_integral(a: Array, x: Array) -> Array:
    return _integral(a, x, 1)


def _integral(a: Array, x: Array, side: int) -> Array:
    """Integrate the density from x outwards, until it has fallen by exp(-45), by Gauss and Legendre."""
    slope = np.abs(x - a) / x
    reach = x * (np.sqrt(slope * slope + 90 / x) - slope)
    reach = np.where(side < 0, np.minimum(reach, x), reach)
    total: Any = 0.0
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        at = x + side * reach * (node + 1) / 2
        total = total + weight * np.where(at > 0, _density(a, np.maximum(at, 1e-300)) / at, 0.0)
    return np.asarray(total * reach / 2)


# -- beta ----------------------------------------------------------------------------------------------------
def betainc(a: Array, b: Array, x: Array) -> Array:
    """Return I_x(a, b) by its continued fraction, of x or of 1 - x, whichever converges."""
    a, b, x = np.broadcast_arrays(a, b, x)
    result = np.full(a.shape, np.nan)
    good = (a > 0) & (b > 0) & (x >= 0) & (x <= 1) & np.isfinite(a) & np.isfinite(b)
    result[good & (x == 0)], result[good & (x == 1)] = 0.0, 1.0
    inside = good & (x > 0) & (x < 1)
    turned = inside & (x > (a + 1) / (a + b + 2))
    direct = inside & ~turned
    if direct.any():
        result[direct] = _beta_fraction(a[direct], b[direct], x[direct], 1 - x[direct])
    if turned.any():
        result[turned] = 1 - _beta_fraction(b[turned], a[turned], 1 - x[turned], x[turned])
    return result


def _beta_fraction(a: Array, b: Array, x: Array, other: Array) -> Array:
    """DLMF 8.17.22, by Lentz's algorithm; `other` is 1 - x."""
    front = np.exp(a * np.log(x) + b * np.log(other) + _lgamma(a + b) - _lgamma(a) - _lgamma(b)) / a
    d = 1 / _nonzero(1 - (a + b) * x / (a + 1))

    def step(k: int, state: list[Array]) -> list[Array]:
        h, _, c, d, a, b, x = state
        even = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        d, c = 1 / _nonzero(1 + even * d), _nonzero(1 + even / c)
        h = h * d * c
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        d, c = 1 / _nonzero(1 + odd * d), _nonzero(1 + odd / c)
        return [h * d * c, h * (d * c - 1), c, d, a, b, x]

    return np.asarray(front * _converged(step, [d, d, np.ones_like(x), d, a, b, x]))
