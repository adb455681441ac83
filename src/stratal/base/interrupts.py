"""Ctrl-C at safe points: what must not stop halfway holds interrupts back until it is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class InterruptsHeld:
    """In the main thread, an interrupt in this block is delivered at its end. Blocks nest."""

    __slots__ = ("_held", "_previous")

    def __enter__(self) -> None:
        self._held: list[tuple[int, FrameType | None]] = []
        self._previous: Callable[[int, FrameType | None], Any] | None = None
        if threading.get_ident() != threading.main_thread().ident:
            return  # interrupts only ever reach the main thread
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            signal.signal(signal.SIGINT, self._hold)
            self._previous = handler

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held.append((number, frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._held:
            self._previous(*self._held[0])
