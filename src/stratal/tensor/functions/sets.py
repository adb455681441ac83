"""Tensors as sets: their different elements, and which elements are among others.

How many different elements there are is data, so the values are needed at once: inside a captured function
this is an error that says so. As the array API asks, every NaN is different from every other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, CaptureError
from stratal.base.types import TensorType
from stratal.runtime.storage import Storage
from stratal.tensor.arguments import check_axis
from stratal.tensor.arrays import Array
from stratal.tensor.build import as_tensor, common_dtype
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.reductions import any as any_of
from stratal.tensor.functions.shapes import expand_dims, ravel
from stratal.tensor.functions.sorting import sort
from stratal.tensor.tensor import Tensor, hold, tensor
from stratal.tensor.values.state import MODE

LARGE = 1 << 16  # elements that a program sorts faster than NumPy, first calls of it aside


class UniqueAll(NamedTuple):
    """Different elements in order, where each stood first, which of them each element is, and how often each
    occurs.
    """

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Different elements in order and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Different elements in order and which of them each element is."""

    values: Tensor
    inverse_indices: Tensor


def _known(name: str, x: Any) -> Array:
    t = as_tensor(x, name)
    if MODE.trace is not None:
        raise CaptureError(f"{name}: the number of different elements is data", got=str(t.type),
                           hint="compute it outside the compiled function")  # fmt: skip
    return t._value(name).array


def _distinct(
    name: str, x: Any, first: bool = False, inverse: bool = False, counts: bool = False
) -> list[Tensor]:
    """Return the different elements in order and, as asked, where each was first, the way back, how often."""
    array = _known(name, x)
    if array.size >= LARGE and array.dtype.kind != "c":
        parts = _distinct_of_many(name, array, placed=first or inverse)
        chosen = (True, first, inverse, counts)
        found = [make() for make, asked in zip(parts, chosen, strict=True) if asked]
    else:
        made: Any = np.unique(array, first, inverse, counts, equal_nan=False)  # type: ignore[call-overload]
        found = list(made) if isinstance(made, tuple) else [made]
    values, *places = found
    if inverse:
        places[int(first)] = places[int(first)].reshape(array.shape)
    return [tensor(values), *(tensor(part.astype(np.int64, copy=False)) for part in places)]


def _distinct_of_many(name: str, array: Array, placed: bool) -> list[Callable[[], Array]]:
    """Return what makes the four parts, from the sorted elements."""
    ordered, order = _in_order(name, array.reshape(-1), placed)
    fresh = _fresh(ordered)
    starts = np.flatnonzero(fresh)

    def inverse() -> Array:
        back = np.empty(len(order), np.int64)
        back[order] = np.cumsum(fresh) - 1
        return back

    return [
        lambda: ordered[starts], lambda: order[starts], inverse, lambda: np.diff(starts, append=len(ordered)),
    ]  # fmt: skip


def _in_order(name: str, elements: Array, placed: bool) -> tuple[Array, Array]:
    """Return many elements in order and, if `placed`, where they stood.

    They are filled up to one of few sizes, each of which has a program, by what is last in order.
    """
    n = len(elements)
    power = 1 << (n - 1).bit_length()
    storage = Storage.empty(
        TensorType(as_dtype(elements.dtype), (power if 4 * n > 3 * power else 3 * power // 4,))
    )
    storage.array[:n] = elements
    kind = elements.dtype.kind
    last = True if kind == "b" else np.iinfo(elements.dtype).max if kind in "iu" else np.nan
    storage.array[n:] = last
    t = hold(storage)
    if not placed:
        return sort(t, axis=0)._value(name).array[:n], np.empty(0, np.int64)
    values, order = sort(t, dim=0)
    return values._value(name).array[:n], order._value(name).array[:n]


def _fresh(rows: Array) -> Array:
    """Return which rows differ from the one before."""
    fresh = np.ones(len(rows), bool)
    differs = rows[1:] != rows[:-1]
    fresh[1:] = differs if rows.ndim == 1 else differs.any(axis=tuple(range(1, rows.ndim)))
    return fresh


def unique_all(x: Any, /) -> UniqueAll:
    """Return the different elements in order, where they stood first, the way back, and their counts."""
    return UniqueAll(*_distinct("unique_all", x, first=True, inverse=True, counts=True))


def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the different elements in order and how often each occurs."""
    return UniqueCounts(*_distinct("unique_counts", x, counts=True))


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the different elements in order, and for each element of `x` its place among them."""
    return UniqueInverse(*_distinct("unique_inverse", x, inverse=True))


def unique_values(x: Any, /) -> Tensor:
    """Return the different elements in order."""
    return _distinct("unique_values", x)[0]


def unique(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Return the different elements in order, or slices along `dim`; with their places and counts if asked,
    as in PyTorch.
    """
    if dim is None:
        return _several(_distinct("unique", x, inverse=return_inverse, counts=return_counts))
    array = _known("unique", x)
    axis = check_axis("unique", dim, array.ndim)
    values, inverse, counts = np.unique(
        array, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    parts = [tensor(values)]
    parts += [tensor(inverse.reshape(array.shape[axis]).astype(np.int64))] if return_inverse else []
    parts += [tensor(counts.astype(np.int64))] if return_counts else []
    return _several(parts)


def unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements, or slices along `dim`, that differ from the one before; if asked also where each
    of `x` went to, and how many followed each other.
    """
    array = _known("unique_consecutive", x)
    axis = 0 if dim is None else check_axis("unique_consecutive", dim, array.ndim)
    rows = np.moveaxis(array.reshape(-1) if dim is None else array, axis, 0)
    fresh = _fresh(rows)
    parts = [tensor(np.moveaxis(rows[fresh], 0, axis))]
    if return_inverse:
        parts.append(tensor((np.cumsum(fresh) - 1).reshape(array.shape if dim is None else -1)))
    if return_counts:
        parts.append(tensor(np.diff(np.flatnonzero(fresh), append=len(rows))))
    return _several(parts)


def _several(parts: list[Tensor]) -> Any:
    return tuple(parts) if len(parts) > 1 else parts[0]


def isin(x: Any, values: Any, /, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Return for each element of `x` whether it is among `values`; `invert` asks whether it is not."""
    if not isinstance(invert, bool):
        raise AttributeValueError("isin: invert is True or False", got=repr(invert))
    t, among = as_tensor(x, "isin"), as_tensor(values, "isin")
    dtype = common_dtype("isin", (t, among))
    found = any_of(expand_dims(cast(t, dtype), -1) == ravel(cast(among, dtype)), axis=-1)
    return ~found if invert else found


__all__ = [
    "isin", "unique", "unique_all", "unique_consecutive", "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip
