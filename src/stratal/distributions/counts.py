"""Distributions of counts: of events, of tries that succeed, of each of several classes."""

from __future__ import annotations

from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError
from stratal.distributions import draws
from stratal.distributions.derived import derived
from stratal.distributions.discrete import Categorical, Odds
from stratal.distributions.distribution import (
    COUNT,
    NONNEGATIVE,
    POSITIVE,
    REAL,
    UNIT,
    Distribution,
    Rule,
    sizes,
)
from stratal.special import lgamma, log_expit, xlogy
from stratal.tensor.composites.arithmetic import softplus
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import exp, floor, maximum, minimum, where
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


class Poisson(Distribution):
    """rate^k exp(-rate) / k!."""

    parameters: ClassVar[dict[str, Rule]] = {"rate": NONNEGATIVE}
    support = COUNT
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, rate=rate)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return draws.poisson(self._wide(self.rate, sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        k = self._asked(value)
        return xlogy(k, self.rate) - self.rate - lgamma(k + 1)

    mean = derived(lambda d: d.rate)
    mode = derived(lambda d: floor(d.rate))
    variance = derived(lambda d: d.rate)


class Binomial(Odds):
    """How many of `total_count` tries of probability `probs` succeed."""

    parameters: ClassVar[dict[str, Rule]] = {"total_count": COUNT, "probs": UNIT, "logits": REAL}
    support = COUNT
    total_count: Tensor

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args, total_count=total_count)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return draws.binomial(
            self._wide(self.total_count, sample_shape), self._wide(self.probs, sample_shape)
        )

    def log_prob(self, value: Any) -> Tensor:
        n = self.total_count
        k = self._check("value", self._asked(value), ("at most total_count", lambda v: v <= n))
        ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        return ways + k * self.logits - n * softplus(self.logits)

    def entropy(self) -> Tensor:
        """Return the entropy, a sum over all counts: all distributions must have one `total_count`."""
        chances = self.log_prob(self.enumerate_support(expand=False))
        return -(exp(chances) * chances).sum(axis=0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        most = int(self.total_count.max())
        if int(self.total_count.min()) != most:
            raise AttributeValueError(
                "Binomial: the values of different counts of tries are no array",
                got=f"total_count from {int(self.total_count.min())} to {most}",
            )
        return self._enumerated(arange(most + 1, dtype=self.dtype), expand)

    mean = derived(lambda d: d.total_count * d.probs)
    mode = derived(lambda d: minimum(floor((d.total_count + 1) * d.probs), d.total_count))
    variance = derived(lambda d: d.total_count * d.probs * (1 - d.probs))


class NegativeBinomial(Odds):
    """How many tries of probability `probs` succeed before `total_count`, maybe a fraction, have failed."""

    parameters: ClassVar[dict[str, Rule]] = {
        "total_count": POSITIVE,
        "probs": ("in [0, 1)", lambda p: (p >= 0) & (p < 1)),
        "logits": REAL,
    }
    support = COUNT
    total_count: Tensor

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits, validate_args, total_count=total_count)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            rate = exp(draws.log_gamma(self._wide(self.total_count, sample_shape)) + self.logits)
            return draws.poisson(rate)

    def log_prob(self, value: Any) -> Tensor:
        k, n = self._asked(value), self.total_count
        ways = lgamma(n + k) - lgamma(k + 1) - lgamma(n)
        return ways + n * log_expit(-self.logits) + k * log_expit(self.logits)

    mean = derived(lambda d: d.total_count * exp(d.logits))
    mode = derived(lambda d: maximum(floor((d.total_count - 1) * exp(d.logits)), 0.0))
    variance = derived(lambda d: d.mean / exp(log_expit(-d.logits)))


class Multinomial(Categorical):
    """How often each class was drawn in `total_count` draws; the event has the axis of classes."""

    support = ("whole numbers from 0 up", lambda x: (x >= 0) & (x % 1 == 0))

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        if not hasattr(total_count, "__index__") or int(total_count) < 0:
            raise AttributeValueError("Multinomial: total_count is a number of draws", got=repr(total_count))
        super().__init__(probs, logits, validate_args)
        self.total_count, self.event_shape = int(total_count), (self.num_events,)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            classes = self._index((self.total_count, *sizes(sample_shape)))
            return (classes[..., None] == arange(self.num_events)).to(self.dtype).sum(axis=0).detach()

    def log_prob(self, value: Any) -> Tensor:
        complete: Rule = ("of sum total_count", lambda v: v.sum(axis=-1) == self.total_count)
        x = self._check("value", self._asked(value), complete)
        ways = lgamma(x.sum(axis=-1) + 1) - lgamma(x + 1).sum(axis=-1)
        return ways + where(x == 0, 0.0, x * where(x == 0, 0.0, self.logits)).sum(axis=-1)

    def entropy(self) -> Tensor:
        """Return the entropy, by a sum over the counts of each class."""
        n, count = self.total_count, arange(1.0, self.total_count + 1.0, dtype=self.dtype)
        one = Binomial(n, self.probs[..., None], validate_args=False)
        repeats = (exp(one.log_prob(count)) * lgamma(count + 1)).sum(axis=(-1, -2))
        return n * super().entropy() - lgamma(Tensor(n + 1.0, dtype=self.dtype)) + repeats

    mean = derived(lambda d: d.total_count * d.probs)
    variance = derived(lambda d: d.total_count * d.probs * (1 - d.probs))
    mode = derived(lambda d: d._missing("mode"))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._missing("list of its values")

    def expand(self, batch_shape: Any) -> Any:
        wide = Categorical(logits=self.logits, validate_args=False).expand(batch_shape)
        return Multinomial(self.total_count, logits=wide.logits, validate_args=False)
