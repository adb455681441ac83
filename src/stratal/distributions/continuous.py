"""Distributions of real numbers, each by its density, its inverse and its moments."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stratal.distributions import draws
from stratal.distributions.derived import derived
from stratal.distributions.distribution import NONNEGATIVE, POSITIVE, REAL, Distribution, Located, Rule
from stratal.special import erfinv, i0e, i1e, ndtr
from stratal.tensor.functions import random
from stratal.tensor.functions.elementwise import atan, cos, exp, expm1, log, log1p, sign, tan, where
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

_EULER = 0.5772156649015329


class _LocationScale(Located):
    """A distribution moved by `loc` and stretched by `scale`."""

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "scale": POSITIVE}
    has_rsample = True
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, loc=loc, scale=scale)

    def _standard(self, value: Any) -> Tensor:
        return (self._asked(value) - self.loc) / self.scale


class Normal(_LocationScale):
    """exp(-z^2 / 2) / (scale sqrt(2 pi)), z = (x - loc) / scale."""

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = random.standard_normal(self._extended(sample_shape), dtype=self.dtype)
        return self.loc + self.scale * noise

    def log_prob(self, value: Any) -> Tensor:
        z = self._standard(value)
        return -0.5 * z * z - log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Any) -> Tensor:
        return ndtr(self._standard(value))

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * math.sqrt(2) * erfinv(2.0 * value - 1.0)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * math.log(2 * math.pi) + log(self.scale)

    variance = derived(lambda d: d.scale * d.scale)


class Laplace(_LocationScale):
    """exp(-|x - loc| / scale) / (2 scale)."""

    def log_prob(self, value: Any) -> Tensor:
        return -abs(self._standard(value)) - log(2 * self.scale)

    def cdf(self, value: Any) -> Tensor:
        z = self._standard(value)
        return 0.5 - 0.5 * sign(z) * expm1(-abs(z))

    def icdf(self, value: Any) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * sign(term) * log1p(-2 * abs(term))

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)

    variance = derived(lambda d: 2 * d.scale * d.scale)


class Cauchy(_LocationScale):
    """1 / (pi scale (1 + z^2)), z = (x - loc) / scale; without mean and variance (NaN, infinity)."""

    def log_prob(self, value: Any) -> Tensor:
        z = self._standard(value)
        return -math.log(math.pi) - log(self.scale) - log1p(z * z)

    def cdf(self, value: Any) -> Tensor:
        return atan(self._standard(value)) / math.pi + 0.5

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * tan(math.pi * (value - 0.5))

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + log(self.scale)

    mean = derived(lambda d: d.loc * math.nan)
    variance = derived(lambda d: d.scale * math.inf)


class Gumbel(_LocationScale):
    """exp(-z - exp(-z)) / scale, z = (x - loc) / scale: the limit of greatest values."""

    def log_prob(self, value: Any) -> Tensor:
        z = self._standard(value)
        return -z - exp(-z) - log(self.scale)

    def cdf(self, value: Any) -> Tensor:
        return exp(-exp(-self._standard(value)))

    def icdf(self, value: Any) -> Tensor:
        return self.loc - self.scale * log(-log(value))

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + _EULER)

    mean = derived(lambda d: d.loc + d.scale * _EULER)
    variance = derived(lambda d: math.pi**2 / 6 * d.scale * d.scale)


class _Half(Distribution):
    """The absolute value of a variable about 0 that `scale` stretches."""

    parameters: ClassVar[dict[str, Rule]] = {"scale": POSITIVE}
    support = NONNEGATIVE
    has_rsample = True
    scale: Tensor

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, scale=scale)

    mode = derived(lambda d: d.scale * 0.0)


class HalfNormal(_Half):
    """The absolute value of a normal variable of mean 0 and deviation `scale`."""

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.scale * abs(random.standard_normal(self._extended(sample_shape), dtype=self.dtype))

    def log_prob(self, value: Any) -> Tensor:
        z = self._asked(value) / self.scale
        inside = -0.5 * z * z - log(self.scale) + 0.5 * math.log(2 / math.pi)
        return where(z >= 0, inside, -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return 2 * ndtr(self._asked(value) / self.scale) - 1

    def icdf(self, value: Any) -> Tensor:
        return self.scale * math.sqrt(2) * erfinv(value)

    def entropy(self) -> Tensor:
        return 0.5 * math.log(math.pi / 2) + 0.5 + log(self.scale)

    mean = derived(lambda d: d.scale * math.sqrt(2 / math.pi))
    variance = derived(lambda d: d.scale * d.scale * (1 - 2 / math.pi))


class HalfCauchy(_Half):
    """The absolute value of a Cauchy variable about 0; without mean and variance (infinite)."""

    def log_prob(self, value: Any) -> Tensor:
        z = self._asked(value) / self.scale
        return where(z >= 0, math.log(2 / math.pi) - log(self.scale) - log1p(z * z), -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return 2 / math.pi * atan(self._asked(value) / self.scale)

    def icdf(self, value: Any) -> Tensor:
        return self.scale * tan(math.pi / 2 * value)

    def entropy(self) -> Tensor:
        return math.log(2 * math.pi) + log(self.scale)

    mean = derived(lambda d: d.scale * math.inf)
    variance = derived(lambda d: d.scale * math.inf)


class Exponential(Distribution):
    """rate * exp(-rate * x)."""

    parameters: ClassVar[dict[str, Rule]] = {"rate": POSITIVE}
    support = NONNEGATIVE
    has_rsample = True
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, rate=rate)

    def log_prob(self, value: Any) -> Tensor:
        return log(self.rate) - self.rate * self._asked(value)

    def cdf(self, value: Any) -> Tensor:
        return -expm1(-self.rate * self._asked(value))

    def icdf(self, value: Any) -> Tensor:
        return -log1p(-value) / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - log(self.rate)

    mean = derived(lambda d: 1.0 / d.rate)
    mode = derived(lambda d: d.rate * 0.0)
    variance = derived(lambda d: 1.0 / (d.rate * d.rate))


class Uniform(Distribution):
    """1 / (high - low) in [low, high]."""

    parameters: ClassVar[dict[str, Rule]] = {"low": REAL, "high": REAL}
    has_rsample = True
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, low=low, high=high)
        self.high = self._check("high", self.high, ("above low", lambda v: v > self.low))

    def log_prob(self, value: Any) -> Tensor:
        x = self._asked(value)
        return where((x >= self.low) & (x < self.high), -log(self.high - self.low), -math.inf)

    def cdf(self, value: Any) -> Tensor:
        return ((self._asked(value) - self.low) / (self.high - self.low)).clip(0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        return self.low + value * (self.high - self.low)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)

    mean = derived(lambda d: (d.low + d.high) / 2)
    mode = derived(lambda d: d.low * math.nan)
    variance = derived(lambda d: (d.high - d.low) ** 2 / 12)


class VonMises(Located):
    """exp(concentration cos(x - loc)) / (2 pi I0(concentration)) of angles in [-pi, pi]."""

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "concentration": POSITIVE}
    concentration: Tensor

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, loc=loc, concentration=concentration)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            turned = draws.von_mises(self._wide(self.concentration, sample_shape)) + self.loc
            return ((turned + math.pi) % (2 * math.pi) - math.pi).detach()

    def log_prob(self, value: Any) -> Tensor:
        less = cos(self._asked(value) - self.loc) - 1
        return self.concentration * less - math.log(2 * math.pi) - log(i0e(self.concentration))

    def entropy(self) -> Tensor:
        ratio = i1e(self.concentration) / i0e(self.concentration)
        return math.log(2 * math.pi) + log(i0e(self.concentration)) + self.concentration * (1 - ratio)

    @derived
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1 - i1e(self.concentration) / i0e(self.concentration)
