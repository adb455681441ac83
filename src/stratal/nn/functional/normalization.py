"""Normalisation over batches, over the last axes, over groups of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.functional.pooling import avg_pool
from stratal.tensor.api.info import finfo
from stratal.tensor.build import call
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import pad_constant
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import no_grad


def _check(name: str, shape: Sequence[Any], **vectors: Tensor | None) -> None:
    """Refuse weights, biases and running statistics of another shape. Raises: ShapeError."""
    for word, given in vectors.items():
        if given is not None and tuple(given.shape) != tuple(shape):
            raise ShapeError(
                f"{name}: {word} does not fit the input", got=f"shape {list(given.shape)}",
                hint=f"for this input its shape is {list(shape)}",
            )  # fmt: skip


def _given(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
    """Return the operands of a composite; a bias without a weight is left over."""
    if weight is None:
        return [x], bias
    return [x, weight] + ([] if bias is None else [bias]), None


def _per_channel(x: Tensor, like: Tensor) -> Tensor:
    """Return a vector shaped to stretch along axis 1."""
    return x.reshape((-1, *(1,) * (like.ndim - 2)))


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float | Tensor = 0.1, eps: float = 1e-5
) -> Tensor:
    """Normalise axis 1 by the batch's statistics in training, moving the running ones; by the running ones
    otherwise.

    The running variance takes up the unbiased variance of the batch.
    """
    if input.ndim < 2:
        raise ShapeError("batch_norm: takes at least 2 axes", got=f"shape {list(input.shape)}")
    _check(
        "batch_norm", input.shape[1:2],
        running_mean=running_mean, running_var=running_var, weight=weight, bias=bias,
    )  # fmt: skip
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
            "batch_norm: training needs more than one value per channel", got=f"shape {list(input.shape)}",
            hint="the last batch may be of one row: another batch_size, or DataLoader(.., drop_last=True)",
        )
    operands, rest = _given(input, weight, bias)
    y, mean, variance = call("batch_norm", *operands, eps=eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            move_running((running_mean, running_var), (mean, variance * (count / (count - 1))), momentum)
    normal: Tensor = y
    return normal if rest is None else normal + _per_channel(rest, input)


def move_running(running: Sequence[Tensor], batch: Sequence[Tensor], momentum: float | Tensor) -> None:
    """Move running statistics towards those of a batch, in place."""
    for old, new in zip(running, batch, strict=True):
        old.copy_(old * (1.0 - momentum) + cast(new, old.dtype) * momentum)


def _last_axes(name: str, input: Tensor, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    single = not isinstance(normalized_shape, (list, tuple))
    sizes = (normalized_shape,) if single else tuple(normalized_shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes:
        raise ShapeError(
            f"{name}: the last axes must have the normalised sizes",
            got=f"{list(input.shape)} for {list(sizes)}",
        )
    return sizes


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise over the last axes, whose sizes are `normalized_shape`, then scale and shift each element."""
    sizes = _last_axes("layer_norm", input, normalized_shape)
    _check("layer_norm", sizes, weight=weight, bias=bias)
    operands, rest = _given(input, weight, bias)
    result: Tensor = call("layer_norm", *operands, ndim=len(sizes), eps=eps)
    return result if rest is None else result + rest


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root mean square over the last axes, whose sizes are `normalized_shape`, then scale.

    Without `eps` it is the dtype's machine epsilon. See: Zhang and Sennrich 2019.
    """
    sizes = _last_axes("rms_norm", input, normalized_shape)
    _check("rms_norm", sizes, weight=weight)
    least = float(finfo(input.dtype.compute).eps) if eps is None else eps
    operands = [input] if weight is None else [input, weight]
    return call("rms_norm", *operands, ndim=len(sizes), eps=least)


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
    if input.ndim < 2:
        raise ShapeError("group_norm: takes at least 2 axes", got=f"shape {list(input.shape)}")
    channels = int(input.shape[1])
    if num_groups < 1 or channels % num_groups:
        raise AttributeValueError(
            "group_norm: num_groups must divide the channels", got=f"{num_groups}, {channels}"
        )
    _check("group_norm", input.shape[1:2], weight=weight, bias=bias)
    operands, rest = _given(input, weight, bias)
    result: Tensor = call("group_norm", *operands, groups=num_groups, eps=eps)
    return result if rest is None else result + _per_channel(rest, input)


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float | Tensor = 0.1, eps: float = 1e-5
) -> Tensor:
    """Normalise every channel of every sample by itself, moving the running statistics, which are means over
    the samples; without `use_input_stats` by the running ones. See: Ulyanov et al. 2016.

    Shapes: input [N, C, ...], weight and bias [C].
    """
    if input.ndim < 3:
        raise ShapeError("instance_norm: takes at least 3 axes", got=f"shape {list(input.shape)}")
    _check(
        "instance_norm", input.shape[1:2],
        running_mean=running_mean, running_var=running_var, weight=weight, bias=bias,
    )  # fmt: skip
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, 0.0, eps)
    batch, channels, *rest = input.shape
    merged = input.reshape((1, batch * channels, *rest))
    count = math.prod(int(n) for n in rest)
    if count < 2:
        raise ShapeError(
            "instance_norm: needs more than one value per channel", got=f"shape {list(input.shape)}"
        )
    y, mean, variance = call("batch_norm", merged, eps=eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            unbiased = variance * (count / (count - 1))
            for running, own in ((running_mean, mean), (running_var, unbiased)):
                average = own.reshape((batch, channels)).mean(axis=0)
                running.copy_(running * (1.0 - momentum) + cast(average, running.dtype) * momentum)
    normal: Tensor = y.reshape(input.shape)
    normal = normal if weight is None else normal * _per_channel(weight, input)
    return normal if bias is None else normal + _per_channel(bias, input)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divide by (k + alpha * mean of the squares of `size` channels around)^beta.

    See: Krizhevsky et al. 2012, section 3.3.

    Shapes: [N, C, ...]; with three axes or more.
    """
    if input.ndim < 3:
        raise ShapeError("local_response_norm: takes at least 3 axes", got=f"shape {list(input.shape)}")
    if size < 1:
        raise AttributeValueError("local_response_norm: size must be positive", got=str(size))
    batch, channels = input.shape[:2]
    squares = (input * input).reshape((batch, 1, channels, -1))
    squares = pad_constant(squares, [(0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    mean = avg_pool(2, squares, (size, 1), 1)
    return input / (mean.reshape(input.shape) * alpha + k) ** beta
