"""Copies of a tensor with some elements replaced or combined, at indices, by masks, along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.dtypes import bool_, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.at import At
from stratal.tensor.build import Scalar, as_tensor, broadcast_shapes, full
from stratal.tensor.composites.matrices import on_diagonal
from stratal.tensor.creation import zeros
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.indexing import (
    index_add,
    scatter_kind,
    scatter_slices,
    set_at,
    take,
)
from stratal.tensor.naming import two_names
from stratal.tensor.reductions import cumsum
from stratal.tensor.shapes import broadcast_to, moveaxis, ravel, reshape
from stratal.tensor.tensor import Tensor, wrap


def _value(name: str, value: Any, t: Tensor) -> Any:
    return (
        wrap(full(name, value, t.dtype, ()))
        if isinstance(value, Scalar)
        else cast(as_tensor(value, name), t.dtype)
    )


@two_names
def put_along_axis(x: Any, indices: Any, values: Any, /, axis: int = -1) -> Tensor:
    """Return `x` with values at indices along an axis; `take_along_axis` reads them back."""
    t, i = as_tensor(x, "put_along_axis"), as_tensor(indices, "put_along_axis")
    a = check_axis("put_along_axis", axis, t.ndim)
    if t.ndim != i.ndim:
        raise ShapeError("put_along_axis: needs as many axes of both", got=f"{t.type} and {i.type}")
    shape = [n if k == a else m for k, (n, m) in enumerate(zip(i.shape, t.shape, strict=True))]
    return scatter_kind(
        "set", t, a, broadcast_to(i, shape), broadcast_to(_value("put_along_axis", values, t), shape)
    )


def _along(t: Tensor, dim: int, index: Any) -> tuple[Any, ...]:
    """Return the index that names whole slices along an axis."""
    return (slice(None),) * dim + (index,)


def index_fill(x: Any, dim: int, index: Any, value: Any) -> Tensor:
    """Return `x` with one value in whole slices along an axis, at the indices of a vector."""
    t, i = as_tensor(x, "index_fill"), as_tensor(index, "index_fill")
    a = check_axis("index_fill", dim, t.ndim)
    hit = set_at(zeros(t.shape[a], dtype=bool_), (i,), True)
    return where(reshape(hit, _column(t, a, t.shape[a])), _value("index_fill", value, t), t)  # type: ignore[no-any-return]


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Tensor:
    """Return `x` with whole slices of `source` along an axis, at the indices of a vector."""
    t, i = as_tensor(x, "index_copy"), as_tensor(index, "index_copy")
    a, values = check_axis("index_copy", dim, t.ndim), _value("index_copy", source, t)
    if i.ndim != 1:
        return set_at(t, _along(t, a, i), values)
    shape = [*t.shape[:a], i.shape[0], *t.shape[a + 1 :]]
    return scatter_slices("set", t, a, i, broadcast_to(values, shape))


def _column(t: Tensor, axis: int, size: Any) -> list[Any]:
    """Return a shape that stretches along all axes but one."""
    return [size if k == axis else 1 for k in range(t.ndim)]


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Tensor:
    """Return `x` with values at x[indices]; with `accumulate` they are added, all that meet."""
    t, where_to = as_tensor(x, "index_put"), tuple(indices)
    value = _value("index_put", values, t)
    return At(t)[where_to].add(value) if accumulate else set_at(t, where_to, value)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """Return `x` with values at places counted in row-major order; with `accumulate` they are added."""
    t, i = as_tensor(x, "put"), as_tensor(index, "put")
    values = broadcast_to(_value("put", source, t), i.shape)
    if accumulate:
        return reshape(index_add(ravel(t), 0, ravel(i), ravel(values)), t.shape)
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
    return where(m, cast(found, t.dtype), t)  # type: ignore[no-any-return]


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
    t = as_tensor(x, "select_scatter")
    return set_at(
        t, _along(t, check_axis("select_scatter", dim, t.ndim), index), _value("select_scatter", src, t)
    )


def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Return `x` with `src` in start:end:step of an axis."""
    t = as_tensor(x, "slice_scatter")
    a = check_axis("slice_scatter", dim, t.ndim)
    return set_at(t, _along(t, a, slice(start, end, step)), _value("slice_scatter", src, t))


def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return `x` with `src` on a diagonal of two axes."""
    t = as_tensor(x, "diagonal_scatter")
    a, b = check_axis("diagonal_scatter", dim1, t.ndim), check_axis("diagonal_scatter", dim2, t.ndim)
    moved = moveaxis(t, (a, b), (-2, -1))
    value = _value("diagonal_scatter", src, t)
    rows, columns = moved.shape[-2:]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    placed = on_diagonal(moved, broadcast_to(value, (*moved.shape[:-2], length)), offset)
    return moveaxis(placed, (-2, -1), (a, b))


__all__ = [
    "diagonal_scatter", "index_copy", "index_fill", "index_put", "masked_scatter", "put", "put_along_axis",
    "scatter_reduce", "select_scatter", "slice_scatter",
]  # fmt: skip
