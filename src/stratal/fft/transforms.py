"""Transforms along one axis and along several, of complex and of real numbers; their frequencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratal.base.dtypes import as_dtype, complex64, complex128, float32, float64
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.graph.op import REGISTRY
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import apply, as_tensor, default_float
from stratal.tensor.device import check_device
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.ramps import Array, write_ramp, written
from stratal.tensor.functions.shapes import as_axes, narrow, pad_constant, roll
from stratal.tensor.tensor import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft",
    "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_OTHER_WAY = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


# -- operands ------------------------------------------------------------------------------------------------
def _norm(name: str, norm: str | None) -> str:
    if norm is None:
        return "backward"
    if norm not in _OTHER_WAY:
        raise AttributeValueError(f"{name}: norm is backward, ortho or forward", got=repr(norm))
    return norm


def _complex(name: str, x: Any) -> Tensor:
    t = as_tensor(x, name)
    t = cast(t, default_float(t.dtype))
    if t.dtype in (float32, float64):
        return cast(t, complex64 if t.dtype is float32 else complex128)
    return t


def _real(name: str, x: Any) -> Tensor:
    t = as_tensor(x, name)
    if t.dtype.is_complex:
        raise DTypeError(f"{name}: takes real numbers", got=str(t.type), hint="fft takes complex ones")
    return cast(t, default_float(t.dtype))


def _sized(name: str, t: Tensor, n: Any, axis: int) -> Tensor:
    """Return `t` with `n` elements along an axis: the first ones, or zeros behind all."""
    if n is None or (n := check_count(name, n)) == -1 or n == t.shape[axis]:
        return t
    if n < t.shape[axis]:
        return narrow(t, axis, 0, n)
    return pad_constant(t, [(0, n - size) if k == axis else (0, 0) for k, size in enumerate(t.shape)])


def check_count(name: str, n: Any) -> int:
    if not hasattr(n, "__index__") or (int(n) < 1 and int(n) != -1):
        raise AttributeValueError(f"{name}: the number of points is a positive int", got=repr(n))
    return int(n)


def _several(name: str, t: Tensor, s: Any, axes: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return axes and their sizes (None: as it is): all axes, or the last ones that `s` has sizes for."""
    sizes = None if s is None else tuple(s) if isinstance(s, Sequence) else (s,)
    if axes is None and sizes is not None:
        if len(sizes) > t.ndim:
            raise AttributeValueError(f"{name}: more sizes than axes", got=f"s={sizes} for {t.type}")
        axes = tuple(range(t.ndim - len(sizes), t.ndim))
    found = as_axes(name, axes, t.ndim)
    sizes = (None,) * len(found) if sizes is None else sizes
    if len(sizes) != len(found):
        raise AttributeValueError(f"{name}: needs a size for every axis", got=f"s={sizes}, axes={found}")
    return found, sizes


# -- transforms ----------------------------------------------------------------------------------------------
def _transform(name: str, x: Any, s: Any, axes: Any, norm: str | None, inverse: bool) -> Tensor:
    t = as_tensor(x, name)
    t = cast(t, default_float(t.dtype))
    found, sizes = _several(name, t, s, axes)
    for axis, n in zip(found, sizes, strict=True):
        t = _sized(name, t, n, axis)
    return apply(REGISTRY["fft"](found, inverse, _norm(name, norm)), t)  # type: ignore[call-arg]


def _half(name: str, x: Any, n: Any, axis: int, norm: str) -> Tensor:
    t = _real(name, x)
    a = check_axis(name, axis, t.ndim)
    return apply(REGISTRY["rfft"](a, norm), _sized(name, t, n, a))  # type: ignore[call-arg]


