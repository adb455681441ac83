"""Copies of a tensor with some elements replaced or combined, at indices, by masks, along axes.

`x.at[i].add(v)` leaves `x` alone: the functional twin of `x[i] = v`, after JAX's `jax.numpy.ndarray.at`.
Unlike `x[i] += v`, an element that integer arrays name twice takes both updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dtypes import bool_, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import Scalar, along, as_tensor, broadcast_shapes, full
from stratal.tensor.composites.matrices import on_diagonal
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import FUNCTIONS, as_written, cast, where
from stratal.tensor.functions.elementwise import pow as power
from stratal.tensor.functions.indexing import getitem, scatter_kind, scatter_slices, set_at, take, whole_mask
from stratal.tensor.functions.reductions import cumsum
from stratal.tensor.functions.shapes import broadcast_to, moveaxis, ravel, reshape
from stratal.tensor.tensor import Tensor, wrap


def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int = -1) -> Tensor:
    """Return `x` with values at indices along an axis; `take_along_axis` reads them back."""
    t, i = as_tensor(x, "put_along_axis"), as_tensor(indices, "put_along_axis")
    a = check_axis("put_along_axis", axis, t.ndim)
    if t.ndim != i.ndim:
        raise ShapeError("put_along_axis: needs as many axes of both", got=f"{t.type} and {i.type}")
    shape = [n if k == a else m for k, (n, m) in enumerate(zip(i.shape, t.shape, strict=True))]
    written = broadcast_to(as_written("put_along_axis", values, t.dtype), shape)
    return scatter_kind("set", t, a, broadcast_to(i, shape), written)


def _along(t: Tensor, dim: int, index: Any) -> tuple[Any, ...]:
    """Return the index that names whole slices along an axis."""
    return (slice(None),) * dim + (index,)


def index_fill(x: Any, dim: int, index: Any, value: Any) -> Tensor:
    """Return `x` with one value in whole slices along an axis, at the indices of a vector."""
    t, i = as_tensor(x, "index_fill"), as_tensor(index, "index_fill")
    a = check_axis("index_fill", dim, t.ndim)
    hit = set_at(zeros(t.shape[a], dtype=bool_), (i,), True)
    hit = reshape(hit, [n if k == a else 1 for k, n in enumerate(t.shape)])
    return where(hit, as_written("index_fill", value, t.dtype), t)


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Tensor:
    """Return `x` with whole slices of `source` along an axis, at the indices of a vector."""
    t, i = as_tensor(x, "index_copy"), as_tensor(index, "index_copy")
    a, values = check_axis("index_copy", dim, t.ndim), as_written("index_copy", source, t.dtype)
    if i.ndim != 1:
        return set_at(t, _along(t, a, i), values)
    shape = [*t.shape[:a], i.shape[0], *t.shape[a + 1 :]]
    return scatter_slices("index_copy", "set", t, a, i, broadcast_to(values, shape))


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Tensor:
    """Return `x` with values at x[indices]; with `accumulate` they are added, all that meet."""
    t, where_to = as_tensor(x, "index_put"), tuple(indices)
    value = as_written("index_put", values, t.dtype)
    return At(t)[where_to].add(value) if accumulate else set_at(t, where_to, value)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """Return `x` with values at places counted in row-major order; with `accumulate` they are added."""
    t, i = as_tensor(x, "put"), as_tensor(index, "put")
    values = broadcast_to(as_written("put", source, t.dtype), i.shape)
    if accumulate:
        return reshape(At(ravel(t))[ravel(i)].add(ravel(values)), t.shape)
    return reshape(set_at(ravel(t), (ravel(i),), ravel(values)), t.shape)


def masked_scatter(x: Any, mask: Any, source: Any) -> Tensor:
    """Return `x` with the first elements of `source`, in order, where a mask holds."""
    t, given = as_tensor(x, "masked_scatter"), as_tensor(source, "masked_scatter")
    shape = broadcast_shapes("masked_scatter", t.shape, as_tensor(mask, "masked_scatter").shape)
    t, m = broadcast_to(t, shape), broadcast_to(as_tensor(mask), shape)
    if not t.numel():
        return t
    if not given.numel():
        raise ShapeError("masked_scatter: there is nothing to copy from", got=str(given.type))
    order = reshape(cumsum(cast(ravel(m), int64), 0) - 1, shape)
    found = take(ravel(given), where(m, order, 0), axis=0)  # more places than elements: an index out of range
    return where(m, cast(found, t.dtype), t)


# -- combined where indices repeat ---------------------------------------------------------------------------
_KINDS = {
    "sum": ("add", 0),
    "prod": ("mul", 1),
    "mean": ("add", 0),
    "amax": ("max", None),
    "amin": ("min", None),
}


def scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `x` combined with src at indices along an axis, by "sum", "prod", "mean", "amax" or "amin".

    Without `include_self`, what stands in `x` where something goes to is forgotten. Means of integers round
    to 0.
    """
    if reduce not in _KINDS:
        raise AttributeValueError(f"scatter_reduce: reduce is one of {', '.join(_KINDS)}", got=repr(reduce))
    kind, neutral = _KINDS[reduce]
    t, i = as_tensor(x, "scatter_reduce"), as_tensor(index, "scatter_reduce")
    if include_self and reduce != "mean":
        return scatter_kind(kind, t, dim, i, src)
    hits = scatter_kind("add", wrap(full("scatter_reduce", 0, int64, t.shape)), dim, i, 1)
    start = t if include_self else where(hits == 0, t, _lowest(kind, t) if neutral is None else neutral)
    result = scatter_kind(kind, start, dim, i, src)
    if reduce != "mean":
        return result
    count = cast(hits + 1 if include_self else where(hits == 0, 1, hits), t.dtype)
    return result / count if t.dtype.is_inexact else cast(FUNCTIONS["trunc"](result / count), t.dtype)


