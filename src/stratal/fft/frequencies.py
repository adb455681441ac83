"""The frequencies transforms have terms for, and where the zero frequency stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype, float32
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.fft.transforms import check_count
from stratal.tensor.arguments import check_device
from stratal.tensor.build import as_tensor
from stratal.tensor.naming import two_names
from stratal.tensor.shapes import as_axes, roll
from stratal.tensor.tensor import Tensor


def _frequencies(name: str, values: Any, dtype: Any) -> Tensor:
    target = float32 if dtype is None else as_dtype(dtype)
    if not target.is_inexact:
        raise DTypeError(f"{name}: frequencies are floats", got=str(target))
    return as_tensor(values.astype(target.np), name)


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
    return _frequencies("fftfreq", np.fft.fftfreq(_positive("fftfreq", n, d), d), dtype)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of the terms of `rfft` of n points, d apart: [0, 1, ..., n // 2] / (n d)."""
    check_device(device)
    return _frequencies("rfftfreq", np.fft.rfftfreq(_positive("rfftfreq", n, d), d), dtype)


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
