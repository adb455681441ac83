"""Pooling to a given size: means and maxima of nearly equal windows, maxima of randomly placed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.nn.dimensions import Sizes, functions, per_axis
from stratal.nn.functional.pooling import check_axes, max_pool
from stratal.tensor.build import call
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, minimum, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.reductions import argmax
from stratal.tensor.functions.shapes import broadcast_to, stack
from stratal.tensor.tensor import Tensor


def _sizes(name: str, dims: int, input: Tensor, output_size: Any) -> tuple[int, ...]:
    check_axes(name, input, dims)
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    if len(wanted) != dims or any(m is not None and (type(m) is not int or m < 1) for m in wanted):
        raise AttributeValueError(f"{name}: takes {dims} positive output sizes or None", got=str(output_size))
    if any(int(n) == 0 for n in input.shape[-dims:]):
        raise ShapeError(f"{name}: there is nothing to pool", got=f"shape {list(input.shape)}")
    return tuple(int(n) if m is None else m for m, n in zip(wanted, input.shape[-dims:], strict=True))


def adaptive_avg_pool(dims: int, input: Tensor, output_size: Any) -> Tensor:
    """Return means over windows [floor(i n / m), ceil((i + 1) n / m)) along each of the last `dims` axes."""
    size = _sizes(f"adaptive_avg_pool{dims}d", dims, input, output_size)
    return call("adaptive_avg_pool", input, size=size)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = functions(
    adaptive_avg_pool, "Return means over nearly equal windows of {last}; None keeps an axis as it is."
)


MOST_PHASES = 16  # kinds of windows along an axis that are pooled one kind after the other


def adaptive_max_pool(dims: int, input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Return maxima over windows [floor(i n / m), ceil((i + 1) n / m)) along each of the last `dims` axes,
    and, where asked, where they stood in the flat image.
    """
    size = _sizes(f"adaptive_max_pool{dims}d", dims, input, output_size)
    have = tuple(int(n) for n in input.shape[-dims:])
    axes = [_Windows(n, m) for n, m in zip(have, size, strict=True)]
    if all(w.phases == 1 for w in axes):
        window, strides = zip(*((w.length(0), w.stride) for w in axes), strict=True)
        return max_pool(dims, input, window, strides, return_indices=return_indices)
    if all(w.phases <= MOST_PHASES for w in axes):
        return _axis_by_axis(input, axes, return_indices)
    spans = []
    for n, m in zip(have, size, strict=True):
        cells = arange(m)
        start, stop = cells * n // m, ((cells + 1) * n + m - 1) // m
        longest = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
        spans.append(minimum(start.reshape((m, 1)) + arange(longest), stop.reshape((m, 1)) - 1))
    return _maxima(input, spans, return_indices)


class _Windows:
    """The `count` windows of adaptive pooling along an axis of `size`: `phases` windows further on stands one
    as long, `stride` elements behind.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        few = range(count) if count <= size else range(0)  # more windows than elements start together
        lengths = {self.length(i) for i in few}
        steps = {self.start(i + 1) - self.start(i) for i in few[:-1]}
        even = len(lengths) == 1 and len(steps) <= 1 and 0 not in steps
        self.phases = 1 if even else count // math.gcd(size, count)
        self.stride = max(steps, default=1) if even else size // math.gcd(size, count)

    def start(self, i: int) -> int:
        return i * self.size // self.count

    def length(self, i: int) -> int:
        return -(-(i + 1) * self.size // self.count) - self.start(i)


def _axis_by_axis(x: Tensor, axes: Sequence[_Windows], return_indices: bool) -> Any:
    """Return the maximum of every window, and where it stood in the flat image: maxima along the last axis,
    then those of them along the axis before it.
    """
    flat, unit = None, 1
    for axis in range(-1, -len(axes) - 1, -1):
        x, places = _along_axis(x, axis, axes[axis], len(axes), return_indices)
        if return_indices:
            inner = 0 if flat is None else take_along_axis(flat, places, axis=axis)
            flat, unit = inner + places * unit, unit * axes[axis].size
    return (x, flat) if return_indices else x


def _along_axis(x: Tensor, axis: int, windows: _Windows, dims: int, places: bool) -> tuple[Tensor, Any]:
    """Return maxima of the windows along one of the last axes, and their places along it."""
    number = windows.count // windows.phases
    found, stood = [], []
    for i in range(windows.phases):
        length, start = windows.length(i), windows.start(i)
        window = tuple(length if a == axis else 1 for a in range(-dims, 0))
        strides = tuple(windows.stride if a == axis else 1 for a in range(-dims, 0))
        geometry = {"window": window, "strides": strides, "padding": (0,) * dims, "dilation": (1,) * dims}
        stop = start + (number - 1) * windows.stride + length
        part = x[(..., slice(start, stop), *(slice(None),) * (-axis - 1))]
        found.append(call("max_pool", part, **geometry))
        if places:
            first = (arange(number) * windows.stride + start).reshape((number, *(1,) * (-axis - 1)))
            stood.append(cast(call("max_pool_offsets", part, **geometry), "int64") + first)
    return _woven(found, axis), _woven(stood, axis) if places else None


def _woven(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Return tensors with their elements along an axis taking turns."""
    shape = parts[0].shape
    k = len(shape) + axis
    joined = stack(list(parts), axis=k + 1)
    return joined.reshape((*shape[:k], shape[k] * len(parts), *shape[k + 1 :]))


