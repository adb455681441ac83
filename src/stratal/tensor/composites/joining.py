"""Joining, splitting and turning arrays along the axes NumPy has names for; NumPy's padding.

Padding is by a value, or by what lies inside: repeated, mirrored, or from the other end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, IndexOutOfRangeError, ShapeError
from stratal.tensor import build
from stratal.tensor.arrays import Array
from stratal.tensor.build import along, as_tensor, common_dtype
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.creation import meshgrid
from stratal.tensor.functions.elementwise import FUNCTIONS, cast
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.reductions import amax, amin, mean
from stratal.tensor.functions.shapes import (
    as_axes,
    as_shape,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    narrow,
    pad_constant,
    ravel,
    reshape,
    stack,
    transpose,
)
from stratal.tensor.tensor import Tensor, fresh, tensor


# -- axes there must be --------------------------------------------------------------------------------------
def _at_least(name: str, rank: int) -> Callable[..., Any]:
    def function(*arrays: Any) -> Any:
        if len(arrays) != 1:
            return tuple(function(x) for x in arrays)
        (x,) = arrays
        if isinstance(x, (list, tuple)):
            if any(isinstance(part, Tensor) for part in x):  # PyTorch's way to pass several
                return tuple(function(part) for part in x)
            x = tensor(x)
        t = as_tensor(x, name)
        if t.ndim >= rank:
            return t
        if rank == 3 and t.ndim == 2:
            return expand_dims(t, axis=2)
        return reshape(t, (1, *t.shape, 1) if rank == 3 and t.ndim == 1 else (1,) * (rank - t.ndim) + t.shape)

    doc = f"Return arrays with axes of size 1 added up to {rank}; a tuple for several."
    return named(function, name, doc)


atleast_1d = _at_least("atleast_1d", 1)
atleast_2d = _at_least("atleast_2d", 2)
atleast_3d = _at_least("atleast_3d", 3)


# -- joining -------------------------------------------------------------------------------------------------
def _given(name: str, arrays: Sequence[Any]) -> list[Tensor]:
    given = [as_tensor(a, name) for a in arrays]
    if not given:
        raise ShapeError(f"{name}: needs at least one array", got="none")
    return given


def hstack(tensors: Sequence[Any]) -> Tensor:
    """Return arrays side by side: joined along the second axis, vectors along their only one."""
    given = [atleast_1d(t) for t in _given("hstack", tensors)]
    return concat(given, axis=0 if given[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Tensor:
    """Return arrays below each other: joined along the first axis, vectors as rows."""
    return concat([atleast_2d(t) for t in _given("vstack", tensors)], axis=0)


def dstack(tensors: Sequence[Any]) -> Tensor:
    """Return arrays behind each other: joined along the third axis."""
    return concat([atleast_3d(t) for t in _given("dstack", tensors)], axis=2)


def column_stack(tensors: Sequence[Any]) -> Tensor:
    """Return vectors as the columns of a matrix; matrices side by side."""
    given = _given("column_stack", tensors)
    return concat([reshape(t, (t.numel(), 1)) if t.ndim < 2 else t for t in given], axis=1)


def append(x: Any, values: Any, /, axis: int | None = None) -> Tensor:
    """Return `x` with values behind it along an axis; without one both are flattened."""
    return concat([as_tensor(x, "append"), as_tensor(values, "append")], axis=axis)


def block_diag(*tensors: Any) -> Tensor:
    """Return matrices one below and right of the other, zeros elsewhere; a vector is a row."""
    given = [atleast_2d(t) for t in _given("block_diag", tensors)]
    if any(t.ndim > 2 for t in given):
        raise ShapeError("block_diag: takes matrices", got=", ".join(str(t.type) for t in given))
    dtype = common_dtype("block_diag", given)
    width, at, rows = sum(t.shape[1] for t in given), 0, []
    for t in given:
        rows.append(pad_constant(cast(t, dtype), [(0, 0), (at, width - at - t.shape[1])]))
        at += t.shape[1]
    return concat(rows, axis=0)


def cartesian_prod(*tensors: Any) -> Tensor:
    """Return all choices of one element of every vector, one a row; of a single vector itself."""
    given = _given("cartesian_prod", tensors)
    if any(t.ndim != 1 for t in given):
        raise ShapeError("cartesian_prod: takes vectors", got=", ".join(str(t.type) for t in given))
    if len(given) == 1:
        return given[0]
    dtype = common_dtype("cartesian_prod", given)
    return stack([ravel(m) for m in meshgrid(*[cast(t, dtype) for t in given], indexing="ij")], axis=-1)


def combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return all choices of `r` elements of a vector in the order they stand, one a row."""
    t = as_tensor(x, "combinations")
    if t.ndim != 1 or r < 0:
        raise ShapeError("combinations: takes a vector and a count", got=f"{t.type}, r={r}")
    if r == 2:
        rows, columns = np.triu_indices(t.shape[0], 0 if with_replacement else 1)
        return take(t, tensor(np.stack([rows, columns], 1)), axis=0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(t.shape[0]), r)), np.int64).reshape(-1, max(r, 1))
    return take(t, tensor(places if r else np.empty(0, np.int64)), axis=0)


