"""What numbers are made of: signs and bits of floats, real and imaginary parts of complex numbers."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dtypes import DType, as_dtype
from stratal.base.errors import DTypeError
from stratal.tensor.build import as_tensor, call, common_dtype, default_float
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.naming import two_names
from stratal.tensor.shapes import broadcast_arrays
from stratal.tensor.tensor import Tensor, fresh


def _float(name: str, x: Any) -> Tensor:
    t = as_tensor(x, name)
    if t.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers have no sign", got=str(t.type))
    return cast(t, default_float(t.dtype))


def _pair(name: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x, y = (v if isinstance(v, (Tensor, bool, int, float, complex)) else as_tensor(v, name) for v in (x, y))
    dtype = default_float(common_dtype(name, (x, y)))
    a, b = broadcast_arrays(*(cast(as_tensor(v, name), dtype) for v in (x, y)))
    return _float(name, a), _float(name, b)


def _bits(t: Tensor) -> Tensor:
    """Return the bits of floats as integers as wide."""
    return call("bitcast", t, dtype=_integer_of(t.dtype))  # type: ignore[no-any-return]


def _integer_of(dtype: DType) -> DType:
    return as_dtype(f"int{dtype.bits}")


@two_names
def signbit(x: Any, /) -> Tensor:
    """Return whether the sign bit is set: also for -0.0, and for a NaN that has one."""
    t = as_tensor(x, "signbit")
    if t.dtype.is_integer:
        result: Tensor = t < 0
        return result
    return _bits(_float("signbit", t)) < 0


@two_names
def copysign(x: Any, y: Any, /) -> Tensor:
    """Return the magnitude of `x` with the sign of `y`, sign bits of zeros and NaN included."""
    a, b = _pair("copysign", x, y)
    size = FUNCTIONS["abs"](a)
    result: Tensor = where(signbit(b), -size, size)
    return result


@two_names
def nextafter(x: Any, y: Any, /) -> Tensor:
    """Return the float next to `x` in the direction of `y`."""
    a, b = _pair("nextafter", x, y)
    bits = _bits(a)
    away = (a < b) == (a > 0)  # further from zero: one more, as floats are signs and magnitudes
    stepped = where(away, bits + 1, bits - 1)
    least = _bits(cast(where(a < b, 0.0, -0.0), a.dtype)) + 1  # from zero: the smallest number of either sign
    moved = call("bitcast", where(a == 0, least, stepped), dtype=a.dtype)
    result: Tensor = where(FUNCTIONS["isnan"](a) | FUNCTIONS["isnan"](b), a + b, where(a == b, b, moved))
    return result


@two_names
def real(x: Any, /) -> Tensor:
    """Return the real part of complex numbers; real ones as they are."""
    t = as_tensor(x, "real")
    return call("real", t) if t.dtype.is_complex else fresh(t)  # type: ignore[no-any-return]


@two_names
def imag(x: Any, /) -> Tensor:
    """Return the imaginary part of complex numbers; of real ones 0."""
    t = as_tensor(x, "imag")
    return call("imag", t) if t.dtype.is_complex else t * 0  # type: ignore[no-any-return]


@two_names
def conj(x: Any, /) -> Tensor:
    """Return the complex conjugate; real numbers as they are."""
    t = as_tensor(x, "conj")
    return call("conj", t) if t.dtype.is_complex else fresh(t)  # type: ignore[no-any-return]


@two_names
def angle(x: Any, /) -> Tensor:
    """Return the angle of complex numbers in the plane; of real ones 0 or pi, NaN for NaN."""
    t = as_tensor(x, "angle")
    if t.dtype.is_complex:
        return FUNCTIONS["atan2"](call("imag", t), call("real", t))
    t = _float("angle", t)
    result: Tensor = where(FUNCTIONS["isnan"](t), t, where(signbit(t), math.pi, 0.0))
    return result


__all__ = ["angle", "conj", "copysign", "imag", "nextafter", "real", "signbit"]
