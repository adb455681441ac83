"""Functions of foreign libraries, called once for each matrix of a stack: who runs programs says how.

    Each     := { ptr function, i64 count, i64 calls of one chunk, Argument.. }    ARGUMENTS of them
    Argument := { i64 word, i64 what it grows by from call to call, i64 by worker }

All arguments are words, as Fortran's are addresses; a function ignores those beyond the ones it takes. While
a program runs, the calls are shared out among the threads of its pool; elsewhere Python makes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from stratal.base.source import during

ARGUMENTS: Final = 16
HEAD_WORDS: Final = 3
ARGUMENT_WORDS: Final = 3
Argument = tuple[int, int, int]

Pooled = Callable[[int, int, list[Argument]], None]
"""Calls a function of an address so many times, with arguments that grow."""

_SIGNATURE: Final = (ctypes.c_void_p,) * ARGUMENTS
_pooled: ContextVar[tuple[int, Pooled] | None] = ContextVar("stratal_pooled", default=None)


def calls_through(workers: int, pooled: Pooled) -> AbstractContextManager[object]:
    """Return a block in which `for_each` shares its calls out among so many workers. Blocks nest."""
    return during(_pooled, (workers, pooled))


def workers() -> int:
    """Return how many threads `for_each` may use: what is written by worker needs that many places."""
    found = _pooled.get()
    return 1 if found is None else found[0]


def prepared(function: Any) -> Any:
    """Return a function of a library as `for_each` calls it, of words and without a result."""
    function.argtypes, function.restype = _SIGNATURE, None
    return function


def for_each(function: Any, count: int, arguments: list[Argument]) -> None:
    """Call a `prepared` function `count` times, with `ARGUMENTS` arguments."""
    found = _pooled.get()
    if found is not None and found[0] > 1 and count > 1:
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        found[1](address, count, arguments)
        return
    for k in range(count):
        function(*[word + k * step for word, step, _ in arguments])
