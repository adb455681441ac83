"""Signal handlers run between calls of the library: a section holds them back until it is done, and what a
`with` block changes is put back, whatever a handler raises.

Python calls a handler in the main thread wherever that happens to be. `signal.signal` therefore installs, in
place of each, one that looks at how deep in sections the main thread is: outside of all it calls the user's,
inside it takes note, and the outermost section calls it when it ends. So a handler may read, save or compute
as any code between two calls may, and what it raises is raised there, where no `except` of the library is.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import signal
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator
from functools import partial, wraps
from io import IOBase
from types import FrameType
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]


# -- blocks --------------------------------------------------------------------------------------------------
class _Leaving(IOBase):
    """Its `__exit__` is of the interpreter's own kind, and calls `close`, whatever it is given."""

    __slots__ = ("close",)
    closed = True  # there is nothing to finalize


class _LookedUp:
    """A special method that is made when `with` looks it up, which is before the block begins."""

    def __init__(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        self._make = make

    def __get__(self, block: Any, kind: type) -> Any:
        return self if block is None else self._make(block)

    def __call__(self, block: Any, *error: Any) -> Any:  # as contextlib.ExitStack does
        return self._make(block)(*error)


class Block(ContextDecorator):
    """A `with` block, or a decorator: its generator `during` changes something, yields inside a `try`, and
    puts it back in `finally`, where nothing that matters follows a call.

    Handlers of signals run where Python functions begin, and after calls: an `__exit__` in Python may never
    get to its first line. The `close` of a generator, which is in C, goes to `finally` at once.
    """

    def __init__(self) -> None:
        self._begun: list[Generator[Any]] = []

    def during(self) -> Generator[Any]:
        """Yield once what `with` assigns. That the block ends is GeneratorExit, whatever it raised."""
        raise NotImplementedError

    @_LookedUp
    def __enter__(self) -> Any:
        self._begun.append(self.during())
        return self._begun[-1].__next__

    @_LookedUp
    def __exit__(self) -> Any:
        leaving = _Leaving()
        leaving.close = self._begun.pop().close  # type: ignore[method-assign]
        return leaving.__exit__

    def _recreate_cm(self) -> Self:
        made = copy.copy(self)  # of a decorated function there may be several calls at once
        made._begun = []
        return made


def block(during: Callable[P, Generator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Return a function that gives a `Block` of a generator, as `contextlib.contextmanager` would."""

    @wraps(during)
    def made(*args: P.args, **kwargs: P.kwargs) -> Any:
        found = Block()
        found.during = partial(during, *args, **kwargs)  # type: ignore[method-assign]
        return found

    return made


# -- handlers that wait --------------------------------------------------------------------------------------
class _Deferred:
    """What Python calls in place of a handler: it calls that handler, or notes that it is to be called."""

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = SIGNALS
        if now.depth != now.open or not now.lets_run(self):
            if not now.pending:
                now.since_s = time.monotonic()
            now.pending[number] = self
        elif now.around is None:
            self.handler(number, frame)
        else:
            now.around(self.handler, number, frame)


class _Signals:
    """Which handlers wait, and why: of the main thread, the only one that runs any."""

    __slots__ = ("around", "depth", "open", "patience_s", "pending", "since_s", "thread")

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self.depth = 0  # of sections; each uninterruptible one counts `_HARD` times
        self.open = 0  # the depth at which handlers run; if that is in sections, Ctrl-C alone takes effect
        self.pending: dict[int, _Deferred] = {}
        self.since_s = 0.0  # when the first of those came
        self.patience_s = PATIENCE_S
        self.around: Callable[[Handler, int, FrameType | None], None] | None = None  # calls a handler

    def give_way(self) -> bool:
        """Return whether handlers have waited so long that the one section the main thread is in had better
        begin again.
        """
        outermost = self.depth == self.open == 1 and get_ident() == self.thread
        return outermost and bool(self.pending) and time.monotonic() - self.since_s > self.patience_s

    def lets_run(self, handler: _Deferred) -> bool:
        """Return whether a handler may run at the depth at which handlers run."""
        return self.open <= 0 or handler.handler is signal.default_int_handler

    def deliver(self) -> None:
        """Call the handlers that wait and may run now, each whatever others raise."""
        number = next((n for n, handler in [*self.pending.items()] if self.lets_run(handler)), None)
        handler = None if number is None else self.pending.pop(number, None)
        if number is not None and handler is not None:
            try:
                handler(number, sys._getframe(1))
            finally:
                self.deliver()


PATIENCE_S: Final = 1.0
SIGNALS: Final = _Signals()
_HARD: Final = 1 << 20


class GivenWay(KeyboardInterrupt):
    """Ends what may never end, for handlers that have waited long; where these return it begins again."""


class Section:
    """A `with` block in which the main thread runs no handlers of signals: they run where the outermost ends.

    A signal that came several times is handled once, as where the system blocks it.
    """

    __slots__ = ("_weight",)

    def __init__(self, weight: int = 1) -> None:
        self._weight: Final = weight

    def weight_here(self) -> int:
        """Return what to add to `SIGNALS.depth`, and to take off again, where nothing may come between a
        statement and the section's beginning: on the way into a `with` block a handler may raise.
        """
        return self._weight if get_ident() == SIGNALS.thread else 0

    def __enter__(self) -> None:
        if get_ident() == SIGNALS.thread:
            SIGNALS.depth += self._weight

    def __exit__(self, *error: object) -> None:
        if get_ident() == SIGNALS.thread:
            SIGNALS.depth -= self._weight
            if SIGNALS.pending and SIGNALS.depth == SIGNALS.open:
                SIGNALS.deliver()


DEFERRED: Final = Section()  # what takes long inside may be `interruptible` all the same
UNINTERRUPTIBLE: Final = Section(_HARD)


class _Atomic(Section):
    """A section that happens wholly or not at all: nor does a stack that has no room for it stop it."""

    __slots__ = ()
    FRAMES: ClassVar = 50  # of what such blocks call

    def __enter__(self) -> None:
        descend(self.FRAMES)
        super().__enter__()


ATOMIC: Final = _Atomic(_HARD)


def descend(frames: int) -> None:
    """Raise RecursionError where so many frames do not fit on the stack."""
    if frames:
        descend(frames - 1)


def takes_functions(function: Callable[..., Any]) -> bool:
    """Return whether a function takes functions of the user's, by its annotations."""
    return any("Callable" in str(p.annotation) for p in inspect.signature(function).parameters.values())


def deferring(function: Callable[P, T]) -> Callable[P, T]:
    """Let each call of a function be a section, unless it takes functions of the user's."""
    if takes_functions(function):
        return function

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:  # as `with DEFERRED`, at a third of its cost
        if get_ident() != SIGNALS.thread:
            return function(*args, **kwargs)
        SIGNALS.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            SIGNALS.depth -= 1
            if SIGNALS.pending and SIGNALS.depth == SIGNALS.open:
                SIGNALS.deliver()

    call.defers = True  # type: ignore[attr-defined]
    return call


@block
def interruptible() -> Generator[None]:
    """Let Ctrl-C raise KeyboardInterrupt at once in what takes long, unless that is uninterruptible."""
    before, in_main = SIGNALS.open, get_ident() == SIGNALS.thread
    try:
        if in_main and SIGNALS.depth < _HARD:
            SIGNALS.open = SIGNALS.depth
            if SIGNALS.pending:
                SIGNALS.deliver()
        yield
    finally:
        if in_main:  # a call here would let a handler come before what is put back
            SIGNALS.open = before


@block
def users_code() -> Generator[None]:
    """Let all handlers run in a function of the user's that is called from a section."""
    depth, before, in_main = SIGNALS.depth, SIGNALS.open, get_ident() == SIGNALS.thread
    try:
        if in_main:
            SIGNALS.depth = SIGNALS.open = 0
            if SIGNALS.pending:
                SIGNALS.deliver()
        yield
    finally:
        if in_main:  # a call here would let a handler come before what is put back
            SIGNALS.depth, SIGNALS.open = depth, before


class Lock(Section):
    """A lock that its holder may take again; held in a `with` block, that is a section.

    Handlers run while the main thread waits for it.
    """

    __slots__ = ("_at_fork_reinit", "acquire", "release")

    def __init__(self) -> None:
        super().__init__()
        lock = threading.RLock()
        self.acquire: Final = lock.acquire
        self.release: Final = lock.release
        self._at_fork_reinit: Final = lock._at_fork_reinit  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        if get_ident() == SIGNALS.thread:
            SIGNALS.depth += 1
        if not self.acquire(False):
            self._wait()

    def _wait(self) -> None:
        polls = get_ident() == SIGNALS.thread
        while not self.acquire(timeout=_POLL_S if polls else -1):
            super().__exit__()  # where handlers run, and may raise: nothing is held
            with interruptible():  # Ctrl-C also where this is no outermost section
                pass
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        self.release()
        if get_ident() == SIGNALS.thread:
            SIGNALS.depth -= 1
            if SIGNALS.pending and SIGNALS.depth == SIGNALS.open:
                SIGNALS.deliver()


_POLL_S: Final = 0.02


# -- installing ----------------------------------------------------------------------------------------------
# `signal.signal` and `signal.getsignal` look these up in every call. What they take and give is the handler.
_signal: Any = importlib.import_module("_signal")


def _install() -> None:
    set_plainly, get_plainly = _signal.signal, _signal.getsignal

    @wraps(set_plainly)
    def set_handler(number: int, handler: Any, /) -> Any:
        return _handler(set_plainly(number, _Deferred(handler) if callable(handler) else handler))

    @wraps(get_plainly)
    def get_handler(number: int, /) -> Any:
        return _handler(get_plainly(number))

    def wrap_those_before() -> None:
        for number in map(int, signal.valid_signals()):
            if callable(handler := get_plainly(number)) and not isinstance(handler, _Deferred):
                set_plainly(number, _Deferred(handler))

    _signal.signal, _signal.getsignal = set_handler, get_handler
    if get_ident() == SIGNALS.thread:
        wrap_those_before()
    else:
        _in_main_thread(wrap_those_before)


def _handler(found: Any) -> Any:
    return found.handler if isinstance(found, _Deferred) else found


def _in_main_thread(function: Callable[[], None]) -> None:
    """Let the main thread, which alone may set handlers, call a function soon."""
    import ctypes

    def done(_: object) -> int:
        function()
        return 0

    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(done)
    _CALLS.append(call)
    ctypes.pythonapi.Py_AddPendingCall(call, None)


def _begin_child() -> None:
    """Whoever forks is the main thread of the child, to which no signal has come."""
    SIGNALS.pending = {}
    if get_ident() != SIGNALS.thread:
        SIGNALS.thread, SIGNALS.depth, SIGNALS.open = get_ident(), 0, 0


_CALLS: Final[list[Any]] = []  # kept: C holds their addresses
_install()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
