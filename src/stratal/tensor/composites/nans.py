"""Reductions that pass over NaN: what is not a number is replaced by what changes nothing.

As in NumPy, of elements that are all NaN the sum is 0, the mean and the extremes are NaN. `nanargmax` and
`nanargmin` then name the first place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.tensor import reductions
from stratal.tensor.build import as_tensor, default_float
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.naming import two_names
from stratal.tensor.shapes import ravel
from stratal.tensor.tensor import Tensor

Axis = Any


def _without(t: Tensor, value: float) -> Tensor:
    return where(FUNCTIONS["isnan"](t), value, t) if t.dtype.is_inexact else t


def _number(t: Tensor) -> Tensor:
    return FUNCTIONS["logical_not"](FUNCTIONS["isnan"](t))


def _summing(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        return function(_without(as_tensor(x, name), value), axis, keepdims, dtype=dtype)

    return _named(name, reduced, f"Return the {function.__name__} over axes of what is not NaN.")


def _running(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
        t = _without(as_tensor(x, name), value)
        return function(ravel(t) if axis is None else t, axis, dtype=dtype)

    what = f"Return the {function.__name__} along an axis, of all elements for None, of what is not NaN."
    return _named(name, reduced, what)


def _extreme(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
        t = as_tensor(x, name)
        found = function(_without(t, value), axis, keepdims)
        if not t.dtype.is_inexact:
            return found
        return where(reductions.any(_number(t), axis, keepdims), found, math.nan)  # type: ignore[no-any-return]

    return _named(name, reduced, f"Return the {function.__name__} over axes of what is not NaN.")


def _placed(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return function(_without(as_tensor(x, name), value), axis, keepdims)

    return _named(name, reduced, f"Return the {function.__name__} of what is not NaN.")


def _named(name: str, function: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return two_names(function)


nansum = _summing("nansum", reductions.sum, 0.0)
nanprod = _summing("nanprod", reductions.prod, 1.0)
nancumsum = _running("nancumsum", reductions.cumsum, 0.0)
nancumprod = _running("nancumprod", reductions.cumprod, 1.0)
nanmax = _extreme("nanmax", reductions.amax, -math.inf)
nanmin = _extreme("nanmin", reductions.amin, math.inf)
nanargmax = _placed("nanargmax", reductions.argmax, -math.inf)
nanargmin = _placed("nanargmin", reductions.argmin, math.inf)


def _counted(t: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return cast(reductions.sum(_number(t), axis, keepdims), t.dtype)


@two_names
def nanmean(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the mean over axes of what is not NaN; of integers in float32."""
    t = as_tensor(x, "nanmean")
    t = cast(t, default_float(t.dtype) if dtype is None else dtype)
    return FUNCTIONS["divide"](nansum(t, axis, keepdims), _counted(t, axis, keepdims))


@two_names
def nanvar(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float = 0, ddof: float | None = None
) -> Tensor:
    """Return the variance over axes of what is not NaN: squared distances over (n - correction).

    NumPy's word for the correction is `ddof`. NaN where there are no more numbers than that.
    """
    if ddof is not None and correction:
        raise AttributeValueError("nanvar: 'ddof' and 'correction' are the same argument")
    less = float(correction if ddof is None else ddof)
    t = as_tensor(x, "nanvar")
    t = cast(t, default_float(t.dtype))
    distance = where(_number(t), t - nanmean(t, axis, True), 0.0)
    left = _counted(t, axis, keepdims) - less
    total = reductions.sum(distance * distance, axis, keepdims)
    return FUNCTIONS["divide"](total, where(left > 0, left, math.nan))


@two_names
def nanstd(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float = 0, ddof: float | None = None
) -> Tensor:
    """Return the square root of `nanvar`."""
    return FUNCTIONS["sqrt"](nanvar(x, axis, keepdims, correction=correction, ddof=ddof))


__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd",
    "nansum", "nanvar",
]  # fmt: skip
