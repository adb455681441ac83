"""Pooling over the trailing axes: greatest and mean with PyTorch's rounding rules, and adaptive means."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stratal.base.dims import as_int
from stratal.base.errors import AttributeValueError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.composite.family import along, cast_to, check_float, in_floats, named, wide
from stratal.ops.linear.family import Pairs, dilated, window_count

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """Windows over every axis of an operand: the attributes of window_reduce."""

    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes


def _over_all_axes(
    name: str, x: Node, window: Sizes, strides: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> Geometry:
    """Return windows over the trailing axes of `x`; leading axes have windows of 1.

    With `ceil_mode` a last window may reach beyond the padding, if it starts before its end.
    """
    leading = x.aval.ndim - len(window)
    if leading < 0 or any(
        p > ((w - 1) * d + 1) // 2 for p, w, d in zip(padding, window, dilation, strict=True)
    ):
        raise AttributeValueError(
            f"{name}: padding is at most half of the window", got=f"{padding} for {window}"
        )
    pads = []
    for n, w, s, p, d in zip(x.shape[leading:], window, strides, padding, dilation, strict=True):
        high = p
        if ceil_mode:
            room = as_int(n) + 2 * p - as_int(dilated(w, d))
            count = -(-room // s) + 1
            count -= (count - 1) * s >= as_int(n) + p
            high = max(p, (count - 1) * s + as_int(dilated(w, d)) - as_int(n) - p)
        pads.append((p, high))
    ones = (1,) * leading
    return Geometry(ones + window, ones + strides, ((0, 0),) * leading + tuple(pads), ones + dilation)


@named
def max_pool(
    b: Builder, x: Node, *, window: Sizes, strides: Sizes, padding: Sizes, dilation: Sizes,
    ceil_mode: bool = False,
) -> Node:  # fmt: skip
    """Return the greatest element of every window of the trailing axes; padding never wins."""
    geometry = _over_all_axes("max_pool", x, window, strides, padding, dilation, ceil_mode)
    return b.op("window_reduce", x, kind="max", **geometry._asdict())


@named
def max_pool_offsets(
    b: Builder, x: Node, *, window: Sizes, strides: Sizes, padding: Sizes, dilation: Sizes,
    ceil_mode: bool = False,
) -> Node:  # fmt: skip
    """Return where in its window each greatest element is, row-major; bytes where they do, else int32."""
    geometry = _over_all_axes("max_pool_offsets", x, window, strides, padding, dilation, ceil_mode)
    return b.op("window_argmax", x, **geometry._asdict())


@in_floats
def avg_pool(
    b: Builder, x: Node, *, window: Sizes, strides: Sizes, padding: Sizes, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Node:  # fmt: skip
    """Return the mean of every window of the trailing axes.

    The divisor counts padding unless `count_include_pad` is false, never what `ceil_mode` adds; or is given.
    """
    ones = (1,) * len(window)
    geometry = _over_all_axes("avg_pool", x, window, strides, padding, ones, ceil_mode)
    total = b.window_reduce(x, kind="sum", **geometry._asdict())
    if divisor is not None:
        return b.div(total, b.like(total, divisor))
    first = x.aval.ndim - len(window)
    counts = _counts(x.shape[first:], geometry, first, padding, count_include_pad)
    if counts.size and np.all(counts == counts.flat[0]):
        return b.div(total, b.like(total, float(counts.flat[0])))
    return b.div(total, along(b, b.const(counts, total.dtype), total, range(first, x.aval.ndim)))


def _counts(sizes: Sizes, geometry: Geometry, first: int, padding: Sizes, with_padding: bool) -> np.ndarray:
    """Return how many elements every window counts."""
    counts = np.ones((), np.int64)
    for k, (n, pad) in enumerate(zip(map(as_int, sizes), padding, strict=True)):
        w, s = geometry.window[first + k], geometry.strides[first + k]
        low, high = geometry.padding[first + k]
        number = as_int(window_count("avg_pool", n, w, s, (low, high), 1))
        starts = np.arange(number) * s - low
        begin, end = (-pad, n + pad) if with_padding else (0, n)
        covered = np.minimum(starts + w, end) - np.maximum(starts, begin)
        counts = np.multiply.outer(counts, covered)
    return counts


@named
def adaptive_avg_pool(b: Builder, x: Node, *, size: Sizes) -> Node:
    """Average the trailing axes down to `size`: cell i of m takes elements floor(i*n/m) to ceil((i+1)*n/m).

    Where m divides n these are plain windows, else a product with the matrix of shares for each axis.
    """
    check_float("adaptive_avg_pool", x)
    first = x.aval.ndim - len(size)
    sizes = tuple(map(as_int, x.shape[first:]))
    if all(m > 0 and n % m == 0 for n, m in zip(sizes, size, strict=True)):
        window = tuple(n // m for n, m in zip(sizes, size, strict=True))
        if all(m == 1 for m in size):
            axes = tuple(range(first, x.aval.ndim))
            return b.op("reshape", b.mean(x, axes=axes), shape=(*x.shape[:first], *size))
        return b.avg_pool(x, window=window, strides=window, padding=(0,) * len(size))
    y = wide(b, x)
    letters = "abcdefghijkl"[: x.aval.ndim]
    for k, (n, m) in enumerate(zip(sizes, size, strict=True)):
        shares = np.zeros((n, m))
        for i in range(m):
            low, high = i * n // m, -(-(i + 1) * n // m)
            shares[low:high, i] = 1 / (high - low)
        old = letters[first + k]
        y = b.contract(y, b.const(shares, y.dtype), spec=f"{letters},{old}z->{letters.replace(old, 'z')}")
    return cast_to(b, y, x.dtype)
