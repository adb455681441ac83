"""Objects: whether they are of Stratal's classes, and where they keep their attributes."""

from __future__ import annotations

import sys
import sysconfig
import threading
from typing import Any, Final

from stratal.tensor.build import converters
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.notifying import Row, Table

_PATHS: Final = sysconfig.get_paths()
LIBRARIES: Final = (*(_PATHS[k] + "/" for k in ("stdlib", "purelib", "platlib")), "<frozen ")
"""Where code lies that users did not write."""
_PLAIN: Final = (Tensor, type, tuple, Table, Row)  # of Stratal's classes, or like those anybody makes
MUTABLE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of classes whose attributes may change


def ours(kind: type) -> bool:
    """Return whether a class is one of Stratal's; those of its examples are like a user's."""
    return kind.__module__.startswith("stratal.") and not kind.__module__.startswith("stratal.cli.")


def is_standard(kind: type) -> bool:
    """Return whether a class is of Python's standard library, whose special methods nobody replaces."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names and kind.__module__ != "__main__"


def is_foreign_array(value: Any) -> bool:
    """Return whether an object is another library's array: those a user wrote are observed."""
    if ours(type(value)):
        return False
    codes = [getattr(method, "__code__", None) for method in converters(value)]
    return any(code is None or code.co_filename.startswith(LIBRARIES) for code in codes)


def stateful(value: Any) -> bool:
    """Return whether an object is of one of Stratal's classes, or of a class made of one."""
    return any(map(ours, type(value).__mro__[:-1])) and not isinstance(value, _PLAIN)


def is_covered(owner: Any, name: str) -> bool:
    """Return whether Stratal's own functions read an attribute of an object of a user's class, such as
    a module's parts: a walk guards it.
    """
    tables = tables_of(owner)
    return any(name in table for table in tables) or (bool(tables) and name == "training")


def tables_of(owner: Any) -> list[dict[str, Any]]:
    """Return the tables of parameters, buffers and parts of a module."""
    fields = fields_of(owner) or {}
    return [fields[t] for t in ("_parameters", "_buffers", "_modules") if isinstance(fields.get(t), dict)]


def made_with(value: Any) -> Any:
    """Return the object that is from before a run if a value is: an optimizer makes state for a parameter as
    if it had always been there.
    """
    return value.made_with if ours(type(value)) and hasattr(type(value), "made_with") else value


def owner_of(value: Any, name: str) -> Any:
    """Return the object whose attribute one of a value is: of a compiled function, that function."""
    while (find := getattr(type(value), "_owner_of", None)) is not None and ours(type(value)):
        owner = find(value, name)
        if owner is value:
            break
        value = owner
    return value


def fields_of(owner: Any) -> dict[str, Any] | None:
    """Return the dict of an object's attributes."""
    try:
        mine = isinstance(owner, threading.local)  # each thread has attributes of its own
        fields = owner.__dict__ if mine else object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return fields if isinstance(fields, dict) else None
