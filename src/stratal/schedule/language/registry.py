"""The table of schedule primitives: functions from loops to loops, with what they take and an example."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer
from stratal.loops.stmt import For
from stratal.schedule.language.nest import Nest

Argument = int | str
PRODUCT: Final = """
    A = placeholder((6, 4), "float32")
    B = placeholder((6, 8), "float32")
    k = reduce_axis(6)
    C = compute((4, 8), lambda y, x: sum(A[k, y] * B[k, x], axis=k))
"""  # what examples of steps start from: one sum, and
STAGES: Final = """
    x = placeholder((8,), "float32")
    t = compute((8,), lambda a: x[a] * x[a])
    y = compute((8,), lambda b: t[b] + 1.0)
"""  # two tensors, one of which reads the other
Rewrite = Callable[..., Nest]


class Parameter(NamedTuple):
    """One argument of a primitive: a loop, a tensor, a whole number or a word."""

    name: str
    kind: type
    many: bool
    default: Any


class Primitive(NamedTuple):
    """A step of the schedule language.

    `example` is a schedule in text form whose last line is this step: the documentation shows the loops
    before and after it, and a test runs it.
    """

    name: str
    rewrite: Rewrite
    parameters: tuple[Parameter, ...]
    family: str
    example: str

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.rewrite) or ""

    def texts(self, given: Sequence[object]) -> tuple[Argument, ...]:
        """Return arguments as they stand in a step's text. Raises: ScheduleError."""
        wanted = self._spread(len(given))
        return tuple(self._text(p, g) for p, g in zip(wanted, given, strict=True))

    def _spread(self, count: int) -> list[Parameter]:
        """Return one parameter per argument."""
        found = list(self.parameters)
        if found and found[-1].many:
            found = found[:-1] + [found[-1]] * (count - len(found) + 1)
        required = sum(p.default is inspect.Parameter.empty for p in found)
        if not required <= count <= len(found):
            takes = ", ".join(f"*{p.name}" if p.many else p.name for p in self.parameters)
            raise ScheduleError(f"{self.name}: takes ({takes})", got=f"{count} arguments")
        return found[:count]

    def _text(self, p: Parameter, value: object) -> Argument:
        if p.kind is int:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ScheduleError(f"{self.name}: {p.name} is a whole number", got=repr(value))
            return value
        name = value if isinstance(value, str) else getattr(value, "name", None)
        if not isinstance(name, str) or not name:
            what = {For: "a loop", Buffer: "a tensor"}.get(p.kind, "a word")
            raise ScheduleError(f"{self.name}: {p.name} is {what}, by name", got=repr(value))
        return name

    def apply(self, nest: Nest, given: Sequence[Argument]) -> Nest:
        """Return the nest after this step, its arguments looked up. Raises: ScheduleError."""
        found = [_resolved(nest, p, g) for p, g in zip(self._spread(len(given)), given, strict=True)]
        return self.rewrite(nest, *found)


def _resolved(nest: Nest, p: Parameter, value: Argument) -> object:
    if p.kind is For:
        return nest.loop(str(value))
    return nest.buffer(str(value)) if p.kind is Buffer else value


PRIMITIVES: Final[dict[str, Primitive]] = {}


def primitive(family: str, algorithm: str, steps: str) -> Callable[[Rewrite], Rewrite]:
    """Register a function `(nest, ...) -> nest` as the schedule step of its name.

    `algorithm` and `steps` are an example, in text form; its last step is this one.

    Its annotations say what it takes: `For` is a loop by name, `Buffer` a tensor by name, `int`, `str`.
    """

    def register(rewrite: Rewrite) -> Rewrite:
        hints = typing.get_type_hints(rewrite)
        taken = list(inspect.signature(rewrite).parameters.values())[1:]
        parameters = tuple(
            Parameter(p.name, hints[p.name], p.kind is p.VAR_POSITIONAL, p.default) for p in taken
        )
        name = rewrite.__name__.rstrip("_")
        example = f"{inspect.cleandoc(algorithm)}\n\n{inspect.cleandoc(steps)}"
        PRIMITIVES[name] = Primitive(name, rewrite, parameters, family, example)
        return rewrite

    return register
