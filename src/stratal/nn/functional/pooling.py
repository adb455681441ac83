"""Pooling: the maximum or mean of windows over the last one or two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.sizes import Sizes, per_axis
from stratal.tensor.build import call
from stratal.tensor.tensor import Tensor, tensor


def _windows(name: str, x: Tensor, dims: int) -> tuple[int, ...]:
    """Return the sizes of the pooled axes. Raises: ShapeError."""
    if x.ndim not in (dims + 1, dims + 2):
        raise ShapeError(f"{name}: takes {dims + 1} or {dims + 2} axes", got=f"shape {list(x.shape)}")
    return tuple(int(n) for n in x.shape[-dims:])


def _end_padding(
    sizes: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool,
) -> tuple[int, ...]:  # fmt: skip
    """Return the padding after each axis; in ceil mode as much as lets a last window begin inside the input."""
    ends = []
    for n, k, s, p, d in zip(sizes, window, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        count = (span + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        ends.append(max(p, (count - 1) * s + d * (k - 1) + 1 - n - p))
    return tuple(ends)


def max_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor:  # fmt: skip
    """Return the maximum of every window over the last `dims` axes."""
    name = f"max_pool{dims}d"
    if return_indices:
        raise AttributeValueError(f"{name}: return_indices is not offered")
    sizes = _windows(name, input, dims)
    window = per_axis(f"{name}: kernel_size", kernel_size, dims)
    steps = window if stride is None else per_axis(f"{name}: stride", stride, dims)
    pads = per_axis(f"{name}: padding", padding, dims, 0)
    dilations = per_axis(f"{name}: dilation", dilation, dims)
    if any(2 * p > k for p, k in zip(pads, window, strict=True)):
        raise AttributeValueError(f"{name}: padding is at most half the kernel", got=f"{pads} for {window}")
    ends = _end_padding(sizes, window, steps, pads, dilations, ceil_mode)
    return _reduce("max", input, window, steps, tuple(zip(pads, ends, strict=True)), dilations)


def _reduce(
    kind: str, x: Tensor, window: tuple[int, ...], stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Tensor:  # fmt: skip
    outer = x.ndim - len(window)
    one, none = (1,) * outer, ((0, 0),) * outer
    result: Tensor = call(
        "window_reduce", x, kind=kind, window=one + window, strides=one + stride, padding=none + padding,
        dilation=one + dilation,
    )  # fmt: skip
    return result


def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor:  # fmt: skip
    """Return the maximum of every window of [N, C, L]."""
    return max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor:  # fmt: skip
    """Return the maximum of every window of [N, C, H, W]."""
    return max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of every window over the last `dims` axes."""
    name = f"avg_pool{dims}d"
    sizes = _windows(name, input, dims)
    window = per_axis(f"{name}: kernel_size", kernel_size, dims)
    steps = window if stride is None else per_axis(f"{name}: stride", stride, dims)
    pads = per_axis(f"{name}: padding", padding, dims, 0)
    if any(2 * p > k for p, k in zip(pads, window, strict=True)):
        raise AttributeValueError(f"{name}: padding is at most half the kernel", got=f"{pads} for {window}")
    ends = _end_padding(sizes, window, steps, pads, (1,) * dims, ceil_mode)
    total = _reduce("sum", input, window, steps, tuple(zip(pads, ends, strict=True)), (1,) * dims)
    if divisor_override is not None:
        return total / float(divisor_override)
    counts = _counts(sizes, window, steps, pads, total.shape[-dims:], count_include_pad)
    if (counts == counts.flat[0]).all():
        return total / float(counts.flat[0])
    return total / tensor(counts.astype(input.dtype.np))


def _counts(
    sizes: Sequence[int], window: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    places: Sequence[int], count_include_pad: bool,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Return how many elements each window's mean is over."""
    counts = np.ones((), np.int64)
    for n, k, s, p, m in zip(sizes, window, stride, padding, places, strict=True):
        start = np.arange(int(m)) * s - p
        end = np.minimum(start + k, n + p)  # what ceil mode adds beyond the padding never counts
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        counts = np.multiply.outer(counts, end - start)
    return counts


def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of every window of [N, C, L]."""
    return avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the mean of every window of [N, C, H, W]."""
    return avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


# -- a fixed number of windows -------------------------------------------------------------------------------------
OutputSize = Any  # int, None, or one of them per axis


def _adaptive(dims: int, input: Tensor, output_size: OutputSize) -> Tensor:
    """Return means over windows [floor(i n / m), ceil((i + 1) n / m)) along each of the last `dims` axes."""
    name = f"adaptive_avg_pool{dims}d"
    sizes = _windows(name, input, dims)
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    wanted = tuple(n if m is None else m for m, n in zip(wanted, sizes, strict=True))
    if any(not isinstance(m, int) or m < 1 for m in wanted):
        raise AttributeValueError(f"{name}: output sizes are positive ints or None", got=str(output_size))
    if all(m == 1 for m in wanted):
        axes = tuple(range(input.ndim - dims, input.ndim))
        return input.mean(axis=axes, keepdims=True)
    if all(n % m == 0 for n, m in zip(sizes, wanted, strict=True)):
        window = tuple(n // m for n, m in zip(sizes, wanted, strict=True))
        return avg_pool(dims, input, window)
    for k, (n, m) in enumerate(zip(sizes, wanted, strict=True)):
        if n != m:
            input = _mean_matrix(input, input.ndim - dims + k, n, m)
    return input


def _mean_matrix(x: Tensor, axis: int, n: int, m: int) -> Tensor:
    """Contract one axis with the [m, n] matrix whose rows average the windows."""
    place = np.arange(n)
    row = np.arange(m)[:, None]
    inside = (place >= row * n // m) & (place < -((row + 1) * n // -m))
    matrix = inside / inside.sum(axis=1, keepdims=True)
    letters = "abcd"[: x.ndim]
    spec = f"{letters},z{letters[axis]}->{letters.replace(letters[axis], 'z')}"
    result: Tensor = call("contract", x, tensor(matrix.astype(x.dtype.np)), spec=spec)
    return result


def adaptive_avg_pool1d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Return means over `output_size` nearly equal windows of the last axis."""
    return _adaptive(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Return means over nearly equal windows of the last two axes; None keeps an axis as it is."""
    return _adaptive(2, input, output_size)
