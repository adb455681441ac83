"""Normalisation over batches, over the last axes, over groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.elementwise import cast, rsqrt
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x with mean 0 and variance 1 over some axes, and that mean and (biased) variance; 16 bits compute in 32."""
    wide = cast(x, x.dtype.compute)
    mean = wide.mean(axis=axes, keepdims=True)
    centred = wide - mean
    variance = (centred * centred).mean(axis=axes, keepdims=True)
    return centred * rsqrt(variance + eps), mean, variance


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[Any, ...]) -> Tensor:
    if weight is not None:
        x = x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise axis 1 by the batch's statistics in training, moving the running ones; by the running ones otherwise.

    The running variance takes up the unbiased variance of the batch.
    """
    if input.ndim < 2:
        raise ShapeError("batch_norm: takes at least 2 axes", got=f"shape {list(input.shape)}")
    shape = (1, -1, *(1,) * (input.ndim - 2))
    if not training:
        if running_mean is None or running_var is None:
            raise AttributeValueError("batch_norm: evaluation needs running statistics")
        scale = rsqrt(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        return cast(input * scale.reshape(shape) + shift.reshape(shape), input.dtype)
    axes = (0, *range(2, input.ndim))
    count = input.numel() // int(input.shape[1])
    if count < 2:
        raise ShapeError(
            "batch_norm: training needs more than one value per channel", got=f"shape {list(input.shape)}"
        )
    normal, mean, variance = _standardised(input, axes, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            unbiased = variance * (count / (count - 1))
            for running, batch in ((running_mean, mean), (running_var, unbiased)):
                new = cast(batch.reshape(running.shape), running.dtype)
                running.copy_(running * (1.0 - momentum) + new * momentum)
    return cast(_affine(normal, weight, bias, shape), input.dtype)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last axes, whose sizes are `normalized_shape`, then scale and shift each element."""
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(input.shape[-len(sizes) :]) != sizes:
        raise ShapeError(
            "layer_norm: the last axes must have the normalised sizes", got=f"{list(input.shape)} for {list(sizes)}"
        )
    axes = tuple(range(input.ndim - len(sizes), input.ndim))
    normal, _, _ = _standardised(input, axes, eps)
    return cast(_affine(normal, weight, bias, sizes), input.dtype)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each sample over groups of channels (axis 1) and all later axes, then scale and shift each channel."""
    channels = int(input.shape[1])
    if channels % num_groups:
        raise AttributeValueError("group_norm: num_groups must divide the channels", got=f"{num_groups}, {channels}")
    grouped = input.reshape((input.shape[0], num_groups, -1))
    normal, _, _ = _standardised(grouped, (2,), eps)
    shape = (1, -1, *(1,) * (input.ndim - 2))
    return cast(_affine(normal.reshape(input.shape), weight, bias, shape), input.dtype)
