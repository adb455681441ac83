"""Functions that combine elements along axes.

Functions called with `axis` follow the array API; called with `dim`, or positionally, they follow PyTorch
where the two differ: `max(x, dim=1)` is a pair of values and indices, `max(x, axis=1)` the values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from stratal.base.dims import product
from stratal.base.dtypes import as_dtype, bool_, int64, uint64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import OPS, apply, as_tensor, call, default_float, full, iota
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, composite, in_floats, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.shapes import (
    concat,
    expand_dims,
    narrow,
    pad_constant,
    ravel,
    reduced_axes,
    reshape,
)
from stratal.tensor.tensor import Tensor, fresh, wrap
from stratal.tensor.values.handle import CONSTANT
from stratal.tensor.values.state import MODE

Axis = Any


class ValuesIndices(NamedTuple):
    """Values along an axis and where they stood."""

    values: Tensor
    indices: Tensor


def without_axis(t: Tensor, axis: int, keepdims: bool, *parts: Tensor) -> ValuesIndices:
    """Return what was found along an axis of `t`, which has size 1 in it and stays or vanishes."""
    shape = [1 if k == axis else n for k, n in enumerate(t.shape) if keepdims or k != axis]
    return ValuesIndices(*(reshape(part, shape) for part in parts))


def _reduce(op: str, t: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    result = apply(OPS[op](tuple(sorted(axes))), t) if axes else fresh(t)
    if not keepdims:
        return result
    return reshape(result, [1 if k in axes else n for k, n in enumerate(t.shape)])


def _summable(t: Tensor, dtype: Any) -> Tensor:
    if dtype is not None:
        return cast(t, dtype)
    if t.dtype.kind == "u":
        return cast(t, uint64)
    return cast(t, int64) if t.dtype.is_bool or t.dtype.is_integer else t


def sum(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the sum over axes; bools and narrow integers add up in int64 (unsigned ones in uint64)."""
    t = _summable(as_tensor(x, "sum"), dtype)
    return _reduce("sum", t, reduced_axes("sum", axis, t.ndim), keepdims)


