"""Data from outside as NumPy arrays of a dtype Stratal has."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType, as_dtype, as_element, int64, uint64
from stratal.base.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]
_NUMBERS: Final = {bool, int, float, complex}


def to_array(data: Any, dtype: DType | None) -> Array:
    """Return data as a NumPy array of a dtype Stratal has. Numbers must fit the dtype; arrays are cast."""
    if isinstance(data, np.generic) and dtype is not None:
        data = data.item()
    if isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        return as_element("tensor", data, dtype or (uint64 if _beyond_int64(data) else as_dtype(type(data))))
    flat = isinstance(data, (list, tuple)) and set(map(type, data)) <= _NUMBERS
    if isinstance(data, (list, tuple)) and not flat:
        data = _plain(data)
    try:
        array = np.asarray(data)
    except ValueError as error:
        rule = "tensor: nested lists must be rectangular, of at most 64 axes"
        raise ShapeError(rule, got=str(error)) from None
    numbers = not hasattr(data, "__array__")
    if numbers:
        array = _exact(data, array)
    if array.dtype.kind in "SUMm" or (array.dtype == object and not (numbers and _are_ints(array))):
        raise DTypeError(
            "tensor: the data must be numbers", got=f"{type(data).__name__} of dtype {array.dtype}"
        )
    if dtype is None:
        dtype = _default_dtype(data, array, flat)
    if array.dtype == dtype.np:
        return array
    if numbers and array.size and (dtype.is_integer or array.dtype.kind in "cO"):
        for end in array.flat if array.dtype.kind == "c" else (array.min(), array.max()):
            as_element("tensor", end if isinstance(end, int) else end.item(), dtype)
    with np.errstate(all="ignore"):
        return (array if dtype.is_complex or array.dtype.kind != "c" else array.real).astype(dtype.np)


def _beyond_int64(number: Any) -> bool:
    return isinstance(number, int) and 1 << 63 <= number < 1 << 64


def _exact(data: Any, array: Array) -> Array:
    """Return Python integers unrounded: where some lie beyond 2**63 and others not, NumPy reads floats."""
    if array.dtype.kind != "f" or not (abs(array) >= 2.0**63).any():
        return array
    whole = np.asarray(data, dtype=object)
    return whole if _are_ints(whole) else array


def _are_ints(array: Array) -> bool:
    return all(isinstance(x, int) for x in array.flat)


def _plain(data: Any) -> Any:
    return [
        _plain(x) if isinstance(x, (list, tuple)) else np.asarray(x) if hasattr(x, "__array__") else x
        for x in data
    ]


def _default_dtype(data: Any, array: Array, flat: bool) -> DType:
    """Return the dtype of data without one; `flat` lists hold Python's numbers and nothing else."""
    if isinstance(data, (list, tuple)) and array.dtype.kind in "fc" and (flat or not _holds_arrays(data)):
        return as_dtype(float if array.dtype.kind == "f" else complex)
    if isinstance(data, (list, tuple)) and array.dtype.kind in "iO":
        return uint64 if array.dtype == object and array.min() >= 0 else int64
    return as_dtype(array.dtype)


def _holds_arrays(data: Any) -> bool:
    return any(
        _holds_arrays(x) if isinstance(x, (list, tuple)) else isinstance(x, (np.ndarray, np.generic))
        for x in data
    )
