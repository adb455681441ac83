"""A schedule: an algorithm and the steps applied to its loops, chainable, printable, read back from text.

    schedule := algorithm line ... "" step ...
    step     := primitive "(" argument, ... ")" ("->" name, ...)?        what comes after -> is what it made

Every step returns a new schedule and leaves the old one as it was. No step changes a bit of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stratal.base.errors import FormatError, ScheduleError, VerifyError
from stratal.loops.stmt import For, Stmt, parts, statements, stmt_to_text
from stratal.loops.te.algorithm import Algorithm
from stratal.loops.te.tensor import Computed, Tensor
from stratal.loops.te.text import parse_algorithm
from stratal.schedule.language.default import default_nest
from stratal.schedule.language.dependence import meeting
from stratal.schedule.language.nest import Nest, with_distinct_names
from stratal.schedule.language.registry import PRIMITIVES, Argument, Primitive
from stratal.schedule.primitives import listed

_STEP: Final = re.compile(r"(\w+)\((.*?)\)(?:\s*->\s*(.*))?")
_MOST_STATEMENTS: Final = 20_000


class Step(NamedTuple):
    """One applied primitive: its name, its arguments, the loops and tensors it made."""

    name: str
    arguments: tuple[Argument, ...]
    made: tuple[str, ...]

    def __str__(self) -> str:
        made = f" -> {', '.join(self.made)}" if self.made else ""
        return f"{self.name}({', '.join(map(str, self.arguments))}){made}"


class LoopSchedule:
    """An algorithm and a schedule for it. The primitives are its methods: `s.split("y", 8).unroll("yi")`.

    Loops, tensors and axes are given by name, or as the objects te made. Raises: ScheduleError where a step
    could change a result, or does not fit the loops.
    """

    def __init__(self, algorithm: Algorithm, nest: Nest | None = None, steps: Sequence[Step] = ()) -> None:
        self.algorithm: Final = algorithm
        self.nest: Final = default_nest(algorithm) if nest is None else nest
        self.steps: Final = tuple(steps)

    def __getattr__(self, name: str) -> Callable[..., LoopSchedule]:
        if name.startswith("_") or name not in PRIMITIVES:
            known = ", ".join(sorted(PRIMITIVES))
            raise AttributeError(f"a schedule has no step {name!r}; there are {known}")
        chosen = PRIMITIVES[name]

        def step(*arguments: object) -> LoopSchedule:
            return self._apply(chosen, [self._named(a) for a in arguments])

        step.__name__, step.__doc__ = name, chosen.doc
        return step

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *PRIMITIVES})

    def _named(self, argument: object) -> object:
        """Return the name a tensor has in this algorithm; anything else as it is."""
        return self.algorithm.names.get(argument, argument) if isinstance(argument, Tensor) else argument

    def _apply(self, chosen: Primitive, arguments: Sequence[object]) -> LoopSchedule:
        given = chosen.texts(arguments)
        try:
            made = chosen.apply(self.nest, given)
        except VerifyError as wrong:  # of the rewrites that tactics share
            raise ScheduleError(wrong.rule, got=wrong.got) from None
        kept = [f.var for f in self.nest.loops.values()]
        after = made._replace(body=with_distinct_names(made.body, kept))
        _check_kinds(chosen.name, after)
        old = {*self.nest.loops, *(b.name for b in self.nest.buffers)}
        new = [n for n in (*(b.name for b in after.local), *after.loops) if n not in old]
        return LoopSchedule(self.algorithm, after, (*self.steps, Step(chosen.name, given, tuple(new))))

    def replay(self, text: str) -> LoopSchedule:
        """Apply steps in text form. Raises: FormatError for a line that is none, ScheduleError."""
        schedule = self
        for number, line in enumerate(text.splitlines(), 1):
            content = line.split("#")[0].strip()
            if content:
                schedule = schedule._read(content, number)
        return schedule

    def _read(self, line: str, number: int) -> LoopSchedule:
        match = _STEP.fullmatch(line)
        if match is None or match[1] not in PRIMITIVES:
            raise FormatError(
                "schedule: a step is `primitive(argument, ...)`",
                got=f"line {number}: {line}",
                hint="there are " + ", ".join(sorted(PRIMITIVES)),
            )
        words = [w.strip() for w in match[2].split(",")] if match[2].strip() else []
        after = self._apply(PRIMITIVES[match[1]], [int(w) if w.isdigit() else w for w in words])
        made = tuple(w.strip() for w in match[3].split(",")) if match[3] else after.steps[-1].made
        if made != after.steps[-1].made:
            raise FormatError(
                "schedule: a step made other names than its text says",
                got=f"line {number}: {line}",
                hint=str(after.steps[-1]),
            )
        return after

    @property
    def loops(self) -> str:
        """The loops as they are, in the text form of the loop language, temporaries first."""
        head = [f"{'workspace' if b.space == 'global' else b.space} {b}" for b in self.nest.local]
        return "\n".join([*head, stmt_to_text(self.nest.body)])

    @property
    def script(self) -> str:
        """The steps, one a line: what `replay` reads."""
        return "\n".join(map(str, self.steps))

    def __str__(self) -> str:
        return f"{self.algorithm}\n\n{self.script}".rstrip()

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoopSchedule) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def _check_kinds(name: str, nest: Nest) -> None:
    """Raise ScheduleError where loops do not go together, or those that run at once depend on each other."""
    body = nest.body
    if sum(1 for _ in statements(body)) > _MOST_STATEMENTS:
        raise ScheduleError(
            f"{name}: the loops become too long", got=f"more than {_MOST_STATEMENTS} statements"
        )
    top = set(map(id, listed(body)))

    def visit(stmt: Stmt, vector: str) -> None:
        if isinstance(stmt, For):
            if stmt.kind == "parallel" and id(stmt) not in top:
                raise ScheduleError(
                    f"{name}: a parallel loop stands inside another loop",
                    got=stmt.var.name,
                    hint="its iterations are the chunks of a kernel: reorder it outermost first",
                )
            if stmt.kind == "vector" and vector:
                raise ScheduleError(
                    f"{name}: a vector loop inside a vector loop", got=f"{stmt.var.name} in {vector}"
                )
            vector = stmt.var.name if stmt.kind == "vector" else vector
            lanes = stmt.kind == "vector"
            if (lanes or stmt.kind == "parallel") and meeting(body, stmt, nest.local, lanes=lanes):
                raise ScheduleError(
                    f"{name}: iterations of the {stmt.kind} loop {stmt.var.name} would meet",
                    got=", ".join(b.name for b in meeting(body, stmt, nest.local, lanes=lanes)),
                )
        for part in parts(stmt):
            visit(part, vector)

    visit(body, "")


def schedule(*results: Computed | Algorithm, steps: str = "") -> LoopSchedule:
    """Return the schedule of an algorithm, given by its results, after the steps of a text."""
    first = results[0] if results else None
    algorithm = first if isinstance(first, Algorithm) else Algorithm(*results)  # type: ignore[arg-type]
    return LoopSchedule(algorithm).replay(steps)


def parse_schedule(text: str) -> LoopSchedule:
    """Read a printed schedule: the algorithm, an empty line, the steps.

    Raises: FormatError, ScheduleError.
    """
    algorithm, _, steps = text.strip().partition("\n\n")
    return LoopSchedule(parse_algorithm(algorithm)).replay(steps)
