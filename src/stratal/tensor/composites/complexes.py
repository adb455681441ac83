"""Complex numbers made of real ones, and seen as pairs of them."""

from __future__ import annotations

from typing import Any

from stratal.base.dims import known_equal
from stratal.base.dtypes import float32, float64
from stratal.base.errors import DTypeError, ShapeError
from stratal.tensor.build import as_tensor, call, common_dtype
from stratal.tensor.elementwise import FUNCTIONS, cast
from stratal.tensor.shapes import broadcast_arrays
from stratal.tensor.tensor import Tensor


def _parts(name: str, x: Any, y: Any) -> list[Tensor]:
    given = [as_tensor(v, name) for v in (x, y)]
    dtype = common_dtype(name, given)
    if dtype not in (float32, float64):
        raise DTypeError(f"{name}: takes float32 or float64", got=" and ".join(str(t.type) for t in given))
    return broadcast_arrays(*(cast(t, dtype) for t in given))


def complex(real: Any, imag: Any) -> Tensor:
    """Return real + imag * 1j of each pair of float32 or float64."""
    return call("complex", *_parts("complex", real, imag))  # type: ignore[no-any-return]


def polar(abs: Any, angle: Any) -> Tensor:
    """Return abs * exp(angle * 1j) of each pair of float32 or float64."""
    size, turn = _parts("polar", abs, angle)
    return complex(size * FUNCTIONS["cos"](turn), size * FUNCTIONS["sin"](turn))


def view_as_real(x: Any, /) -> Tensor:
    """Return complex numbers as (real, imaginary) pairs along a new last axis."""
    t = as_tensor(x, "view_as_real")
    if not t.dtype.is_complex:
        raise DTypeError("view_as_real: takes complex numbers", got=str(t.type))
    return call("view_as_real", t)  # type: ignore[no-any-return]


def view_as_complex(x: Any, /) -> Tensor:
    """Return pairs of reals along the last axis as complex numbers."""
    t = as_tensor(x, "view_as_complex")
    if not t.ndim or not known_equal(t.shape[-1], 2):
        raise ShapeError("view_as_complex: the last axis holds real and imaginary part", got=str(t.type))
    return call("view_as_complex", t)  # type: ignore[no-any-return]


__all__ = ["complex", "polar", "view_as_complex", "view_as_real"]
