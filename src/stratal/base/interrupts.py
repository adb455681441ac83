"""Signal handlers at safe points: what must not stop halfway holds them back until it is done, and what a
`with` block changes is put back, whatever a handler raises.
"""

from __future__ import annotations

import copy
import importlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ContextDecorator
from functools import partial, wraps
from io import IOBase
from itertools import starmap
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

# The interpreter's own functions: those of `signal` turn every argument into an enum, 13 us a block.
_plain = importlib.import_module("_signal")
_NUMBERS: Final = sorted(map(int, signal.valid_signals()))


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
class InterruptsHeld:
    """In the main thread, Python's signal handlers run at the end of this block, and raise there.

    Blocks nest. A signal that came several times is handled once, as where the system blocks it.
    """

    __slots__ = ("_came", "_handlers")
    spared: ClassVar[tuple[Handler, ...]] = ()

    def __enter__(self) -> None:
        self._came: dict[int, FrameType | None] = {}
        self._handlers: dict[int, Handler] = {}
        if threading.get_ident() != threading.main_thread().ident:
            return  # handlers only ever run in the main thread
        found = zip(_NUMBERS, map(_plain.getsignal, _NUMBERS), strict=True)
        self._handlers = {n: h for n, h in found if callable(h)}
        holding = [self._pass_on if h in self.spared else self._hold for h in self._handlers.values()]
        try:
            _install(zip(self._handlers, holding, strict=True))
        except BaseException as error:  # of a handler that was not held yet
            self.__exit__(type(error), error, None)
            raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Raise at once; where that prevents the call of `__exit__`, nothing is left to be done there."""
        try:
            self.__exit__(None, None, None)
        finally:
            self._handlers[number](number, frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._restore()
        finally:
            self._deliver()

    def _restore(self) -> None:
        """Install the handlers again, all of them, although each that is held no more may run and raise."""
        raised: BaseException | None = None
        while True:
            try:
                _install(self._handlers.items())
                break
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised

    def _deliver(self) -> None:
        if self._came:
            number, frame = self._came.popitem()
            try:
                self._handlers[number](number, frame)
            finally:
                self._deliver()


class Undivided(InterruptsHeld):
    """A block that happens wholly or not at all: no signal stops it, nor a stack that has no room for it."""

    __slots__ = ()
    FRAMES: ClassVar = 50  # of what such blocks call

    def __enter__(self) -> None:
        descend(self.FRAMES)
        super().__enter__()


def raises_again(function: Callable[[], object]) -> bool:
    """Return whether a call that raised an Exception does so again: no signal's handler did it."""
    with InterruptsHeld():
        try:
            function()
        except Exception:
            return True
    return False


def descend(frames: int) -> None:
    """Raise RecursionError where so many frames do not fit on the stack."""
    if frames:
        descend(frames - 1)


class ExceptionsHeld(InterruptsHeld):
    """As `InterruptsHeld`, but Ctrl-C takes effect at once: KeyboardInterrupt is not taken for an error of
    what runs in the block, as an Exception that a handler raises would be.
    """

    __slots__ = ()
    spared = (signal.default_int_handler,)


def _install(handlers: Iterable[tuple[int, Handler]]) -> None:
    """Install handlers in one call of the interpreter's own kind: no Python code runs in between."""
    deque(starmap(_plain.signal, handlers), maxlen=0)
