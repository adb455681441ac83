"""Windows: weights of the samples of a frame, as PyTorch and NumPy name them, and frames cut of a signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype, float32
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import as_tensor
from stratal.tensor.device import check_device
from stratal.tensor.indexing import take
from stratal.tensor.ramps import Array, mirror, write_ramp, write_window, written
from stratal.tensor.shapes import moveaxis
from stratal.tensor.tensor import Tensor


def _weights(
    name: str, length: int, periodic: bool, dtype: Any, device: Any, write: Callable[[Array, int], None]
) -> Tensor:
    """Return the symmetric window that `write` writes, or the first `length` of `length + 1` weights: those
    of one period. One weight is 1.
    """
    check_device(device)
    wanted = as_dtype(dtype or float32)
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
def hanning(M: int) -> Tensor:
    """Return `hann_window` of both ends alike."""
    return hann_window(M, periodic=False)


def hamming(M: int) -> Tensor:
    """Return `hamming_window` of both ends alike."""
    return hamming_window(M, periodic=False)


def blackman(M: int) -> Tensor:
    """Return `blackman_window` of both ends alike."""
    return blackman_window(M, periodic=False)


def bartlett(M: int) -> Tensor:
    """Return `bartlett_window` of both ends alike."""
    return bartlett_window(M, periodic=False)


def kaiser(M: int, beta: float) -> Tensor:
    """Return `kaiser_window` of both ends alike."""
    return kaiser_window(M, periodic=False, beta=beta)


# -- frames --------------------------------------------------------------------------------------------------
def unfold(x: Any, dimension: int, size: int, step: int) -> Tensor:
    """Return every window of `size` elements along an axis, `step` apart; the last axis runs through each.

    Shapes: [..., n, ...] -> [..., (n - size) // step + 1, ..., size].
    """
    t = as_tensor(x, "unfold")
    axis = check_axis("unfold", dimension, t.ndim)
    if size < 0 or step < 1:
        raise AttributeValueError("unfold: size is not negative, step positive", got=f"{size}, {step}")
    if size > (n := int(t.shape[axis])):
        raise ShapeError("unfold: the window is longer than the axis", got=f"size {size} of {n} in {t.type}")
    places = np.arange(0, n - size + 1, step)[:, None] + np.arange(size)
    return moveaxis(take(t, places, axis=axis), axis + 1, -1)


__all__ = [
    "bartlett", "bartlett_window", "blackman", "blackman_window", "hamming", "hamming_window", "hann_window",
    "hanning", "kaiser", "kaiser_window", "unfold",
]  # fmt: skip
