"""Running extremes, with the places they stand at, and the running logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dtypes import bool_, int64
from stratal.graph.op import REGISTRY
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import apply, as_tensor, call, default_float
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.naming import two_names
from stratal.tensor.reductions import ValuesIndices
from stratal.tensor.shapes import concat, narrow, reshape
from stratal.tensor.tensor import Tensor


def _extreme(name: str, x: Any, axis: int) -> ValuesIndices:
    t = as_tensor(x, name)
    if t.ndim == 0:
        check_axis(name, axis, 1)
        return ValuesIndices(*(reshape(part, ()) for part in _extreme(name, reshape(t, (1,)), 0)))
    a = check_axis(name, axis, t.ndim)
    ordered = cast(t, "uint8") if t.dtype is bool_ else t
    values = call(name, ordered, axis=a)
    here: Tensor = apply(REGISTRY["iota"](t.shape, a, int64))  # type: ignore[call-arg]
    sets = (ordered == values) | (ordered != ordered)
    return ValuesIndices(cast(values, t.dtype), call("cummax", where(sets, here, 0), axis=a))


@two_names
def cummax(x: Any, /, axis: int) -> ValuesIndices:
    """Return the greatest element up to each along an axis, and its latest place; NaN is greatest."""
    return _extreme("cummax", x, axis)


@two_names
def cummin(x: Any, /, axis: int) -> ValuesIndices:
    """Return the least element up to each along an axis, and its latest place; NaN is least."""
    return _extreme("cummin", x, axis)


@two_names
def logcumsumexp(x: Any, /, axis: int) -> Tensor:
    """Return the logarithms of the sums of exp(x) up to each along an axis, without overflow on the way.

    The sums are kept relative to the greatest element so far, m, which makes them a linear recurrence:
    s[i] = exp(m[i-1] - m[i]) s[i-1] + exp(x[i] - m[i]).
    """
    t = as_tensor(x, "logcumsumexp")
    if t.ndim == 0:
        return reshape(logcumsumexp(reshape(t, (1,)), axis), ())
    a = check_axis("logcumsumexp", axis, t.ndim)
    wide = cast(t, default_float(t.dtype).compute)
    n = t.shape[a]
    if n == 0:
        return cast(wide, default_float(t.dtype))
    high = call("cummax", wide, axis=a).detach()
    high = where(FUNCTIONS["isfinite"](high), high, 0.0)
    before = concat([narrow(high, a, 0, 1), narrow(high, a, 0, n - 1)], axis=a)
    sums = call("linear_recurrence", FUNCTIONS["exp"](before - high), FUNCTIONS["exp"](wide - high), axis=a)
    nothing = sums == 0  # only -inf so far: no gradient, rather than 0 times the slope of the logarithm at 0
    logarithm = where(nothing, -math.inf, FUNCTIONS["log"](where(nothing, 1.0, sums)))
    return cast(logarithm + high, default_float(t.dtype))


__all__ = ["cummax", "cummin", "logcumsumexp"]
