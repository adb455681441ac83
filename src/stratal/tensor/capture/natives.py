"""Classes written in C: whose objects can change although nothing that a capture watches does.

Python code shows what it reads, instruction by instruction; a class written in C does not. So an object of
one is looked into only if the class is known here: it is immutable, or watched as a container, or holds
objects which are observed when they are used. Whatever else there is, a mapped file for instance, is refused.
"""

from __future__ import annotations

import contextvars
import datetime
import decimal
import functools
import operator
import re
import struct
import threading
import types
import typing
import weakref
import zoneinfo
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from stratal.base.session import SESSION
from stratal.base.weak import Note, note
from stratal.tensor.capture.containers import CONTAINERS, VIEWS

_IMMUTABLE: Final[tuple[Any, ...]] = (
    type(None), type(Ellipsis), type(NotImplemented),
    int, float, complex, str, bytes, tuple, frozenset, range,
    slice, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, struct.Struct,
    zoneinfo.ZoneInfo, re.Pattern, re.Match, types.CodeType, types.GenericAlias, types.UnionType,
    type(typing.TypeVar("T")), type(typing.ParamSpec("P")), contextvars.Token,
)  # fmt: skip
_HOLDING: Final[tuple[Any, ...]] = (
    type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CellType,
    types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType, types.FrameType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.TracebackType, types.MappingProxyType, types.SimpleNamespace, property, staticmethod, classmethod,
    super, functools.partial, type(functools.lru_cache(lambda: None)), type(functools.cmp_to_key(max)),
    operator.attrgetter, operator.itemgetter, operator.methodcaller, weakref.ref, threading.local,
    contextvars.ContextVar, BaseException, Iterator, types.CoroutineType, types.AsyncGeneratorType, *VIEWS,
)  # fmt: skip
_KNOWN: Final = (*CONTAINERS, *_IMMUTABLE, *_HOLDING)
_OF_C: Final = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)  # fmt: skip
_OF_ANY: Final = ("__dict__", "__weakref__")
_FOUND: Final[dict[int, Note[type]]] = SESSION.cache({})  # by id


def unwatched(value: Any) -> bool:
    """Return whether an object is of a class written in C of which nothing is known."""
    kind = type(value)
    found = _FOUND.get(id(kind))
    if found is None:
        found = note(_FOUND, kind, not issubclass(kind, _KNOWN) and _holds_more(kind))
    return bool(found.fact)


def _holds_more(kind: type) -> bool:
    """Return whether objects of a class hold more than attributes that Python code gave them."""
    for c in kind.__mro__[:-1]:
        module = str(getattr(c, "__module__", ""))
        if module.partition(".")[0] in _ARRAYS and "random" not in module:
            return issubclass(kind, _MOVING)
        if c.__basicsize__ > object.__basicsize__ and _is_of_c(c):
            return True
    return False


def _is_of_c(kind: type) -> bool:
    own = [x for name, x in vars(kind).items() if name not in _OF_ANY and isinstance(x, _OF_C)]
    return any(x.__objclass__ is kind for x in own)


_ARRAYS: Final = ("numpy", "ml_dtypes", "stratal")
_MOVING: Final = (np.nditer, np.flatiter)
