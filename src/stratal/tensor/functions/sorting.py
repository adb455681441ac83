"""Functions that put elements in order."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import OPS, apply, as_tensor, common_dtype
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.indexing import take_along_axis
from stratal.tensor.functions.reductions import ValuesIndices, amax, argmax, without_axis
from stratal.tensor.functions.reductions import any as any_of
from stratal.tensor.functions.shapes import ravel, reshape
from stratal.tensor.tensor import Tensor, fresh


def _sorted(name: str, t: Tensor, axis: int, descending: bool) -> ValuesIndices:
    if t.ndim == 0:
        values, indices = _sorted(name, reshape(t, (1,)), axis, descending)
        return ValuesIndices(reshape(values, ()), reshape(indices, ()))
    return ValuesIndices(*apply(OPS["sort"](check_axis(name, axis, t.ndim), descending), t))


def sort(
    x: Any, /, *args: Any, axis: int | None = None, descending: bool = False, stable: bool = True,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Return the elements along an axis in order; called with `dim`, positionally or as a method, also where
    they stood. Equal elements always keep their order. NaN counts as the greatest.
    """
    t = as_tensor(x, "sort")
    at = args[0] if args else dim
    descending = bool(args[1]) if len(args) > 1 else descending
    if at is not None:
        return _sorted("sort", t, at, descending)
    a = check_axis("sort", -1 if axis is None else axis, max(t.ndim, 1))
    return apply(OPS["sort_values"](a, descending), t) if t.ndim else fresh(t)


def sort_method(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesIndices:
    """Return the elements along an axis in order, and where they stood."""
    return _sorted("sort", self, dim, descending)


def argsort(x: Any, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices that put the elements along an axis in order; NaN counts as the greatest."""
    return _sorted("argsort", as_tensor(x, "argsort"), axis, descending).indices


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """Return the k greatest (or least) elements along an axis, in order, and where they stood.

    NaN counts as the greatest.
    """
    t = as_tensor(x, "topk")
    if t.ndim == 0:
        return ValuesIndices(*(reshape(v, ()) for v in topk(reshape(t, (1,)), k, dim, largest)))
    a = check_axis("topk", dim, t.ndim)
    if not 0 <= k <= t.shape[a]:
        raise AttributeValueError("topk: k must not exceed the axis", got=f"{k} of {t.shape[a]}")
    return first("topk", t, a, k, largest)


def first(
    name: str, t: Tensor, axis: int, count: int, descending: bool = False, start: int = 0
) -> ValuesIndices:
    """Return elements `start` to `count` of the order along an axis, and where they stood."""
    return ValuesIndices(*apply(OPS["top"](check_axis(name, axis, t.ndim), count, descending, start), t))


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of all elements, NaN if any is NaN; along an axis also where it stood.

    Of all elements the gradient is spread evenly over equal medians; along an axis one of them takes it.
    """
    t = as_tensor(x, "median")
    flat = ravel(t) if dim is None else t
    a = check_axis("median", 0 if dim is None else dim, flat.ndim)
    if flat.shape[a] == 0:
        raise AttributeValueError("median: there is no median of nothing", got=str(t.type))
    middle = (flat.shape[a] - 1) // 2
    found = [*first("median", flat, a, middle + 1, start=middle)]
    if t.dtype.is_float:  # NaN is last in order, and is the median where there is one
        wrong = any_of(flat != flat, a, True)
        found = [where(wrong, math.nan, found[0]), where(wrong, argmax(flat, a, True), found[1])]
    if dim is None:
        return shared(flat, reshape(found[0], ()))
    return without_axis(flat, a, keepdim, *found)


def shared(flat: Tensor, value: Tensor) -> Tensor:
    """Return a value that is among elements, its gradient spread evenly over those equal to it."""
    if not flat.dtype.is_float:
        return value
    among = amax(where(flat == value.detach(), flat, -math.inf))
    return where(value != value, value, among)


def searchsorted(
    edges: Any, x: Any, /, *, side: str | None = None, sorter: Any = None, right: bool = False
) -> Tensor:
    """Return where the elements of `x` go into sorted rows to keep them sorted: how many edges lie before.

    Shapes: edges [n] and x of any shape, or edges [b..., n] and x [b..., m] -> int64 of the shape of `x`.
    `sorter` says in which order the edges are sorted. NaN comes after all numbers.
    """
    e, v = as_tensor(edges, "searchsorted"), as_tensor(x, "searchsorted")
    if side not in (None, "left", "right"):
        raise AttributeValueError("searchsorted: side is 'left' or 'right'", got=repr(side))
    if sorter is not None:
        e = take_along_axis(e, sorter, axis=-1)
    dtype = common_dtype("searchsorted", (e, v))
    e, v = cast(e, dtype), cast(v, dtype)
    rows = ravel(v) if e.ndim == 1 else v
    return reshape(apply(OPS["search_sorted"](right or side == "right"), e, rows), v.shape)


__all__ = ["argsort", "median", "searchsorted", "sort", "topk"]
