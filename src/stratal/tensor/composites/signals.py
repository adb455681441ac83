"""Sequences: interpolation between samples, convolution and correlation, windows and frames.

Windows are weights of the samples of a frame, as PyTorch and NumPy name them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.tensor.build import along, as_tensor, call, common_dtype, default_float
from stratal.tensor.device import check_device
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, clip, where
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.ramps import Array, mirror, write_ramp, write_window, written
from stratal.tensor.functions.shapes import concat, flip, moveaxis, reshape
from stratal.tensor.functions.sorting import searchsorted
from stratal.tensor.tensor import Tensor


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None
) -> Tensor:
    """Return the values at `x` of the line through the points (xp, fp), where xp goes up.

    Beyond the first and last point the value is `left` and `right`, by default those of the points. With a
    `period` the points repeat, in any order. Differentiable in x, xp and fp.
    """
    given = [as_tensor(v, "interp") for v in (x, xp, fp)]
    dtype = default_float(common_dtype("interp", given))
    at, places, values = (cast(t, dtype) for t in given)
    if places.ndim != 1 or places.shape != values.shape or not places.numel():
        raise ShapeError(
            "interp: points are two vectors of one length", got=f"{given[1].type} and {given[2].type}"
        )
    if period is not None:
        if period == 0:
            raise AttributeValueError("interp: a period is not 0")
        period, left, right = abs(float(period)), None, None
        at, places, values = _unrolled(at, places, values, period)
    n = int(places.shape[0])
    above = clip(searchsorted(places, at.detach(), side="right"), 1, max(n - 1, 1))
    below = above - 1
    above = FUNCTIONS["minimum"](above, n - 1)
    x0, x1, y0, y1 = (
        take(v, i, axis=0) for v, i in ((places, below), (places, above), (values, below), (values, above))
    )
    flat = x1 == x0
    slope = (y1 - y0) / where(flat, 1.0, x1 - x0)
    inside = where(at == x1, y1, y0 + slope * (at - x0))
    result = where(at < places[0], values[0] if left is None else left, inside)
    result = where(at > places[n - 1], values[n - 1] if right is None else right, result)
    return where(FUNCTIONS["isnan"](at), at, result)


def _unrolled(at: Tensor, places: Tensor, values: Tensor, period: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return points of one period in order, with the last one before it and the first one behind it."""
    places, order = FUNCTIONS["remainder"](places, period).sort(0)
    values = take(values, order, axis=0)
    places = concat([places[-1:] - period, places, places[:1] + period])
    return FUNCTIONS["remainder"](at, period), places, concat([values[-1:], values, values[:1]])


# -- convolution ---------------------------------------------------------------------------------------------
_MODES = ("full", "same", "valid")


def _vectors(name: str, x: Any, y: Any, mode: str) -> tuple[Tensor, Tensor]:
    if mode not in _MODES:
        raise AttributeValueError(f"{name}: mode is one of {', '.join(_MODES)}", got=repr(mode))
    a, b = as_tensor(x, name), as_tensor(y, name)
    if a.ndim > 1 or b.ndim > 1 or not a.numel() or not b.numel():
        raise ShapeError(f"{name}: takes two vectors with elements", got=f"{a.type} and {b.type}")
    dtype = common_dtype(name, (a, b))
    dtype = as_dtype("int64") if dtype.is_bool else dtype
    return cast(reshape(a, (a.numel(),)), dtype), cast(reshape(b, (b.numel(),)), dtype)


def _met(x: Tensor, y: Tensor) -> Tensor:
    """Return the sums of products of two vectors at all places they meet."""
    n, m = x.numel(), y.numel()
    x, y = (y, x) if m > n else (x, y)
    around = min(n, m) - 1
    found = call(
        "conv", reshape(x, (1, 1, max(n, m))), reshape(flip(y, 0), (1, 1, around + 1)), strides=(1,),
        padding=((around, around),), lhs_dilation=(1,), rhs_dilation=(1,), groups=1,
    )  # fmt: skip
    return reshape(found, (n + m - 1,))


def _cut(full: Tensor, n: int, m: int, mode: str, late: bool) -> Tensor:
    """Return the part of all places that a mode keeps; `late`: where there is no middle, the later one."""
    most, least = max(n, m), min(n, m)
    if mode == "full":
        return full
    if mode == "valid":
        return full[least - 1 : most]
    start = least // 2 if late else (least - 1) // 2
    return full[start : start + most]


