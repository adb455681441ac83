"""Normalisation layers with running statistics: over the batch, and over each sample alone."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.dimensions import layers
from stratal.nn.normalization import Affine
from stratal.tensor.functions.creation import ones, zeros
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad


class _Tracking(Affine):
    """What layers with running statistics share: parameters, buffers, and a count of the batches seen.

    `momentum=None` keeps a plain average over all batches seen. Running variance is the unbiased one, as in
    PyTorch.
    """

    dims = 0

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._add_affine((num_features,), affine, bias, dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros((num_features,), dtype=dtype) if tracked else None)
        self.register_buffer("running_var", ones((num_features,), dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype="int64") if tracked else None)
        self.reset_parameters()

    @classmethod
    def ranks(cls) -> tuple[int, ...]:
        """Return how many axes an input may have."""
        raise NotImplementedError

    def _check(self, input: Tensor, axis: int, what: str) -> None:
        """Refuse an input of other axes, or without `num_features` along one. Raises: ShapeError."""
        ranks = self.ranks()
        if input.ndim not in ranks or int(input.shape[axis]) != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: takes {' or '.join(map(str, ranks))} axes, "
                f"{what} of {self.num_features}",
                got=f"{list(input.shape)}",
            )

    def reset_running_stats(self) -> None:
        """Forget the batches seen."""
        if self.track_running_stats and self.running_mean is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Set the scale to one and the shift to zero, and forget the batches seen."""
        self.reset_running_stats()
        super().reset_parameters()

    def _next_momentum(self) -> Any:
        """Count one more batch, and return the share it has in the running statistics."""
        with no_grad():
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        return self.momentum

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Tracking):
    """Batch normalisation over axis 1: by the batch in training, by the running statistics otherwise.

    As in PyTorch, `track_running_stats` set later says whether training moves the statistics there are;
    evaluation reads them wherever they are.
    """

    @classmethod
    def ranks(cls) -> tuple[int, ...]:
        return (2, 3) if cls.dims == 1 else (cls.dims + 2,)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input, 1, "axis 1")
        kept = self.running_mean is not None and (self.track_running_stats or not self.training)
        running = (self.running_mean, self.running_var) if kept else (None, None)
        momentum = self._next_momentum() if self.training and kept else 0.0
        by_batch = self.training or not kept
        return F.batch_norm(input, *running, self.weight, self.bias, by_batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [N, C] or [N, C, L]."""

    dims = 1


BatchNorm2d, BatchNorm3d = layers(_BatchNorm, "BatchNorm", "Batch normalisation of {layout}.", (2, 3))


class _InstanceNorm(_Tracking):
    """Normalise every channel of every sample by itself; with running statistics, by those in evaluation.

    Samples come in a batch [N, C, ...] or alone [C, ...].
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias, dtype=dtype)

    @classmethod
    def ranks(cls) -> tuple[int, ...]:
        return (cls.dims + 1, cls.dims + 2)

    def forward(self, input: Tensor) -> Tensor:
        batched = input.ndim == self.dims + 2
        self._check(input, 1 if batched else 0, "the channels")
        x = input if batched else input.reshape((1, *input.shape))
        tracked = self.track_running_stats
        running = (self.running_mean, self.running_var) if tracked else (None, None)
        by_itself = self.training or not tracked
        momentum = self.momentum if self.momentum is not None else 0.0
        y = F.instance_norm(x, *running, self.weight, self.bias, by_itself, momentum, self.eps)
        return y if batched else y.reshape(input.shape)


InstanceNorm1d, InstanceNorm2d, InstanceNorm3d = layers(
    _InstanceNorm, "InstanceNorm", "Instance normalisation of {layout} or [C, {sizes}]."
)
