"""Divergences of Kullback and Leibler, in closed form, for pairs of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stratal.base.errors import NotGivenError
from stratal.distributions.continuous import Cauchy, Exponential, Gumbel, HalfNormal, Laplace, Normal, Uniform
from stratal.distributions.counts import Binomial, Poisson
from stratal.distributions.discrete import Bernoulli, Categorical, Geometric, OneHotCategorical
from stratal.distributions.distribution import Distribution, Independent
from stratal.distributions.gammas import Beta, Dirichlet, Gamma
from stratal.distributions.matrices import Wishart
from stratal.distributions.multivariate import LowRankMultivariateNormal, MultivariateNormal
from stratal.distributions.transformed import LogNormal, Pareto, TransformedDistribution
from stratal.linalg import diagonal, solve_triangular
from stratal.special import betaln, digamma, erf, lgamma, log_expit, mvlgamma, xlogy
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import exp, log, log1p, sigmoid, where
from stratal.tensor.tensor import Tensor

_EULER = 0.5772156649015329
Divergence = Callable[[Any, Any], Tensor]
DIVERGENCES: dict[tuple[type[Distribution], type[Distribution]], Divergence] = {}


def register_kl(p: type[Distribution], q: type[Distribution]) -> Callable[[Divergence], Divergence]:
    """Return a decorator for a function of (p, q) that gives the divergence of such a pair."""

    def register(function: Divergence) -> Divergence:
        DIVERGENCES[p, q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the divergence of `q` from `p`, the mean of log(p/q) under p, for each element of the batch."""
    for first in type(p).__mro__:
        for second in type(q).__mro__:
            if (first, second) in DIVERGENCES:
                return DIVERGENCES[first, second](p, q)
    known = sorted(b.__name__ for a, b in DIVERGENCES if issubclass(type(p), a))
    raise NotGivenError(
        "kl_divergence: no closed form", got=f"{type(p).__name__}, {type(q).__name__}",
        hint=f"from {type(p).__name__} to {', '.join(known)}" if known else "register_kl adds one",
    )  # fmt: skip


def _missing(p: Distribution, q: Distribution) -> NotGivenError:
    return NotGivenError("kl_divergence: no closed form", got=f"{p}, {q}")


# -- of wrapped distributions --------------------------------------------------------------------------------
@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Tensor:
    if p.event_shape != q.event_shape or p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise _missing(p, q)
    return p.sum_events(kl_divergence(p.base_dist, q.base_dist))


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: Any, q: Any) -> Tensor:
    """The same map of both changes nothing."""
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise _missing(p, q)
    return kl_divergence(p.base_dist, q.base_dist)


# -- of one family -------------------------------------------------------------------------------------------
@register_kl(LogNormal, LogNormal)
@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio - 1 - log(ratio))


@register_kl(Laplace, Laplace)
def _laplace(p: Any, q: Any) -> Tensor:
    apart = abs(p.loc - q.loc)
    shared = (p.scale * exp(-apart / p.scale) + apart) / q.scale
    return shared - log(p.scale / q.scale) - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Any, q: Any) -> Tensor:
    """See: Chyzak and Nielsen, 2019."""
    return log(((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2) / (4 * p.scale * q.scale))


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Any, q: Any) -> Tensor:
    ratio = p.scale / q.scale
    off = (q.loc - p.loc) / q.scale
    tail = exp(off + lgamma(1 + ratio)) - (1 + _EULER)
    return -log(ratio) - off + ratio * _EULER + tail


@register_kl(Exponential, Exponential)
def _exponential(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


@register_kl(Pareto, Pareto)
def _pareto(p: Any, q: Any) -> Tensor:
    ratio = q.alpha / p.alpha
    found = q.alpha * log(p.scale / q.scale) - log(ratio) + ratio - 1
    return where(p.scale < q.scale, math.inf, found)


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Tensor:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), math.inf)


