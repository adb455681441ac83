"""The frequencies transforms have terms for, and where the zero frequency stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.dtypes import as_dtype, float32
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.fft.transforms import check_count
from stratal.tensor.build import as_tensor
from stratal.tensor.device import check_device
from stratal.tensor.naming import two_names
from stratal.tensor.ramps import Array, write_ramp, written
from stratal.tensor.shapes import as_axes, roll
from stratal.tensor.tensor import Tensor


def _frequencies(name: str, count: int, dtype: Any, write: Callable[[Array], None]) -> Tensor:
    target = float32 if dtype is None else as_dtype(dtype)
    if not target.is_inexact:
        raise DTypeError(f"{name}: frequencies are floats", got=str(target))
    return written(target, (count,), write)


def _positive(name: str, n: Any, d: float) -> int:
    count = check_count(name, n)
    if count < 1 or d == 0:
        raise AttributeValueError(
            f"{name}: takes a positive number of points, a spacing", got=f"n={n}, d={d}"
        )
    return count


def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the terms of `fft` of n points, d apart: [0, 1, ..., -2, -1] / (n d)."""
    check_device(device)
    count = _positive("fftfreq", n, d)
    half = (count + 1) // 2

    def write(out: Array) -> None:
        write_ramp(out[:half], -0.0, 1.0 / (count * d))
        write_ramp(out[half:], -0.0, 1.0 / (count * d), -(count // 2))

    return _frequencies("fftfreq", count, dtype, write)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the terms of `rfft` of n points, d apart: [0, 1, ..., n // 2] / (n d)."""
    check_device(device)
    count = _positive("rfftfreq", n, d)
    step = 1.0 / (count * d)
    return _frequencies("rfftfreq", count // 2 + 1, dtype, lambda out: write_ramp(out, -0.0, step))


@two_names
def fftshift(x: Any, /, axes: Any = None) -> Tensor:
    """Return `x` with the zero frequency in the middle of axes, all for None."""
    t = as_tensor(x, "fftshift")
    found = as_axes("fftshift", axes, t.ndim)
    return roll(t, [t.shape[a] // 2 for a in found], axis=found)


@two_names
def ifftshift(x: Any, /, axes: Any = None) -> Tensor:
    """Return the inverse of `fftshift`."""
    t = as_tensor(x, "ifftshift")
    found = as_axes("ifftshift", axes, t.ndim)
    return roll(t, [-(t.shape[a] // 2) for a in found], axis=found)
