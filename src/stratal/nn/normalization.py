"""Normalisation layers without state: over the last axes, over groups of channels, over channels nearby."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.nn import functional as F
from stratal.nn import init
from stratal.nn.applied import Applied
from stratal.nn.module import Module
from stratal.nn.parameter import Parameter, empty_parameter
from stratal.tensor.tensor import Tensor


class Affine(Module):
    """A layer that scales and shifts what it has normalised; either may be left out."""

    weight: Parameter | None
    bias: Parameter | None

    def _add_affine(self, shape: tuple[int, ...], scale: bool, shift: bool, dtype: Any) -> None:
        self.register_parameter("weight", empty_parameter(shape, dtype) if scale else None)
        self.register_parameter("bias", empty_parameter(shape, dtype) if scale and shift else None)

    def reset_parameters(self) -> None:
        """Set the scale to one and the shift to zero."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(Affine):
    """Normalise over the last axes, whose sizes are `normalized_shape`, then scale and shift each element."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self._add_affine(shape, elementwise_affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        words = [f"{self.normalized_shape}, eps={self.eps}", f"elementwise_affine={self.elementwise_affine}"]
        return ", ".join([*words, f"bias={self.bias is not None}"])


class RMSNorm(Module):
    """Divide by the root mean square over the last axes, whose sizes are `normalized_shape`, then scale.

    Without `eps` it is the dtype's machine epsilon.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None,
        elementwise_affine: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(shape, dtype) if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scale to one."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Affine):
    """Normalise each sample over groups of channels (axis 1) and all later axes, then scale and shift each
    channel.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise AttributeValueError(
                "GroupNorm: num_groups must divide num_channels", got=f"{num_groups} for {num_channels}"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._add_affine((num_channels,), affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        words = [f"{self.num_groups}, {self.num_channels}, eps={self.eps}", f"affine={self.affine}"]
        return ", ".join([*words, f"bias={self.bias is not None}"])


class LocalResponseNorm(Applied, function=F.local_response_norm):
    """Divide by (k + alpha * mean of the squares of `size` channels around)^beta."""

    _options = ("size", "alpha", "beta", "k")

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
