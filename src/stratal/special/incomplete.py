"""Incomplete gamma and beta functions, as integrals over a fixed number of places; and Hurwitz's zeta.

With t = x e^w what is integrated becomes the value at x times exp(a w - x (e^w - 1)) for gamma, times
exp(a w) / (1 + x (e^w - 1))^(a + b) for beta: it falls from 1 at w = 0 on the side of x that holds less than
about half of everything, without poles near by. Where it has fallen to exp(-39), for float32 to exp(-21),
the integral is cut, and Gauss and Legendre's rule gives what is left to the last places. All terms
have one sign. So both are kernels, and differentiable by all operands to any order, as sums are.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stratal.base.dtypes import DType, float64
from stratal.loops.math.gamma import LGAMMA_NEAR
from stratal.special.family import floats
from stratal.special.gammas import betaln, digamma, lgamma, stirling
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.elementwise import (
    abs,
    cast,
    exp,
    expm1,
    floor,
    isfinite,
    log,
    log1p,
    maximum,
    minimum,
    pow,
    sqrt,
    where,
)
from stratal.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]


class _Effort(NamedTuple):
    """What is integrated is cut at exp(-drop); places for gamma, and for each of the two parts for beta."""

    drop: float
    gamma: int
    beta: int
    terms: int  # of the series of gamma near 0


_DOUBLE = _Effort(39.0, 48, 32, 20)  # exp(-39) = 2^-56
_SINGLE = _Effort(21.0, 16, 24, 13)  # errors of 2^-26 and less for results that are rounded to float32
_HUGE = 1e40  # beyond, a gamma variable of shape a is a to the last place
_LARGE = 10.0  # parameters from which Stirling's formula stands for the gamma function


@lru_cache(maxsize=4)
def _rule(count: int) -> tuple[Array, Array]:
    """Return places in (0, 1) and weights: NumPy's are off by 1e-12 at the ends, so Newton goes on."""
    x = np.polynomial.legendre.leggauss(count)[0].astype(np.longdouble)
    for _ in range(2):
        value, slope = _legendre(count, x)
        x = x - value / slope
    weights = 1 / ((1 - x * x) * _legendre(count, x)[1] ** 2)
    return np.asarray((x + 1) / 2, np.float64), np.asarray(weights, np.float64)


def _legendre(count: int, x: Array) -> tuple[Array, Array]:
    before, value = np.ones_like(x), x
    for k in range(2, count + 1):
        before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
    return value, count * (x * value - before) / (x * x - 1)


def _double(name: str, *operands: Any) -> tuple[Any, list[Tensor]]:
    """Return the dtype of the result, and operands in float64, which all compute in and round once."""
    given = floats(name, *operands)
    return given[0].dtype, [cast(t, "float64") for t in given]


# -- gamma ---------------------------------------------------------------------------------------------------
def gammainc(a: Any, x: Any) -> Tensor:
    """Return the regularised lower incomplete gamma function P(a, x), from 0 at x = 0 to 1; a, x >= 0.

    Errors are a few units in the last place times 1 + |log P|. See: DLMF 8.2.
    """
    dtype, (a, x) = _double("gammainc", a, x)
    return cast(_gamma_sides(a, x, _effort(dtype))[0], dtype)


def gammaincc(a: Any, x: Any) -> Tensor:
    """Return the regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), without cancellation."""
    dtype, (a, x) = _double("gammaincc", a, x)
    return cast(_gamma_sides(a, x, _effort(dtype))[1], dtype)


def _effort(dtype: DType) -> _Effort:
    return _DOUBLE if dtype is float64 else _SINGLE


