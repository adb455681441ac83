"""Functions that combine elements along axes.

Functions called with `axis` follow the array API; called with `dim`, or positionally, they follow PyTorch
where the two differ: `max(x, dim=1)` is a pair of values and indices, `max(x, axis=1)` the values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stratal.base.dims import known_equal, product
from stratal.base.dtypes import as_dtype, bool_, int64, uint64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.graph.op import REGISTRY
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import apply, as_tensor, call, default_float
from stratal.tensor.elementwise import FUNCTIONS, cast, composite
from stratal.tensor.naming import two_names
from stratal.tensor.shapes import as_axes, expand_dims, flip, pad_constant, ravel, reshape
from stratal.tensor.tensor import Tensor

Axis = Any


class ValuesIndices(NamedTuple):
    """Values along an axis and where they stood."""

    values: Tensor
    indices: Tensor


def _reduce(op: str, t: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    result: Tensor = apply(REGISTRY[op](tuple(sorted(axes))), t) if axes else t  # type: ignore[call-arg]
    return _kept(result, t, axes, keepdims)


def _kept(result: Tensor, t: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if not keepdims:
        return result
    return reshape(result, [1 if k in axes else n for k, n in enumerate(t.shape)])


def _summable(t: Tensor, dtype: Any) -> Tensor:
    if dtype is not None:
        return cast(t, dtype)
    if t.dtype.kind == "u":
        return cast(t, uint64)
    return cast(t, int64) if t.dtype.is_bool or t.dtype.is_integer else t


@two_names
def sum(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the sum over axes; bools and narrow integers add up in int64 (unsigned ones in uint64)."""
    t = _summable(as_tensor(x, "sum"), dtype)
    return _reduce("sum", t, as_axes("sum", axis, t.ndim), keepdims)


