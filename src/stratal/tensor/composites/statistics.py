"""Statistics of samples: spreads with their means, covariances, distances, norms held below a bound.

Reductions named `nan...` pass over NaN: what is not a number is replaced by what changes nothing. As in
NumPy, of elements that are all NaN the sum is 0, the mean and the extremes are NaN. `nanargmax` and
`nanargmin` then name the first place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from stratal.base.dims import known_equal
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import as_tensor, broadcast_shapes, call, common_dtype, default_float
from stratal.tensor.composites.joining import atleast_2d
from stratal.tensor.functions import reductions
from stratal.tensor.functions.creation import full
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, clip, in_floats, where
from stratal.tensor.functions.linear import diagonal, matmul
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.reductions import amax, amin, mean, norm, signed, std, sum, var
from stratal.tensor.functions.shapes import broadcast_to, expand_dims, matrix_transpose, ravel, reshape
from stratal.tensor.tensor import Tensor

Axis = Any


class MinMax(NamedTuple):
    """The least and the greatest elements."""

    min: Tensor
    max: Tensor


def aminmax(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> MinMax:
    """Return the least and the greatest element over axes; NaN if any is NaN."""
    return MinMax(amin(x, axis, keepdims), amax(x, axis, keepdims))


def ptp(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the greatest minus the least element over axes."""
    return FUNCTIONS["subtract"](amax(x, axis, keepdims), amin(x, axis, keepdims))


