"""Distributions of zeros and ones, of counts and of classes."""

from __future__ import annotations

from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError
from stratal.distributions.derived import derived
from stratal.distributions.distribution import BIT, COUNT, NONNEGATIVE, REAL, UNIT, Distribution, Rule
from stratal.special import log_softmax, xlogy
from stratal.tensor.build import broadcast_shapes
from stratal.tensor.composites.arithmetic import softplus
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import exp, floor, log, log1p, maximum, minimum, sigmoid, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

_EDGE = 1.1920929e-07  # PyTorch's clamp of probabilities before their logarithms: float32's epsilon


def one_of(name: str, probs: Any, logits: Any) -> dict[str, Any]:
    """Return the one parameter of the two that is given. Raises: AttributeValueError."""
    if (probs is None) == (logits is None):
        raise AttributeValueError(
            f"{name}: takes probs or logits", got="both" if probs is not None else "neither"
        )
    return {"logits": logits} if probs is None else {"probs": probs}


class Odds(Distribution):
    """A distribution of one probability, given as itself or as the logarithm of its odds."""

    parameters: ClassVar[dict[str, Rule]] = {"probs": UNIT, "logits": REAL}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None, **others: Any
    ) -> None:
        super().__init__(validate_args, **others, **one_of(type(self).__name__, probs, logits))
        if probs is None:
            self.probs: Tensor = sigmoid(self.logits)
        else:
            safe = minimum(maximum(self.probs, _EDGE), 1 - _EDGE)
            self.logits: Tensor = log(safe) - log1p(-safe)


class Bernoulli(Odds):
    """1 with probability `probs`, else 0."""

    support = BIT

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            drawn = random.uniform(self._extended(sample_shape), dtype=self.dtype)
            return (drawn < self.probs).to(self.dtype).detach()

    def log_prob(self, value: Any) -> Tensor:
        return self._asked(value) * self.logits - softplus(self.logits)

    def entropy(self) -> Tensor:
        return softplus(self.logits) - self.probs * self.logits

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(arange(2, dtype=self.dtype), expand)

    mean = derived(lambda d: d.probs)

    @derived
    def mode(self) -> Tensor:
        one = (self.probs > 0.5).to(self.dtype)
        return where(self.probs == 0.5, float("nan"), one)

    variance = derived(lambda d: d.probs * (1 - d.probs))


class Geometric(Odds):
    """How many tries of probability `probs` fail before one succeeds."""

    parameters: ClassVar[dict[str, Rule]] = {
        "probs": ("in (0, 1]", lambda p: (p > 0) & (p <= 1)),
        "logits": REAL,
    }
    support = COUNT

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return floor(log(self._uniform(sample_shape)) / log1p(-self.probs)).detach()

    def log_prob(self, value: Any) -> Tensor:
        x = self._asked(value)
        failed = where((self.probs == 1) & (x == 0), 0.0, log1p(-self.probs))
        return where(x == 0, 0.0, x * failed) + log(self.probs)

    def entropy(self) -> Tensor:
        fails = 1 - self.probs
        return -(xlogy(fails, fails) + xlogy(self.probs, self.probs)) / self.probs

    mean = derived(lambda d: 1.0 / d.probs - 1.0)
    mode = derived(lambda d: d.probs * 0.0)
    variance = derived(lambda d: (1.0 / d.probs - 1.0) / d.probs)


class Categorical(Distribution):
    """One of as many classes as the last axis of `probs` (weights, divided by their sum) or `logits` has."""

    parameters: ClassVar[dict[str, Rule]] = {"probs": NONNEGATIVE, "logits": REAL}
    own_axes: ClassVar[dict[str, int]] = {"probs": 1, "logits": 1}
    support = COUNT

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, **one_of(type(self).__name__, probs, logits))
        if probs is None:
            self.logits: Tensor = log_softmax(self.logits, axis=-1)
            self.probs: Tensor = exp(self.logits)
        else:
            self.probs = self.probs / self.probs.sum(axis=-1, keepdims=True)
            self.logits = log(minimum(maximum(self.probs, _EDGE), 1 - _EDGE))
        self.num_events = int(self.probs.shape[-1])

    def _index(self, sample_shape: Any) -> Tensor:
        return random.categorical(self._wide(self.logits, sample_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self._index(sample_shape).detach()

    def log_prob(self, value: Any) -> Tensor:
        below: Rule = (f"below {self.num_events}", lambda v: v < self.num_events)
        x = self._check("value", self._asked(value).to("int64"), below)
        shape = broadcast_shapes("log_prob", x.shape, self.batch_shape)
        wide = broadcast_to(self.logits, (*shape, self.num_events))
        return take_along_axis(wide, broadcast_to(x, shape)[..., None], axis=-1)[..., 0]

    def entropy(self) -> Tensor:
        return -(self.probs * maximum(self.logits, -3.4e38)).sum(axis=-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(arange(self.num_events), expand)

    mean = derived(lambda d: d.probs[..., 0] * float("nan"))
    variance = derived(lambda d: d.probs[..., 0] * float("nan"))
    mode = derived(lambda d: d.probs.argmax(axis=-1))


class OneHotCategorical(Categorical):
    """A class as a row of zeros with a 1 at its place: the event has the axis of classes."""

    support = (
        "0 but for one 1 along the last axis",
        lambda x: ((x == 0) | (x == 1)).all(axis=-1) & (x.sum(axis=-1) == 1),
    )

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        self.event_shape = (self.num_events,)

    def _marked(self, classes: Tensor) -> Tensor:
        return (classes[..., None] == arange(self.num_events)).to(self.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._marked(super().sample(sample_shape))

    def log_prob(self, value: Any) -> Tensor:
        x = self._asked(value)
        return where(x > 0, self.logits, 0.0).sum(axis=-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._marked(super().enumerate_support(expand))

    mean = derived(lambda d: d.probs)
    variance = derived(lambda d: d.probs * (1 - d.probs))

    @derived
    def mode(self) -> Tensor:
        return self._marked(super().mode)


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """As OneHotCategorical; the derivative of draws is that of the probabilities (Bengio et al., 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
