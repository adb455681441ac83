"""Pooling in PyTorch's calling form: the maximum or mean of windows over the last one or two axes."""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.sizes import Sizes, per_axis
from stratal.tensor.build import call
from stratal.tensor.creation import arange
from stratal.tensor.elementwise import cast
from stratal.tensor.tensor import Tensor


def _check_axes(name: str, x: Tensor, dims: int) -> None:
    if x.ndim not in (dims + 1, dims + 2):
        raise ShapeError(f"{name}: takes {dims + 1} or {dims + 2} axes", got=f"shape {list(x.shape)}")


def _geometry(
    name: str, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes
) -> dict[str, Any]:
    window = per_axis(f"{name}: kernel_size", kernel_size, dims)
    strides = window if stride is None else per_axis(f"{name}: stride", stride, dims)
    pads = per_axis(f"{name}: padding", padding, dims, 0)
    if any(2 * p > k for p, k in zip(pads, window, strict=True)):
        raise AttributeValueError(f"{name}: padding is at most half the kernel", got=f"{pads} for {window}")
    return {"window": window, "strides": strides, "padding": pads}


def max_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the maximum of every window over the last `dims` axes, and, where asked, where it stood in the
    flat image.
    """
    name = f"max_pool{dims}d"
    _check_axes(name, input, dims)
    geometry = _geometry(name, dims, kernel_size, stride, padding)
    geometry["dilation"] = per_axis(f"{name}: dilation", dilation, dims)
    pooled = call("max_pool", input, ceil_mode=ceil_mode, **geometry)
    if not return_indices:
        return pooled
    offsets = cast(call("max_pool_offsets", input, ceil_mode=ceil_mode, **geometry), int64)
    return pooled, _flat_places(offsets, tuple(int(n) for n in input.shape[-dims:]), geometry)


def _flat_places(offsets: Tensor, sizes: tuple[int, ...], geometry: dict[str, Any]) -> Tensor:
    """Return offsets within windows as row-major places in the pooled axes."""
    flat, unit, rest = offsets * 0, 1, offsets
    for k in reversed(range(len(sizes))):
        window, stride, pad, dilation = (
            geometry[key][k] for key in ("window", "strides", "padding", "dilation")
        )
        count = int(offsets.shape[k - len(sizes)])
        start = (arange(count) * stride - pad).reshape((count, *(1,) * (len(sizes) - 1 - k)))
        flat = flat + (start + rest % window * dilation) * unit
        rest, unit = rest // window, unit * sizes[k]
    return flat


def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the maximum of every window of [N, C, L]."""
    return max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the maximum of every window of [N, C, H, W]."""
    return max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of every window over the last `dims` axes."""
    name = f"avg_pool{dims}d"
    _check_axes(name, input, dims)
    geometry = _geometry(name, dims, kernel_size, stride, padding)
    result: Tensor = call(
        "avg_pool",
        input,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor=divisor_override,
        **geometry,
    )
    return result


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of every window of [N, C, L]."""
    return avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of every window of [N, C, H, W]."""
    return avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _adaptive(dims: int, input: Tensor, output_size: Any) -> Tensor:
    """Return means over windows [floor(i n / m), ceil((i + 1) n / m)) along each of the last `dims` axes."""
    name = f"adaptive_avg_pool{dims}d"
    _check_axes(name, input, dims)
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    if len(wanted) != dims or any(m is not None and (not isinstance(m, int) or m < 1) for m in wanted):
        raise AttributeValueError(f"{name}: takes {dims} positive output sizes or None", got=str(output_size))
    size = tuple(int(n) if m is None else m for m, n in zip(wanted, input.shape[-dims:], strict=True))
    result: Tensor = call("adaptive_avg_pool", input, size=size)
    return result


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Return means over `output_size` nearly equal windows of the last axis."""
    return _adaptive(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Return means over nearly equal windows of the last two axes; None keeps an axis as it is."""
    return _adaptive(2, input, output_size)