def convolve(x: Any, y: Any, /, mode: str = "full") -> Tensor:
    """Return the convolution of two vectors.

    `mode` is "full" (all places they meet), "same" (as many as the longer has) or "valid" (where the shorter
    lies within the longer).
    """
    a, b = _vectors("convolve", x, y, mode)
    return _cut(_met(a, b), a.numel(), b.numel(), mode, False)


def correlate(x: Any, y: Any, /, mode: str = "valid") -> Tensor:
    """Return the correlation of two vectors, the second conjugated; modes are those of `convolve`."""
    a, b = _vectors("correlate", x, y, mode)
    other = flip(call("conj", b) if b.dtype.is_complex else b, 0)
    return _cut(_met(a, other), a.numel(), b.numel(), mode, b.numel() > a.numel())

# -- windows -------------------------------------------------------------------------------------------------
def _weights(
    name: str, length: int, periodic: bool, dtype: Any, device: Any, write: Callable[[Array, int], None]
) -> Tensor:
    """Return the symmetric window that `write` writes, or the first `length` of `length + 1` weights: those
    of one period. One weight is 1.
    """
    check_device(device)
    wanted = as_dtype(dtype or float)
    if not wanted.is_float:
        raise DTypeError(f"{name}: weights are floats", got=str(wanted))
    if length < 0:
        raise AttributeValueError(f"{name}: the number of weights is not negative", got=str(length))
    count = length + 1 if periodic and length > 1 else length
    return written(wanted, (length,), lambda out: write(out, count) if count > 1 else out.fill(1))


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return (1 - cos(2 pi k / n)) / 2; n is the length, or one less where not `periodic`."""
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype, device=device)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: Any = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Return alpha - beta cos(2 pi k / n); n is the length, or one less where not `periodic`."""

    def write(out: Array, count: int) -> None:
        write_window(out, count, lambda square: (alpha - beta) + 2 * beta * square)

    return _weights("hamming_window", window_length, periodic, dtype, device, write)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return 0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n)."""

    def write(out: Array, count: int) -> None:
        write_window(out, count, lambda square: (0.36 + 0.64 * square) * square)

    return _weights("blackman_window", window_length, periodic, dtype, device, write)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return weights that go up from 0 to 1 along a line, and down again."""

    def write(out: Array, count: int) -> None:
        write_ramp(out[: (count + 1) // 2], 0.0, 2 / (count - 1))
        mirror(out, count)

    return _weights("bartlett_window", window_length, periodic, dtype, device, write)


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return I0(beta sqrt(1 - (2 k / n - 1)^2)) / I0(beta)."""

    def write(out: Array, count: int) -> None:
        middle = (count - 1) / 2
        height = np.sqrt(1 - ((np.arange((count + 1) // 2) - middle) / middle) ** 2)
        out[: height.size] = np.i0(beta * height) / np.i0(beta)
        mirror(out, count)

    return _weights("kaiser_window", window_length, periodic, dtype, device, write)


# -- NumPy's names, symmetric --------------------------------------------------------------------------------
def _symmetric(name: str, window: Callable[..., Tensor]) -> Callable[[int], Tensor]:
    def function(M: int) -> Tensor:
        return window(M, periodic=False)

    return named(function, name, f"Return `{window.__name__}` of both ends alike.")


hanning, hamming = _symmetric("hanning", hann_window), _symmetric("hamming", hamming_window)
blackman, bartlett = _symmetric("blackman", blackman_window), _symmetric("bartlett", bartlett_window)


def kaiser(M: int, beta: float) -> Tensor:
    """Return `kaiser_window` of both ends alike."""
    return kaiser_window(M, periodic=False, beta=beta)


# -- frames --------------------------------------------------------------------------------------------------
def unfold(x: Any, dimension: int, size: int, step: int) -> Tensor:
    """Return every window of `size` elements along an axis, `step` apart; the last axis runs through each.

    Shapes: [..., n, ...] -> [..., (n - size) // step + 1, ..., size].
    """
    t, axis = along("unfold", x, dimension)
    if size < 0 or step < 1:
        raise AttributeValueError("unfold: size is not negative, step positive", got=f"{size}, {step}")
    if size > (n := int(t.shape[axis])):
        raise ShapeError("unfold: the window is longer than the axis", got=f"size {size} of {n} in {t.type}")
    places = np.arange(0, n - size + 1, step)[:, None] + np.arange(size)
    return moveaxis(take(t, places, axis=axis), axis + 1, -1)

__all__ = [
    "bartlett", "bartlett_window", "blackman", "blackman_window", "convolve", "correlate", "hamming",
    "hamming_window", "hann_window", "hanning", "interp", "kaiser", "kaiser_window", "unfold",
]  # fmt: skip
