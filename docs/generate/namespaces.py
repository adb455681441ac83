"""What the public namespaces hold, read off the package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import stratal as st
from stratal.tensor.functions import FUNCTIONS

PACKAGE = Path(st.__file__).parent
INNER = (
    "models",
    "nn.functional",
    "nn.init",
    "nn.utils",
    "optim.lr_scheduler",
    "optim.swa_utils",
    "compat.tf1",
)
TENSOR = "Tensor"


class Entry(NamedTuple):
    """A public name and what it stands for."""

    name: str
    value: Any

    @property
    def module(self) -> str:
        return getattr(self.value, "__module__", None) or ""

    @property
    def place(self) -> str:
        """File and line of the definition, as seen from the package; empty for what has none."""
        try:
            value = inspect.unwrap(self.value)
            file, line = inspect.getsourcefile(value), inspect.getsourcelines(value)[1]
        except (OSError, TypeError):
            return ""
        path = Path(file or "")
        return f"{path.relative_to(PACKAGE).as_posix()}:{line}" if PACKAGE in path.parents else ""


def namespaces() -> Iterator[tuple[str, ModuleType]]:
    """Yield each public namespace below `stratal` with its name, in alphabetical order."""
    for name in sorted({*st._MODULES, *INNER}):
        module = importlib.import_module(st._PLACES.get(name, f"stratal.{name}"))
        if entries(module):
            yield name, module


def entries(module: ModuleType) -> list[Entry]:
    """Return the functions and classes a namespace offers: those it lists, else those defined inside it."""
    listed = getattr(module, "__all__", None)
    found = (Entry(name, getattr(module, name)) for name in listed or dir(module) if not name.startswith("_"))
    functions = [e for e in found if callable(e.value) and not inspect.ismodule(e.value)]
    return [e for e in functions if listed or e.module.startswith(module.__name__)]


def functions() -> dict[str, list[Entry]]:
    """Return the functions of `stratal` itself by the module that defines them."""
    groups: dict[str, list[Entry]] = {}
    for name in sorted({*FUNCTIONS, *st._HOMES} - {TENSOR}):
        value = FUNCTIONS.get(name) or getattr(st, name)
        if callable(value) and not name.startswith("_"):
            groups.setdefault(value.__module__, []).append(Entry(name, value))
    return dict(sorted(groups.items()))


def members(cls: type) -> list[Entry]:
    """Return the public methods and properties a class has of its own."""
    own = [
        Entry(name, inspect.getattr_static(cls, name))
        for name in sorted(vars(cls))
        if not name.startswith("_")
    ]
    return [e for e in own if callable(e.value) or isinstance(e.value, property | classmethod | staticmethod)]
