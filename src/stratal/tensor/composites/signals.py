"""Sequences: interpolation between samples, convolution and correlation."""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.build import as_tensor, call, common_dtype, default_float
from stratal.tensor.elementwise import FUNCTIONS, cast, clip, where
from stratal.tensor.indexing import take
from stratal.tensor.shapes import concat, flip, reshape
from stratal.tensor.sorting import searchsorted
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
    return where(FUNCTIONS["isnan"](at), at, result)  # type: ignore[no-any-return]


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


__all__ = ["convolve", "correlate", "interp"]
