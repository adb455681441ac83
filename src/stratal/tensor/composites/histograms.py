"""Counting: how often numbers occur, how many fall between edges, and between which edges each falls."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from stratal.base.dtypes import bool_, int32, int64
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    DTypeError,
    IndexOutOfRangeError,
    ShapeError,
)
from stratal.tensor.build import as_tensor, default_float, iota, looked_at
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.creation import ones, zeros
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.indexing import index_add
from stratal.tensor.functions.reductions import amax, amin, sum
from stratal.tensor.functions.shapes import concat, flip, narrow, ravel, reshape
from stratal.tensor.functions.sorting import searchsorted
from stratal.tensor.tensor import Tensor


class Histogram(NamedTuple):
    """How many elements fall into each bin, and the edges of the bins."""

    hist: Tensor
    bin_edges: Tensor


@cached_call
def _counted(places: Tensor, weights: Tensor | None, count: int) -> Tensor:
    """Return how often each of 0, ..., count - 1 occurs in a vector, or the sum of the weights there."""
    if weights is None:
        return index_add(zeros(count, dtype=int64), 0, places, ones(places.shape[0], dtype=int64))
    return index_add(zeros(count, dtype=weights.dtype), 0, places, weights)


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """Return how often each number from 0 on occurs in a vector of integers, or the sum of their weights.

    The greatest number is data: the value is needed now. In a captured function the result has `minlength`
    elements, and a number beyond them is an error when it runs.
    """
    t = as_tensor(x, "bincount")
    if t.ndim != 1 or not (t.dtype.is_integer or t.dtype is bool_):
        raise DTypeError("bincount: takes a vector of integers", got=str(t.type))
    if minlength < 0:
        raise AttributeValueError("bincount: minlength is not negative", got=str(minlength))
    w = None if weights is None else as_tensor(weights, "bincount")
    if w is not None and w.shape != t.shape:
        raise ShapeError("bincount: needs a weight for every element", got=f"{w.type} for {t.type}")
    if w is not None and not w.dtype.is_inexact:
        w = cast(w, "float64")
    values = looked_at("bincount", t)
    if values is not None:
        if values.size and values.min() < 0:
            raise IndexOutOfRangeError("bincount: takes numbers from 0 on", got=str(values.min()))
        minlength = max(minlength, int(values.max()) + 1 if values.size else 0)
    elif not minlength:
        raise CaptureError(
            "bincount: the size of the result is data, which a captured graph does not have", got=str(t.type),
            hint="give the number of bins as minlength",
        )  # fmt: skip
    counts: Tensor = _counted(cast(t, int64), w, minlength)
    return counts


# -- bins between edges --------------------------------------------------------------------------------------
def _edges(name: str, t: Tensor, bins: Any, low: Any, high: Any, widen: float) -> Tensor:
    """Return bins + 1 edges at equal distance, around the elements where no range is given."""
    if bins < 1:
        raise AttributeValueError(f"{name}: needs at least one bin", got=str(bins))
    if low is None:
        values = looked_at(name, t) if t.dtype.is_float else None
        if values is not None and not np.isfinite(values).all():
            raise AttributeValueError(f"{name}: the range of the elements is not finite", got=str(t.type),
                                      hint="give a range: what lies outside is not counted")  # fmt: skip
    elif not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise AttributeValueError(f"{name}: a range is finite and goes up", got=f"[{low}, {high}]")
    found: Tensor = _evenly(name, t, bins, low, high, widen)
    return found


@cached_call
def _evenly(name: str, t: Tensor, bins: int, low: Any, high: Any, widen: float) -> Tensor:
    if low is None:
        low, high = (amin(t).detach(), amax(t).detach()) if t.numel() else (0.0, 1.0)
    ends = [cast(as_tensor(v, name), "float64") for v in (low, high)]
    same = ends[0] == ends[1]
    first, last = where(same, ends[0] - widen, ends[0]), where(same, ends[1] + widen, ends[1])
    inside = first + cast(iota((bins,)), "float64") * ((last - first) / float(bins))
    return cast(concat([inside, reshape(last, (1,))]), default_float(t.dtype))


@cached_call
def _binned(t: Tensor, edges: Tensor, weights: Tensor | None) -> Tensor:
    """Count elements between edges, bins open above but the last; what lies outside goes to one beyond."""
    count = edges.shape[0] - 1
    values = cast(t, edges.dtype)
    place = searchsorted(edges, values, side="right") - 1
    place = where(values == edges[count], count - 1, place)
    outside = (place < 0) | (place >= count) | (values != values)
    return narrow(_counted(cast(where(outside, count, place), int64), weights, count + 1), 0, 0, count)


def histogram(
    x: Any, bins: Any = 10, range: Any = None, density: bool = False, weights: Any = None, *,
    weight: Any = None
) -> Histogram:
    """Return how many elements fall into each bin, or the sums of their weights, and the edges of the bins.

    `bins` is a number of bins of equal width over `range` (by default that of the elements), or the edges, in
    order. A bin holds its lower edge; the last holds both. NaN falls into none. With `density` the result is
    divided by its integral. Dtype: int64 counts; floats with `density` or weights.
    """
    flat = ravel(as_tensor(x, "histogram"))
    given = weights if weights is not None else weight
    w = None if given is None else ravel(as_tensor(given, "histogram"))
    if w is not None and w.shape != flat.shape:
        raise ShapeError("histogram: needs a weight for every element", got=f"{w.type} for {flat.type}")
    if hasattr(bins, "__index__") and not isinstance(bins, Tensor):
        low, high = (None, None) if range is None else map(float, range)
        edges = _edges("histogram", flat, int(bins), low, high, 0.5)
    else:
        edges = _given_edges(bins, flat)
    counts = _binned(flat, edges, w)
    if density:
        share = cast(counts, edges.dtype)
        counts = share / (edges[1:] - edges[:-1]) / sum(share)
    return Histogram(counts, edges)


def _given_edges(bins: Any, t: Tensor) -> Tensor:
    edges = as_tensor(np.asarray(bins) if isinstance(bins, (list, tuple)) else bins, "histogram")
    if edges.ndim != 1 or edges.shape[0] < 2:
        raise ShapeError("histogram: edges are a vector of at least two numbers", got=str(edges.type))
    values = looked_at("histogram", edges)
    if values is not None and not np.all(values[:-1] <= values[1:]):
        raise AttributeValueError("histogram: edges go up", got=str(edges.tolist()))
    dtype = default_float(t.dtype)
    return cast(edges, dtype if dtype.is_float else "float64")


def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None) -> Tensor:
    """Return the edges `histogram` counts between."""
    return histogram(x, bins, range).bin_edges


def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return how many elements fall into each of `bins` bins of equal width between `min` and `max`.

    The result has the dtype of `x`. With `min` and `max` equal they are those of the elements. Elements
    outside, and NaN, are not counted.
    """
    flat = ravel(as_tensor(x, "histc"))
    low, high = (None, None) if min == max else (float(min), float(max))
    return cast(_binned(flat, _edges("histc", flat, bins, low, high, 1.0), None), flat.dtype)


# -- places between edges ------------------------------------------------------------------------------------
def bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return how many boundaries, in order, lie below each element; with `right` also those equal to it."""
    places = searchsorted(boundaries, as_tensor(x, "bucketize"), side="right" if right else "left")
    return cast(places, int32) if out_int32 else places


def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """Return the bin each element falls into: 0 before the first edge, their number behind the last.

    A bin holds its lower edge, with `right` its upper one. Edges may go down: then bins count from the top.
    """
    t = as_tensor(x, "digitize")
    edges = as_tensor(np.asarray(bins) if isinstance(bins, (list, tuple)) else bins, "digitize")
    if edges.ndim != 1:
        raise ShapeError("digitize: edges are a vector", got=str(edges.type))
    n = edges.shape[0]
    if n < 2:
        return searchsorted(edges, t, side="left" if right else "right")
    up = searchsorted(edges, t, side="left" if right else "right")
    down = n - searchsorted(flip(edges, 0), t, side="right" if right else "left")
    return where(edges[0] > edges[n - 1], down, up)


__all__ = ["bincount", "bucketize", "digitize", "histc", "histogram", "histogram_bin_edges"]