def _gamma_sides(a: Tensor, x: Tensor, effort: _Effort) -> tuple[Tensor, Tensor]:
    inside = (a > 0) & (x > 0) & (a < _HUGE) & (x < _HUGE)
    p, z = where(inside, a, 2.0), where(inside, x, 1.0)
    tiny, above = (z < 1.1) & (p < 0.5 * z + 0.3), z > p
    part, _ = _gamma_integral(p, z, above, effort)
    density = exp(_log_gamma_density(p, z))
    below = density * (1.0 + z * part) / p
    near = _small(where(tiny, p, 0.1), where(tiny, z, 1.0), effort.terms)
    upper = where(tiny, near, where(above, density * part, 1.0 - below))
    lower = where(tiny, 1.0 - near, where(above, 1.0 - density * part, below))
    # at 0 what the series of P begins with; of huge numbers all lies at a
    first = pow(where(x == 0, x, 0.0), where((x == 0) & (a > 0), a, 1.0)) * exp(
        -lgamma(where(inside, 0.0, a) + 1.0)
    )
    known = (a >= 0) & (x >= 0) & ((a != x) | ((a > 0) & (a < math.inf)))
    step = where(x == 0, first, where(a < x, 1.0, where(a == x, 0.5, 0.0)))
    rest = where(known, step, math.nan)
    return where(inside, lower, rest), where(inside, upper, 1.0 - rest)


def _log_gamma_density(a: Tensor, x: Tensor) -> Tensor:
    """Return log(x^a exp(-x) / gamma(a)), of large a by what is left of Stirling's formula."""
    big = a >= _LARGE
    wide, at = where(big, a, _LARGE), where(big, x, _LARGE)
    off = (at - wide) / wide
    far = 0.5 * log(wide / (2 * math.pi)) - wide * (off - _log(at / wide, off)) - stirling(wide)
    small = where(big, 1.0, a)
    return where(big, far, small * log(x) - x - lgamma(small))  # type: ignore[no-any-return]


def _log(ratio: Tensor, off: Tensor) -> Tensor:
    """Return the logarithm of a ratio that is given as it is and less 1."""
    near = off > -0.5
    return where(near, log1p(where(near, off, 0.0)), log(where(near, 1.0, ratio)))  # type: ignore[no-any-return]


def _gamma_integral(a: Tensor, x: Tensor, above: Tensor, effort: _Effort) -> tuple[Tensor, Tensor]:
    """Return the integrals of exp(s w - x (e^w - 1)) and of w times it: to infinity for s = a where `above`,
    else from minus infinity to 0 for s = a + 1.
    """
    s = where(above, a, a + 1.0)
    off = abs(s - x).detach()
    rest = x.detach()
    drop = effort.drop
    wide = drop - 2.0 * off
    down = (wide + sqrt(wide * wide + 8.0 * drop * s.detach())) / (2.0 * s.detach())
    up = minimum((sqrt(off * off + 2.0 * drop * rest) - off) / rest, maximum(log1p(2.0 * drop / rest), 1.3))
    reach = where(above, up, -down)[..., None]
    places, weights = map(as_tensor, _rule(effort.gamma))
    w = reach * places
    fallen = exp((s - x)[..., None] * w - x[..., None] * _expm1_less(w)) * (weights * abs(reach))
    return fallen.sum(axis=-1), (fallen * w).sum(axis=-1)


def _expm1_less(w: Tensor) -> Tensor:
    """Return e^w - 1 - w, near 0 by its series."""
    near = abs(w) < 0.1
    v = where(near, w, 0.0)
    total: Any = v / math.factorial(11)
    for k in range(10, 2, -1):
        total = (total + 1 / math.factorial(k)) * v
    return where(near, (total + 0.5) * v * v, expm1(w) - w)  # type: ignore[no-any-return]


def _small(a: Tensor, x: Tensor, terms: int) -> Tensor:
    """Return Q(a, x) = 1 - x^a / gamma(1 + a) (1 + a sum) of small a and x: DLMF 8.7.1."""
    power, total = -x, -x / (a + 1.0)
    for k in range(2, terms):
        power = power * x * (-1 / k)
        total = total + power / (a + float(k))
    return -expm1(a * log(x) - _lgamma_above(a) + log1p(a * total))  # type: ignore[no-any-return]


