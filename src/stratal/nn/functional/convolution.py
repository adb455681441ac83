"""Convolutions in PyTorch's calling form, with or without a batch axis."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.dimensions import Sizes, functions, per_axis
from stratal.tensor.build import call
from stratal.tensor.tensor import Tensor

Pads = tuple[tuple[int, int], ...]


def padding_pairs(
    name: str,
    padding: Sizes | str,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Pads:
    """Return what stands before and after each axis. Raises: AttributeValueError."""
    if padding == "valid":
        return ((0, 0),) * len(window)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise AttributeValueError(f"{name}: padding 'same' needs a stride of 1", got=f"stride {stride}")
        reach = [d * (k - 1) for k, d in zip(window, dilation, strict=True)]
        return tuple((r // 2, r - r // 2) for r in reach)
    if isinstance(padding, str):
        raise AttributeValueError(f"{name}: padding must be sizes, 'same' or 'valid'", got=repr(padding))
    return tuple((p, p) for p in per_axis(f"{name}: padding", padding, len(window), 0))


def _check(name: str, dims: int, input: Tensor, weight: Tensor, axis: int, groups: int) -> None:
    """Refuse what does not fit. The input has `groups` times as many channels as the weight's `axis`."""
    if weight.ndim != dims + 2:
        raise ShapeError(f"{name}: the weight has {dims + 2} axes", got=f"shape {list(weight.shape)}")
    if groups < 1:
        raise AttributeValueError(f"{name}: groups are positive", got=str(groups))
    channels = int(weight.shape[axis]) * groups
    if input.ndim not in (dims + 1, dims + 2):
        raise ShapeError(
            f"{name}: the input has {dims + 1} or {dims + 2} axes", got=f"shape {list(input.shape)}"
        )
    if input.shape[-dims - 1] != channels:
        raise ShapeError(
            f"{name}: channels differ", got=f"input {list(input.shape)}, weight {list(weight.shape)}",
            hint=f"axis {input.ndim - dims - 1} of the input should have {channels} channels",
        )  # fmt: skip


def _apply(
    dims: int, name: str, input: Tensor, weight: Tensor, bias: Tensor | None, **geometry: Any
) -> Tensor:
    """Apply a composite; an input without a batch axis gets one and loses it again."""
    transposed = name == "transposed_convolution"
    channels = int(weight.shape[1]) * geometry["groups"] if transposed else int(weight.shape[0])
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(
            f"conv{'_transpose' * transposed}{dims}d: the bias has one number per channel of the result",
            got=f"bias {list(bias.shape)} for {channels} channels",
        )
    single = input.ndim == dims + 1
    x = input.reshape((1, *input.shape)) if single else input
    out: Tensor = call(name, x, weight, *(() if bias is None else (bias,)), **geometry)
    return out.reshape(out.shape[1:]) if single else out


def conv(
    dims: int, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Cross-correlate over the last `dims` axes: [N, C, ...] with weight [out, C / groups, ...]."""
    name = f"conv{dims}d"
    _check(name, dims, input, weight, 1, groups)
    strides = per_axis(f"{name}: stride", stride, dims)
    dilations = per_axis(f"{name}: dilation", dilation, dims)
    window = tuple(int(k) for k in weight.shape[2:])
    return _apply(
        dims, "convolution", input, weight, bias, strides=strides, dilation=dilations, groups=groups,
        padding=padding_pairs(name, padding, window, strides, dilations),
    )  # fmt: skip


conv1d, conv2d, conv3d = functions(conv, "Cross-correlate {layout} with weight [out, C / groups, {kernel}].")


def conv_transpose(
    dims: int, input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Apply the transpose of `conv` to [N, C, ...], with weight [C, out / groups, ...]."""
    name = f"conv_transpose{dims}d"
    _check(name, dims, input, weight, 0, 1)
    strides = per_axis(f"{name}: stride", stride, dims)
    dilations = per_axis(f"{name}: dilation", dilation, dims)
    pads = per_axis(f"{name}: padding", padding, dims, 0)
    extra = per_axis(f"{name}: output_padding", output_padding, dims, 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise AttributeValueError(
            f"{name}: output_padding is smaller than stride or dilation", got=str(output_padding)
        )
    return _apply(
        dims, "transposed_convolution", input, weight, bias, strides=strides, dilation=dilations,
        groups=groups, padding=tuple((p, p) for p in pads), output_padding=extra,
    )  # fmt: skip


conv_transpose1d, conv_transpose2d, conv_transpose3d = functions(
    conv_transpose, "Apply the transpose of conv{n}d to {layout}, with weight [C, out / groups, {kernel}]."
)