def prod(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the product over axes."""
    t = _summable(as_tensor(x, "prod"), dtype)
    return _reduce("prod", t, reduced_axes("prod", axis, t.ndim), keepdims)


def _count(t: Tensor, axes: tuple[int, ...]) -> Any:
    """Return how many elements a reduction combines; where only a run knows, what stands for that number."""
    found = product(t.shape[a] for a in axes)
    return found if isinstance(found, int) else call("count", t, axes=axes)


def rounded_once(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a composite of 16-bit floats compute in float32 and round its result once, as an op does.

    Under `autocast` it stays float32, as that of sums does.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        dtypes = {x.dtype for x in args if isinstance(x, Tensor)}
        if len(dtypes) != 1 or kwargs.get("dtype") is not None:
            return function(*args, **kwargs)
        (dtype,) = dtypes
        if dtype.compute is dtype:
            return function(*args, **kwargs)
        wide = (cast(x, dtype.compute) if isinstance(x, Tensor) else x for x in args)
        made = function(*wide, **kwargs)
        return made if MODE.autocast is not None else cast(made, dtype)

    return call


@rounded_once
def mean(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the mean over axes; of integers in float32."""
    t = as_tensor(x, "mean")
    t = cast(t, as_dtype(dtype) if dtype is not None else default_float(t.dtype))
    axes = reduced_axes("mean", axis, t.ndim)
    count = _count(t, axes)
    total = _reduce("sum", t, axes, keepdims)
    if isinstance(count, int):
        return total / wrap(full("mean", float(count), total.dtype, ()), CONSTANT)
    return total / cast(count, total.dtype)


def _squared(t: Tensor) -> Tensor:
    """Return |t|^2 of each element, which is real."""
    if not t.dtype.is_complex:
        return FUNCTIONS["multiply"](t, t)
    real, imag = call("real", t), call("imag", t)
    return real * real + imag * imag


@rounded_once
def var(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float | None = None,
    unbiased: bool | None = None
) -> Tensor:
    """Return the variance over axes: squared distances over (n - correction); the array API's default
    correction is 0.
    """
    t = in_floats("var", x)
    axes = reduced_axes("var", axis, t.ndim)
    less = float(unbiased) if unbiased is not None else correction or 0.0
    distance = t - mean(t, axis=axes, keepdims=True)
    total = _reduce("sum", _squared(distance), axes, keepdims)
    count = _count(t, axes)
    if isinstance(count, int):
        return total / (count - less if count > less else 0.0)
    return total / FUNCTIONS["maximum"](cast(count, total.dtype) - less, 0.0)


@rounded_once
def std(
    x: Any, /, axis: Axis = None, keepdims: bool = False, *, correction: float | None = None,
    unbiased: bool | None = None
) -> Tensor:
    """Return the square root of `var`, whose gradient at 0 is 0."""
    return root(var(x, axis, keepdims, correction=correction, unbiased=unbiased))


def root(total: Tensor, power: float = 2) -> Tensor:
    """Return total ** (1 / power), with a gradient of 0 where the total is 0."""
    nothing = total == 0
    safe = where(nothing, 1.0, total)
    found = FUNCTIONS["sqrt"](safe) if power == 2 else safe ** (1.0 / power)
    return where(nothing, 0.0 if power > 0 else math.inf, found)


def _truth(t: Tensor) -> Tensor:
    return t != 0 if t.dtype.is_complex else cast(t, bool_)


def all(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether every element over axes holds."""
    t = _truth(as_tensor(x, "all"))
    return _reduce("all", t, reduced_axes("all", axis, t.ndim), keepdims)


def any(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether any element over axes holds."""
    t = _truth(as_tensor(x, "any"))
    return _reduce("any", t, reduced_axes("any", axis, t.ndim), keepdims)


# -- extremes ------------------------------------------------------------------------------------------------
def _extreme(name: str, op: str, x: Any, axis: Axis, keepdims: bool) -> Tensor:
    t = as_tensor(x, name)
    axes = reduced_axes(name, axis, t.ndim)
    if t.dtype.is_bool:
        return _reduce("any" if op == "reduce_max" else "all", t, axes, keepdims)
    if axes and product(t.shape[a] for a in axes) == 0:
        raise ShapeError(f"{name}: no greatest or least element of nothing", got=str(t.type))
    return _reduce(op, t, axes, keepdims)


def amax(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the greatest element over axes; NaN if any is NaN."""
    return _extreme("max", "reduce_max", x, axis, keepdims)


def amin(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the least element over axes; NaN if any is NaN."""
    return _extreme("min", "reduce_min", x, axis, keepdims)


def _torch_extreme(name: str, x: Any, args: tuple[Any, ...], axis: Axis, keepdims: bool, words: Any) -> Any:
    """Tell apart the array API's call, PyTorch's along `dim`, and PyTorch's of two tensors."""
    reduce, pair, arg = {"max": (amax, "maximum", argmax), "min": (amin, "minimum", argmin)}[name]
    unknown = set(words) - {"dim", "keepdim", "other"}
    if unknown:
        raise AttributeValueError(
            f"{name}: takes axis, keepdims, dim, keepdim, other", got=", ".join(sorted(unknown))
        )
    other = args[0] if args and isinstance(args[0], Tensor) else words.get("other")
    if other is not None:
        return FUNCTIONS[pair](x, other)
    keep = args[1] if len(args) > 1 else words.get("keepdim", keepdims)
    if not args and "dim" not in words:
        return reduce(x, axis=axis, keepdims=keep)
    dim = args[0] if args else words["dim"]
    if not hasattr(dim, "__index__"):
        raise AttributeValueError(
            f"{name}: dim names one axis", got=repr(dim), hint=f"a{name} reduces several"
        )
    return _picked(x, dim, keep, reduce, arg)


def _picked(x: Any, dim: int, keep: bool, reduce: Any, arg: Any) -> ValuesIndices:
    """Return the extremes along one axis and where they stand: the first of equal ones has the gradient."""
    t = as_tensor(x, "max")
    if not t.dtype.is_float or not t.ndim:
        return ValuesIndices(reduce(t, dim, keep), arg(t, dim, keep))
    indices = arg(t, dim, True)
    values = take_along_axis(t, indices, axis=dim)
    return ValuesIndices(values, indices) if keep else without_axis(t, dim % t.ndim, keep, values, indices)


def max(x: Any, /, *args: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Return the greatest element over axes; with `dim` also where it stood; of two tensors, the larger of
    each pair.
    """
    return _torch_extreme("max", x, args, axis, keepdims, torch)


def min(x: Any, /, *args: Any, axis: Axis = None, keepdims: bool = False, **torch: Any) -> Any:
    """Return the least element over axes; with `dim` also where it stood; of two tensors, the smaller of
    each pair.
    """
    return _torch_extreme("min", x, args, axis, keepdims, torch)


def _arg(op: str, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    t = as_tensor(x, op)
    t = cast(t, int64) if t.dtype.is_bool else t
    flat = ravel(t) if axis is None else t
    a = 0 if axis is None else check_axis(op, axis, t.ndim)
    if flat.ndim == 0:
        flat = reshape(flat, (1,))
    result = apply(OPS[op](a), flat)
    if not keepdims:
        return result
    return reshape(result, [1] * t.ndim) if axis is None else expand_dims(result, axis=a)


def argmax(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the greatest element stands, the first of equal ones."""
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the least element stands, the first of equal ones."""
    return _arg("argmin", x, axis, keepdims)


def count_nonzero(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return how many elements over axes are not zero."""
    return sum(as_tensor(x, "count_nonzero") != 0, axis, keepdims)


def logsumexp(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes, without overflow on the way; of nothing, -inf.

    A tensor without axes counts as one of a single axis, as for softmax.
    """
    t = in_floats("logsumexp", x)
    rows = reshape(t, (1,)) if t.ndim == 0 else t
    axes = reduced_axes("logsumexp", axis, rows.ndim)
    total = composite("logsumexp", rows, axes=axes)
    kept = [1 if k in axes else n for k, n in enumerate(t.shape) if keepdims or k not in axes]
    return reshape(total, kept)


@rounded_once
def norm(x: Any, /, p: Any = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return (sum |x|^p)^(1/p) over axes: p is a number, infinity or "fro", which is 2.

    inf and -inf: the greatest and the least |x|; 0: how many are not 0. At 0 the gradient is 0.
    """
    t = in_floats("norm", x)
    p = 2 if p == "fro" else p
    if not isinstance(p, (int, float)) or p != p:
        raise AttributeValueError('norm: p is a number, infinity or "fro"', got=repr(p))
    if p == 2:
        return root(sum(_squared(t), axis, keepdims))
    size = FUNCTIONS["abs"](t)
    if math.isinf(p):
        return (amax if p > 0 else amin)(size, axis, keepdims)
    if p == 0:
        return cast(count_nonzero(t, axis, keepdims), size.dtype)
    if p == 1:
        return sum(size, axis, keepdims)
    if 0 < p < 1:  # the derivative of |x|^p at 0 is infinite, and taken for 0
        nothing = size == 0
        return root(sum(where(nothing, 0.0, where(nothing, 1.0, size) ** p), axis, keepdims), p)
    return root(sum(size ** float(p), axis, keepdims), p)


def softmax(x: Any, /, axis: int = -1, *, dtype: Any = None) -> Tensor:
    """Return exp(x) over its sum along an axis. A tensor without axes counts as one of a single axis."""
    return _along("softmax", x, axis, dtype)


def log_softmax(x: Any, /, axis: int = -1, *, dtype: Any = None) -> Tensor:
    """Return the logarithm of the softmax along an axis."""
    return _along("log_softmax", x, axis, dtype)


def _along(name: str, x: Any, axis: int, dtype: Any) -> Tensor:
    t = as_tensor(x, name)
    t = t if dtype is None else cast(t, dtype)
    if t.ndim:
        return composite(name, t, axis=axis)
    return reshape(composite(name, reshape(t, (1,)), axis=axis), ())


# -- running -------------------------------------------------------------------------------------------------
def signed(x: Any, dtype: Any) -> Any:
    """Return the dtype PyTorch adds up in where none is named: of unsigned integers int64, as of others."""
    unsigned = dtype is None and as_tensor(x).dtype.kind == "u"
    return int64 if unsigned else dtype


def _running(op: str, x: Any, axis: int | None, dtype: Any) -> Tensor:
    t = _summable(as_tensor(x, op), dtype)
    if axis is None:
        if t.ndim > 1:
            raise AttributeValueError(f"{op}: needs an axis for more than one dimension", got=str(t.type))
        axis = 0
    elif t.ndim == 0:  # of NumPy's, without an axis, it is a vector
        check_axis(op, axis, 1)
        return reshape(call(op, reshape(t, (1,)), axis=0), ())
    t = reshape(t, (1,)) if t.ndim == 0 else t
    return call(op, t, axis=check_axis(op, axis, t.ndim))


def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the sums of all elements up to each along an axis."""
    return _running("cumsum", x, axis, signed(x, dtype))


def cumprod(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the products of all elements up to each along an axis."""
    return _running("cumprod", x, axis, signed(x, dtype))


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the sums of all elements up to each along an axis; `include_initial` puts the empty sum in
    front.
    """
    return _with_initial(_running("cumsum", x, axis, dtype), axis, 0, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the products of all elements up to each along an axis; `include_initial` puts the empty product
    in front.
    """
    return _with_initial(_running("cumprod", x, axis, dtype), axis, 1, include_initial)


def _with_initial(result: Tensor, axis: int | None, value: int, include_initial: bool) -> Tensor:
    if not include_initial:
        return result
    a = check_axis("cumulative", axis or 0, result.ndim)
    return pad_constant(result, [(1, 0) if k == a else (0, 0) for k in range(result.ndim)], value)

def _running_extreme(name: str, x: Any, axis: int) -> ValuesIndices:
    t = as_tensor(x, name)
    if t.ndim == 0:
        check_axis(name, axis, 1)
        return ValuesIndices(*(reshape(part, ()) for part in _running_extreme(name, reshape(t, (1,)), 0)))
    a = check_axis(name, axis, t.ndim)
    ordered = cast(t, "uint8") if t.dtype is bool_ else t
    values = call(name, ordered, axis=a)
    sets = (ordered == values) | (ordered != ordered)
    return ValuesIndices(cast(values, t.dtype), call("cummax", where(sets, iota(t.shape, a), 0), axis=a))


def cummax(x: Any, /, axis: int) -> ValuesIndices:
    """Return the greatest element up to each along an axis, and its latest place; NaN is greatest."""
    return _running_extreme("cummax", x, axis)


def cummin(x: Any, /, axis: int) -> ValuesIndices:
    """Return the least element up to each along an axis, and its latest place; NaN is least."""
    return _running_extreme("cummin", x, axis)


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

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cummax", "cummin", "cumprod",
    "cumsum", "cumulative_prod", "cumulative_sum", "log_softmax", "logcumsumexp", "logsumexp", "max", "mean",
    "min", "norm", "prod", "softmax", "std", "sum", "var",
]  # fmt: skip