def _lgamma_above(a: Tensor) -> Tensor:
    """Return log gamma(1 + a) for 0 < a < 1, right to the last place where it is small, too."""
    total: Any = LGAMMA_NEAR[-1]
    for c in reversed(LGAMMA_NEAR[:-1]):
        total = total * (a - 1.0) + c
    return a * (a - 1.0) * total  # type: ignore[no-any-return]


def gamma_quantile_slope(a: Tensor, log_x: Tensor) -> Tensor:
    """Return d log(x) / da of the x below which a gamma variable of shape a lies with some fixed probability.

    That is - dP/da / (x dP/dx), the derivative of draws by their shape; both operands are float64.
    See: Figurnov, Mohamed and Mnih, "Implicit reparameterization gradients", 2018.
    """
    x = exp(log_x)
    above = x > a
    part, moment = _gamma_integral(a, maximum(x, 1e-300), above, _DOUBLE)
    up = (log_x - digamma(a)) * part + moment
    one = 1.0 + x * part
    down = ((log_x - digamma(a + 1.0)) * one + x * moment) / -a
    return where(above, up, down)  # type: ignore[no-any-return]


# -- beta ----------------------------------------------------------------------------------------------------
def betainc(a: Any, b: Any, x: Any) -> Tensor:
    """Return the regularised incomplete beta function I_x(a, b), from 0 at x = 0 to 1 at x = 1; a, b > 0.

    Errors grow as the root of a + b; from 1e20 on it is NaN. See: DLMF 8.17.
    """
    dtype, (a, b, x) = _double("betainc", a, b, x)
    good = (a > 0) & (b > 0) & (x >= 0) & (x <= 1) & (a + b < 1e20)
    inside = good & (x > 0) & (x < 1)
    p, q, z = where(inside, a, 1.0), where(inside, b, 1.0), where(inside, x, 0.5)
    turned = z > p / (p + q)
    sides = where(turned, q, p), where(turned, p, q), where(turned, 1.0 - z, z), where(turned, z, 1.0 - z)
    here = _beta_below(*sides, _effort(dtype))
    found = where(turned, 1.0 - here, here)
    low, high = good & (x == 0), good & (x == 1)
    ends = where(
        low, _beta_first(low, a, b, x), where(high, 1.0 - _beta_first(high, b, a, 1.0 - x), math.nan)
    )
    return cast(where(inside, found, ends), dtype)


