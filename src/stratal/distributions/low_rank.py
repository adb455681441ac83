"""The normal distribution of vectors whose covariance is a diagonal and a matrix of low rank."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar

from stratal.base.errors import ShapeError
from stratal.distributions.distribution import POSITIVE, REAL, Distribution, Rule
from stratal.linalg import cholesky, diagonal, solve_triangular
from stratal.tensor import random
from stratal.tensor.composites.matrices import diag_embed
from stratal.tensor.creation import eye
from stratal.tensor.elementwise import log, sqrt
from stratal.tensor.linear import matmul
from stratal.tensor.tensor import Tensor


class LowRankMultivariateNormal(Distribution):
    """The normal distribution of vectors with covariance W W^T + D: W the `cov_factor`, n x rank, and D the
    diagonal matrix of `cov_diag`.

    Densities need the factor of a rank x rank matrix only, I + W^T D^-1 W, by Woodbury's identity and the
    lemma on determinants.
    """

    parameters: ClassVar[dict[str, Rule]] = {"loc": REAL, "cov_factor": REAL, "cov_diag": POSITIVE}
    own_axes: ClassVar[dict[str, int]] = {"loc": 1, "cov_factor": 2, "cov_diag": 1}
    has_rsample = True
    loc: Tensor
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

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return (self.cov_factor * self.cov_factor).sum(axis=-1) + self.cov_diag
