"""The normal distribution of vectors, and mixtures of distributions of one family."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.distributions.derived import derived
from stratal.distributions.discrete import Categorical
from stratal.distributions.distribution import POSITIVE, REAL, Distribution, Located, Rule
from stratal.linalg import cholesky, diagonal, solve_triangular
from stratal.special import log_softmax, logsumexp
from stratal.tensor.build import as_tensor
from stratal.tensor.composites.matrices import diag_embed
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange, eye
from stratal.tensor.functions.elementwise import log, sqrt
from stratal.tensor.functions.linear import matmul
from stratal.tensor.functions.shapes import broadcast_to, flip
from stratal.tensor.functions.triangles import tril
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

LOWER: Rule = (
    "lower triangular with a positive diagonal",
    lambda x: (diagonal(x) > 0).all() & (x == tril(x)).all(),
)
SYMMETRIC: Rule = ("symmetric", lambda x: abs(x - x.mT) <= 1e-6 * (1 + abs(x)))


def one_form(who: str, covariance_matrix: Any, precision_matrix: Any, scale_tril: Any) -> tuple[str, Any]:
    """Return the name and the value of the one form of a covariance that is given."""
    forms = {
        "covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix,
        "scale_tril": scale_tril,
    }  # fmt: skip
    given = [(name, value) for name, value in forms.items() if value is not None]
    if len(given) != 1:
        raise AttributeValueError(
            f"{who}: takes one of {', '.join(forms)}", got=", ".join(name for name, _ in given) or "none"
        )
    return given[0]


def factor_of(form: str, matrix: Tensor) -> Tensor:
    """Return the lower triangular factor of a covariance given in one of its forms."""
    if form == "scale_tril":
        return matrix
    if form == "covariance_matrix":
        return cholesky(matrix)
    # with J the exchange matrix and J P J = M M^T, the inverse of P is that of J M J on both sides
    turned = cholesky(flip(matrix, axis=(-2, -1)))
    upper = flip(turned, axis=(-2, -1)).mT
    return solve_triangular(upper, eye(matrix.shape[-1], dtype=matrix.dtype), upper=False)


class ByCovariance(Distribution):
    """A distribution by one of a covariance, its inverse, or its lower triangular factor."""

    scale_tril: Tensor

    @cached_property
    def covariance_matrix(self) -> Tensor:
        return matmul(self.scale_tril, self.scale_tril.mT)

    @cached_property
    def precision_matrix(self) -> Tensor:
        one = eye(self.event_shape[-1], dtype=self.dtype)
        inverse = solve_triangular(self.scale_tril, one, upper=False)
        return matmul(inverse.mT, inverse)


class MultivariateNormal(Located, ByCovariance):
    """The normal distribution of vectors, by one of covariance, its inverse `precision`, or a factor.

    `scale_tril` is a lower triangular L with L L^T the covariance.
    """

    parameters: ClassVar[dict[str, Rule]] = {
        "loc": REAL, "covariance_matrix": SYMMETRIC, "precision_matrix": SYMMETRIC, "scale_tril": LOWER,
    }  # fmt: skip
    own_axes: ClassVar[dict[str, int]] = {
        "loc": 1, "covariance_matrix": 2, "precision_matrix": 2, "scale_tril": 2,
    }  # fmt: skip
    has_rsample = True

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None
    ) -> None:
        name, value = one_form("MultivariateNormal", covariance_matrix, precision_matrix, scale_tril)
        matrix, mean = as_tensor(value, "MultivariateNormal"), as_tensor(loc, "MultivariateNormal")
        size = matrix.shape[-1] if matrix.ndim else 0
        if matrix.ndim < 2 or matrix.shape[-2] != size or (mean.ndim and mean.shape[-1] not in (1, size)):
            raise ShapeError(
                f"MultivariateNormal: {name} must be square matrices of the size of loc",
                got=f"{matrix.type}, loc {mean.type}",
            )
        mean = broadcast_to(mean, (*mean.shape[:-1], size)) if mean.ndim else mean
        super().__init__(validate_args, loc=mean, **{name: value})
        self.event_shape = (int(size),)
        self.scale_tril = factor_of(name, getattr(self, name))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = random.standard_normal(self._extended(sample_shape), dtype=self.dtype)
        return self.loc + matmul(self.scale_tril, noise[..., None])[..., 0]

    def half_log_det(self) -> Tensor:
        """Return half of the logarithm of the determinant of the covariance."""
        return log(diagonal(self.scale_tril)).sum(axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        off = self._asked(value) - self.loc
        z = solve_triangular(self.scale_tril, off[..., None], upper=False)[..., 0]
        return (
            -0.5 * (self.event_shape[0] * math.log(2 * math.pi) + (z * z).sum(axis=-1)) - self.half_log_det()
        )

    def entropy(self) -> Tensor:
        return 0.5 * self.event_shape[0] * (1 + math.log(2 * math.pi)) + self.half_log_det()

    variance = derived(lambda d: (d.scale_tril * d.scale_tril).sum(axis=-1))

    def expand(self, batch_shape: Any) -> Any:
        shape, size = tuple(batch_shape), self.event_shape[0]
        return MultivariateNormal(
            broadcast_to(self.loc, (*shape, size)),
            scale_tril=broadcast_to(self.scale_tril, (*shape, size, size)),
            validate_args=False,
        )


class LowRankMultivariateNormal(Located):
    """The normal distribution of vectors with covariance W W^T + D: W the `cov_factor`, n x rank, and D the
    diagonal matrix of `cov_diag`.

    Densities need the factor of a rank x rank matrix only, I + W^T D^-1 W, by Woodbury's identity and the
    lemma on determinants.
    """

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "cov_factor": REAL, "cov_diag": POSITIVE}
    own_axes: ClassVar[dict[str, int]] = {"loc": 1, "cov_factor": 2, "cov_diag": 1}
    has_rsample = True
    cov_factor: Tensor
    cov_diag: Tensor

    def __init__(self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None) -> None:
        super().__init__(validate_args, loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        self.event_shape = self.loc.shape[-1:]
        if not self.loc.shape[-1] == self.cov_factor.shape[-2] == self.cov_diag.shape[-1]:
            raise ShapeError(
                "LowRankMultivariateNormal: loc, cov_diag and the columns of cov_factor have one size",
                got=f"{self.loc.shape[-1]}, {self.cov_diag.shape[-1]} and {self.cov_factor.shape[-2]}",
            )

    @cached_property
    def _weighed(self) -> Tensor:
        """W^T D^-1"""
        return self.cov_factor.mT / self.cov_diag[..., None, :]

    @cached_property
    def _capacitance_tril(self) -> Tensor:
        one = eye(self.cov_factor.shape[-1], dtype=self.dtype)
        return cholesky(one + matmul(self._weighed, self.cov_factor))

    @cached_property
    def scale_tril(self) -> Tensor:
        root = sqrt(self.cov_diag)[..., None]
        scaled = self.cov_factor / root  # I and what it makes have no eigenvalue below 1
        return root * cholesky(eye(self.event_shape[0], dtype=self.dtype) + matmul(scaled, scaled.mT))

    @cached_property
    def covariance_matrix(self) -> Tensor:
        return matmul(self.cov_factor, self.cov_factor.mT) + diag_embed(self.cov_diag)

    @cached_property
    def precision_matrix(self) -> Tensor:
        part = solve_triangular(self._capacitance_tril, self._weighed, upper=False)
        return diag_embed(1 / self.cov_diag) - matmul(part.mT, part)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended(sample_shape)
        common = random.standard_normal((*shape[:-1], self.cov_factor.shape[-1]), dtype=self.dtype)
        own = random.standard_normal(shape, dtype=self.dtype)
        return self.loc + matmul(self.cov_factor, common[..., None])[..., 0] + sqrt(self.cov_diag) * own

    def _log_det(self) -> Tensor:
        return 2 * log(diagonal(self._capacitance_tril)).sum(axis=-1) + log(self.cov_diag).sum(axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        off = self._asked(value) - self.loc
        z = solve_triangular(self._capacitance_tril, matmul(self._weighed, off[..., None]), upper=False)[
            ..., 0
        ]
        distance = (off * off / self.cov_diag).sum(axis=-1) - (z * z).sum(axis=-1)
        return -0.5 * (self.event_shape[0] * math.log(2 * math.pi) + self._log_det() + distance)

    def entropy(self) -> Tensor:
        return 0.5 * (self.event_shape[0] * (1 + math.log(2 * math.pi)) + self._log_det())

    variance = derived(lambda d: (d.cov_factor * d.cov_factor).sum(axis=-1) + d.cov_diag)


class MixtureSameFamily(Distribution):
    """One of the distributions along the last axis of the batch of `component_distribution`, drawn first."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        mixture, parts = mixture_distribution, component_distribution
        if not isinstance(mixture, Categorical) or mixture.event_shape:
            raise AttributeValueError("MixtureSameFamily: is mixed by a Categorical", got=repr(mixture))
        if not parts.batch_shape or parts.batch_shape[-1] != mixture.num_events:
            raise ShapeError(
                "MixtureSameFamily: the last axis of the batch of components must count the classes",
                got=f"{list(parts.batch_shape)} for {mixture.num_events}",
            )
        self.validate_args = self._validates(validate_args)
        self.component_distribution, self.dtype = parts, parts.dtype
        self.batch_shape, self.event_shape = parts.batch_shape[:-1], parts.event_shape
        self.mixture_distribution: Any = mixture.expand(self.batch_shape)
        self._events = len(parts.event_shape)

    def __repr__(self) -> str:
        return f"MixtureSameFamily({self.mixture_distribution}, {self.component_distribution})"

    def _weighted(self, x: Tensor) -> Tensor:
        """Return a sum over components, weighted by their probabilities."""
        weights = self.mixture_distribution.probs.reshape(
            (*self.component_distribution.batch_shape, *(1,) * self._events)
        )
        return (weights * x).sum(axis=-1 - self._events)

    def _each(self, value: Any) -> Tensor:
        x = as_tensor(value, "MixtureSameFamily")
        return x.reshape((*x.shape[: x.ndim - self._events], 1, *x.shape[x.ndim - self._events :]))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            chosen = self.mixture_distribution.sample(sample_shape)
            mark = chosen[..., None] == arange(self.mixture_distribution.num_events)
            drawn = self.component_distribution.sample(sample_shape)
            mark = mark.reshape((*mark.shape, *(1,) * self._events)).to(drawn.dtype)
            return (drawn * mark).sum(axis=-1 - self._events).detach()

    def log_prob(self, value: Any) -> Tensor:
        each = self.component_distribution.log_prob(self._each(value))
        return logsumexp(each + log_softmax(self.mixture_distribution.logits, axis=-1), axis=-1)

    def cdf(self, value: Any) -> Tensor:
        return (self.component_distribution.cdf(self._each(value)) * self.mixture_distribution.probs).sum(
            axis=-1
        )

    mean = derived(lambda d: d._weighted(d.component_distribution.mean))

    @derived
    def variance(self) -> Tensor:
        parts = self.component_distribution
        centre = self._weighted(parts.mean)
        off = parts.mean - self._each(centre)
        return self._weighted(parts.variance + off * off)

    def expand(self, batch_shape: Any) -> Any:
        count = self.component_distribution.batch_shape[-1]
        wide = self.component_distribution.expand((*batch_shape, count))
        return MixtureSameFamily(self.mixture_distribution.expand(batch_shape), wide)
