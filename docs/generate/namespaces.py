"""What the public namespaces hold, read off the package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import stratal as st
from stratal.tensor.api.functions import FUNCTIONS

PACKAGE = Path(st.__file__).parent
INNER = (  # public modules inside of those that `stratal` offers itself
    "compat.tf1", "compat.tf1.nn", "distributions.transforms", "metrics.functional", "nn.functional",
    "nn.init", "nn.utils", "nn.utils.parametrizations", "nn.utils.parametrize", "nn.utils.rnn",
    "optim.lr_scheduler", "optim.swa_utils",
)  # fmt: skip
TENSOR = "Tensor"
SECTIONS = {  # of the functions of `stratal` itself, by folder and module; of tensors by module alone
    "Making tensors": "tensor methods creation random",
    "Element by element": "elementwise arithmetic parts special.gammas special.incomplete "
    "special.information",
    "Reductions and statistics": "reductions statistics quantiles",
    "Shapes, joining and splitting": "shapes joining",
    "Indexing and writing": "indexing selection writing",
    "Sorting, sets and counting": "sorting sets histograms",
    "Products and matrices": "linear matrices",
    "Sequences and signals": "calculus signals fft.frames",
    "Derivatives and other transformations": "gradients jacobians mapping custom checkpoint",
    "Control flow": "control",
    "Compiling, modes": "state lazy autocast",
    "Dtypes": "info",
    "Files and measurements": "formats.saved inspect.profiler",
    "More": "",
}


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
    return [
        e
        for e in found
        if callable(e.value)
        and not inspect.ismodule(e.value)
        and (listed or e.module.startswith(module.__name__))
        and not _for_layers(e.value)
    ]


def _for_layers(value: Any) -> bool:
    """Return whether this is a function of the rank first, which layers of one to three dimensions share."""
    return inspect.isfunction(value) and next(iter(inspect.signature(value).parameters), "") == "dims"


def _short(module: str) -> str:
    """Return the folder of the package a module is in, unless it is that of tensors, and its own name."""
    _, *folders, name = module.split(".")
    return name if not folders or folders[0] == "tensor" else f"{folders[0]}.{name}"


def functions() -> dict[str, list[Entry]]:
    """Return the functions of `stratal` itself by the section they belong to."""
    section = {module: title for title, modules in SECTIONS.items() for module in modules.split()}
    groups: dict[str, list[Entry]] = {title: [] for title in SECTIONS}
    for name in sorted({*FUNCTIONS, *st._HOMES} - {TENSOR}):
        value = FUNCTIONS.get(name) or getattr(st, name)
        if callable(value) and not name.startswith("_"):
            groups[section.get(_short(value.__module__), "More")].append(Entry(name, value))
    return {title: found for title, found in groups.items() if found}


def members(cls: type) -> list[Entry]:
    """Return the public methods and properties a class adds to those of its bases."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    own = [
        Entry(name, inspect.getattr_static(cls, name))
        for name in sorted({*vars(cls)} - inherited)
        if not name.startswith("_")
    ]
    return [e for e in own if callable(e.value) or isinstance(e.value, property | classmethod | staticmethod)]
