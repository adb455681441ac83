"""What a captured run prints and warns of: kept back while it runs, said by each call that replays it."""

from __future__ import annotations

import io
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, NamedTuple

from stratal.base.interrupts import block
from stratal.tensor.capture import refusals
from stratal.tensor.capture.results import Bindings, Template


class Printed(NamedTuple):
    """Text that the function printed."""

    text: Template

    def apply(self, bindings: Bindings) -> None:
        print(bindings.fill(self.text), end="")


class Warned(NamedTuple):
    """A warning that the function gave: filters decide at each call whether it is shown."""

    message: Warning
    file: str
    line: int
    module: str
    global_: Callable[[str, Any], Any]  # `setdefault` of the globals of the line that is warned of

    def apply(self, bindings: Bindings) -> None:
        registry = self.global_("__warningregistry__", {})
        warnings.warn_explicit(self.message, type(self.message), self.file, self.line, self.module, registry)


class BufferedOutput(io.StringIO):
    """Stands in the place of `sys.stdout` while a function is captured."""


@block
def buffered_output() -> Generator[list[str | Warned]]:
    """Keep back what is printed and warned of in a block; the list has it afterwards."""
    said: list[str | Warned] = []
    out, text, errors = sys.stdout, BufferedOutput(), sys.stderr
    show: Any = warnings._showwarnmsg  # type: ignore[attr-defined]
    shown_by = _shown_by()
    thread = threading.get_ident()

    def note(message: warnings.WarningMessage) -> None:
        if thread == threading.get_ident() and shown_by == _shown_by():
            if sys.stderr is not errors:
                raise refusals.REDIRECTED("sys.stderr")
            said.append(_warned(message, sys._getframe(1)))
        else:  # of another thread, or recorded by the run itself
            show(message)

    try:
        sys.stdout, warnings._showwarnmsg = text, note  # type: ignore[attr-defined]
        yield said
    finally:
        sys.stdout = out if sys.stdout is text else sys.stdout
        warnings._showwarnmsg = show  # type: ignore[attr-defined]
        if text.getvalue():
            said.append(text.getvalue())


def _shown_by() -> tuple[Any, Any]:
    return warnings.showwarning, warnings._showwarnmsg_impl  # type: ignore[attr-defined]


def _warned(message: warnings.WarningMessage, frame: FrameType | None) -> Warned:
    """Return a warning that was about to be shown, of which no registry knows yet."""
    where, kind = (message.filename, message.lineno), message.category
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != where:
        frame = frame.f_back
    scope = {} if frame is None else frame.f_globals
    text, registry = str(message.message), scope.get("__warningregistry__", {})
    for key in ((text, kind, message.lineno), (text, kind, 0), (text, kind)):
        registry.pop(key, None)
    warnings.onceregistry.pop((text, kind), None)  # type: ignore[attr-defined]
    told = message.message if isinstance(message.message, Warning) else kind(text)
    return Warned(told, *where, scope.get("__name__", "?"), scope.setdefault)


def filters(module: Any) -> tuple[Any, ...]:
    """Return what decides whether a warning is shown."""
    return (*module.filters, module.defaultaction)
