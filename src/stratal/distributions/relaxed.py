"""Continuous relaxations of bits and classes, whose draws are differentiable by their probabilities.

See: Maddison, Mnih and Teh, "The concrete distribution", 2017; Jang, Gu and Poole, "Categorical
reparameterization with Gumbel-softmax", 2017.
"""

from __future__ import annotations

from typing import Any, ClassVar

from stratal.distributions.derived import derived
from stratal.distributions.discrete import Categorical, Odds
from stratal.distributions.distribution import REAL, SIMPLEX, UNIT, Distribution
from stratal.distributions.transformed import TransformedDistribution
from stratal.distributions.transforms import ExpTransform, SigmoidTransform
from stratal.special import lgamma, logit, logsumexp
from stratal.tensor.build import as_tensor
from stratal.tensor.composites.arithmetic import softplus
from stratal.tensor.functions import random
from stratal.tensor.functions.elementwise import log
from stratal.tensor.tensor import Tensor


class LogitRelaxedBernoulli(Odds):
    """Logarithms of the odds of a relaxed bit: those of `probs` plus logistic noise, over the temperature."""

    has_rsample = True
    support = REAL

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args)
        self.temperature = as_tensor(temperature, "LogitRelaxedBernoulli").to(self.dtype)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return (self.logits + logit(self._uniform(sample_shape))) / self.temperature

    def log_prob(self, value: Any) -> Tensor:
        off = self.logits - self._asked(value) * self.temperature
        return log(self.temperature) + off - 2 * softplus(off)

    def expand(self, batch_shape: Any) -> Any:
        wide = Odds(logits=self.logits, validate_args=False).expand(batch_shape)
        return LogitRelaxedBernoulli(self.temperature, logits=wide.logits, validate_args=False)


class ExpRelaxedCategorical(Categorical):
    """Logarithms of a relaxed class: logits plus Gumbel noise, over the temperature, normalised."""

    has_rsample = True
    support = REAL

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args)
        self.temperature = as_tensor(temperature, "ExpRelaxedCategorical").to(self.dtype)
        self.event_shape = (self.num_events,)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = random.gumbel(self._extended(sample_shape), dtype=self.dtype)
        scores = (self.logits + noise) / self.temperature
        return scores - logsumexp(scores, axis=-1, keepdims=True)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return Distribution.sample(self, sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        count = float(self.num_events)
        score = self.logits - self._asked(value) * self.temperature
        score = (score - logsumexp(score, axis=-1, keepdims=True)).sum(axis=-1)
        return score + lgamma(0 * self.temperature + count) + (count - 1) * log(self.temperature)

    def expand(self, batch_shape: Any) -> Any:
        wide = Categorical(logits=self.logits, validate_args=False).expand(batch_shape)
        return ExpRelaxedCategorical(self.temperature, logits=wide.logits, validate_args=False)


class _Relaxed(TransformedDistribution):
    """A relaxation, transformed from its logarithms."""

    raw: ClassVar[Any]
    map: ClassVar[Any]
    base_dist: Any

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self.raw(temperature, probs, logits, validate_args), self.map(), validate_args)

    temperature = derived(lambda d: d.base_dist.temperature)
    logits = derived(lambda d: d.base_dist.logits)
    probs = derived(lambda d: d.base_dist.probs)

    def expand(self, batch_shape: Any) -> Any:
        wide: Any = self.base_dist.expand(batch_shape)
        return type(self)(self.temperature, logits=wide.logits, validate_args=False)


class RelaxedBernoulli(_Relaxed):
    """A number in (0, 1) that is the nearer to 0 or 1 the lower the temperature."""

    raw, map, support = LogitRelaxedBernoulli, SigmoidTransform, UNIT


class RelaxedOneHotCategorical(_Relaxed):
    """Shares of a whole, one of which is the nearer to 1 the lower the temperature."""

    raw, map, support = ExpRelaxedCategorical, ExpTransform, SIMPLEX
