"""Plain data: values that are compared by type and value, and when two are the same."""

from __future__ import annotations

import datetime
import decimal
import fractions
import types
import uuid
from math import copysign
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import DType
from stratal.base.types import TensorType

_EQUAL: Final = frozenset({bool, int, str, bytes, type(None), type(Ellipsis), range, DType, TensorType,
    datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone,
    fractions.Fraction, uuid.UUID, PurePosixPath, PureWindowsPath, type(Path())})  # fmt: skip
_COMPARED: Final = _EQUAL | {float, complex, decimal.Decimal, slice, frozenset, tuple}


def plain(value: Any) -> bool:
    """Return whether a value is compared by type and value: immutable, and without parts that are not."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(plain, value))
    if kind is slice:
        return plain(value.start) and plain(value.stop) and plain(value.step)
    return kind in _COMPARED or isinstance(value, (np.generic, np.dtype))


def same(now: Any, expected: Any) -> bool:
    """Return whether a value is the expected one: the same object, or plain data of equal type and value.

    Zeros differ by their sign; NaN is the same as NaN.
    """
    if now is expected:
        return True
    kind = type(now)
    if kind is not type(expected):
        return False
    if kind in _EQUAL:
        return bool(now == expected)
    if kind is float:
        return (now == expected and copysign(1, now) == copysign(1, expected)) or (
            now != now and expected != expected
        )
    if kind is complex:
        return same(now.real, expected.real) and same(now.imag, expected.imag)
    if kind is tuple:
        return len(now) == len(expected) and all(map(same, now, expected))
    if kind is slice:
        return all(map(same, (now.start, now.stop, now.step), (expected.start, expected.stop, expected.step)))
    if kind is frozenset:
        return {(type(x), x) for x in now} == {(type(x), x) for x in expected}
    if kind is decimal.Decimal:
        return bool(now.as_tuple() == expected.as_tuple())
    if isinstance(now, np.generic):
        return bool(now.tobytes() == expected.tobytes())
    if isinstance(now, types.MethodType):
        return now.__self__ is expected.__self__ and now.__func__ is expected.__func__
    return isinstance(now, np.dtype) and bool(now == expected)
