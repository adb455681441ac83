"""PyTorch's names of arguments, of functions that Stratal has, too: from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SPACES = ("", "nn.functional", "linalg", "fft", "special")
# Of memory and graphs that there are not here, or deprecated there.
NOWHERE = {"out", "layout", "pin_memory", "names", "memory_format", "_stacklevel", "size_average", "reduce",
           "generator", "device", "requires_grad", "inplace"}  # fmt: skip


class Pair(NamedTuple):
    """A function of both libraries, and PyTorch's names of its arguments, in order."""

    path: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    names: list[str]


def pairs(ours: Any, theirs: Any) -> Iterator[Pair]:
    """Yield all functions that both libraries have under one name and whose arguments PyTorch names."""
    for space in SPACES:
        module, other = _inside(ours, space), _inside(theirs, space)
        for name in sorted(set(dir(module)) & set(dir(other))):
            function, twin = getattr(module, name), getattr(other, name)
            if name.startswith("_") or not (callable(function) and callable(twin)) or inspect.isclass(twin):
                continue
            names = names_of(name, twin)
            if names is not None:
                yield Pair(f"{space}.{name}".lstrip("."), function, twin, names)


def _inside(library: Any, space: str) -> Any:
    for part in space.split("."):
        library = getattr(library, part) if part else library
    return library


def names_of(name: str, function: Any) -> list[str] | None:
    """Return the names of a function's arguments but those of `NOWHERE`; None where nothing tells."""
    if inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        found = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    else:
        line = " ".join(part.strip() for part in (function.__doc__ or "").strip().split("\n")[:3])
        match = re.match(rf"(?:[a-z_]+\.)*{re.escape(name)}\((.*?)\)\s*->", line)
        if match is None:
            return None
        text, bracketed = match[1], 1
        while bracketed:  # defaults and types with commas
            text, bracketed = re.subn(r"\([^()]*\)|\[[^][]*\]", "", text)
        words = [part.split("=")[0].split(":")[0].strip().split(" ")[-1] for part in text.split(",")]
        found = [word for word in words if word.isidentifier()]
    return [word for word in found if word not in NOWHERE]


def takes(function: Any, words: Any, name: str) -> bool:
    """Return whether a function takes an argument under a name, itself or by its words."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    own = parameters.get(words.names.get(name, name))
    return own is not None and own.kind is not own.VAR_POSITIONAL
