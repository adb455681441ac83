"""Signal handlers at safe points: what must not stop halfway holds them back until it is done."""

from __future__ import annotations

import importlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat, starmap
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final

Handler = Callable[[int, FrameType | None], Any]

# The interpreter's own functions: those of `signal` turn every argument into an enum, 13 us a block.
_plain = importlib.import_module("_signal")
_NUMBERS: Final = sorted(map(int, signal.valid_signals()))


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
        self._handlers = {n: h for n, h in found if callable(h) and h not in self.spared}
        try:
            _install(zip(self._handlers, repeat(self._hold)))
        except BaseException as error:  # of a handler that was not held yet
            self.__exit__(type(error), error, None)
            raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame

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
