"""Tensors as sets: their different elements, and which elements are among others.

How many different elements there are is data, so the values are needed at once: inside a captured function
this is an error that says so. As the array API asks, every NaN is different from every other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, CaptureError
from stratal.tensor.arguments import check_axis
from stratal.tensor.arrays import Array
from stratal.tensor.build import as_tensor, common_dtype
from stratal.tensor.elementwise import cast
from stratal.tensor.naming import two_names
from stratal.tensor.reductions import any as any_of
from stratal.tensor.shapes import expand_dims, ravel
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, tensor


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


def unique_all(x: Any, /) -> UniqueAll:
    """Return the different elements in order, where they stood first, the way back, and their counts."""
    array = _known("unique_all", x)
    values, first, inverse, counts = np.unique(array, True, True, True, equal_nan=False)
    indices = (part.astype(np.int64) for part in (first, inverse.reshape(array.shape), counts))
    return UniqueAll(tensor(values), *map(tensor, indices))


def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the different elements in order and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the different elements in order, and for each element of `x` its place among them."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Tensor:
    """Return the different elements in order."""
    return tensor(np.unique(_known("unique_values", x), equal_nan=False))


def unique(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Return the different elements in order, or slices along `dim`; with their places and counts if asked,
    as in PyTorch.
    """
    array = _known("unique", x)
    axis = None if dim is None else check_axis("unique", dim, array.ndim)
    values, inverse, counts = np.unique(
        array, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    shape = array.shape if axis is None else (array.shape[axis],)
    parts = [tensor(values)]
    parts += [tensor(inverse.reshape(shape).astype(np.int64))] if return_inverse else []
    parts += [tensor(counts.astype(np.int64))] if return_counts else []
    return tuple(parts) if len(parts) > 1 else parts[0]


def unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements, or slices along `dim`, that differ from the one before; if asked also where each
    of `x` went to, and how many followed each other.
    """
    array = _known("unique_consecutive", x)
    axis = 0 if dim is None else check_axis("unique_consecutive", dim, array.ndim)
    rows = np.moveaxis(array.reshape(-1) if dim is None else array, axis, 0)
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (rows[1:] != rows[:-1]).any(axis=tuple(range(1, rows.ndim)))
    inverse, starts = np.cumsum(fresh) - 1, np.flatnonzero(fresh)
    parts = [tensor(np.ascontiguousarray(np.moveaxis(rows[fresh], 0, axis)))]
    places = inverse.reshape(array.shape if dim is None else -1).astype(np.int64)
    parts += [tensor(places)] if return_inverse else []
    parts += [tensor(np.diff([*starts, len(rows)]).astype(np.int64))] if return_counts else []
    return tuple(parts) if len(parts) > 1 else parts[0]


@two_names
def isin(x: Any, values: Any, /, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Return for each element of `x` whether it is among `values`; `invert` asks whether it is not."""
    if not isinstance(invert, bool):
        raise AttributeValueError("isin: invert is True or False", got=repr(invert))
    t, among = as_tensor(x, "isin"), as_tensor(values, "isin")
    dtype = common_dtype("isin", (t, among))
    found: Tensor = any_of(expand_dims(cast(t, dtype), -1) == ravel(cast(among, dtype)), axis=-1)
    return ~found if invert else found


__all__ = [
    "isin", "unique", "unique_all", "unique_consecutive", "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip
