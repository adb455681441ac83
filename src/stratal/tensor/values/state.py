"""What mode this task or thread builds ops in: gradients on or off, eager or lazy, in what precision, and
the trace being captured.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from stratal.base.dtypes import DType
from stratal.base.interrupts import SIGNALS, Block
from stratal.runtime.pool import LOCK as LOCK  # one flush, capture or run at a time
from stratal.tensor.values.handle import Handle
from stratal.tensor.values.trace import Trace

# Never changed, only replaced: `NOW.set` of what was in force puts it back in one call.
NOW: Final[ContextVar[dict[str, Any]]] = ContextVar("stratal_mode")


def _field(name: str) -> property:
    def put(mode: _Mode, value: object) -> None:
        now = NOW.get(mode)
        if now[name] is not value:
            NOW.set({**now, name: value})

    return property(lambda mode: NOW.get(mode)[name], put)


class _Mode(dict[str, Any]):
    """What is in force in this task or thread; as a dict, what is where nothing was changed.

    A task inherits what was in force where it began, and what it changes is its own.
    """

    if TYPE_CHECKING:
        trace: Trace | None
        grad: bool
        eager: Callable[[Handle], None] | None  # how to compute a tensor as soon as it is made
        autocast: DType | None  # of products in mixed precision
        part: Part | None  # of the batch that the step under way sees; None where it sees all of it
        divisors: list[Any] | None  # what losses divide by, noted where that is asked for
        step: dict[int, Any] | None  # cells the step under way changed, with what they held before, by id
    else:
        __slots__ = ()
        __dict__ = property(NOW.get)  # for who reads several: it costs less than one attribute
        trace, grad, eager, autocast, part, divisors, step = map(
            _field, ("trace", "grad", "eager", "autocast", "part", "divisors", "step")
        )


class Part:
    """One of the equal parts that ranks have of a batch; its number is a tensor, int64[]."""

    def __init__(self, number: Handle) -> None:
        self.number: Final = number


MODE = _Mode(trace=None, grad=True, eager=None, autocast=None, part=None, divisors=None, step=None)
EPOCH = [object()]  # another one whenever a Python value may change that compiled functions have frozen


def note_mutation() -> None:
    """Notify compiled functions that a Python value they froze may have changed."""
    EPOCH[0] = object()


class ModeBlock(Block):
    """Puts one field of the mode to a value, until a `with` block or a function it decorates ends."""

    def __init__(self, field: str, value: Any) -> None:
        super().__init__()
        self._field, self._value = field, value

    def during(self) -> Generator[Self]:
        before = MODE.__dict__[self._field]
        try:
            NOW.set({**MODE.__dict__, self._field: self._value})
            yield self
        finally:
            NOW.set({**MODE.__dict__, self._field: before})


class no_grad(ModeBlock):
    """Do not record what follows for gradients. Also a decorator."""

    def __init__(self) -> None:
        super().__init__("grad", False)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        ModeBlock.__init__(made, "grad", False)  # used as @no_grad without parentheses
        return made(function)


class enable_grad(ModeBlock):
    """Record what follows for gradients, inside `no_grad`. Also a decorator."""

    def __init__(self) -> None:
        super().__init__("grad", True)


class set_grad_enabled(ModeBlock):
    """Switch gradients on or off by a flag, at once and until the end of a `with` block."""

    def __init__(self, mode: bool) -> None:
        super().__init__("grad", bool(mode))
        self._outer = MODE.grad
        MODE.grad = bool(mode)

    def during(self) -> Generator[Self]:
        try:
            MODE.grad = self._value
            yield self
        finally:
            NOW.set({**MODE.__dict__, "grad": self._outer})


def _call_outside(handler: Callable[..., Any], number: int, frame: Any) -> None:
    """Call a handler of signals in no trace: what it computes is not what a function being traced does."""
    before = MODE.__dict__
    if before["trace"] is None and before["step"] is None:
        handler(number, frame)
        return
    try:
        NOW.set({**before, "trace": None, "divisors": None, "step": None})
        handler(number, frame)
    finally:
        NOW.set(before)


SIGNALS.around = _call_outside
inference_mode = no_grad


def is_grad_enabled() -> bool:
    """Return whether ops are recorded for gradients in this task or thread."""
    return MODE.grad


def tracing(trace: Trace | None) -> ModeBlock:
    """Build ops into `trace`; with None, outside any."""
    return ModeBlock("trace", trace)