# -- splitting -----------------------------------------------------------------------------------------------
_MOST_PIECES = 1 << 16  # each is a tensor


def tensor_split(x: Any, indices_or_sections: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Return pieces along an axis: so many, the first ones maybe larger by one, or cut at given places."""
    t, a = along("tensor_split", x, axis)
    n = int(t.shape[a])
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if hasattr(indices_or_sections, "__index__"):
        pieces = int(indices_or_sections)
        if not 1 <= pieces <= _MOST_PIECES:
            raise AttributeValueError(
                f"tensor_split: needs at least one section, at most {_MOST_PIECES}", got=str(pieces)
            )
        small, larger = divmod(n, pieces)
        cuts = [k * small + min(k, larger) for k in range(pieces + 1)]
    else:
        cuts = [0, *(slice(0, int(c)).indices(n)[1] for c in indices_or_sections), n]
    return tuple(narrow(t, a, low, max(high - low, 0)) for low, high in itertools.pairwise(cuts))


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Return pieces along an axis, as `tensor_split`."""
    return tensor_split(x, indices_or_sections, axis)


def _split_along(name: str, axis: int) -> Callable[..., tuple[Tensor, ...]]:
    def function(x: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
        t = as_tensor(x, name)
        least = axis + 1 if axis != 1 else 1
        if t.ndim < least:
            raise ShapeError(f"{name}: needs at least {least} axes", got=str(t.type))
        at = axis if t.ndim > 1 else 0
        if hasattr(indices_or_sections, "__index__") and t.shape[at] % max(int(indices_or_sections), 1):
            raise ShapeError(
                f"{name}: the axis does not split evenly", got=f"{t.shape[at]} into {indices_or_sections}",
                hint="array_split makes pieces of different sizes",
            )  # fmt: skip
        return tensor_split(t, indices_or_sections, at)

    return named(function, name, f"Return equal pieces along axis {axis}, or pieces cut at given places.")


vsplit = _split_along("vsplit", 0)
hsplit = _split_along("hsplit", 1)
dsplit = _split_along("dsplit", 2)


# -- turning -------------------------------------------------------------------------------------------------
def fliplr(x: Any, /) -> Tensor:
    """Return `x` with its columns (axis 1) in reverse order."""
    return flip(x, 1)


def flipud(x: Any, /) -> Tensor:
    """Return `x` with its rows (axis 0) in reverse order."""
    return flip(x, 0)


def rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return `x` turned `k` times by 90 degrees, from the first of two axes to the second."""
    t = as_tensor(x, "rot90")
    if len(tuple(dims)) != 2:
        raise AttributeValueError("rot90: takes two axes", got=str(tuple(dims)))
    a, b = as_axes("rot90", tuple(dims), t.ndim)
    turned = {0: lambda: fresh(t), 1: lambda: transpose(flip(t, b), a, b), 2: lambda: flip(t, (a, b)),
              3: lambda: flip(transpose(t, a, b), b)}  # fmt: skip
    return turned[k % 4]()


def select(x: Any, dim: int, index: int) -> Tensor:
    """Return what stands at one place of an axis, which vanishes."""
    t, a = along("select", x, dim)
    if not -t.shape[a] <= index < t.shape[a]:
        raise IndexOutOfRangeError("select: out of range", got=f"{index} on axis {a} of {t.type}")
    row = narrow(t, a, index % t.shape[a], 1)
    return reshape(row, (*t.shape[:a], *t.shape[a + 1 :]))


# -- shapes and places ---------------------------------------------------------------------------------------
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape all of them stretch to."""
    return build.broadcast_shapes(
        "broadcast_shapes", *(as_shape("broadcast_shapes", (s,)) for s in map(_tuple, shapes))
    )


def _tuple(shape: Any) -> Any:
    return (shape,) if hasattr(shape, "__index__") else shape


def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Return the place along every axis of elements of a shape counted in row-major order."""
    left = as_tensor(indices, "unravel_index")
    sizes = as_shape("unravel_index", (_tuple(shape),))
    count = math.prod(sizes)
    known = build.looked_at("unravel_index", left)
    if known is None:
        left = build.required(left, (left < 0) | (left >= count), 1, "unravel_index: out of range")
    elif not ((known >= 0) & (known < count)).all():
        raise IndexOutOfRangeError("unravel_index: out of range", got=f"an index not in [0, {count})")
    found: tuple[Tensor, ...] = _places(left, sizes)
    return found


@cached_call
def _places(left: Tensor, sizes: tuple[Any, ...]) -> tuple[Tensor, ...]:
    places = []
    for n in reversed(sizes):
        places.append(FUNCTIONS["remainder"](left, n))
        left = FUNCTIONS["floor_divide"](left, n)
    return tuple(reversed(places))


def ravel_multi_index(multi_index: Sequence[Any], dims: Sequence[int]) -> Tensor:
    """Return the row-major place of elements of a shape from their places along every axis."""
    given = [as_tensor(i, "ravel_multi_index") for i in multi_index]
    if len(given) != len(tuple(dims)) or not given:
        raise ShapeError(
            "ravel_multi_index: needs an index for every axis", got=f"{len(given)} for {tuple(dims)}"
        )
    flat = given[0]
    for i, n in zip(given[1:], tuple(dims)[1:], strict=True):
        flat = flat * n + i
    return flat


def numel(x: Any, /) -> int:
    """Return the number of elements."""
    return int(as_tensor(x, "numel").numel())


# -- padding -------------------------------------------------------------------------------------------------
def _mirrored(place: Array, n: int) -> Array:
    """Return places in [0, n) for places anywhere, mirrored at the outer elements, again and again."""
    period = max(2 * n - 2, 1)
    folded = place % period
    return np.asarray(np.minimum(folded, period - folded) if n > 1 else folded * 0)


def _mirrored_whole(place: Array, n: int) -> Array:
    """Return places in [0, n) for places anywhere, mirrored beyond the outer elements."""
    folded = place % (2 * n)
    return np.asarray(np.minimum(folded, 2 * n - 1 - folded))


_PLACES: dict[str, Callable[[Array, int], Array]] = {
    "edge": lambda place, n: np.clip(place, 0, n - 1),
    "reflect": _mirrored,
    "symmetric": _mirrored_whole,
    "wrap": lambda place, n: place % n,
}
_STATISTICS: dict[str, Callable[..., Tensor]] = {"maximum": amax, "mean": mean, "minimum": amin}
MODES = ("constant", *_PLACES, *_STATISTICS)


def _pairs(given: Any, ndim: int) -> list[tuple[int, int]]:
    try:
        pairs = np.broadcast_to(np.asarray(given), (ndim, 2))
    except ValueError:
        pairs = np.empty((0, 2))
    if len(pairs) != ndim or (ndim and pairs.dtype.kind not in "iu") or np.any(pairs < 0):
        raise ShapeError(
            "pad: takes a size, a (before, after) pair, or a pair per axis, none negative",
            got=f"{given!r} for {ndim} axes",
        )
    return [(int(a), int(b)) for a, b in pairs]


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Tensor:
    """Return `x` with more elements around it: `pad_width` before and after each axis.

    `mode` is "constant", "edge" (the outer element again), "reflect" (mirrored at it), "symmetric" (mirrored
    beyond it), "wrap" (from the other end), or "maximum", "mean", "minimum" (of the axis). PyTorch's words
    are those of `stratal.nn.functional.pad`.
    """
    t = as_tensor(x, "pad")
    if mode not in MODES:
        raise AttributeValueError(f"pad: mode is one of {', '.join(MODES)}", got=repr(mode))
    pairs = _pairs(pad_width, t.ndim)
    if mode == "constant":
        return pad_constant(t, pairs, constant_values)
    for axis, (before, after) in enumerate(pairs):
        n = int(t.shape[axis])
        if not before and not after:
            continue
        if n == 0:
            raise ShapeError(
                f"pad: mode {mode!r} takes its elements from inside", got=f"axis {axis} of {t.type}"
            )
        if mode in _PLACES:
            places = _PLACES[mode](np.arange(-before, n + after), n)
            t = take(t, tensor(places.astype(np.int64)), axis=axis)
        else:
            t = _with_statistic(t, axis, before, after, _STATISTICS[mode])
    return t


def _with_statistic(
    t: Tensor, axis: int, before: int, after: int, statistic: Callable[..., Tensor]
) -> Tensor:
    value = statistic(t, axis=axis, keepdims=True)
    if value.dtype is not t.dtype:
        value = value.round().to(t.dtype)

    def repeated(count: int) -> Tensor:
        return broadcast_to(value, [count if k == axis else n for k, n in enumerate(t.shape)])

    return concat([repeated(before), t, repeated(after)], axis=axis)


__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_shapes",
    "cartesian_prod", "column_stack", "combinations", "dsplit", "dstack", "fliplr", "flipud", "hsplit",
    "hstack", "numel", "pad", "ravel_multi_index", "rot90", "select", "tensor_split", "unravel_index",
    "vsplit", "vstack",
]  # fmt: skip
