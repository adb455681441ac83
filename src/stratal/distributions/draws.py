"""Draws that no formula gives: logarithms of gamma variables, counts of Poisson and of binomial ones, angles.

Each is proposed again where it was refused until none is, in one loop for all elements; refusals are rare
enough that a million elements take a dozen turns. All run as kernels, inside compiled functions, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stratal.special import lgamma
from stratal.special.incomplete import gamma_quantile_slope
from stratal.tensor.functions import random
from stratal.tensor.functions.elementwise import (
    abs,
    acos,
    cast,
    cos,
    exp,
    floor,
    isfinite,
    log,
    log1p,
    maximum,
    minimum,
    sign,
    sqrt,
    where,
)
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.transformations.control import while_loop
from stratal.tensor.transformations.custom import custom_jvp
from stratal.tensor.values.state import no_grad

_TINY = 1e-38  # what a uniform number is at least, so that it has a logarithm
_TURNS = 1000  # never reached: each turn accepts half of what is left or more
_FEW = 10.0  # mean below which counts are found by adding up probabilities; 120 terms leave less than 1e-80
_MOST = 120


def unit(like: Tensor, key: Tensor | None = None) -> Tensor:
    """Return floats uniform in (0, 1), of the shape and dtype of `like`."""
    return maximum(random.uniform(like.shape, dtype=like.dtype, key=key), _TINY)


def _accepted(
    propose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], wanted: Tensor, like: Tensor
) -> Tensor:
    """Return the first accepted proposal of each element that is `wanted`; 0 for others.

    `propose` takes two keys and returns values and whether they are accepted.
    """
    key = random.default_generator().next_key()

    def again(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        turn, kept, done = state
        keys = random.split(random.fold_in(key, turn))
        value, accepted = propose(keys[0], keys[1])
        return turn + 1, where(done, kept, value), done | accepted

    start = (tensor(0), like * 0.0, ~wanted)
    return while_loop(lambda s: (s[0] < _TURNS) & ~s[2].all(), again, start)[1]


# -- gamma ---------------------------------------------------------------------------------------------------
def log_gamma(concentration: Tensor) -> Tensor:
    """Return the logarithm of a gamma variable of each shape, differentiable by it; the rate is 1.

    See: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; below 1 a power of a
    uniform variable is a factor, so logarithms do not underflow.
    """
    with no_grad():
        a = concentration.detach()
        good = (a > 0) & isfinite(a)
        d = where(good, where(a < 1, a + 1.0, a), 1.0) - 1 / 3
        c = 1.0 / (3.0 * sqrt(d))

        def propose(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            x = random.standard_normal(d.shape, dtype=d.dtype, key=first)
            root = 1.0 + c * x
            log_v = 3.0 * log(maximum(root, _TINY))
            bound = 0.5 * x * x + d * (1.0 - exp(log_v) + log_v)
            return log(d) + log_v, (root > 0) & (log(unit(d, second)) < bound)

        drawn = _accepted(propose, good, d)
        drawn = drawn + where(a < 1, log(unit(d)) / where(good, a, 1.0), 0.0)
        drawn = where(good, drawn, math.nan).detach()
    return _moved_by(concentration, drawn)


@custom_jvp
def _moved_by(concentration: Tensor, log_x: Tensor) -> Tensor:
    """Return draws that move with the shape such that as much as before lies below them."""
    return log_x


@_moved_by.defjvp
def _move(primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    a = primals[0]
    log_x = _moved_by(*primals)
    slope = gamma_quantile_slope(cast(a, "float64"), cast(log_x, "float64"))
    return log_x, cast(slope, log_x.dtype) * tangents[0]


# -- counts --------------------------------------------------------------------------------------------------
def _summed(first: Tensor, ratio: Callable[[Tensor], Tensor]) -> Tensor:
    """Return counts drawn by adding up probabilities: of 0 `first`, of k + 1 that of k times ratio(k)."""
    drawn = unit(first)

    def step(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        turn, count, probability, total = state
        below = total < drawn
        probability = probability * ratio(turn)
        return turn + 1.0, where(below, count + 1.0, count), probability, total + probability

    start = (Tensor(0.0, dtype=first.dtype), first * 0.0, first, first)
    return while_loop(lambda s: (s[0] < _MOST) & (s[3] < drawn).any(), step, start)[1]


def poisson(rate: Tensor) -> Tensor:
    """Return counts of the given means, as floats of their dtype.

    See: Hörmann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    with no_grad():
        mean = cast(rate.detach(), "float64")
        good = (mean >= 0) & isfinite(mean)
        few, many = good & (mean < _FEW), good & (mean >= _FEW)
        small, large = where(few, mean, 1.0), where(many, mean, _FEW)
        counts = _summed(exp(-small), lambda k: small / (k + 1.0))
        b = 0.931 + 2.53 * sqrt(large)
        a = -0.059 + 0.02483 * b
        scale, quick = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2.0)

        def propose(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            k, at, height = _hat(a, b, large + 0.43, first)
            v = unit(large, second)
            bound = k * log(large) - large - lgamma(k + 1.0)
            inside = (k >= 0) & ~((at < 0.013) & (v > at)) & (log(v * scale / height) <= bound)
            return k, (at >= 0.07) & (v <= quick) | inside

        found = where(few, counts, _accepted(propose, many, large))
        return cast(where(good, found, math.nan), rate.dtype).detach()


def binomial(total_count: Tensor, probs: Tensor) -> Tensor:
    """Return how many of so many tries succeed, as floats of the dtype of the probabilities.

    See: Hörmann, "The generation of binomial random variates", 1993.
    """
    with no_grad():
        n, given = cast(total_count.detach(), "float64"), cast(probs.detach(), "float64")
        good = (n >= 0) & isfinite(n) & (given >= 0) & (given <= 1)
        p = where(good, minimum(given, 1.0 - given), 0.0)
        few, many = good & (n * p < _FEW), good & (n * p >= _FEW)
        size, share = where(few, n, 1.0), where(few, p, 0.0)
        odds = share / (1.0 - share)
        counts = _summed(exp(size * log1p(-share)), lambda k: maximum(size - k, 0.0) / (k + 1.0) * odds)
        size, share = where(many, n, 4 * _FEW), where(many, p, 0.5)
        deviation = sqrt(size * share * (1.0 - share))
        b = 1.15 + 2.53 * deviation
        a = -0.0873 + 0.0248 * b + 0.01 * share
        scale, quick = (2.83 + 5.1 / b) * deviation, 0.92 - 4.2 / b
        mode, log_odds = floor((size + 1.0) * share), log(share / (1.0 - share))
        peak = lgamma(mode + 1.0) + lgamma(size - mode + 1.0)

        def propose(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            k, at, height = _hat(a, b, size * share + 0.5, first)
            v = unit(size, second)
            possible = (k >= 0) & (k <= size)
            at_k = where(possible, k, 0.0)
            bound = peak - lgamma(at_k + 1.0) - lgamma(size - at_k + 1.0) + (at_k - mode) * log_odds
            return k, (at >= 0.07) & (v <= quick) | possible & (log(v * scale / height) <= bound)

        found = where(few, counts, _accepted(propose, many, size))
        found = where(given > 0.5, n - found, found)
        return cast(where(good, found, math.nan), probs.dtype).detach()


def _hat(a: Tensor, b: Tensor, centre: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a count under Hörmann's hat, how far its number was from the ends, and the height there."""
    u = unit(a, key) - 0.5
    at = maximum(0.5 - abs(u), 1e-300)
    return floor((2.0 * a / at + b) * u + centre), at, a / (at * at) + b


# -- angles --------------------------------------------------------------------------------------------------
def von_mises(concentration: Tensor) -> Tensor:
    """Return angles about 0, in [-pi, pi].

    See: Best and Fisher, "Efficient simulation of the von Mises distribution", 1979.
    """
    with no_grad():
        k = cast(concentration.detach(), "float64")
        good = (k > 0) & isfinite(k)
        kappa = where(good, maximum(k, 1e-8), 1.0)
        tau = 1.0 + sqrt(1.0 + 4.0 * kappa * kappa)
        rho = (tau - sqrt(2.0 * tau)) / (2.0 * kappa)
        exact = (1.0 + rho * rho) / (2.0 * rho)
        r = where(kappa < 1e-5, 1.0 / kappa + kappa, exact)

        def propose(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            keys = random.split(second)
            z = cos(math.pi * unit(kappa, first))
            f = (1.0 + r * z) / (r + z)
            c = kappa * (r - f)
            u = unit(kappa, keys[0])
            accepted = (c * (2.0 - c) > u) | (log(c / u) + 1.0 >= c)
            side = sign(unit(kappa, keys[1]) - 0.5)
            return side * acos(minimum(maximum(f, -1.0), 1.0)), accepted

        found = where(good, _accepted(propose, good, kappa), math.nan)
        return cast(found, concentration.dtype).detach()
