"""Distributions of matrices: covariances (Wishart), and Cholesky factors of correlations (LKJ)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.distributions import draws
from stratal.distributions.derived import derived
from stratal.distributions.distribution import POSITIVE, Distribution, Rule
from stratal.distributions.gammas import Beta, positive
from stratal.distributions.multivariate import LOWER, SYMMETRIC, ByCovariance, factor_of, one_form
from stratal.linalg import diagonal, eigvalsh, slogdet, solve_triangular
from stratal.special import digamma, lgamma, mvlgamma
from stratal.tensor.api.info import finfo
from stratal.tensor.build import as_tensor
from stratal.tensor.composites.matrices import diag_embed
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import exp, log, maximum, sqrt, where
from stratal.tensor.functions.linear import matmul
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.functions.triangles import tril
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad

COVARIANCE: Rule = (
    "symmetric and positive definite",
    lambda x: SYMMETRIC[1](x).all() & (eigvalsh(x) > 0).all(),
)
CORRELATION_FACTOR: Rule = (
    "lower triangular with a positive diagonal and rows of length 1",
    lambda x: LOWER[1](x) & (abs((x * x).sum(axis=-1) - 1) < 10 * x.shape[-1] * finfo(x.dtype).eps).all(),
)


class Wishart(ByCovariance):
    """The sum of x x^T over `df` draws of a normal vector x without mean, by the covariance of x, its inverse
    `precision_matrix`, or a factor; `df` may be any number above n - 1, n the size of x.

    Draws: Bartlett's decomposition (Odell & Feiveson, "A numerical procedure to generate a sample covariance
    matrix", 1966). Below n degrees they may be singular to rounding.
    """

    parameters: ClassVar[dict[str, Rule]] = {
        "df": POSITIVE, "covariance_matrix": SYMMETRIC, "precision_matrix": SYMMETRIC, "scale_tril": LOWER,
    }  # fmt: skip
    own_axes: ClassVar[dict[str, int]] = {"covariance_matrix": 2, "precision_matrix": 2, "scale_tril": 2}
    support = COVARIANCE
    has_rsample = True
    df: Tensor

    def __init__(
        self, df: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None
    ) -> None:
        name, value = one_form("Wishart", covariance_matrix, precision_matrix, scale_tril)
        matrix = as_tensor(value, "Wishart")
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ShapeError(f"Wishart: {name} must be square matrices", got=str(matrix.type))
        super().__init__(validate_args, df=df, **{name: value})
        self._size = int(matrix.shape[-1])
        self.event_shape = (self._size, self._size)
        above: Rule = (f"greater than {self._size - 1}, the size - 1", lambda x: x > self._size - 1)
        self.df = self._check("df", self.df, above)
        self.scale_tril = factor_of(name, getattr(self, name))

    def _halves(self) -> Tensor:
        """Return (df - k) / 2 for rows k: half the degrees of freedom of the squares on the diagonal."""
        return (self.df[..., None] - arange(self._size, dtype=self.dtype)) / 2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        squares = 2 * positive(exp(draws.log_gamma(self._wide(self._halves(), sample_shape))))
        noise = tril(random.standard_normal(self._extended(sample_shape), dtype=self.dtype), -1)
        factor = matmul(self.scale_tril, noise + diag_embed(sqrt(squares)))
        return matmul(factor, factor.mT)

    def _half_log_det(self) -> Tensor:
        """Return half of log det(2 covariance)."""
        return self._size * math.log(2) / 2 + log(diagonal(self.scale_tril)).sum(axis=-1)

    def log_prob(self, value: Any) -> Tensor:
        x, n = self._asked(value), self._size
        half = solve_triangular(self.scale_tril, x, upper=False)
        trace = diagonal(solve_triangular(self.scale_tril, half.mT, upper=False)).sum(axis=-1)
        power = (self.df - n - 1) / 2 * slogdet(x).logabsdet
        return power - trace / 2 - self.df * self._half_log_det() - mvlgamma(self.df / 2, n)

    def entropy(self) -> Tensor:
        n, slopes = self._size, digamma(self._halves()).sum(axis=-1)
        volume = (n + 1) * self._half_log_det() + mvlgamma(self.df / 2, n)
        return volume - (self.df - n - 1) / 2 * slopes + self.df * n / 2

    mean = derived(lambda d: d.df[..., None, None] * d.covariance_matrix)

    @derived
    def mode(self) -> Tensor:
        excess = self.df - self._size - 1
        return where(excess > 0, excess, math.nan)[..., None, None] * self.covariance_matrix

    @derived
    def variance(self) -> Tensor:
        covariance, sizes = self.covariance_matrix, diagonal(self.covariance_matrix)
        outer = sizes[..., :, None] * sizes[..., None, :]
        return self.df[..., None, None] * (covariance * covariance + outer)

    def expand(self, batch_shape: Any) -> Any:
        shape = tuple(batch_shape)
        factor = broadcast_to(self.scale_tril, (*shape, *self.event_shape))
        return Wishart(broadcast_to(self.df, shape), scale_tril=factor, validate_args=False)


class LKJCholesky(Distribution):
    """Lower triangular L of size `dim` with rows of length 1, the density of the correlations L L^T in
    proportion to det(L L^T)^(concentration - 1): with 1, all correlations are equally likely.

    Source: Lewandowski, Kurowicka & Joe, "Generating random correlation matrices based on vines and extended
    onion method", 2009; draws by section 3, the constant from page 1999.
    """

    parameters: ClassVar[dict[str, Rule]] = {"concentration": POSITIVE}
    support = CORRELATION_FACTOR
    concentration: Tensor

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if not isinstance(dim, int) or dim < 2:
            raise AttributeValueError("LKJCholesky: dim is an int of at least 2", got=repr(dim))
        super().__init__(validate_args, concentration=concentration)
        self.dim = dim
        self.event_shape = (dim, dim)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            rows = arange(self.dim, dtype=self.dtype)
            below = maximum(rows - 1, 0.0)
            rest = self.concentration[..., None] + 0.5 * (self.dim - 2 - below)
            # left of the diagonal in row k: Beta(k / 2, ...) as the density says; PyTorch draws k - 1 / 2
            share = Beta(0.5 * below + 0.5, rest, validate_args=False).sample(sample_shape)
            noise = tril(random.standard_normal(self._extended(sample_shape), dtype=self.dtype), -1)
            square = (noise * noise).sum(axis=-1, keepdims=True)
            factor = sqrt(share[..., None] / where(square > 0, square, 1.0)) * noise
            left = maximum(1 - (factor * factor).sum(axis=-1), finfo(self.dtype).tiny)
            return (factor + diag_embed(sqrt(left))).detach()

    def log_prob(self, value: Any) -> Tensor:
        rows, less = arange(2, self.dim + 1, dtype=self.dtype), self.dim - 1
        powers = 2 * (self.concentration - 1)[..., None] + self.dim - rows
        density = (powers * log(diagonal(self._asked(value))[..., 1:])).sum(axis=-1)
        alpha = self.concentration + 0.5 * less
        constant = 0.5 * less * math.log(math.pi) + mvlgamma(alpha - 0.5, less) - less * lgamma(alpha)
        return density - constant

    def expand(self, batch_shape: Any) -> Any:
        return LKJCholesky(
            self.dim, broadcast_to(self.concentration, tuple(batch_shape)), validate_args=False
        )