def _lowest(kind: str, t: Tensor) -> Any:
    """Return what every number of a dtype wins against in a max or min."""
    if t.dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    limits = np.iinfo(t.dtype.np)
    return limits.min if kind == "max" else limits.max


# -- parts ---------------------------------------------------------------------------------------------------
def select_scatter(x: Any, src: Any, dim: int, index: int) -> Tensor:
    """Return `x` with `src` at one place of an axis."""
    t, a = along("select_scatter", x, dim)
    return set_at(t, _along(t, a, index), as_written("select_scatter", src, t.dtype))


def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Return `x` with `src` in start:end:step of an axis."""
    t, a = along("slice_scatter", x, dim)
    return set_at(t, _along(t, a, slice(start, end, step)), as_written("slice_scatter", src, t.dtype))


def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return `x` with `src` on a diagonal of two axes."""
    t = as_tensor(x, "diagonal_scatter")
    a, b = check_axis("diagonal_scatter", dim1, t.ndim), check_axis("diagonal_scatter", dim2, t.ndim)
    moved = moveaxis(t, (a, b), (-2, -1))
    value = as_written("diagonal_scatter", src, t.dtype)
    rows, columns = moved.shape[-2:]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    placed = on_diagonal(moved, broadcast_to(value, (*moved.shape[:-2], length)), offset)
    return moveaxis(placed, (-2, -1), (a, b))


# -- index updates that return a value -----------------------------------------------------------------------
class At:
    """`x.at`, which waits for an index."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Places:
        return Places(self._x, index)


class Places:
    """The elements of a tensor that an index names: read them, or return the tensor with others there."""

    def __init__(self, x: Tensor, index: Any) -> None:
        self._x, self._index = x, index

    def get(self) -> Tensor:
        """Return the elements, as `x[index]`."""
        return getitem(self._x, self._index)

    def set(self, value: Any) -> Tensor:
        """Return the tensor with these elements replaced."""
        return self._updated(lambda old, new: new, value, "set")

    def add(self, value: Any) -> Tensor:
        """Return the tensor with a value added here; as often as an element is named."""
        return self._updated(FUNCTIONS["add"], value, "add")

    def subtract(self, value: Any) -> Tensor:
        """Return the tensor with a value subtracted here; as often as an element is named."""
        return self.add(-as_written("at", value, self._x.dtype))

    def max(self, value: Any) -> Tensor:
        """Return the tensor with the greater of each element here and a value."""
        return self._updated(FUNCTIONS["maximum"], value, "max")

    def min(self, value: Any) -> Tensor:
        """Return the tensor with the lesser of each element here and a value."""
        return self._updated(FUNCTIONS["minimum"], value, "min")

    def multiply(self, value: Any) -> Tensor:
        """Return the tensor with these elements multiplied by a value."""
        return self._updated(FUNCTIONS["multiply"], value)

    def divide(self, value: Any) -> Tensor:
        """Return the tensor with these elements divided by a value."""
        return self._updated(FUNCTIONS["divide"], value)

    def power(self, value: Any) -> Tensor:
        """Return the tensor with these elements raised to a power."""
        return self._updated(power, value)

    def apply(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the tensor with a function of these elements here, of each as it was."""
        return set_at(self._x, self._index, cast(function(self.get()), self._x.dtype))

    def _updated(self, combine: Callable[[Any, Any], Tensor], value: Any, kind: str = "") -> Tensor:
        x = self._x
        given = value if isinstance(value, Scalar) else as_written("at", value, x.dtype)
        mask = whole_mask(x, self._index, given)
        if mask is not None:
            return where(mask, cast(as_tensor(combine(x, given), "at"), x.dtype), x)
        if not _has_arrays(self._index):  # every element is named at most once
            return set_at(
                x, self._index, given if kind == "set" else cast(combine(self.get(), given), x.dtype)
            )
        if not kind:
            raise AttributeValueError(
                "at: where an element may be named twice, only set, add, subtract, max and min combine",
                got=str(x.type), hint="x.at[i].apply(f) acts on each element once, as it was",
            )  # fmt: skip
        return set_at(x, self._index, given, kind)


def _has_arrays(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(p, (Tensor, np.ndarray, list)) for p in parts)


__all__ = [
    "diagonal_scatter", "index_copy", "index_fill", "index_put", "masked_scatter", "put", "put_along_axis",
    "scatter_reduce", "select_scatter", "slice_scatter",
]  # fmt: skip
