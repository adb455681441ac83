"""A batch of independent distributions as one distribution of arrays."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.distributions.distribution import Distribution
from stratal.tensor.tensor import Tensor


class Independent(Distribution):
    """`base` with its last `reinterpreted_batch_ndims` axes of the batch as axes of the event.

    Draws and moments are those of the base; log-densities and entropies are summed over these axes.
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        base, count = base_distribution, reinterpreted_batch_ndims
        if not 0 <= count <= len(base.batch_shape):
            raise AttributeValueError(
                "Independent: reinterprets at most as many axes as the batch has",
                got=f"{count} of {list(base.batch_shape)}",
            )
        self.base_dist, self.reinterpreted_batch_ndims = base, count
        self.validate_args, self.dtype = base.validate_args, base.dtype
        self.has_rsample = base.has_rsample  # type: ignore[misc]  # as its base
        cut = len(base.batch_shape) - count
        self.batch_shape, self.event_shape = base.batch_shape[:cut], base.batch_shape[cut:] + base.event_shape

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"

    def sum_events(self, x: Tensor) -> Tensor:
        """Return `x`, of one value per element of the base's batch, summed over the event."""
        count = self.reinterpreted_batch_ndims
        return x.sum(axis=tuple(range(-count, 0))) if count else x

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return self.sum_events(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self.sum_events(self.base_dist.entropy())

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def expand(self, batch_shape: Any) -> Any:
        count = self.reinterpreted_batch_ndims
        kept = self.base_dist.batch_shape[len(self.base_dist.batch_shape) - count :]
        return Independent(self.base_dist.expand((*batch_shape, *kept)), count)
