"""A signal at a chosen moment of some work, out of all at which the interpreter runs handlers of signals."""

from __future__ import annotations

import dis
import opcode
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

_AFTER = {k for k, name in enumerate(opcode.opname) if name.startswith(("CALL", "JUMP_BACKWARD"))}
_RESUME = opcode.opmap["RESUME"]


class Alarm(Exception):
    """What a handler of the user's raises: an Exception as any other."""


KINDS: list[tuple[int, type[BaseException]]] = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)]


def _raise_alarm(number: int, frame: FrameType | None) -> None:
    raise Alarm


@contextmanager
def alarms_raise() -> Iterator[None]:
    """Let SIGALRM raise `Alarm`."""
    before = signal.signal(signal.SIGALRM, _raise_alarm)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@cache
def _handler(code: CodeType, position: int) -> int | None:
    """Return where an exception is handled that an instruction raises."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((e.target for e in table if e.start <= position < e.end), None)


class SignalAt:
    """Raises a signal at the n-th moment of some work: where a Python function begins, after a call, after a
    jump back.
    """

    def __init__(self, moment: int, number: int = signal.SIGINT) -> None:
        self.left, self.number = moment, number
        self.where = ""
        self._last: dict[FrameType, int] = {}

    @property
    def fired(self) -> bool:
        return self.left <= 0

    def during(self, work: Callable[[], Any]) -> bool:
        """Run some work; return whether what the handler raises came out of it."""
        before = sys.gettrace()
        try:
            sys.settrace(self._trace)
            work()
        except (KeyboardInterrupt, Alarm):
            return True
        finally:
            sys.settrace(before)
            self._last.clear()
        return False

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if code.co_filename == __file__:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if code.co_code[frame.f_lasti] == _RESUME:  # no generator that is being closed
                self._count(frame)
        elif event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if last is None or code.co_code[last] not in _AFTER:
                return self._trace
            if _handler(code, last) == _handler(code, frame.f_lasti):  # it is raised where the call is
                self._count(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._trace

    def _count(self, frame: FrameType) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            signal.raise_signal(self.number)


def moments(work: Callable[[], Any], at_most: int) -> list[int]:
    """Return the moments of some work, spread over all of it if there are more."""
    counted = SignalAt(sys.maxsize)
    counted.during(work)
    total = sys.maxsize - counted.left
    return list(range(1, total + 1, 1 + total // at_most))
