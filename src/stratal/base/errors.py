"""The tree of exceptions. Every message has four lines: rule, got, where (the user's own line), hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from stratal.base.source import SourceLine, user_line


class StratalError(Exception):
    """Any error Stratal raises on purpose.

    `rule` says what must hold, `got` what was met instead, `where` the user's line and `hint` what
    to do about it. Code that has no line to offer leaves `where` out: the user's frame is looked up. Where it
    has no better hint, the class gives its own.
    """

    advice: ClassVar[str] = "help() on what is named above says what it takes"
    named = False  # whether the rule begins with the name of the function that was called

    def __init__(self, rule: str, *, got: str = "", where: Iterable[SourceLine] = (), hint: str = "") -> None:
        self.rule = rule
        self.got = got
        lines = tuple(where)
        self._placed = bool(lines)
        self.where = lines or tuple(filter(None, (user_line(),)))
        self.hint = hint or self.advice
        super().__init__(rule)

    def at(self, where: Iterable[SourceLine]) -> StratalError:
        """Return this error, told where the user's line is; the first to tell, the innermost, is believed."""
        lines = tuple(where)
        if lines and not self._placed:
            self.where, self._placed = lines, True
        return self

    def at_caller(self) -> StratalError:
        """Return this error; one without a line, as of a thread of the package, gets that of the caller."""
        return self if self.where else self.at(filter(None, (user_line(),)))

    @property
    def summary(self) -> str:
        """The rule and what was met: what a client over the network is told, without our lines."""
        return f"{self.rule}; got {self.got}" if self.got else self.rule

    def __str__(self) -> str:
        lines = [_one_line(self.rule)]
        if self.got:
            lines.append(f"  got:   {_one_line(self.got)}")
        if self.where:
            lines.append(f"  where: {', '.join(list(dict.fromkeys(map(str, self.where)))[:4])}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


def _one_line(text: str) -> str:
    """Return a text on one line: what was met may be a tensor, printed row by row."""
    return text if "\n" not in text else " ".join(text.split())


class ShapeError(StratalError, ValueError):
    """Shapes, axes or sizes that do not fit together."""

    advice = "shapes are known before anything runs: print(x.shape) shows them, inside compiled functions too"


class AllocationError(ShapeError, MemoryError):
    """Memory that the system does not give: its size follows from shapes."""

    advice = "st.estimate and `stratal memory` say what a program takes; st.compile(memory=..) keeps a budget"


class UndecidedError(ShapeError):
    """A question about a symbolic size that its bounds do not answer.

    `size` is what was asked about: how it compares with 0, by the operator in `verdict`, or without one its
    value. Who captures a function for many sizes answers for the sizes at hand and captures again.
    """

    size: object = None
    verdict: str = ""


class DTypeError(StratalError, TypeError):
    """A dtype an op does not take, or dtypes that do not promote."""

    advice = "x.dtype says what a tensor holds, x.astype(dtype) converts it"


class AttributeValueError(StratalError, ValueError):
    """An op attribute or a function argument out of its range."""

    advice = "help() on the function named above says what it takes"


class AxisError(AttributeValueError, IndexError):
    """An axis a tensor does not have; NumPy's is of both kinds, too."""


class IndexOutOfRangeError(StratalError, IndexError):
    """An index outside the axis it selects from, found while checking or inside a kernel."""

    advice = "indices lie in [0, n); in x[i] negative ones count from the end"

    def at(self, where: Iterable[SourceLine]) -> StratalError:
        """Return this error, told where the user's line is, and named after the function called there."""
        lines = tuple(where)
        if lines and lines[0].scope and ":" in self.rule:
            self.rule = f"{lines[0].scope[0]}:{self.rule.split(':', 1)[1]}"
        return super().at(lines)


def check_failed(message: str, value: int) -> StratalError:
    """Return what an element that fails a check raises: of an index, or of a condition on values."""
    if "out of range" in message:
        return IndexOutOfRangeError(message, got=f"index {value}; nothing was updated")
    return AttributeValueError(message, got="an element for which that is not so; nothing was updated")


class DivisionByZeroError(StratalError, ZeroDivisionError):
    """An integer divided by the number 0."""

    advice = "of floats the quotient is infinite or NaN: x.float() // 0"


class LinAlgError(StratalError, np.linalg.LinAlgError):
    """A matrix without such a factorisation, inverse or solution, met while computing; also NumPy's error."""

    advice = "a small multiple of the identity added to the matrix may help; lstsq and pinv take any matrix"


class CaptureError(StratalError, RuntimeError):
    """Python that cannot be captured: control flow on a traced value, an escaped tracer."""

    advice = "keep to tensor operations inside (st.where, st.cond, st.scan), or do not compile this function"


class CallOrderError(StratalError, RuntimeError):
    """A call that belongs after, or before, another one."""


class NotGivenError(StratalError, NotImplementedError):
    """What an object does not have: a method that its class leaves out, differentiable draws of classes."""


def not_given(owner: object, method: str, hint: str) -> NotGivenError:
    """Return the error for a method that subclasses define and the class of `owner` does not."""
    return NotGivenError(f"{type(owner).__name__}: has no {method}", got="a subclass without it", hint=hint)


class DonatedBufferError(StratalError, RuntimeError):
    """A buffer read after its storage was given to a newer value."""

    advice = "keep a copy with clone() before the step, or read the new value"


class NotDifferentiableError(StratalError, RuntimeError):
    """A gradient asked of something that has none; the record says why."""


class SettingError(StratalError, ValueError):
    """An unknown `STRATAL_*` name or a value a setting does not take."""

    advice = "`stratal doctor` lists every setting, what it takes and where its value came from"


class DoesNotFit(StratalError, MemoryError):
    """No plan of a program keeps a memory budget; `least_bytes` is the least budget that is known to work."""

    def __init__(
        self, rule: str, *, got: str = "", where: Iterable[SourceLine] = (), hint: str = "",
        least_bytes: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(rule, got=got, where=where, hint=hint)
        self.least_bytes = least_bytes


class CacheError(StratalError, OSError):
    """A cache directory that cannot be trusted or used."""

    advice = "STRATAL_CACHE_DIR names another directory; off does without"


class OffloadError(StratalError, OSError):
    """A file for offloaded states that cannot be made, read or written."""


class FormatError(StratalError, ValueError):
    """A file that is truncated, corrupt, hostile or of another format."""

    advice = "the file was cut short, changed or made by something else: restore it from where it came"


class MeasurementError(StratalError, RuntimeError):
    """A timing that would not measure what it says: work not waited for, or not warmed up."""


class ScheduleError(StratalError, ValueError):
    """A schedule step that could change a result, or that names what is not there."""

    advice = "print(schedule.loops) shows the loops; a step that is refused leaves the schedule as it was"


class MissingExtraError(StratalError, ImportError):
    """An optional dependency that is not installed; the hint names the extra."""


class VerifyError(StratalError, RuntimeError):
    """An IR that breaks its own rules: a fault of the compiler, never of the user."""

    advice = "this is a fault of Stratal: report it with the printed graph"


class CompilerError(StratalError, RuntimeError):
    """The compiler's own fault; the text of the failing stage is in a file the hint names."""

    advice = "this is a fault of Stratal: report it with the printed graph"
