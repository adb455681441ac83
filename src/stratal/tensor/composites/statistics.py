"""Statistics of samples: spreads with their means, covariances, distances, norms held below a bound."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from stratal.base.dims import known_equal
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import as_tensor, broadcast_shapes, call, common_dtype, default_float
from stratal.tensor.composites.joining import atleast_2d
from stratal.tensor.creation import full
from stratal.tensor.elementwise import FUNCTIONS, cast, clip, where
from stratal.tensor.linear import diagonal, matmul
from stratal.tensor.naming import two_names
from stratal.tensor.reductions import amax, amin, mean, norm, sum, var
from stratal.tensor.shapes import broadcast_to, expand_dims, matrix_transpose, reshape
from stratal.tensor.tensor import Tensor

Axis = Any


class MinMax(NamedTuple):
    """The least and the greatest elements."""

    min: Tensor
    max: Tensor


@two_names
def aminmax(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> MinMax:
    """Return the least and the greatest element over axes; NaN if any is NaN."""
    return MinMax(amin(x, axis, keepdims), amax(x, axis, keepdims))


@two_names
def ptp(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the greatest minus the least element over axes."""
    return FUNCTIONS["subtract"](amax(x, axis, keepdims), amin(x, axis, keepdims))


@two_names
def var_mean(
    x: Any,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 1,
    unbiased: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return variance and mean over axes; as in PyTorch the default correction is 1."""
    less = correction if unbiased is None else float(unbiased)
    return var(x, axis, keepdims, correction=less), mean(x, axis, keepdims)


@two_names
def std_mean(
    x: Any,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float = 1,
    unbiased: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return standard deviation and mean over axes; as in PyTorch the default correction is 1."""
    spread, middle = var_mean(x, axis, keepdims, correction=correction, unbiased=unbiased)
    return FUNCTIONS["sqrt"](spread), middle


@two_names
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
@two_names
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
    wide = atleast_2d(cast(t, default_float(t.dtype)))
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
    result: Tensor = matmul(scaled, matrix_transpose(other)) / left
    return reshape(result, ()) if result.numel() == 1 else result


def _left(rows: Tensor, less: float) -> Any:
    """Return the number of observations less some, NaN where none is left; a tensor where a run decides."""
    n = rows.shape[1]
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


@two_names
def corrcoef(x: Any, /, *, rowvar: bool = True) -> Tensor:
    """Return the correlation coefficients of variables: covariances over both standard deviations."""
    found = cov(x, rowvar=rowvar)
    if not found.ndim:
        result: Tensor = found / found
        return result
    spread = FUNCTIONS["sqrt"](diagonal(found))
    result = found / expand_dims(spread, axis=1) / expand_dims(spread, axis=0)
    return clip(result, -1.0, 1.0)


# -- distances -----------------------------------------------------------------------------------------------
def _length(gap: Tensor, p: float) -> Tensor:
    """Return p-norms along the last axis whose gradient at 0 is 0."""
    size = FUNCTIONS["abs"](gap)
    if p == math.inf:
        return amax(size, axis=-1)
    if p == 0:
        return cast(sum(gap != 0, axis=-1), gap.dtype)
    if p == 1:
        return sum(size, axis=-1)
    powers = gap * gap if p == 2 else where(size == 0, 0.0, where(size == 0, 1.0, size) ** p)
    total = sum(powers, axis=-1)
    safe = where(total == 0, 1.0, total)
    return where(total == 0, 0.0, safe**0.5 if p == 2 else safe ** (1.0 / p))  # type: ignore[no-any-return]


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
    return _length(a - b, p)


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
    scale = where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
    return FUNCTIONS["multiply"](t, scale)


__all__ = [
    "aminmax", "average", "cdist", "corrcoef", "cov", "dist", "ptp", "renorm", "std_mean", "var_mean",
]  # fmt: skip
