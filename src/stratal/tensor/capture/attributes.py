"""Attributes: in which places Python looks for one, and where it writes one."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from stratal.base.dims import Sym
from stratal.tensor.capture import refusals
from stratal.tensor.capture.accesses import RESHAPING, Accesses
from stratal.tensor.capture.containers import CONTAINERS, Noted
from stratal.tensor.capture.locations import (
    MISSING,
    ClassAttribute,
    Computed,
    Item,
    Location,
    Measured,
    OfThread,
    Slot,
)
from stratal.tensor.capture.natives import unwatched
from stratal.tensor.capture.objects import MUTABLE, fields_of, is_covered, ours, owner_of, stateful, tables_of
from stratal.tensor.capture.output import BufferedOutput
from stratal.tensor.capture.plain import plain
from stratal.tensor.tensor import Tensor

_CONSTANT: Final = (
    types.BuiltinFunctionType, types.CodeType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType,
)  # fmt: skip
_OF_LAYOUT: Final = {
    **dict.fromkeys(("shape", "ndim", "size", "nbytes"), "shape"),
    **dict.fromkeys(("dtype", "itemsize"), "dtype"),
}
_MEMORY: Final = attrgetter("strides", "flags.num")
STORED: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)  # by the object, in no dict


def reads_attribute(seen: Accesses, owner: Any, name: str) -> None:
    """Note that the run reads `owner.name`."""
    owner = owner_of(owner, name)
    if name not in ("shape", "ndim", *RESHAPING):
        seen.not_array(owner)
    if isinstance(owner, Sym):  # it has not what ints have
        seen.key(owner)
    seen.number(owner)
    if isinstance(owner, (Tensor, *_CONSTANT)) or plain(owner):
        return
    if owner in seen.made and not isinstance(owner, type):
        if name == "__dict__":
            seen.touch(owner)
        if name not in (fields_of(owner) or ()):
            reads_class_attribute(seen, type(owner), name)
        return
    if isinstance(owner, weakref.ProxyTypes):
        raise refusals.WEAK_PROXY(f"{type(owner).__name__}.{name}")
    if isinstance(owner, threading.local):
        seen.read(OfThread(owner, name, f"{seen.name(owner)}.{name}"))
        return
    if isinstance(owner, types.FrameType) and name not in ("f_back", "f_code", "f_globals"):
        raise refusals.FRAME("", name)
    if id(owner) in seen.deferred and not hasattr(_found(type(owner), name), "is_replayed"):
        raise refusals.READ_AFTER_CALL(type(owner).__name__, name)
    if isinstance(owner, types.ModuleType):
        if owner.__name__.partition(".")[0] != "stratal":
            for key in (name,) if name in owner.__dict__ else (name, "__getattr__"):
                seen.read(Item(owner.__dict__, key, f"{owner.__name__}.{key}"))
    elif isinstance(owner, type):
        reads_class_attribute(seen, owner, name)
        if name in ("__name__", "__qualname__", "__doc__") and owner.__flags__ & MUTABLE:
            seen.read(Slot(owner, name, f"{seen.name(owner)}.{name}"))
    elif isinstance(owner, super):
        seen.bases(owner.__self_class__)  # type: ignore[attr-defined]
        mro: Any = owner.__self_class__.__mro__  # type: ignore[attr-defined]
        _looked_up(seen, mro[mro.index(owner.__thisclass__) + 1 :], name)  # type: ignore[attr-defined]
    elif isinstance(owner, np.ndarray):
        if name in _OF_LAYOUT:
            seen.read(Slot(owner, _OF_LAYOUT[name], f"the {_OF_LAYOUT[name]} of an array"))
        elif isinstance(_found(type(owner), name), types.GetSetDescriptorType):
            seen.contents(owner)
            seen.read(Measured(owner, _MEMORY, f"how {seen.name(owner)} lies in memory"))
    else:
        _instance_attribute(seen, owner, name)


def _instance_attribute(seen: Accesses, owner: Any, name: str) -> None:
    kind, fields = type(owner), fields_of(owner)
    seen.use(owner)
    if name == "__dict__":
        seen.touch(owner)
    if stateful(owner) and (ours(kind) or is_covered(owner, name)) and id(owner) not in seen.replayed:
        if fields is not None and name not in fields:  # a method that an attribute may replace
            seen.missing[id(fields), name] = Item(fields, name, f"{seen.name(owner)}.{name}")
        return
    found = _found(kind, name)
    if isinstance(found, types.MemberDescriptorType):
        seen.read(Slot(owner, name, f"{seen.name(owner)}.{name}"))
    elif hasattr(type(found), "__set__") or (fields is None and found is not MISSING):
        reads_class_attribute(seen, kind, name)
        if not isinstance(getattr(type(found), "__get__", None), types.FunctionType):
            _computed_attribute(seen, owner, name, found)
    elif found is MISSING and name not in (fields or ()) and unwatched(owner):  # C code makes it up
        seen.watched(owner)
    else:
        if fields is not None:
            seen.touch(owner)
            if not stateful(owner):  # of others, users do not replace the whole dict
                seen.read(Slot(owner, "__dict__", f"the attributes of {seen.name(owner)}"))
            seen.read(Item(fields, name, f"{seen.name(owner)}.{name}"))
        if fields is None or name not in fields:
            seen.kind(owner)
            reads_class_attribute(seen, kind, name)


def _found(kind: type, name: str) -> Any:
    """Return what the classes of an object have under a name, or MISSING."""
    return next((c.__dict__[name] for c in kind.__mro__ if name in c.__dict__), MISSING)


def _computed_attribute(seen: Accesses, owner: Any, name: str, found: Any) -> None:
    """Note a read of an attribute that a class written in C computes."""
    if isinstance(found, property) or not hasattr(type(found), "__set__"):
        return
    if type(owner).__module__ == "typing":  # computed by Python code when it is asked for, and observed then
        return
    if isinstance(owner, types.FunctionType) or (
        name != "__dict__" and not isinstance(owner, CONTAINERS) and plain(getattr(owner, name, None))
    ):
        seen.read(Computed(owner, name, f"{seen.name(owner)}.{name}"))
    elif unwatched(owner):
        if getattr(owner, name, None) is not getattr(owner, name, None):
            seen.watched(owner)
        seen.read(Computed(owner, name, f"{seen.name(owner)}.{name}"))


def reads_class_attribute(seen: Accesses, kind: type, name: str) -> None:
    """Note a look-up through the classes of an object; those of the interpreter do not change."""
    seen.bases(kind)
    if not _looked_up(seen, kind.__mro__, name) and type(kind) is not type:
        seen.bases(type(kind))
        _looked_up(seen, type.mro(type(kind)), name)


def _looked_up(seen: Accesses, classes: Sequence[type], name: str) -> bool:
    for c in classes:
        if c.__flags__ & MUTABLE and not ours(c) and c not in seen.made:
            seen.read(ClassAttribute(c, name, f"{c.__name__}.{name}"))
        if name in c.__dict__:
            seen.use(c.__dict__[name])  # it may be a descriptor
            return True
    return False


def reads_attributes(seen: Accesses, owner: Any) -> None:
    """Note that the run reads all attributes of an object, as code not written in Python may."""
    fields = fields_of(owner)
    if fields is not None and not isinstance(owner, (type, types.ModuleType, types.FunctionType, Tensor)):
        for name in list(fields):
            reads_attribute(seen, owner, name)


def _redirects(seen: Accesses, location: Location, written: Callable[[], None]) -> Callable[[], None]:
    """Return what refuses, after the write, a stream that takes text without code that is observed."""

    def note() -> None:
        written()
        stream = location.read()
        observed = isinstance(getattr(type(stream), "write", None), types.FunctionType)
        known = stream in (None, MISSING) or isinstance(stream, BufferedOutput)
        known = known or stream is seen.before(location)
        if not (known or observed or stream in seen.made):
            raise refusals.REDIRECTED(location.name)

    return note


def _plainly_set(seen: Accesses, owner: Any, name: str) -> bool:
    """Return whether an attribute of an object is a place, not what code that is not Python makes of it."""
    if unwatched(owner) and not seen.unwatched(owner):  # made inside
        return True
    if unwatched(owner):
        found = _found(type(owner), name)
        setting = getattr(type(found), "__set__", None)
        if not isinstance(found, (property, *STORED)) and isinstance(setting, types.WrapperDescriptorType):
            return False
    if isinstance(owner, (type, np.ndarray)) or fields_of(owner) is not None:
        return not isinstance(owner, np.ndarray)
    method: Any = type(owner).__setattr__
    return method is object.__setattr__ or not isinstance(method, types.WrapperDescriptorType)


def writes_attribute(seen: Accesses, owner: Any, name: str) -> Noted:
    """Note that the run is about to give an object another attribute, or to take it away; return what is to
    be noted when it has done so: it may be what stands there.
    """
    owner = owner_of(owner, name)
    seen.use(owner)
    if owner in seen.made or isinstance(owner, Tensor) or plain(owner):  # which may fill a cache of its own
        return False
    if not _plainly_set(seen, owner, name):
        raise refusals.ATTRIBUTE(f"{seen.name(owner)}.{name} = ..", type(owner).__name__)
    if isinstance(owner, threading.local):
        return seen.writes_location(OfThread(owner, name, f"{seen.name(owner)}.{name}"))
    if isinstance(owner, types.ModuleType):
        location = Item(owner.__dict__, name, f"{owner.__name__}.{name}")
        written = seen.writes_location(location)
        redirects = owner is sys and name in ("stdout", "stderr")
        return _redirects(seen, location, written) if redirects else written
    elif isinstance(owner, type):
        if not owner.__flags__ & MUTABLE or name == "__slotnames__":  # an error; a cache of `copyreg`
            return False
        kind = Slot if isinstance(_found(type(owner), name), STORED) else ClassAttribute
        return seen.writes_location(kind(owner, name, f"{owner.__name__}.{name}"))
    else:
        seen.touch(owner)
        seen.touch_tables(owner)
        stored = isinstance(_found(type(owner), name), STORED)
        if stored and not isinstance(owner, BaseException):  # a traceback holds what the run made
            return seen.writes_location(Slot(owner, name, f"{seen.name(owner)}.{name}"))
        return lambda: seen.writes_key([*tables_of(owner), fields_of(owner)], name)