@two_names
def prod(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the product over axes."""
    t = _summable(as_tensor(x, "prod"), dtype)
    return _reduce(_first("reduce_prod", "prod"), t, as_axes("prod", axis, t.ndim), keepdims)


def _first(*names: str) -> str:
    """Return the first name the registry has."""
    return next((n for n in names if n in REGISTRY), names[0])


def _count(t: Tensor, axes: tuple[int, ...]) -> Any:
    """Return how many elements a reduction combines; where only a run knows, what stands for that number."""
    found = product(t.shape[a] for a in axes)
    return found if isinstance(found, int) else call("count", t, axes=axes)


@two_names
def mean(x: Any, /, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the mean over axes; of integers in float32."""
    t = as_tensor(x, "mean")
    t = cast(t, as_dtype(dtype) if dtype is not None else default_float(t.dtype))
    axes = as_axes("mean", axis, t.ndim)
    count = _count(t, axes)
    total = _reduce("sum", t, axes, keepdims)
    if isinstance(count, int):
        return total * (1.0 / count) if count and not count & (count - 1) else total / float(count)
    return total / cast(count, total.dtype)


def _squared(t: Tensor) -> Tensor:
    """Return |t|^2 of each element, which is real."""
    if not t.dtype.is_complex:
        return FUNCTIONS["multiply"](t, t)
    real, imag = call("real", t), call("imag", t)
    return real * real + imag * imag  # type: ignore[no-any-return]


@two_names
def var(
    x: Any,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> Tensor:
    """Return the variance over axes: squared distances over (n - correction); the array API's default
    correction is 0.
    """
    t = as_tensor(x, "var")
    t = cast(t, default_float(t.dtype))
    axes = as_axes("var", axis, t.ndim)
    less = float(unbiased) if unbiased is not None else correction or 0.0
    distance = t - mean(t, axis=axes, keepdims=True)
    total = _reduce("sum", _squared(distance), axes, keepdims)
    count = _count(t, axes)
    if isinstance(count, int):
        return total / (count - less if count > less else 0.0)
    return total / FUNCTIONS["maximum"](cast(count, total.dtype) - less, 0.0)


@two_names
def std(
    x: Any,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    unbiased: bool | None = None,
) -> Tensor:
    """Return the square root of `var`."""
    return FUNCTIONS["sqrt"](var(x, axis, keepdims, correction=correction, unbiased=unbiased))


def _truth(t: Tensor) -> Tensor:
    return t != 0 if t.dtype.is_complex else cast(t, bool_)


@two_names
def all(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether every element over axes holds."""
    t = _truth(as_tensor(x, "all"))
    return _reduce("all", t, as_axes("all", axis, t.ndim), keepdims)


@two_names
def any(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether any element over axes holds."""
    t = _truth(as_tensor(x, "any"))
    return _reduce("any", t, as_axes("any", axis, t.ndim), keepdims)


# -- extremes ------------------------------------------------------------------------------------------------
def _extreme(name: str, op: str, x: Any, axis: Axis, keepdims: bool) -> Tensor:
    t = as_tensor(x, name)
    axes = as_axes(name, axis, t.ndim)
    if t.dtype.is_bool:
        return _reduce("any" if op == "reduce_max" else "all", t, axes, keepdims)
    if axes and known_equal(product(t.shape[a] for a in axes), 0):
        raise ShapeError(f"{name}: no greatest or least element of nothing", got=str(t.type))
    return _reduce(op, t, axes, keepdims)


@two_names
def amax(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the greatest element over axes; NaN if any is NaN."""
    return _extreme("max", "reduce_max", x, axis, keepdims)


@two_names
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
    return ValuesIndices(reduce(x, dim, keep), arg(x, dim, keep))


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
    result: Tensor = apply(REGISTRY[op](a), flat)  # type: ignore[call-arg]
    if not keepdims:
        return result
    return reshape(result, [1] * t.ndim) if axis is None else expand_dims(result, axis=a)


@two_names
def argmax(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the greatest element stands, the first of equal ones."""
    return _arg("argmax", x, axis, keepdims)


@two_names
def argmin(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return where the least element stands, the first of equal ones."""
    return _arg("argmin", x, axis, keepdims)


@two_names
def count_nonzero(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return how many elements over axes are not zero."""
    return sum(as_tensor(x, "count_nonzero") != 0, axis, keepdims)


@two_names
def logsumexp(x: Any, /, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over axes, without overflow on the way; of nothing, -inf.

    A tensor without axes counts as one of a single axis, as for softmax.
    """
    t = as_tensor(x, "logsumexp")
    t = cast(t, default_float(t.dtype))
    rows = reshape(t, (1,)) if t.ndim == 0 else t
    axes = as_axes("logsumexp", axis, rows.ndim)
    total = composite("logsumexp", rows, axes=axes)
    kept = [1 if k in axes else n for k, n in enumerate(t.shape) if keepdims or k not in axes]
    return reshape(total, kept)


@two_names
def norm(x: Any, /, p: Any = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the p-norm of the elements over axes: p is a number, infinity or "fro"."""
    t = as_tensor(x, "norm")
    t = cast(t, default_float(t.dtype))
    if p in (2, 2.0, "fro"):
        return FUNCTIONS["sqrt"](sum(_squared(t), axis, keepdims))
    size = FUNCTIONS["abs"](t)
    if p == float("inf"):
        return amax(size, axis, keepdims)
    if p == float("-inf"):
        return amin(size, axis, keepdims)
    if p == 1:
        return sum(size, axis, keepdims)
    if p == 0:
        return cast(count_nonzero(t, axis, keepdims), t.dtype)
    result: Tensor = sum(size**p, axis, keepdims) ** (1.0 / p)
    return result


@two_names
def softmax(x: Any, /, axis: int = -1, *, dtype: Any = None) -> Tensor:
    """Return exp(x) over its sum along an axis. A tensor without axes counts as one of a single axis."""
    return _along("softmax", x, axis, dtype)


@two_names
def log_softmax(x: Any, /, axis: int = -1, *, dtype: Any = None) -> Tensor:
    """Return the logarithm of the softmax along an axis."""
    return _along("log_softmax", x, axis, dtype)


def _along(name: str, x: Any, axis: int, dtype: Any) -> Tensor:
    t = as_tensor(x, name)
    t = t if dtype is None else cast(t, dtype)
    if t.ndim:
        return composite(name, t, axis=axis)  # type: ignore[no-any-return]
    return reshape(composite(name, reshape(t, (1,)), axis=axis), ())


# -- running -------------------------------------------------------------------------------------------------
def _running(op: str, x: Any, axis: int | None, dtype: Any, reverse: bool = False) -> Tensor:
    t = _summable(as_tensor(x, op), dtype)
    if axis is None:
        if t.ndim > 1:
            raise AttributeValueError(f"{op}: needs an axis for more than one dimension", got=str(t.type))
        axis = 0
    t = reshape(t, (1,)) if t.ndim == 0 else t
    a = check_axis(op, axis, t.ndim)
    result: Tensor = call(op, flip(t, a) if reverse else t, axis=a)
    return flip(result, a) if reverse else result


@two_names
def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the sums of all elements up to each along an axis."""
    return _running("cumsum", x, axis, dtype)


@two_names
def cumprod(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the products of all elements up to each along an axis."""
    return _running("cumprod", x, axis, dtype)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the sums of all elements up to each along an axis; `include_initial` puts the empty sum in
    front.
    """
    return _with_initial(cumsum(x, axis, dtype=dtype), axis, 0, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the products of all elements up to each along an axis; `include_initial` puts the empty product
    in front.
    """
    return _with_initial(cumprod(x, axis, dtype=dtype), axis, 1, include_initial)


def _with_initial(result: Tensor, axis: int | None, value: int, include_initial: bool) -> Tensor:
    if not include_initial:
        return result
    a = check_axis("cumulative", axis or 0, result.ndim)
    return pad_constant(result, [(1, 0) if k == a else (0, 0) for k in range(result.ndim)], value)


__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumprod", "cumsum", "cumulative_prod",
    "cumulative_sum", "log_softmax", "logsumexp", "max", "mean", "min", "norm", "prod", "softmax", "std",
    "sum", "var",
]  # fmt: skip
