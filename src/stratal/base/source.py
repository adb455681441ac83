"""Source lines: which line of the user's program a value came from, in which named scope and module."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stratal.base.interrupts import block

T = TypeVar("T")
PACKAGE = str(Path(__file__).resolve().parent.parent)
EXAMPLES = f"{PACKAGE}/cli/examples/"  # programs as a user would write them: their lines are the user's
_NUMPY = f"{Path(np.__file__).parent}/"  # asks tensors, on behalf of the user, what they are
# Never the user's own code.
_LIBRARY = Path(threading.__file__).parent
_BESIDE = ("threading.py", "asyncio/", "concurrent/", "multiprocessing/")  # where threads and processes begin
_THREADS = tuple(f"{_LIBRARY}/{name}" for name in _BESIDE)
_STANDARD = (contextlib.__file__, functools.__file__, str(importlib.__file__), *_THREADS)
_INSIDE = (f"{PACKAGE}/", _NUMPY, "<frozen ", *_STANDARD)
_SCOPE: ContextVar[tuple[str, ...]] = ContextVar("stratal_scope", default=())
Modules = tuple[str, Mapping[int, str]]  # the path of the module that runs; by id, those of its root's tree
_MODULE: ContextVar[Modules] = ContextVar("stratal_module", default=("", {}))


class SourceLine(NamedTuple):
    """One line of the user's program; `scope` is the path of composites that were running.

    `module` is the path of the module whose forward function ran, from its root's class: `Net.layer1.0`.
    """

    file: str
    line: int
    function: str
    scope: tuple[str, ...] = ()
    module: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def under(self, scope: tuple[str, ...]) -> SourceLine:
        """Return this line with further composites running."""
        return _line(self.file, self.line, self.function, (*self.scope, *scope), self.module)


@block
def during(variable: ContextVar[Any], value: T) -> Generator[T]:
    """Give a context variable a value for a block."""
    before = variable.get()
    try:
        variable.set(value)
        yield value
    finally:
        variable.set(before)


def scope(name: str) -> AbstractContextManager[object]:
    """Name the nodes built inside: a composite such as `softmax` stays visible to printers and fusion."""
    return during(_SCOPE, (*_SCOPE.get(), name))


def unscoped() -> AbstractContextManager[object]:
    """Let scopes inside be named as if none were around them."""
    return during(_SCOPE, ())


def inside_module(
    module: object, named: Callable[[], Iterable[tuple[str, object]]]
) -> AbstractContextManager[object]:
    """Let source lines inside tell that `module` runs; `named` gives the modules below it, with their paths.

    One that runs inside of another is called as that one's tree calls it.
    """
    paths = _MODULE.get()[1]
    if id(module) not in paths:
        root = type(module).__name__
        paths = {id(part): f"{root}.{name}" if name else root for name, part in named()}
    return during(_MODULE, (paths[id(module)], paths))


@lru_cache(maxsize=65536)
def _line(file: str, line: int, function: str, scope_path: tuple[str, ...], module: str) -> SourceLine:
    return SourceLine(file, line, function, scope_path, module)


def _generated(frame: FrameType) -> bool:
    """Return whether a function without a file belongs to a dataclass of the package."""
    return str(frame.f_globals.get("__name__", "")).startswith("stratal.")


def user_line() -> SourceLine | None:
    """Return the innermost frame outside the package, or None when the package runs itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not _inside(code.co_filename) and not (code.co_filename == "<string>" and _generated(frame)):
            return _line(code.co_filename, frame.f_lineno, code.co_qualname, _SCOPE.get(), _MODULE.get()[0])
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _inside(file: str) -> bool:
    """Return whether a file is one of the package's own, none of its examples."""
    return file.startswith(_INSIDE) and not file.startswith(EXAMPLES)


def merge(*groups: tuple[SourceLine, ...], limit: int = 8) -> tuple[SourceLine, ...]:
    """Return the union of provenance lists in order, at most `limit` long."""
    merged: dict[SourceLine, None] = {}
    for group in groups:
        for line in group:
            merged[line] = None
    return tuple(merged)[:limit]
