"""Distributions of what a map makes of a random variable."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError
from stratal.distributions.continuous import Exponential, Normal, Uniform
from stratal.distributions.derived import derived
from stratal.distributions.distribution import POSITIVE, REAL, SIMPLEX, UNIT, Distribution, Independent, Rule
from stratal.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    PowerTransform,
    StickBreakingTransform,
    Transform,
    composed,
    sum_last,
)
from stratal.special import betaln, digamma, lgamma
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.elementwise import exp, expm1, log, where
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

_EULER = 0.5772156649015329


class TransformedDistribution(Distribution):
    """What `transforms`, one or a list of them, make of a variable of `base_distribution`.

    Densities need maps with inverses and determinants, `cdf` and `icdf` monotone ones.
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Any, validate_args: bool | None = None
    ) -> None:
        self.transform = composed(transforms)
        self.transforms = self.transform.parts
        self.validate_args = self._validates(validate_args)
        base, t = base_distribution, self.transform
        whole = base.batch_shape + base.event_shape
        if len(whole) < t.domain_event_dim:
            raise AttributeValueError(
                "TransformedDistribution: the base has fewer axes than an event of the transforms",
                got=f"{list(whole)} for {t.domain_event_dim}",
                hint="base.expand(...) gives it more",
            )
        missing = t.domain_event_dim - len(base.event_shape)
        self.base_dist = Independent(base, missing) if missing > 0 else base
        extra = max(len(self.base_dist.event_shape) - t.domain_event_dim, 0)
        self._axes = t.codomain_event_dim + extra
        shape = t.forward_shape(whole)
        cut = len(shape) - self._axes
        self.batch_shape, self.event_shape = tuple(shape[:cut]), tuple(shape[cut:])
        self.has_rsample = base.has_rsample  # type: ignore[misc]  # as its base
        self.dtype = base.dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist}, {self.transforms})"

    def expand(self, batch_shape: Any) -> Any:
        shape = self.transform.inverse_shape((*batch_shape, *self.event_shape))
        cut = len(shape) - len(self.base_dist.event_shape)
        return TransformedDistribution(
            self.base_dist.expand(shape[:cut]), self.transforms, validate_args=False
        )

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.transform(self.base_dist.rsample(sample_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return self.transform(self.base_dist.sample(sample_shape)).detach()

    def log_prob(self, value: Any) -> Tensor:
        y, event = self._asked(value), self._axes
        total: Any = 0.0
        for t in reversed(self.transforms):
            x = t.inverse(y)
            event += t.domain_event_dim - t.codomain_event_dim
            total = total - sum_last(t.log_abs_det_jacobian(x, y), event - t.domain_event_dim)
            y = x
        return total + sum_last(self.base_dist.log_prob(y), event - len(self.base_dist.event_shape))

    def _turned(self, probability: Tensor) -> Tensor:
        """Return what lies on the other side where the transforms fall."""
        if self._axes or (isinstance(self.transform.sign, int) and self.transform.sign == 0):
            return self._missing("cdf or icdf, for its transforms are not monotone")
        falls = as_tensor(self.transform.sign) < 0
        return where(falls, 1 - probability, probability)

    def cdf(self, value: Any) -> Tensor:
        return self._turned(self.base_dist.cdf(self.transform.inverse(self._asked(value))))

    def icdf(self, value: Any) -> Tensor:
        return self.transform(self.base_dist.icdf(self._turned(value)))


class _Named(TransformedDistribution):
    """A transformed distribution with parameters of its own, made of them by `parts`."""

    def __init__(self, validate_args: bool | None = None, **given: Any) -> None:
        Distribution.__init__(self, validate_args, **given)
        base, transforms = self.parts()
        checks = self.validate_args
        super().__init__(base, transforms)
        self.validate_args = checks

    def parts(self) -> tuple[Distribution, Any]:
        """Return the base and the transforms."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return Distribution.__repr__(self)

    def expand(self, batch_shape: Any) -> Any:
        return Distribution.expand(self, batch_shape)


class _OfNormal(_Named):
    """What a map makes of a normal variable of mean `loc` and deviation `scale`."""

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "scale": POSITIVE}
    map: ClassVar[type[Transform]]
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, loc=loc, scale=scale)

    def parts(self) -> tuple[Distribution, Any]:
        return Normal(self.loc, self.scale, validate_args=False), self.map()


class LogNormal(_OfNormal):
    """The exponential of a normal variable of mean `loc` and deviation `scale`."""

    support, map = POSITIVE, ExpTransform

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc

    mean = derived(lambda d: exp(d.loc + d.scale * d.scale / 2))
    mode = derived(lambda d: exp(d.loc - d.scale * d.scale))

    @derived
    def variance(self) -> Tensor:
        square = self.scale * self.scale
        return expm1(square) * exp(2 * self.loc + square)


class LogisticNormal(_OfNormal):
    """Shares of a whole, one more than the normal variables they are made of by breaking a stick."""

    support, map = SIMPLEX, StickBreakingTransform

    def expand(self, batch_shape: Any) -> Any:
        shape = (*batch_shape, self.loc.shape[-1])
        return LogisticNormal(
            broadcast_to(self.loc, shape), broadcast_to(self.scale, shape), validate_args=False
        )


class Pareto(_Named):
    """alpha scale^alpha / x^(alpha + 1) from `scale` on."""

    parameters: ClassVar[dict[str, Rule]] = {"scale": POSITIVE, "alpha": POSITIVE}
    support = POSITIVE
    scale: Tensor
    alpha: Tensor

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, scale=scale, alpha=alpha)

    def parts(self) -> tuple[Distribution, Any]:
        base = Exponential(self.alpha, validate_args=False)
        return base, [ExpTransform(), AffineTransform(0.0, self.scale)]

    def _asked(self, value: Any) -> Tensor:
        return self._check("value", super()._asked(value), ("at least scale", lambda v: v >= self.scale))

    def entropy(self) -> Tensor:
        return log(self.scale / self.alpha) + 1 + 1 / self.alpha

    @derived
    def mean(self) -> Tensor:
        safe = where(self.alpha > 1, self.alpha, 2.0)
        return where(self.alpha > 1, safe * self.scale / (safe - 1), math.inf)

    mode = derived(lambda d: d.scale)

    @derived
    def variance(self) -> Tensor:
        safe = where(self.alpha > 2, self.alpha, 3.0)
        return where(self.alpha > 2, self.scale**2 * safe / ((safe - 1) ** 2 * (safe - 2)), math.inf)


class Weibull(_Named):
    """scale times the 1 / concentration-th power of an exponential variable."""

    parameters: ClassVar[dict[str, Rule]] = {"scale": POSITIVE, "concentration": POSITIVE}
    support = POSITIVE
    scale: Tensor
    concentration: Tensor

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, scale=scale, concentration=concentration)

    def parts(self) -> tuple[Distribution, Any]:
        base = Exponential(0 * self.scale + 1, validate_args=False)
        return base, [PowerTransform(1 / self.concentration), AffineTransform(0.0, self.scale)]

    def entropy(self) -> Tensor:
        return _EULER * (1 - 1 / self.concentration) + log(self.scale / self.concentration) + 1

    def _moment(self, order: int) -> Tensor:
        return self.scale**order * exp(lgamma(1 + order / self.concentration))

    mean = derived(lambda d: d._moment(1))

    @derived
    def mode(self) -> Tensor:
        k = where(self.concentration > 1, self.concentration, 2.0)
        return where(self.concentration > 1, self.scale * ((k - 1) / k) ** (1 / k), 0.0)

    variance = derived(lambda d: d._moment(2) - d._moment(1) ** 2)


class Kumaraswamy(_Named):
    """a b x^(a-1) (1 - x^a)^(b-1) in [0, 1], a `concentration1` and b `concentration0`."""

    parameters: ClassVar[dict[str, Rule]] = {"concentration1": POSITIVE, "concentration0": POSITIVE}
    support = UNIT
    concentration1: Tensor
    concentration0: Tensor

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, concentration1=concentration1, concentration0=concentration0)

    def parts(self) -> tuple[Distribution, Any]:
        unit = Uniform(0 * self.concentration1, 0 * self.concentration1 + 1, validate_args=False)
        return unit, [
            PowerTransform(1 / self.concentration0), AffineTransform(1.0, -1.0),
            PowerTransform(1 / self.concentration1),
        ]  # fmt: skip

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return (1 - 1 / b) + (1 - 1 / a) * (digamma(b + 1) + _EULER) - log(a) - log(b)

    def _moment(self, order: int) -> Tensor:
        return self.concentration0 * exp(betaln(1 + order / self.concentration1, self.concentration0))

    mean = derived(lambda d: d._moment(1))
    variance = derived(lambda d: d._moment(2) - d._moment(1) ** 2)

    @derived
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside = (a >= 1) & (b >= 1) & (a * b > 1)
        p, q = where(inside, a, 2.0), where(inside, b, 2.0)
        return where(inside, ((p - 1) / (p * q - 1)) ** (1 / p), math.nan)