def _whole(name: str, x: Any, n: Any, axis: int, norm: str) -> Tensor:
    t = _complex(name, x)
    a = check_axis(name, axis, t.ndim)
    count = 2 * (t.shape[a] - 1) if n is None or check_count(name, n) == -1 else int(n)
    if count < 1:
        raise AttributeValueError(
            f"{name}: the number of points is a positive int", got=f"{count} of {t.type}"
        )
    t = _sized(name, t, count // 2 + 1, a)
    return apply(REGISTRY["irfft"](a, count % 2 == 1, norm), t)  # type: ignore[call-arg]


def _conjugate(t: Tensor) -> Tensor:
    return apply(REGISTRY["conj"](), t)


def fft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the transform along an axis: sum over j of x[j] exp(-2 pi i j k / n). Shapes: [..., n] -> [...,
    n].
    """
    return _transform("fft", x, None if n is None else (n,), (axis,), norm, False)


def ifft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of `fft`. Shapes: [..., n] -> [..., n]."""
    return _transform("ifft", x, None if n is None else (n,), (axis,), norm, True)


def fftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Tensor:
    """Return the transform along several axes, all for None; `s` are their sizes."""
    return _transform("fftn", x, s, axes, norm, False)


def ifftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Tensor:
    """Return the inverse of `fftn`."""
    return _transform("ifftn", x, s, axes, norm, True)


def rfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the transform of real numbers; the conjugate half is left out. Shapes: [..., n] -> [..., n // 2
    + 1].
    """
    return _half("rfft", x, n, axis, _norm("rfft", norm))


def irfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of `rfft`, real. Shapes: [..., m] -> [..., n], n being 2 (m - 1) for None."""
    return _whole("irfft", x, n, axis, _norm("irfft", norm))


def rfftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Tensor:
    """Return the transform of real numbers along several axes; along the last only half of it is kept."""
    t = _real("rfftn", x)
    found, sizes = _several("rfftn", t, s, axes)
    if not found:
        raise AttributeValueError("rfftn: needs at least one axis", got=f"axes={axes} of {t.type}")
    t = _half("rfftn", t, sizes[-1], found[-1], _norm("rfftn", norm))
    kept = tuple(-1 if n is None else n for n in sizes[:-1])
    return _transform("rfftn", t, kept, found[:-1], norm, False) if kept else t


def irfftn(x: Any, /, s: Any = None, axes: Any = None, norm: str | None = None) -> Tensor:
    """Return the inverse of `rfftn`, real."""
    t = _complex("irfftn", x)
    found, sizes = _several("irfftn", t, s, axes)
    if not found:
        raise AttributeValueError("irfftn: needs at least one axis", got=f"axes={axes} of {t.type}")
    kept = tuple(-1 if n is None else n for n in sizes[:-1])
    t = _transform("irfftn", t, kept, found[:-1], norm, True) if kept else t
    return _whole("irfftn", t, sizes[-1], found[-1], _norm("irfftn", norm))


def hfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the real transform of numbers whose other half is conjugate. Shapes: [..., m] -> [..., n]."""
    return _whole("hfft", _conjugate(_complex("hfft", x)), n, axis, _OTHER_WAY[_norm("hfft", norm)])


def ihfft(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of `hfft`, of real numbers. Shapes: [..., n] -> [..., n // 2 + 1]."""
    return _conjugate(_half("ihfft", x, n, axis, _OTHER_WAY[_norm("ihfft", norm)]))


def _plane(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    def transform(x: Any, /, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Tensor:
        return function(x, s, axes, norm)

    return named(transform, name, f"Return `{function.__name__}` along two axes.")


fft2, ifft2 = _plane(fftn, "fft2"), _plane(ifftn, "ifft2")
rfft2, irfft2 = _plane(rfftn, "rfft2"), _plane(irfftn, "irfft2")


# -- frequencies: what transforms have terms for, and where the zero frequency stands ------------------------
def _frequencies(name: str, count: int, dtype: Any, write: Callable[[Array], None]) -> Tensor:
    target = as_dtype(float if dtype is None else dtype)
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


def fftshift(x: Any, /, axes: Any = None) -> Tensor:
    """Return `x` with the zero frequency in the middle of axes, all for None."""
    t = as_tensor(x, "fftshift")
    found = as_axes("fftshift", axes, t.ndim)
    return roll(t, [t.shape[a] // 2 for a in found], axis=found)


def ifftshift(x: Any, /, axes: Any = None) -> Tensor:
    """Return the inverse of `fftshift`."""
    t = as_tensor(x, "ifftshift")
    found = as_axes("ifftshift", axes, t.ndim)
    return roll(t, [-(t.shape[a] // 2) for a in found], axis=found)
