"""What numbers are made of: signs and bits of floats, real and imaginary parts of complex numbers."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dims import known_equal
from stratal.base.dtypes import as_dtype, float32, float64
from stratal.base.errors import DTypeError, ShapeError
from stratal.tensor.build import Scalar, as_tensor, call, common_dtype, default_float, plain
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.shapes import broadcast_arrays, view_of
from stratal.tensor.tensor import Tensor


def _float(name: str, x: Any) -> Tensor:
    t = as_tensor(x, name)
    if t.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no sign", got=str(t.type))
    return cast(t, default_float(t.dtype))


def _pair(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, y = (v if isinstance(v, (Tensor, *Scalar)) else as_tensor(v, name) for v in (x, y))
    dtype = default_float(common_dtype(name, (x, y)))
    a, b = broadcast_arrays(*(cast(as_tensor(v, name), dtype) for v in (x, y)))
    return _float(name, a), _float(name, b)


def _bits(t: Tensor) -> Tensor:
    """Return the bits of floats as integers as wide."""
    return call("bitcast", t, dtype=as_dtype(f"int{t.dtype.bits}"))


def signbit(x: Any, /) -> Tensor:
    """Return whether the sign bit is set: also for -0.0, and for a NaN that has one."""
    t = as_tensor(x, "signbit")
    if t.dtype.is_integer:
        return t < 0
    return _bits(_float("signbit", t)) < 0


def copysign(x: Any, y: Any, /) -> Tensor:
    """Return the magnitude of `x` with the sign of `y`, sign bits of zeros and NaN included."""
    a, b = _pair("copysign", x, y)
    size = FUNCTIONS["abs"](a)
    return where(signbit(b), -size, size)


def nextafter(x: Any, y: Any, /) -> Tensor:
    """Return the float next to `x` in the direction of `y`."""
    a, b = _pair("nextafter", x, y)
    bits = _bits(a)
    away = (a < b) == (a > 0)  # further from zero: one more, as floats are signs and magnitudes
    stepped = where(away, bits + 1, bits - 1)
    least = _bits(cast(where(a < b, 0.0, -0.0), a.dtype)) + 1  # from zero: the smallest number of either sign
    moved = call("bitcast", where(a == 0, least, stepped), dtype=a.dtype)
    return where(FUNCTIONS["isnan"](a) | FUNCTIONS["isnan"](b), a + b, where(a == b, b, moved))


def real(x: Any, /) -> Tensor:
    """Return the real part of complex numbers; real ones as they are."""
    t = as_tensor(x, "real")
    return view_of(t, plain("real")) if t.dtype.is_complex else t


def imag(x: Any, /) -> Tensor:
    """Return the imaginary part of complex numbers; of real ones 0."""
    t = as_tensor(x, "imag")
    return view_of(t, plain("imag")) if t.dtype.is_complex else t * 0


def conj(x: Any, /) -> Tensor:
    """Return the complex conjugate; real numbers as they are."""
    t = as_tensor(x, "conj")
    return view_of(t, plain("conj")) if t.dtype.is_complex else t


def angle(x: Any, /) -> Tensor:
    """Return the angle of complex numbers in the plane; of real ones 0 or pi, NaN for NaN."""
    t = as_tensor(x, "angle")
    if t.dtype.is_complex:
        return FUNCTIONS["atan2"](call("imag", t), call("real", t))
    t = _float("angle", t)
    return where(FUNCTIONS["isnan"](t), t, where(signbit(t), math.pi, 0.0))

def _parts(name: str, x: Any, y: Any) -> list[Tensor]:
    given = [as_tensor(v, name) for v in (x, y)]
    dtype = common_dtype(name, given)
    if dtype not in (float32, float64):
        raise DTypeError(f"{name}: takes float32 or float64", got=" and ".join(str(t.type) for t in given))
    return broadcast_arrays(*(cast(t, dtype) for t in given))


def complex(real: Any, imag: Any) -> Tensor:
    """Return real + imag * 1j of each pair of float32 or float64."""
    return call("complex", *_parts("complex", real, imag))


def polar(abs: Any, angle: Any) -> Tensor:
    """Return abs * exp(angle * 1j) of each pair of float32 or float64."""
    size, turn = _parts("polar", abs, angle)
    return complex(size * FUNCTIONS["cos"](turn), size * FUNCTIONS["sin"](turn))


def view_as_real(x: Any, /) -> Tensor:
    """Return complex numbers as (real, imaginary) pairs along a new last axis."""
    t = as_tensor(x, "view_as_real")
    if not t.dtype.is_complex:
        raise DTypeError("view_as_real: takes complex numbers", got=str(t.type))
    return view_of(t, plain("view_as_real"))


def view_as_complex(x: Any, /) -> Tensor:
    """Return pairs of reals along the last axis as complex numbers."""
    t = as_tensor(x, "view_as_complex")
    if not t.ndim or not known_equal(t.shape[-1], 2):
        raise ShapeError("view_as_complex: the last axis holds real and imaginary part", got=str(t.type))
    return view_of(t, plain("view_as_complex"))

__all__ = [
    "angle", "complex", "conj", "copysign", "imag", "nextafter", "polar", "real", "signbit",
    "view_as_complex", "view_as_real",
]  # fmt: skip
