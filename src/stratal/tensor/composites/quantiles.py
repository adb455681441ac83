"""Order statistics: quantiles, the k-th smallest, the most frequent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.dtypes import float64, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import as_tensor, call, iota, required
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, clip, in_floats, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.reductions import ValuesIndices, argmax, sum, without_axis
from stratal.tensor.functions.shapes import (
    concat,
    moveaxis,
    narrow,
    permute_dims,
    ravel,
    reduced_axes,
    reshape,
)
from stratal.tensor.functions.sorting import first, shared, sort, sort_method
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE

# Where between two neighbours a quantile lies: weight of the upper one, from its place and that of the lower.
_WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda place, low: place - low,
    "lower": lambda place, low: (place - low) * 0.0,
    "higher": lambda place, low: FUNCTIONS["ceil"](place - low),
    "nearest": lambda place, low: FUNCTIONS["round"](place) - low,  # of two as near the one of even place
    "midpoint": lambda place, low: FUNCTIONS["ceil"](place - low) * 0.5,
}


def _fractions(name: str, q: Any, scale: float) -> Tensor:
    """Return q as float64 in [0, 1]; outside of it an error."""
    if isinstance(q, Tensor):
        given, known = q, q._value(name).array if MODE.trace is None or q._storage is not None else None
    else:
        known = np.asarray(q, np.float64)
        given = tensor(known)
    if given.ndim > 1:
        raise ShapeError(f"{name}: q is a number or a vector", got=str(given.type))
    if known is not None and not np.all((known >= 0) & (known <= scale)):
        raise AttributeValueError(f"{name}: q lies between 0 and {scale:g}", got=str(known))
    t = cast(given, float64) / scale if scale != 1 else cast(given, float64)
    if MODE.trace is None or not isinstance(q, Tensor):
        return t
    return required(t, ~((t >= 0) & (t <= 1)), 1, f"{name}: q lies between 0 and {scale:g}")


def _rows(name: str, x: Any, axis: Any) -> tuple[Tensor, tuple[int, ...]]:
    """Return the elements over axes along one last axis, and these axes."""
    t = in_floats(name, x)
    axes = reduced_axes(name, axis, t.ndim)
    rest = [k for k in range(t.ndim) if k not in axes]
    moved = permute_dims(t, [*rest, *axes])
    count = math.prod(int(t.shape[a]) for a in axes)
    if count == 0:
        raise ShapeError(f"{name}: there is no quantile of nothing", got=str(t.type))
    return reshape(moved, [*(t.shape[k] for k in rest), count]), axes


def _quantile(
    name: str, x: Any, q: Any, axis: Any, keepdims: bool, how: str, skip: bool, scale: float
) -> Tensor:
    if how not in _WEIGHTS:
        raise AttributeValueError(f"{name}: interpolation is one of {', '.join(_WEIGHTS)}", got=repr(how))
    fractions = _fractions(name, q, scale)
    given = as_tensor(x, name)
    rows, axes = _rows(name, given, axis)
    ordered = sort(rows, axis=-1)
    count = rows.shape[-1]
    many = reshape(fractions, [*[1] * (rows.ndim - 1), fractions.numel()])
    last: Any = count - 1
    if skip:
        numbers = sum(FUNCTIONS["logical_not"](FUNCTIONS["isnan"](rows)), axis=-1, keepdims=True)
        last = cast(FUNCTIONS["maximum"](numbers - 1, 0), float64)
    place = many * last
    low = clip(FUNCTIONS["floor"](place), 0, count - 1)
    weight = cast(_WEIGHTS[how](place, low), rows.dtype)
    below = cast(low, int64)
    above = FUNCTIONS["minimum"](below + 1, count - 1)
    one, other = take_along_axis(ordered, below, axis=-1), take_along_axis(ordered, above, axis=-1)
    step = where(weight == 0, 0.0, weight * (where(weight == 0, one, other) - one))  # inf - inf is no step
    found = where(FUNCTIONS["isnan"](weight), weight, where(weight == 1, other, one + step))
    if not skip:
        found = where(FUNCTIONS["isnan"](narrow(ordered, -1, count - 1, 1)), math.nan, found)
    kept = [1 if k in axes else n for k, n in enumerate(given.shape)] if keepdims else rows.shape[:-1]
    return reshape(moveaxis(found, -1, 0), [*fractions.shape, *kept])


def _quantile_function(name: str, skip: bool, scale: float) -> Callable[..., Tensor]:
    def function(
        x: Any, q: Any, /, axis: Any = None, keepdims: bool = False, *, interpolation: str = "linear",
        method: str | None = None,
    ) -> Tensor:  # fmt: skip
        return _quantile(name, x, q, axis, keepdims, method or interpolation, skip, scale)

    share = "a share `q`" if scale == 1 else "`q` percent"
    aside = ", NaN aside" * skip
    doc = f"""Return the value over axes below which {share} of the elements lies{aside}.

    q is a number or a vector, whose axis comes first. Between two elements `interpolation`, NumPy's `method`,
    is one of {", ".join(_WEIGHTS)}. {"" if skip else "NaN where an element is NaN."}
    """
    return named(function, name, doc)


quantile = _quantile_function("quantile", False, 1.0)
nanquantile = _quantile_function("nanquantile", True, 1.0)
percentile = _quantile_function("percentile", False, 100.0)
nanpercentile = _quantile_function("nanpercentile", True, 100.0)


def nanmedian(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the lower median of all elements that are not NaN; along an axis also where it stood."""
    t = as_tensor(x, "nanmedian")
    flat = ravel(t) if axis is None else reshape(t, (1,)) if t.ndim == 0 else t
    a = check_axis("nanmedian", 0 if axis is None else axis, flat.ndim)
    if flat.shape[a] == 0:
        raise ShapeError("nanmedian: there is no median of nothing", got=str(t.type))
    ordered = [sort(flat)] if axis is None else sort_method(flat, a)
    numbers = sum(FUNCTIONS["logical_not"](FUNCTIONS["isnan"](flat)), axis=a, keepdims=True)
    middle = FUNCTIONS["maximum"](numbers - 1, 0) // 2
    found = [take_along_axis(part, middle, axis=a) for part in ordered]
    if axis is None:
        return reshape(shared(flat, reshape(found[0], ())), (1,) * t.ndim if keepdims else ())
    return ValuesIndices(*found) if keepdims and t.ndim else without_axis(flat, a, False, *found)


