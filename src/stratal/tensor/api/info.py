"""Dtypes in the array API's words: limits, kinds, promotion; its constants, and what a namespace can do.

See https://data-apis.org/array-api/2024.12/API_specification/inspection.html
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from stratal.base import settings
from stratal.base.dims import Sym
from stratal.base.dtypes import DType, as_dtype, promote, promote_scalar, set_default_float
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError
from stratal.runtime.storage import INVALIDATED
from stratal.tensor.build import common_dtype, normalise
from stratal.tensor.device import CPU, check_device, device
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import LOCK, MODE

e, pi, inf, nan = math.e, math.pi, math.inf, math.nan
newaxis = None

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


class FloatInfo(NamedTuple):
    """Limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        return self.smallest_normal


class IntInfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def get_default_dtype() -> DType:
    """Return the dtype of Python floats, and of what is made of none: parameters, zeros, draws."""
    return as_dtype(float)


def set_default_dtype(d: Any, /) -> None:
    """Set the dtype of Python floats for the whole process; complex numbers become as wide.

    What is there keeps its dtype; compiled functions are captured anew.
    """
    dtype = as_dtype(d)
    if not dtype.is_float:
        raise DTypeError("set_default_dtype: takes a float dtype", got=str(dtype))
    if MODE.trace is not None:
        raise CaptureError("set_default_dtype: a compiled function cannot change it", got=str(dtype),
                           hint="set it before the call")  # fmt: skip
    with LOCK:
        set_default_float(dtype)
        INVALIDATED[0] = object()  # no call is like the one before


def set_num_threads(n: int, /) -> None:
    """Set how many threads programs run on, for the whole process; the calling thread is one of them.

    Compiled functions are captured anew. A block `with settings.threads(n)` goes on as it is.

    Raises: SettingError unless `n` is a whole number from 1 to 1024.
    """
    if MODE.trace is not None:
        raise CaptureError("set_num_threads: a compiled function cannot change it", got=str(n),
                           hint="set it before the call")  # fmt: skip
    with LOCK:
        settings.threads.assign(n)
        INVALIDATED[0] = object()  # no call is like the one before


def get_num_threads() -> int:
    """Return how many threads programs run on, the calling one counted."""
    return settings.threads.value


def _dtype_of(x: Any) -> DType:
    return x.dtype if isinstance(x, Tensor) else as_dtype(x)


def finfo(dtype: Any, /) -> FloatInfo:
    """Return the limits of a float dtype; for a complex one, of its parts."""
    d = _dtype_of(dtype)
    if not d.is_inexact:
        raise DTypeError("finfo: takes a float dtype", got=str(d))
    own = {"complex64": as_dtype("float32"), "complex128": as_dtype("float64")}.get(d.name, d)
    found: Any = ml_dtypes.finfo(own.np)  # type: ignore[no-untyped-call]
    parts = (float(found.eps), float(found.max), float(found.min), float(found.smallest_normal))
    return FloatInfo(own.bits, *parts, own)


def iinfo(dtype: Any, /) -> IntInfo:
    """Return the limits of an integer dtype."""
    d = _dtype_of(dtype)
    if not d.is_integer:
        raise DTypeError("iinfo: takes an integer dtype", got=str(d))
    found = np.iinfo(d.np)
    return IntInfo(d.bits, int(found.max), int(found.min), d)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is one, or of one of the kinds, that `kind` names."""
    d = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return d.kind in _KINDS[kind]
    if isinstance(kind, str):
        raise AttributeValueError("isdtype: no such kind", got=repr(kind), hint="one of " + ", ".join(_KINDS))
    return d is as_dtype(kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype that tensors, dtypes and Python numbers promote to."""
    if not arrays_and_dtypes:
        raise AttributeValueError("result_type: takes at least one tensor, dtype or number", got="none")
    dtypes = [x for x in arrays_and_dtypes if isinstance(x, DType)]
    rest = [x for x in arrays_and_dtypes if not isinstance(x, DType)]
    found: DType | None = None
    for d in [*dtypes, *(x.dtype for x in rest if isinstance(x, Tensor))]:
        found = d if found is None else promote(found, d)
    numbers = [x for x in normalise("result_type", rest) if not isinstance(x, Tensor)]
    if found is None:
        return common_dtype("result_type", numbers)
    for x in numbers:
        found = promote_scalar(found, 0 if isinstance(x, Sym) else x)
    return found


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion turns one dtype into another."""
    try:
        return promote(_dtype_of(from_), as_dtype(to)) is as_dtype(to)
    except DTypeError:
        return False

# -- what the array API asks of a namespace ------------------------------------------------------------------
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_DEFAULTS = {"real floating": float, "complex floating": complex, "integral": int, "indexing": int}


class NamespaceInfo:
    """What `__array_namespace_info__()` returns: devices, dtypes and capabilities."""

    def capabilities(self) -> dict[str, Any]:
        """Return what is possible: indexing by masks and results whose size is data, outside of a capture;
        as many axes as NumPy has.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> device:
        """Return the device tensors are made on."""
        return CPU

    def devices(self) -> list[device]:
        """Return all devices."""
        return [CPU]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtype of Python numbers, of each kind."""
        check_device(device)
        return {kind: as_dtype(of) for kind, of in _DEFAULTS.items()}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name; `kind` is one of `isdtype`'s words, or several."""
        check_device(device)
        found = {name: as_dtype(name) for name in _DTYPES}
        return {name: d for name, d in found.items() if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Return what this implementation of the array API can do."""
    return NamespaceInfo()


def check_version(api_version: str | None) -> None:
    """Refuse a version of the standard this is not. Raises: AttributeValueError."""
    if api_version is not None and api_version not in API_VERSIONS:
        raise AttributeValueError(
            "__array_namespace__: this version of the array API is not here", got=repr(api_version),
            hint="one of " + ", ".join(API_VERSIONS),
        )  # fmt: skip
