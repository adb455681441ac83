"""Ctrl-C at safe points: what must not stop halfway holds interrupts back until it is done."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# The interpreter's own functions: those of `signal` turn every argument into an enum, 13 us a block.
_plain = importlib.import_module("_signal")
_SIGINT = int(signal.SIGINT)


class InterruptsHeld:
    """In the main thread, an interrupt in this block is delivered at its end. Blocks nest."""

    __slots__ = ("_held", "_previous")

    def __enter__(self) -> None:
        self._held: list[tuple[int, FrameType | None]] = []
        self._previous: Callable[[int, FrameType | None], Any] | None = None
        if threading.get_ident() != threading.main_thread().ident:
            return  # interrupts only ever reach the main thread
        handler = _plain.getsignal(_SIGINT)
        if callable(handler):
            _plain.signal(_SIGINT, self._hold)
            self._previous = handler

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        _plain.signal(_SIGINT, self._previous)
        if self._held:
            self._previous(*self._held[0])