@register_kl(Gamma, Gamma)
def _gamma(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    found = b * log(p.rate / q.rate) + lgamma(b) - lgamma(a) + (a - b) * digamma(a)
    return found + (q.rate - p.rate) * (a / p.rate)


@register_kl(Beta, Beta)
def _beta(p: Any, q: Any) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    found = betaln(c, d) - betaln(a, b) + (a - c) * digamma(a) + (b - d) * digamma(b)
    return found + (c + d - a - b) * digamma(a + b)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    means = digamma(a) - digamma(a.sum(axis=-1, keepdims=True))
    return q.log_normalizer() - p.log_normalizer() + ((a - b) * means).sum(axis=-1)


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Tensor:
    spread = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    off = solve_triangular(q.scale_tril, (q.loc - p.loc)[..., None], upper=False)
    square = (spread * spread).sum(axis=(-2, -1)) + (off * off).sum(axis=(-2, -1))
    return _half_log_det(q.scale_tril) - _half_log_det(p.scale_tril) + 0.5 * (square - p.event_shape[0])


def _half_log_det(scale_tril: Tensor) -> Tensor:
    """Return half of the logarithm of the determinant of a covariance with this factor."""
    return log(diagonal(scale_tril)).sum(axis=-1)


@register_kl(Wishart, Wishart)
def _wishart(p: Any, q: Any) -> Tensor:
    size = p.event_shape[0]
    spread = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    volume = q.df * (_half_log_det(q.scale_tril) - _half_log_det(p.scale_tril))
    shapes = mvlgamma(q.df / 2, size) - mvlgamma(p.df / 2, size)
    slopes = digamma((p.df[..., None] - arange(size, dtype=p.dtype)) / 2).sum(axis=-1)
    trace = (spread * spread).sum(axis=(-2, -1))
    return volume + shapes + p.df / 2 * (trace - size) + (p.df - q.df) / 2 * slopes


def _chance(d: Any, one: bool) -> Tensor:
    """Return the probability of a one or of a zero, each to full precision where logits are given."""
    if one:
        return d.probs  # type: ignore[no-any-return]
    return 1 - d.probs if "probs" in d._given else sigmoid(-d.logits)  # type: ignore[no-any-return]


def _log_chance(d: Any, one: bool, skip: Tensor) -> Tensor:
    """Return the logarithm of `_chance`, of probabilities unclamped; what it is where `skip` is not asked."""
    if "probs" not in d._given:
        return log_expit(d.logits if one else -d.logits)  # type: ignore[no-any-return]
    return log(where(skip, 1.0, d.probs)) if one else log1p(-where(skip, 0.0, d.probs))


def _share(p: Any, q: Any, one: bool) -> Tensor:
    """Return what an outcome adds: nothing where p excludes it, infinity where q alone does."""
    chance = _chance(p, one)
    never = chance == 0
    ratio = _log_chance(p, one, never) - _log_chance(q, one, never)
    return where(never, 0.0, chance * ratio)  # type: ignore[no-any-return]


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Tensor:
    return _share(p, q, True) + _share(p, q, False)


@register_kl(Binomial, Binomial)
def _binomial(p: Any, q: Any) -> Tensor:
    """Infinite where q takes fewer tries than p; where it takes more there is no closed form."""
    if bool((q.total_count > p.total_count).any()):
        raise _missing(p, q)
    found = where(p.total_count == 0, 0.0, p.total_count * _bernoulli(p, q))
    return where(p.total_count > q.total_count, math.inf, found)


@register_kl(Geometric, Geometric)
def _geometric(p: Any, q: Any) -> Tensor:
    """The mean number of failures times what each adds, and what the success adds."""
    failures = 1 / p.probs - 1 if "probs" in p._given else exp(-p.logits)
    never, none = failures == 0, p.probs < 0
    ratio = _log_chance(p, False, never) - _log_chance(q, False, never)
    nothing = never | ((failures == math.inf) & (ratio == 0))
    success = _log_chance(p, True, none) - _log_chance(q, True, none)
    return success + where(nothing, 0.0, failures * ratio)  # type: ignore[no-any-return]


@register_kl(Poisson, Poisson)
def _poisson(p: Any, q: Any) -> Tensor:
    never = p.rate == 0
    ratio = log(where(never, 1.0, p.rate)) - log(where(never, 1.0, q.rate))
    return where(never, 0.0, p.rate * ratio) - (p.rate - q.rate)  # type: ignore[no-any-return]


@register_kl(OneHotCategorical, OneHotCategorical)
@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Tensor:
    never = p.probs == 0
    first, second = (
        log(where(never, 1.0, d.probs)) if "probs" in d._given else where(never, 0.0, d.logits)
        for d in (p, q)
    )
    return where(never, 0.0, p.probs * (first - second)).sum(axis=-1)  # type: ignore[no-any-return]


# -- of two families -----------------------------------------------------------------------------------------
def _to_normal(p: Any, q: Any) -> Tensor:
    off = ((p.mean - q.loc) ** 2 + p.variance) / q.scale**2  # the mean square, in q's deviations
    return -p.entropy() + 0.5 * math.log(2 * math.pi) + log(q.scale) + 0.5 * off


def _to_exponential(p: Any, q: Any) -> Tensor:
    return -p.entropy() - log(q.rate) + q.rate * p.mean


def _infinite(p: Any, q: Any) -> Tensor:
    return 0 * (p.mean + q.mean) + math.inf


_p: type[Distribution]
for _p in (Beta, Exponential, Gamma, Gumbel, Laplace, Uniform):
    register_kl(_p, Normal)(_to_normal)
for _p in (Beta, Gamma):
    register_kl(_p, Exponential)(_to_exponential)
for _p in (Exponential, Gamma, Gumbel, Laplace, Normal):  # they give weight to what q excludes
    register_kl(_p, Uniform)(_infinite)
    register_kl(_p, Beta)(_infinite)
for _p in (Gumbel, Laplace, Normal):
    register_kl(_p, Exponential)(_infinite)
    register_kl(_p, Gamma)(_infinite)


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    a = q.concentration
    return ratio + lgamma(a) - a * log(ratio) + (a - 1) * _EULER - 1


@register_kl(Normal, Laplace)
def _normal_laplace(p: Any, q: Any) -> Tensor:
    """The mean of |x - loc| under p is that of a folded normal variable."""
    off = (p.loc - q.loc) / p.scale
    folded = math.sqrt(2 / math.pi) * exp(-0.5 * off * off) + off * erf(off * math.sqrt(0.5))
    return -p.entropy() + log(2 * q.scale) + p.scale / q.scale * folded


@register_kl(Uniform, Beta)
def _uniform_beta(p: Any, q: Any) -> Tensor:
    """The means of log x and log(1 - x) under p, by the function x log x."""
    width = p.high - p.low
    above = (xlogy(p.high, p.high) - xlogy(p.low, p.low)) / width - 1
    below = (xlogy(1 - p.low, 1 - p.low) - xlogy(1 - p.high, 1 - p.high)) / width - 1
    a, b = q.concentration1, q.concentration0
    found = -p.entropy() - (a - 1) * above - (b - 1) * below + betaln(a, b)
    return where((p.low < 0) | (p.high > 1), math.inf, found)