def kthvalue(x: Any, k: int, axis: int = -1, keepdims: bool = False) -> ValuesIndices:
    """Return the k-th smallest element along an axis, counted from 1, and where it stood; NaN is largest."""
    t = as_tensor(x, "kthvalue")
    scalar = t.ndim == 0
    t = reshape(t, (1,)) if scalar else t
    a = check_axis("kthvalue", axis, t.ndim)
    if not 1 <= k <= t.shape[a]:
        raise AttributeValueError(
            "kthvalue: k counts from 1 to the size of the axis", got=f"{k} of {t.shape[a]}"
        )
    return without_axis(t, a, keepdims and not scalar, *first("kthvalue", t, a, k, start=k - 1))


def mode(x: Any, /, axis: int = -1, keepdims: bool = False) -> ValuesIndices:
    """Return the most frequent element along an axis, the least of several, and where it stood last."""
    t = as_tensor(x, "mode")
    scalar = t.ndim == 0
    t = reshape(t, (1,)) if scalar else t
    a = check_axis("mode", axis, t.ndim)
    n = t.shape[a]
    if n == 0:
        raise ShapeError("mode: nothing has no most frequent element", got=str(t.type))
    values, indices = sort_method(t, a)
    here = iota(t.shape, a)
    fresh = narrow(values, a, 1, n - 1) != narrow(values, a, 0, n - 1)
    fresh = concat([narrow(values, a, 0, 1) == narrow(values, a, 0, 1), fresh], axis=a)
    start = call("cummax", where(fresh, here, 0), axis=a)
    longest = argmax(here - start, axis=a, keepdims=True)
    found = [take_along_axis(part, longest, axis=a) for part in (values, indices)]
    return without_axis(t, a, keepdims and not scalar, *found)


def msort(x: Any, /) -> Tensor:
    """Return the rows of `x` in order: sorted along the first axis."""
    return sort(x, axis=0)  # type: ignore[no-any-return]


__all__ = [
    "kthvalue", "mode", "msort", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile",
]  # fmt: skip
