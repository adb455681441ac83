"""What mode this thread builds ops in: gradients on or off, eager or lazy, in what precision, and the trace
being captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any

from stratal.runtime.pool import LOCK as LOCK  # one flush, capture or run at a time

if TYPE_CHECKING:
    from stratal.base.dtypes import DType
    from stratal.tensor.tensor import Tensor
    from stratal.tensor.trace import Trace


class _Mode(threading.local):
    trace: Trace | None
    grad: bool
    eager: Callable[[Tensor], None] | None  # how to compute a tensor as soon as it is made
    autocast: DType | None  # of products in mixed precision

    def __init__(self) -> None:
        """Fill in what a new thread finds: all of them always stand in `__dict__`."""
        self.trace, self.grad, self.eager, self.autocast = None, True, None, None


MODE = _Mode()
EPOCH = [0]  # counts changes of Python values that compiled functions may have frozen


def note_mutation() -> None:
    """Tell compiled functions that a Python value they froze may have changed."""
    EPOCH[0] += 1


class _GradMode(ContextDecorator):
    """Switches gradients; also a decorator, as in PyTorch."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(MODE.grad)
        MODE.grad = self.enabled

    def __exit__(self, *exc: object) -> None:
        MODE.grad = self._before.pop()

    def _recreate_cm(self) -> _GradMode:
        return _GradMode(self.enabled)


class no_grad(_GradMode):
    """Do not record what follows for gradients. Also a decorator."""

    def __init__(self) -> None:
        super().__init__(False)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        if function is None:
            return made
        _GradMode.__init__(made, False)  # used as @no_grad without parentheses
        return made(function)


class enable_grad(_GradMode):
    """Record what follows for gradients, inside `no_grad`. Also a decorator."""

    def __init__(self) -> None:
        super().__init__(True)


class set_grad_enabled(_GradMode):
    """Switch gradients on or off by a flag, at once and until the end of a `with` block."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._outer = MODE.grad
        MODE.grad = self.enabled

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        MODE.grad = self._outer


inference_mode = no_grad


def is_grad_enabled() -> bool:
    """Return whether ops are recorded for gradients in this thread."""
    return MODE.grad


@contextmanager
def tracing(trace: Trace | None) -> Iterator[None]:
    """Build ops into `trace`; with None, outside any."""
    before = MODE.trace
    MODE.trace = trace
    try:
        yield
    finally:
        MODE.trace = before
