"""Normalisation over batches, over the last axes, over groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.build import call
from stratal.tensor.elementwise import cast
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor


def _given(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
    """Return the operands of a composite; a bias without a weight is left over."""
    if weight is None:
        return [x], bias
    return [x, weight] + ([] if bias is None else [bias]), None


def _per_channel(x: Tensor, like: Tensor) -> Tensor:
    """Return a vector shaped to stretch along axis 1."""
    return x.reshape((-1, *(1,) * (like.ndim - 2)))


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
    """Normalise axis 1 by the batch's statistics in training, moving the running ones; by the running ones
    otherwise.

    The running variance takes up the unbiased variance of the batch.
    """
    if input.ndim < 2:
        raise ShapeError("batch_norm: takes at least 2 axes", got=f"shape {list(input.shape)}")
    if not training:
        if running_mean is None or running_var is None:
            raise AttributeValueError("batch_norm: evaluation needs running statistics")
        operands, rest = _given(input, weight, bias)
        result: Tensor = call(
            "batch_norm_inference", input, running_mean, running_var, *operands[1:], eps=eps
        )
        return result if rest is None else result + _per_channel(rest, input)
    count = input.numel() // max(1, int(input.shape[1]))
    if count < 2:
        raise ShapeError(
            "batch_norm: training needs more than one value per channel", got=f"shape {list(input.shape)}"
        )
    operands, rest = _given(input, weight, bias)
    y, mean, variance = call("batch_norm", *operands, eps=eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            unbiased = variance * (count / (count - 1))
            for running, batch in ((running_mean, mean), (running_var, unbiased)):
                running.copy_(running * (1.0 - momentum) + cast(batch, running.dtype) * momentum)
    normal: Tensor = y
    return normal if rest is None else normal + _per_channel(rest, input)


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
            "layer_norm: the last axes must have the normalised sizes",
            got=f"{list(input.shape)} for {list(sizes)}",
        )
    operands, rest = _given(input, weight, bias)
    result: Tensor = call("layer_norm", *operands, ndim=len(sizes), eps=eps)
    return result if rest is None else result + rest


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each sample over groups of channels (axis 1) and all later axes, then scale and shift each
    channel.
    """
    channels = int(input.shape[1])
    if channels % num_groups:
        raise AttributeValueError(
            "group_norm: num_groups must divide the channels", got=f"{num_groups}, {channels}"
        )
    operands, rest = _given(input, weight, bias)
    result: Tensor = call("group_norm", *operands, groups=num_groups, eps=eps)
    return result if rest is None else result + _per_channel(rest, input)
