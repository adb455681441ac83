"""Distributions made of gamma variables."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stratal.distributions import draws
from stratal.distributions.derived import derived
from stratal.distributions.distribution import NONNEGATIVE, POSITIVE, REAL, SIMPLEX, UNIT, Distribution, Rule
from stratal.special import betainc, betaln, digamma, gammainc, gammaincc, lgamma, xlog1py, xlogy
from stratal.tensor.api.info import finfo
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import exp, log, log1p, maximum, sigmoid, where
from stratal.tensor.functions.reductions import softmax
from stratal.tensor.tensor import Tensor


def positive(x: Tensor) -> Tensor:
    """Return draws that are no less than the least normal number, as in PyTorch: they have logarithms."""
    return maximum(x, finfo(x.dtype).tiny)


class _ShapeAndRate(Distribution):
    """A distribution by the two parameters of gamma variables."""

    parameters: ClassVar[dict[str, Rule]] = {"concentration": POSITIVE, "rate": POSITIVE}
    has_rsample = True
    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, concentration=concentration, rate=rate)


class Gamma(_ShapeAndRate):
    """rate^a x^(a-1) exp(-rate x) / gamma(a), a the `concentration`."""

    support = NONNEGATIVE

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = draws.log_gamma(self._wide(self.concentration, sample_shape))
        return positive(exp(drawn - log(self.rate)))

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._asked(value), self.concentration
        return xlogy(a, self.rate) + xlogy(a - 1, x) - self.rate * x - lgamma(a)

    def cdf(self, value: Any) -> Tensor:
        return gammainc(self.concentration, self.rate * self._asked(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1 - a) * digamma(a)

    mean = derived(lambda d: d.concentration / d.rate)
    mode = derived(lambda d: maximum((d.concentration - 1) / d.rate, 0.0))
    variance = derived(lambda d: d.concentration / (d.rate * d.rate))


class Chi2(Gamma):
    """The sum of squares of `df` standard normal variables."""

    parameters: ClassVar[dict[str, Rule]] = {"df": POSITIVE}
    df: Tensor

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        Distribution.__init__(self, validate_args, df=df)
        self.concentration, self.rate = 0.5 * self.df, 0.0 * self.df + 0.5


class InverseGamma(_ShapeAndRate):
    """One over a gamma variable of the same parameters."""

    support = POSITIVE

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = draws.log_gamma(self._wide(self.concentration, sample_shape))
        return positive(exp(log(self.rate) - drawn))

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._asked(value), self.concentration
        return xlogy(a, self.rate) - (a + 1) * log(x) - self.rate / x - lgamma(a)

    def cdf(self, value: Any) -> Tensor:
        return gammaincc(self.concentration, self.rate / self._asked(value))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + log(self.rate) + lgamma(a) - (1 + a) * digamma(a)

    @derived
    def mean(self) -> Tensor:
        a = self.concentration
        return where(a > 1, self.rate / where(a > 1, a - 1, 1.0), math.inf)

    mode = derived(lambda d: d.rate / (d.concentration + 1))

    @derived
    def variance(self) -> Tensor:
        a = self.concentration
        safe = where(a > 2, a, 3.0)
        return where(a > 2, (self.rate / (safe - 1)) ** 2 / (safe - 2), math.inf)


class Beta(Distribution):
    """x^(a-1) (1-x)^(b-1) / B(a, b) in [0, 1], a `concentration1` and b `concentration0`."""

    parameters: ClassVar[dict[str, Rule]] = {"concentration1": POSITIVE, "concentration0": POSITIVE}
    support = UNIT
    has_rsample = True
    concentration1: Tensor
    concentration0: Tensor

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, concentration1=concentration1, concentration0=concentration0)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        first, second = (
            draws.log_gamma(self._wide(c, sample_shape)) for c in (self.concentration1, self.concentration0)
        )
        return sigmoid(first - second)

    def log_prob(self, value: Any) -> Tensor:
        x, a, b = self._asked(value), self.concentration1, self.concentration0
        return xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b)

    def cdf(self, value: Any) -> Tensor:
        return betainc(self.concentration1, self.concentration0, self._asked(value))

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return betaln(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b) + (a + b - 2) * digamma(a + b)

    mean = derived(lambda d: d.concentration1 / (d.concentration1 + d.concentration0))

    @derived
    def mode(self) -> Tensor:
        a, b = maximum(self.concentration1 - 1, 0.0), maximum(self.concentration0 - 1, 0.0)
        corner = (self.concentration1 >= self.concentration0).to(self.dtype)
        corners = (self.concentration1 < 1) & (self.concentration0 < 1)
        return where(corners, corner, a / where(corners, 1.0, a + b))

    @derived
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total * total * (total + 1))


class Dirichlet(Distribution):
    """Shares of a whole, of density in proportion to the product of x^(concentration - 1)."""

    parameters: ClassVar[dict[str, Rule]] = {"concentration": POSITIVE}
    own_axes: ClassVar[dict[str, int]] = {"concentration": 1}
    support = SIMPLEX
    has_rsample = True
    concentration: Tensor

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, concentration=concentration)
        self.event_shape = self.concentration.shape[-1:]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return softmax(draws.log_gamma(self._wide(self.concentration, sample_shape)), axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        a = self.concentration
        return xlogy(a - 1, self._asked(value)).sum(axis=-1) - self.log_normalizer()

    def log_normalizer(self) -> Tensor:
        """Return the logarithm of the multivariate beta function of the concentrations."""
        return lgamma(self.concentration).sum(axis=-1) - lgamma(self.concentration.sum(axis=-1))

    def entropy(self) -> Tensor:
        a = self.concentration
        total = a.sum(axis=-1)
        apart = (total - a.shape[-1]) * digamma(total) - ((a - 1) * digamma(a)).sum(axis=-1)
        return self.log_normalizer() + apart

    mean = derived(lambda d: d.concentration / d.concentration.sum(axis=-1, keepdims=True))

    @derived
    def mode(self) -> Tensor:
        above = maximum(self.concentration - 1, 0.0)
        total = above.sum(axis=-1, keepdims=True)
        corner = self.concentration.argmax(axis=-1, keepdims=True) == arange(self.event_shape[0])
        nowhere = (self.concentration < 1).all(axis=-1, keepdims=True)
        return where(nowhere, corner.to(self.dtype), above / where(nowhere, 1.0, total))

    @derived
    def variance(self) -> Tensor:
        total = self.concentration.sum(axis=-1, keepdims=True)
        return self.concentration * (total - self.concentration) / (total * total * (total + 1))


class StudentT(Distribution):
    """A normal variable over the root of a chi-squared one of `df` degrees of freedom over `df`."""

    parameters: ClassVar[dict[str, Rule]] = {"df": POSITIVE, "loc": REAL, "scale": POSITIVE}
    has_rsample = True
    df: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, df=df, loc=loc, scale=scale)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        half = self._wide(0.5 * self.df, sample_shape)
        noise = random.standard_normal(half.shape, dtype=self.dtype)
        return self.loc + self.scale * noise * exp(0.5 * (log(half) - draws.log_gamma(half)))

    def _standard(self, value: Any) -> Tensor:
        return (self._asked(value) - self.loc) / self.scale

    def log_prob(self, value: Any) -> Tensor:
        z = self._standard(value)
        norm = log(self.scale) + 0.5 * log(self.df) + betaln(0.5 * self.df, 0.5)
        return -0.5 * (self.df + 1) * log1p(z * z / self.df) - norm

    def cdf(self, value: Any) -> Tensor:
        z = self._standard(value)
        away = where(z == 0, 1.0, z)
        tail = 0.5 * betainc(0.5 * self.df, 0.5, self.df / (self.df + away * away))
        near = 0.5 + z * exp(-0.5 * log(self.df) - betaln(0.5 * self.df, 0.5))  # so that 0 has a derivative
        return where(z == 0, near, where(z < 0, tail, 1 - tail))

    def entropy(self) -> Tensor:
        half, above = 0.5 * self.df, 0.5 * (self.df + 1)
        spread = log(self.scale) + 0.5 * log(self.df) + betaln(half, 0.5)
        return spread + above * (digamma(above) - digamma(half))

    mean = derived(lambda d: where(d.df > 1, d.loc, math.nan))
    mode = derived(lambda d: d.loc)

    @derived
    def variance(self) -> Tensor:
        safe = where(self.df > 2, self.df, 3.0)
        beyond = where(self.df > 1, math.inf, math.nan)
        return where(self.df > 2, self.scale * self.scale * safe / (safe - 2), beyond)


class FisherSnedecor(Distribution):
    """The ratio of two chi-squared variables, each over its degrees of freedom."""

    parameters: ClassVar[dict[str, Rule]] = {"df1": POSITIVE, "df2": POSITIVE}
    support = NONNEGATIVE
    has_rsample = True
    df1: Tensor
    df2: Tensor

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, df1=df1, df2=df2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        over, under = (self._wide(0.5 * df, sample_shape) for df in (self.df1, self.df2))
        ratio = (draws.log_gamma(over) - log(over)) - (draws.log_gamma(under) - log(under))
        return positive(exp(ratio))

    def log_prob(self, value: Any) -> Tensor:
        x, ratio = self._asked(value), self.df1 / self.df2
        first, second = 0.5 * self.df1, 0.5 * self.df2
        return (
            first * log(ratio)
            + xlogy(first - 1, x)
            - (first + second) * log1p(ratio * x)
            - betaln(first, second)
        )

    def cdf(self, value: Any) -> Tensor:
        z = self.df1 * self._asked(value)
        return betainc(0.5 * self.df1, 0.5 * self.df2, z / (z + self.df2))

    mean = derived(lambda d: where(d.df2 > 2, d.df2 / where(d.df2 > 2, d.df2 - 2, 1.0), math.nan))

    @derived
    def mode(self) -> Tensor:
        inside = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return where(self.df1 > 2, inside, math.nan)

    @derived
    def variance(self) -> Tensor:
        safe = where(self.df2 > 4, self.df2, 5.0)
        found = 2 * safe * safe * (self.df1 + safe - 2) / (self.df1 * (safe - 2) ** 2 * (safe - 4))
        return where(self.df2 > 4, found, math.nan)
