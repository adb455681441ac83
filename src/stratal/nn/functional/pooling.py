"""Pooling in PyTorch's calling form: maximum, mean or p-norm of windows over the last one to three axes."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dtypes import int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.nn.dimensions import Sizes, functions, per_axis
from stratal.tensor.build import call
from stratal.tensor.functions.creation import arange, zeros
from stratal.tensor.functions.elementwise import FUNCTIONS, cast
from stratal.tensor.tensor import Tensor


def check_axes(name: str, x: Tensor, dims: int) -> None:
    """Refuse what is no image of `dims` axes with channels, alone or in a batch. Raises: ShapeError."""
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


# -- maxima --------------------------------------------------------------------------------------------------
def max_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Return the maximum of every window over the last `dims` axes, and, where asked, where it stood in the
    flat image.
    """
    name = f"max_pool{dims}d"
    check_axes(name, input, dims)
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


max_pool1d, max_pool2d, max_pool3d = functions(max_pool, "Return the maximum of every window of {layout}.")


def max_unpool(
    dims: int, input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None,
    padding: Sizes = 0, output_size: Any = None,
) -> Tensor:  # fmt: skip
    """Put maxima back where `max_pool` with return_indices found them, zeros elsewhere.

    `output_size` chooses among the sizes a stride leaves open: of the last `dims` axes, or of all.
    """
    name = f"max_unpool{dims}d"
    check_axes(name, input, dims)
    if indices.shape != input.shape or not indices.dtype.is_integer:
        raise ShapeError(f"{name}: takes one integer place per value", got=f"{indices.type} for {input.type}")
    geometry = _geometry(name, dims, kernel_size, stride, padding)
    least = [
        (int(n) - 1) * s - 2 * p + k
        for n, k, s, p in zip(input.shape[-dims:], *geometry.values(), strict=True)
    ]
    size = least if output_size is None else list(output_size)[-dims:]
    size = [int(n) if isinstance(n, int) else -1 for n in size]
    if len(size) != dims or any(
        abs(n - m) >= s for n, m, s in zip(size, least, geometry["strides"], strict=True)
    ):
        raise ShapeError(f"{name}: output_size lies within a stride of {least}", got=str(output_size))
    lead = input.shape[:-dims]
    empty = zeros((*lead, math.prod(size)), dtype=input.dtype)
    places, values = indices.reshape((*lead, -1)), input.reshape((*lead, -1))
    flat: Tensor = call("scatter_along", empty, places, values, kind="set", axis=len(lead))
    return flat.reshape((*lead, *size))


max_unpool1d, max_unpool2d, max_unpool3d = functions(
    max_unpool, "Put the maxima of max_pool{n}d back where they stood, zeros elsewhere."
)


# -- means ---------------------------------------------------------------------------------------------------
def avg_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of every window over the last `dims` axes."""
    name = f"avg_pool{dims}d"
    check_axes(name, input, dims)
    if divisor_override == 0:
        raise AttributeValueError(f"{name}: divisor_override must not be 0", got="0")
    geometry = _geometry(name, dims, kernel_size, stride, padding)
    return call(
        "avg_pool",
        input,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor=divisor_override,
        **geometry,
    )


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of every window of [N, C, L]."""
    return avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


avg_pool2d, avg_pool3d = functions(avg_pool, "Return the mean of every window of {layout}.", (2, 3))


# -- norms ---------------------------------------------------------------------------------------------------
def lp_pool(
    dims: int, input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Return (sum of x^p)^(1/p) of every window over the last `dims` axes, 0 where that sum is negative."""
    name = f"lp_pool{dims}d"
    if not input.dtype.is_float:
        raise DTypeError(f"{name}: takes floats", got=str(input.dtype))
    if norm_type == 0:
        raise AttributeValueError(f"{name}: norm_type must not be 0", got="0")
    window = per_axis(f"{name}: kernel_size", kernel_size, dims)
    mean = avg_pool(dims, input**norm_type, window, stride, 0, ceil_mode)
    return (FUNCTIONS["sign"](mean) * call("relu", abs(mean)) * math.prod(window)) ** (1.0 / norm_type)


lp_pool1d, lp_pool2d, lp_pool3d = functions(lp_pool, "Return the p-norm of every window of {layout}.")
