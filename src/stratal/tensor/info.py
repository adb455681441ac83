"""Dtypes in the array API's words: limits, kinds, promotion; and its constants."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from stratal.base.dtypes import DType, as_dtype, promote, promote_scalar
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.build import common_dtype, normalise
from stratal.tensor.tensor import Tensor

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
    dtypes = [x for x in arrays_and_dtypes if isinstance(x, DType)]
    rest = [x for x in arrays_and_dtypes if not isinstance(x, DType)]
    found: DType | None = None
    for d in [*dtypes, *(x.dtype for x in rest if isinstance(x, Tensor))]:
        found = d if found is None else promote(found, d)
    numbers = [x for x in normalise("result_type", rest) if not isinstance(x, Tensor)]
    if found is None:
        return common_dtype("result_type", numbers)
    for x in numbers:
        found = promote_scalar(found, x)
    return found


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion turns one dtype into another."""
    try:
        return promote(_dtype_of(from_), as_dtype(to)) is as_dtype(to)
    except DTypeError:
        return False