def _with_mean(name: str, spread: Callable[..., Tensor], what: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(
        x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float = 1,
        unbiased: bool | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        less = correction if unbiased is None else float(unbiased)
        return spread(x, axis, keepdims, correction=less), mean(x, axis, keepdims)

    doc = f"Return {what} and mean over axes; as in PyTorch the default correction is 1."
    return named(both, name, doc)


var_mean = _with_mean("var_mean", var, "variance")
std_mean = _with_mean("std_mean", std, "standard deviation")


def average(
    x: Any, /, axis: Axis = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False
) -> Any:
    """Return the weighted mean over axes; with `returned` also the sum of the weights."""
    t = as_tensor(x, "average")
    if weights is None:
        result = mean(t, axis, keepdims)
        return (result, sum(full(t.shape, 1.0, dtype=result.dtype), axis, keepdims)) if returned else result
    w = as_tensor(weights, "average")
    if w.shape != t.shape:
        if w.ndim != 1 or axis is None or isinstance(axis, (tuple, list)):
            raise ShapeError("average: weights have the shape of the array, or are a vector along one axis",
                             got=f"{w.type} for {t.type}, axis {axis}")  # fmt: skip
        a = check_axis("average", axis, t.ndim)
        if not known_equal(w.shape[0], t.shape[a]):
            raise ShapeError(
                "average: needs a weight for every place", got=f"{w.type} for axis {a} of {t.type}"
            )
        w = broadcast_to(reshape(w, [n if k == a else 1 for k, n in enumerate(t.shape)]), t.shape)
    dtype = default_float(common_dtype("average", (t, w)))
    t, w = cast(t, dtype), cast(w, dtype)
    total = sum(w, axis, keepdims)
    result = sum(t * w, axis, keepdims) / total
    return (result, total) if returned else result


# -- covariances ---------------------------------------------------------------------------------------------
def cov(
    x: Any, /, *, correction: float = 1, ddof: float | None = None, rowvar: bool = True, fweights: Any = None,
    aweights: Any = None,
) -> Tensor:  # fmt: skip
    """Return the covariances of variables: rows of observations, or columns unless `rowvar`.

    `fweights` say how often an observation occurs, `aweights` how much it counts.
    Shapes: [variables, observations] -> [variables, variables]; of one variable, a number.
    """
    t = as_tensor(x, "cov")
    if t.ndim > 2:
        raise ShapeError("cov: takes a matrix of observations", got=str(t.type))
    wide = atleast_2d(in_floats("cov", t))
    rows = wide if rowvar or t.ndim < 2 else matrix_transpose(wide)
    less = correction if ddof is None else ddof
    weights = _weights(rows, fweights, aweights)
    if weights is None:
        centered = rows - mean(rows, axis=1, keepdims=True)
        left = _left(rows, less)
        scaled = centered
    else:
        total = sum(weights)
        centered = rows - sum(rows * weights, axis=1, keepdims=True) / total
        scaled = centered * weights
        spread = sum(weights * cast(as_tensor(aweights), rows.dtype)) / total if aweights is not None else 1.0
        left = total - spread * less
        left = where(left > 0, left, math.nan)
    other = call("conj", centered) if rows.dtype.is_complex else centered
    result = matmul(scaled, matrix_transpose(other)) / left
    return reshape(result, ()) if result.numel() == 1 else result


def _left(rows: Tensor, less: float) -> Any:
    """Return the number of observations less some, NaN where none is left; a tensor where a run decides."""
    n = rows.type.shape[1]
    if isinstance(n, int):
        return max(n - less, 0) or math.nan
    left = cast(call("count", rows, axes=(1,)), rows.dtype) - less
    return where(left > 0, left, math.nan)


def _weights(rows: Tensor, fweights: Any, aweights: Any) -> Tensor | None:
    product: Tensor | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        w = as_tensor(given, "cov")
        if w.shape != (rows.shape[1],):
            raise ShapeError(
                f"cov: {name} has one number per observation", got=f"{w.type} for {rows.shape[1]}"
            )
        w = cast(w, rows.dtype)
        product = w if product is None else product * w
    return product


def corrcoef(x: Any, /, *, rowvar: bool = True) -> Tensor:
    """Return the correlation coefficients of variables: covariances over both standard deviations."""
    found = cov(x, rowvar=rowvar)
    if not found.ndim:
        return found / found
    spread = FUNCTIONS["sqrt"](diagonal(found))
    result = found / expand_dims(spread, axis=1) / expand_dims(spread, axis=0)
    return clip(result, -1.0, 1.0)


# -- distances -----------------------------------------------------------------------------------------------
def cdist(x1: Any, x2: Any, p: float = 2.0) -> Tensor:
    """Return the p-norm distance of every row of one matrix from every row of another.

    Shapes: [..., n, k], [..., m, k] -> [..., n, m]. Differences are taken one by one: nothing cancels.
    """
    a, b = as_tensor(x1, "cdist"), as_tensor(x2, "cdist")
    if a.ndim < 2 or b.ndim < 2 or not known_equal(a.shape[-1], b.shape[-1]):
        raise ShapeError("cdist: takes matrices with rows of one length", got=f"{a.type} and {b.type}")
    if p < 0:
        raise AttributeValueError("cdist: p is not negative", got=str(p))
    dtype = default_float(common_dtype("cdist", (a, b)))
    a, b = expand_dims(cast(a, dtype), axis=-2), expand_dims(cast(b, dtype), axis=-3)
    if known_equal(a.shape[-1], 0):
        shape = broadcast_shapes("cdist", a.shape, b.shape)[:-1]
        return broadcast_to(cast(as_tensor(0.0), dtype), shape)
    return norm(a - b, p, -1)


def dist(x: Any, y: Any, p: float = 2) -> Tensor:
    """Return the p-norm of the differences of all elements."""
    return norm(FUNCTIONS["subtract"](x, y), p)


def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """Return `x` with the slices along an axis whose p-norm exceeds `maxnorm` scaled down to it."""
    t = as_tensor(x, "renorm")
    if p <= 0 or maxnorm < 0:
        raise AttributeValueError(
            "renorm: p is positive and maxnorm not negative", got=f"p={p}, maxnorm={maxnorm}"
        )
    a = check_axis("renorm", dim, t.ndim)
    if t.ndim < 2:
        raise ShapeError("renorm: needs at least two axes", got=str(t.type))
    size = norm(t, p, tuple(k for k in range(t.ndim) if k != a), True)
    longer = size > maxnorm
    scale = where(longer, maxnorm / (where(longer, size, 1.0) + 1e-7), 1.0)
    return FUNCTIONS["multiply"](t, scale)


# -- what is not NaN -----------------------------------------------------------------------------------------
def _without(t: Tensor, value: float) -> Tensor:
    return where(FUNCTIONS["isnan"](t), value, t) if t.dtype.is_inexact else t


def _number(t: Tensor) -> Tensor:
    return FUNCTIONS["logical_not"](FUNCTIONS["isnan"](t))


def _summing(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        wanted = signed(x, dtype)
        return function(_without(as_tensor(x, name), value), axis, keepdims, dtype=wanted)

    return named(reduced, name, f"Return the {function.__name__} over axes of what is not NaN.")


def _running(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
        t = _without(as_tensor(x, name), value)
        return function(ravel(t) if axis is None else t, axis, dtype=dtype)

    what = f"Return the {function.__name__} along an axis, of all elements for None, of what is not NaN."
    return named(reduced, name, what)


def _extreme(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
        t = as_tensor(x, name)
        found = function(_without(t, value), axis, keepdims)
        if not t.dtype.is_inexact:
            return found
        return where(reductions.any(_number(t), axis, keepdims), found, math.nan)

    return named(reduced, name, f"Return the {function.__name__} over axes of what is not NaN.")


def _placed(name: str, function: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    def reduced(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return function(_without(as_tensor(x, name), value), axis, keepdims)

    return named(reduced, name, f"Return the {function.__name__} of what is not NaN.")


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


def nanmean(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the mean over axes of what is not NaN; of integers in float32."""
    t = as_tensor(x, "nanmean")
    t = cast(t, default_float(t.dtype) if dtype is None else dtype)
    return FUNCTIONS["divide"](nansum(t, axis, keepdims), _counted(t, axis, keepdims))


def nanvar(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float = 0, ddof: float | None = None
) -> Tensor:
    """Return the variance over axes of what is not NaN: squared distances over (n - correction).

    NumPy's word for the correction is `ddof`. NaN where there are no more numbers than that.
    """
    if ddof is not None and correction:
        raise AttributeValueError("nanvar: 'ddof' and 'correction' are the same argument")
    less = float(correction if ddof is None else ddof)
    t = in_floats("nanvar", x)
    distance = where(_number(t), t - nanmean(t, axis, True), 0.0)
    left = _counted(t, axis, keepdims) - less
    total = reductions.sum(distance * distance, axis, keepdims)
    return FUNCTIONS["divide"](total, where(left > 0, left, math.nan))


def nanstd(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float = 0, ddof: float | None = None
) -> Tensor:
    """Return the square root of `nanvar`."""
    return reductions.root(nanvar(x, axis, keepdims, correction=correction, ddof=ddof))


__all__ = [
    "aminmax", "average", "cdist", "corrcoef", "cov", "dist", "nanargmax", "nanargmin", "nancumprod",
    "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ptp", "renorm",
    "std_mean", "var_mean",
]  # fmt: skip
