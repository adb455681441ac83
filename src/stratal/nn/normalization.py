"""Normalisation layers: over the batch (with running statistics), over the last axes, over groups of
channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter, empty_parameter
from stratal.tensor.creation import ones, zeros
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor, tensor


def _reset_affine(layer: Module) -> None:
    """Set the scale to one and the shift to zero, where there are any."""
    if layer.weight is not None:
        init.ones_(layer.weight)
    if layer.bias is not None:
        init.zeros_(layer.bias)


class _BatchNorm(Module):
    """Batch normalisation over axis 1. In training, normalise by the batch and move the running statistics.

    `momentum=None` keeps a plain average over all batches seen. Running variance is the unbiased one, as in
    PyTorch.
    """

    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", empty_parameter((num_features,), dtype) if affine else None)
        self.register_parameter("bias", empty_parameter((num_features,), dtype) if affine and bias else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros((num_features,), dtype=dtype) if tracked else None)
        self.register_buffer("running_var", ones((num_features,), dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype="int64") if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the batches seen."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Set the scale to one and the shift to zero, and forget the batches seen."""
        self.reset_running_stats()
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks or int(input.shape[1]) != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: takes {' or '.join(map(str, self.ranks))} axes, "
                f"axis 1 of {self.num_features}",
                got=f"{list(input.shape)}",
            )
        by_batch = self.training or not self.track_running_stats
        if not by_batch:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.training and self.track_running_stats:
            momentum: Any = self.momentum
            with no_grad():
                self.num_batches_tracked.copy_(self.num_batches_tracked + 1)
                if momentum is None:
                    momentum = 1.0 / self.num_batches_tracked.astype(self.running_mean.dtype)
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, True, momentum, self.eps
            )
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [N, C] or [N, C, L]."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of [N, C, H, W]."""

    ranks = (4,)


class LayerNorm(Module):
    """Normalise over the last axes, whose sizes are `normalized_shape`, then scale and shift each element."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(shape, dtype) if elementwise_affine else None)
        self.register_parameter(
            "bias", empty_parameter(shape, dtype) if elementwise_affine and bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to one and the shift to zero."""
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        words = [f"{self.normalized_shape}, eps={self.eps}", f"elementwise_affine={self.elementwise_affine}"]
        return ", ".join([*words, f"bias={self.bias is not None}"])


class GroupNorm(Module):
    """Normalise each sample over groups of channels (axis 1) and all later axes, then scale and shift each
    channel.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise AttributeValueError(
                "GroupNorm: num_groups must divide num_channels", got=f"{num_groups} for {num_channels}"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", empty_parameter((num_channels,), dtype) if affine else None)
        self.register_parameter("bias", empty_parameter((num_channels,), dtype) if affine and bias else None)
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        words = [f"{self.num_groups}, {self.num_channels}, eps={self.eps}", f"affine={self.affine}"]
        return ", ".join([*words, f"bias={self.bias is not None}"])