def _maxima(x: Tensor, spans: Sequence[Tensor], return_indices: bool) -> Any:
    """Return the maximum of every window, and where it stood in the flat image.

    `spans` has for each of the last axes the places of every window, [..., windows, size]; one may repeat.
    """
    dims = len(spans)
    lead, have = x.shape[:-dims], [int(n) for n in x.shape[-dims:]]
    flat: Any = 0
    for k, (span, n) in enumerate(zip(spans, have, strict=True)):
        *batch, windows, size = (int(s) for s in span.shape)
        ones = [windows if a == k else 1 for a in range(dims)] + [size if a == k else 1 for a in range(dims)]
        flat = flat * n + span.reshape((*batch, *ones))
    counts, window = flat.shape[-2 * dims : -dims], [int(n) for n in flat.shape[-dims:]]
    flat = flat.reshape((*flat.shape[: -2 * dims], -1, math.prod(window)))
    places = broadcast_to(flat, (*lead, *flat.shape[-2:]))
    image = x.reshape((*lead, -1))
    seen = take_along_axis(image.detach(), places.reshape((*lead, -1)), axis=-1).reshape(places.shape)
    chosen = take_along_axis(places, argmax(seen, axis=-1, keepdims=True), axis=-1).reshape((*lead, -1))
    pooled = take_along_axis(image, chosen, axis=-1).reshape((*lead, *counts))
    return (pooled, chosen.reshape((*lead, *counts))) if return_indices else pooled


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = functions(
    adaptive_max_pool, "Return maxima over nearly equal windows of {last}; None keeps an axis as it is."
)


# -- randomly placed windows ---------------------------------------------------------------------------------
def fractional_max_pool(
    dims: int, input: Tensor, kernel_size: Sizes, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Any = None
) -> Any:
    """Return maxima of windows whose distances are random, but add up to the size. See: Graham 2014.

    The result's size is given, or a share of the input's in (0, 1) is. `_random_samples` [N, C, dims] in
    [0, 1) decides where windows lie: one number per channel and axis.
    """
    name = f"fractional_max_pool{dims}d"
    check_axes(name, input, dims)
    window = per_axis(f"{name}: kernel_size", kernel_size, dims)
    have = tuple(int(n) for n in input.shape[-dims:])
    if (output_size is None) == (output_ratio is None):
        raise AttributeValueError(f"{name}: takes output_size or output_ratio", got="both or none of them")
    if output_size is None:
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * dims
        if len(ratios) != dims or not all(isinstance(r, float) and 0 < r < 1 for r in ratios):
            raise AttributeValueError(f"{name}: a ratio lies in (0, 1)", got=str(output_ratio))
        size = tuple(int(n * r) for n, r in zip(have, ratios, strict=True))
    else:
        size = per_axis(f"{name}: output_size", output_size, dims)
    if any(m < 1 or m + k - 1 > n for n, m, k in zip(have, size, window, strict=True)):
        raise ShapeError(
            f"{name}: the windows do not fit", got=f"{size} windows of {window} elements in {have}"
        )
    lead = input.shape[:-dims]
    samples = _random_samples
    if samples is None:
        samples = random.uniform((*lead, dims), dtype=input.dtype)
    elif input.ndim == dims + 1:
        samples = samples.reshape((*lead, dims))
    spans = []
    for k, (n, m, width) in enumerate(zip(have, size, window, strict=True)):
        # PyTorch's samples run from the last axis backwards in two dimensions, and forwards in three.
        sample = samples[..., dims - 1 - k if dims == 2 else k].reshape((*lead, 1))
        start = _starts(sample, n, m, width)
        spans.append(start.reshape((*start.shape, 1)) + arange(width))
    return _maxima(input, spans, return_indices)


def _starts(sample: Tensor, size: int, windows: int, width: int) -> Tensor:
    """Return where windows start: steps of floor(a) or ceil(a), the last window ending at the end."""
    if windows == 1:
        return cast(sample * 0, "int64") + (size - width)
    step = (size - width) / (windows - 1)
    number = arange(windows)
    trunc = FUNCTIONS["trunc"]
    steps = trunc((cast(number, sample.dtype) + sample) * step) - trunc(sample * step)
    return where(number == windows - 1, size - width, cast(steps, "int64"))  # type: ignore[no-any-return]


fractional_max_pool2d, fractional_max_pool3d = functions(
    fractional_max_pool, "Return maxima of randomly placed windows of {layout}.", (2, 3)
)
