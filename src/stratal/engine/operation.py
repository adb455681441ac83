"""What an engine schedules: resources, the operations that name them, and the values of operations."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from stratal.base.errors import StratalError
from stratal.base.source import user_line

T = TypeVar("T")


class EngineTimeoutError(StratalError, TimeoutError):
    """A wait that took longer than it was given; what it waits for is named and goes on."""

    advice = "wait longer, or see what the named operation waits for"


class Variable:
    """The tag of one resource: its queue, its holders, and the failure that left it undefined, if one did."""

    __slots__ = ("_error", "_holders", "_queue", "_written", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._queue: deque[tuple[Operation, bool]] = deque()  # not granted yet; whether it mutates
        self._holders: list[Operation] = []  # granted: readers, or one writer
        self._written = False  # by the holder
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Variable({self.name})"


class Waits(Protocol):
    """What an operation needs of its engine."""

    def _await(self, operation: Operation, timeout: float | None) -> None: ...

    def _raise(self, error: BaseException) -> NoReturn: ...


class Operation:
    """A pushed closure. `wait()` returns when it has run, and raises what it raised."""

    __slots__ = (
        "_done", "_engine", "_function", "_missing", "_started", "_touched", "error", "name", "where",
    )  # fmt: skip

    def __init__(
        self, engine: Waits, function: Callable[[], Any] | None, touched: dict[Variable, bool], name: str
    ) -> None:
        self._engine = engine
        self._function = function  # None: a marker that somebody waits for
        self._touched = touched  # each variable once; whether it is mutated
        self._missing = len(touched)  # variables that have not granted it
        self._started = 0.0  # seconds of the monotonic clock
        self._done = threading.Event()
        self.error: BaseException | None = None
        self.name = name
        self.where = user_line()

    @property
    def done(self) -> bool:
        """Whether it has run, failed or been cancelled."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Return once it is done. Raises: what it raised; EngineTimeoutError after `timeout` seconds."""
        self._engine._await(self, timeout)
        if self.error is not None:
            self._engine._raise(self.error)

    def __repr__(self) -> str:
        pushed = f", pushed at {self.where}" if self.where else ""
        return f"{self.name}{pushed}"


class Result(Generic[T]):
    """The value an operation of `submit` will have; assigned once."""

    __slots__ = ("_value", "operation", "variable")

    def __init__(self, operation: Operation, variable: Variable, value: list[T]) -> None:
        self.operation: Final = operation
        self.variable: Final = variable
        self._value = value

    def value(self, timeout: float | None = None) -> T:
        """Return the value once it is there. Raises: as `Operation.wait`."""
        self.operation.wait(timeout)
        return self._value[0]