def _beta_first(at: Tensor, a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Return what the series of I_x(a, b) begins with where `at` holds, which says that x is 0."""
    p, q, z = where(at, a, 1.0), where(at, b, 1.0), where(at, x, 0.0)
    return pow(z, p) * exp(minimum(-betaln(p, q), 700.0)) / p  # type: ignore[no-any-return]


def _beta_below(a: Tensor, b: Tensor, x: Tensor, y: Tensor, effort: _Effort) -> Tensor:
    """Return I_x(a, b) for x <= a / (a + b); y is 1 - x."""
    s, total = a + 1.0, a + b + 1.0
    reach = _beta_reach(effort.drop, *(t.detach() for t in (s, total, x, y)))
    # near x = 1 what is integrated is flat up to log(x/y) if b is small: each side has a rule of its own
    cut = minimum(maximum(log(x / y).detach(), 0.25 * reach), 0.75 * reach)[..., None]
    rest = reach[..., None] - cut
    near, far, near_weights, far_weights = map(as_tensor, _two_rules(effort.beta))
    v = cut * near + rest * far
    fallen = exp(-_beta_fall(s[..., None], total[..., None], x[..., None], y[..., None], v))
    part = (fallen * (cut * near_weights + rest * far_weights)).sum(axis=-1)
    return exp(_log_beta_density(a, b, x, y)) / a * (1.0 + x * (a + b) * part)  # type: ignore[no-any-return]


def _two_rules(count: int) -> tuple[Array, Array, Array, Array]:
    """Return places of [0, 1] and then of [1, 2], as the parts of each in both, and weights likewise."""
    (n, c), one, zero = _rule(count), np.ones(count), np.zeros(count)
    return tuple(map(np.concatenate, ((n, one), (zero, n), (c, zero), (zero, c))))  # type: ignore[return-value]


def _beta_fall(s: Tensor, total: Tensor, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Return s v + total log(1 + x (e^-v - 1))."""
    near = v < 0.5
    small = log1p(x * expm1(-where(near, v, 0.0)))
    return s * v + total * where(near, small, log(y + x * exp(-where(near, 1.0, v))))  # type: ignore[no-any-return]


def _beta_reach(drop: float, s: Tensor, total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return where `_beta_fall` is about `drop`: it is convex, so Newton comes down to it from two bounds."""
    off, bend = maximum(s - total * x, 0.0), total * x * y
    wide = drop - 2.0 * off
    least = off + bend
    v = minimum((drop - total * log(y)) / s, (wide + sqrt(wide * wide + 8.0 * drop * least)) / (2.0 * least))
    for _ in range(3):
        slope = s - total * x / (y * exp(v) + x)
        v = v - maximum(_beta_fall(s, total, x, y, v) - drop, 0.0) / slope
    return v


def _log_beta_density(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return log(x^a y^b / B(a, b)), of two large parameters by what is left of Stirling's formula."""
    big = (a >= _LARGE) & (b >= _LARGE)
    p, q = where(big, a, _LARGE), where(big, b, _LARGE)
    n = p + q
    off, at, rest = where(big, x * q - y * p, 0.0), where(big, x, 0.5), where(big, y, 0.5)
    far = p * _log(at / p * n, off / p) + q * _log(rest / q * n, -off / q)
    far = far + 0.5 * log(p / n * q / (2 * math.pi))
    far = far + stirling(n) - stirling(p) - stirling(q)
    p, q = where(big, 1.0, a), where(big, 1.0, b)
    return where(big, far, p * log(x) + q * log(y) - betaln(p, q))  # type: ignore[no-any-return]


# -- zeta ----------------------------------------------------------------------------------------------------
_FIRST = 16  # terms that are added up as they are
_BERNOULLI = [Fraction(*f) for f in (
    (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798),
    (-174611, 330),
)]  # fmt: skip


def zeta(s: Any, q: Any) -> Tensor:
    """Return Hurwitz's zeta function, the sum of 1/(q + k)^s over k = 0, 1, ... for s > 1, q > 0.

    Infinite for s = 1 and for q = 0, -1, -2, ...; NaN for smaller s and other q below 0. The first terms are
    added up, the others are an Euler-Maclaurin series: DLMF 25.11.28.
    """
    dtype, (s, q) = _double("zeta", s, q)
    inside = (s > 1) & (q > 0) & isfinite(s) & isfinite(q)
    t, z = where(inside, s, 2.0), where(inside, q, 1.0)
    y = z + float(_FIRST)
    series, term = y / (t - 1.0) + 0.5, t / y
    for j, number in enumerate(_BERNOULLI, 1):
        series = series + float(number / math.factorial(2 * j)) * term
        term = term * (t + float(2 * j - 1)) * (t + float(2 * j)) / (y * y)
    places = as_tensor(np.arange(_FIRST, dtype=np.float64))
    power = pow(y, 1.0 - t)
    rest = where(power == 0, 0.0, power * (series / y))
    total = pow(z[..., None] + places, -t[..., None]).sum(axis=-1) + rest
    pole = (s == 1) | ((q <= 0) & (q == floor(q)) & (s > 1))
    ends = where(s == math.inf, where(q > 1, 0.0, where(q == 1, 1.0, math.inf)), 0.0)  # q is infinite, else
    outside = where((s < 1) | ((q <= 0) & ~pole), math.nan, where(pole, math.inf, ends))
    outside = where((s != s) | (q != q), math.nan, outside)
    return cast(where(inside, total, outside), dtype)


igamma, igammac = gammainc, gammaincc
__all__ = ["betainc", "gammainc", "gammaincc", "igamma", "igammac", "zeta"]
