"""Data from outside as NumPy arrays of a dtype Stratal has."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.dtypes import DType, as_dtype, float32, int64
from stratal.base.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]


def to_array(data: Any, dtype: DType | None) -> Array:
    """Return data as a NumPy array of a dtype Stratal has."""
    if dtype is None and isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        dtype = as_dtype(type(data))
    if isinstance(data, (list, tuple)):
        data = _plain(data)
    try:
        array = np.asarray(data)
        if dtype is not None and dtype.is_integer and array.dtype.kind in "fO":
            array = _exact(data, array, dtype)
    except ValueError as error:
        raise ShapeError("tensor: nested lists must be rectangular", got=str(error)) from None
    if array.dtype == object or array.dtype.kind in "SUMm":
        raise DTypeError(
            "tensor: the data must be numbers", got=f"{type(data).__name__} of dtype {array.dtype}"
        )
    if dtype is None:
        dtype = _default_dtype(data, array)
    if array.dtype == dtype.np:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype.np)


def _exact(data: Any, array: Array, dtype: DType) -> Array:
    """Return Python integers unrounded: where some lie beyond 2**63 and others not, NumPy reads floats."""
    whole = np.asarray(data, dtype=object)
    if not all(isinstance(x, int) for x in whole.flat):
        return array
    try:
        return whole.astype(dtype.np)
    except OverflowError:
        raise DTypeError("tensor: a number does not fit the dtype", got=f"{data} for {dtype}") from None


def _plain(data: Any) -> Any:
    return [
        _plain(x) if isinstance(x, (list, tuple)) else np.asarray(x) if hasattr(x, "__array__") else x
        for x in data
    ]


def _default_dtype(data: Any, array: Array) -> DType:
    if isinstance(data, (list, tuple)) and array.dtype == np.float64 and not _holds_arrays(data):
        return float32
    if isinstance(data, (list, tuple)) and array.dtype.kind == "i":
        return int64
    return as_dtype(array.dtype)


def _holds_arrays(data: Any) -> bool:
    return any(
        _holds_arrays(x) if isinstance(x, (list, tuple)) else isinstance(x, (np.ndarray, np.generic))
        for x in data
    )
