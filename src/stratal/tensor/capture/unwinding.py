"""What users' code may write while a refusal passes through it: `finally:`, `except BaseException:`, `with`.

CPython calls no tracing function any more once one has raised, so what such blocks do is not seen. What their
frames can reach in a step or two is remembered ahead of it, and put back with all else.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np

from stratal.tensor.capture.accesses import Accesses
from stratal.tensor.capture.containers import CONTAINERS, parts_of
from stratal.tensor.capture.frames import function_of
from stratal.tensor.capture.locations import Cell, Item
from stratal.tensor.capture.objects import fields_of, ours
from stratal.tensor.capture.plain import plain

_STEPS: Final = 3  # from a variable: self, what it holds, what that holds
_LARGE: Final = 10_000  # items: more are not copied


def keep(accesses: Accesses, frames: Iterable[FrameType]) -> None:
    """Remember what code in these frames may write, as it is now, unless it is known from before."""
    seen: set[int] = set()
    for frame in frames:
        names = {*frame.f_code.co_names, *frame.f_globals}
        used = [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]
        for name in names:  # functions that a block calls are of the same module
            accesses.before(Item(frame.f_globals, name, name))
        for cell in getattr(function_of(frame), "__closure__", None) or ():
            accesses.before(Cell(cell, None, "a variable"))
        for value in (*frame.f_locals.values(), *used):
            _reach(accesses, value, _STEPS, seen)


def _reach(accesses: Accesses, value: Any, steps: int, seen: set[int]) -> None:
    if plain(value) or id(value) in seen or isinstance(value, (type, ModuleType)) or ours(type(value)):
        return
    seen.add(id(value))
    held = value if isinstance(value, CONTAINERS) else fields_of(value)
    if held is None or (held.size if isinstance(held, np.ndarray) else len(held)) > _LARGE:
        return
    accesses.touch(value)
    for part in parts_of(held) if steps > 1 else ():
        _reach(accesses, part, steps - 1, seen)
