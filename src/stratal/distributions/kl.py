"""Divergences of Kullback and Leibler, in closed form, for pairs of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stratal.distributions.continuous import Exponential, HalfNormal, Laplace, LogNormal, Normal, Uniform
from stratal.distributions.discrete import Bernoulli, Categorical, Geometric, softplus
from stratal.distributions.distribution import Distribution, NotGivenError
from stratal.distributions.independent import Independent
from stratal.tensor.elementwise import exp, log, log1p, where
from stratal.tensor.tensor import Tensor


def _normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


def _half_normal(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio - 1 - log(ratio))


def _laplace(p: Any, q: Any) -> Tensor:
    apart = abs(p.loc - q.loc)
    shared = (p.scale * exp(-apart / p.scale) + apart) / q.scale
    return shared - log(p.scale / q.scale) - 1


def _exponential(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - log(ratio)


def _uniform(p: Any, q: Any) -> Tensor:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), math.inf)


def _bernoulli(p: Any, q: Any) -> Tensor:
    return p.probs * (p.logits - q.logits) - softplus(p.logits) + softplus(q.logits)


def _geometric(p: Any, q: Any) -> Tensor:
    return -p.entropy() - log1p(-q.probs) / p.probs - q.logits


def _categorical(p: Any, q: Any) -> Tensor:
    return (p.probs * (p.logits - q.logits)).sum(axis=-1)


DIVERGENCES: dict[type[Distribution], Callable[[Any, Any], Tensor]] = {
    Bernoulli: _bernoulli,
    Categorical: _categorical,
    Exponential: _exponential,
    Geometric: _geometric,
    HalfNormal: _half_normal,
    Laplace: _laplace,
    LogNormal: _normal,
    Normal: _normal,
    Uniform: _uniform,
}


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Return the divergence of `q` from `p`, both of one class, for each element of the batch."""
    if isinstance(p, Independent) and isinstance(q, Independent) and p.event_shape == q.event_shape:
        return p.sum_events(kl_divergence(p.base_dist, q.base_dist))
    if type(p) is not type(q) or type(p) not in DIVERGENCES:
        raise NotGivenError(
            "kl_divergence: no closed form", got=f"{type(p).__name__}, {type(q).__name__}",
            hint="for two of " + ", ".join(sorted(c.__name__ for c in DIVERGENCES)),
        )  # fmt: skip
    return DIVERGENCES[type(p)](p, q)
