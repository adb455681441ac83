"""The decision log: what each pass chose, why, what else it could have chosen, and what each would have cost.

Passes call `decide(...)`; it goes to the log of the compilation that is running in this context, or nowhere:

    with collect() as log:
        compile(...)
    print(log)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from stratal.base.errors import FormatError
from stratal.base.source import SourceLine, during

Basis = Literal["estimated", "measured", "rule"]
"""What a choice rests on: the static cost model, a timing on some machine, or a rule that admits no other."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way that was weighed; `seconds` is None where nothing priced it, `refused` why it cannot be."""

    name: str
    seconds: float | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice of one pass. `seconds` is what the chosen way costs on its `basis`."""

    stage: str
    subject: str
    choice: str
    why: str
    alternatives: tuple[Alternative, ...] = ()
    seconds: float | None = None
    basis: Basis = "rule"
    where: tuple[SourceLine, ...] = ()

    def __str__(self) -> str:
        lines = ", ".join(list(dict.fromkeys(map(str, self.where)))[:2])
        head = f"{self.stage}: {self.subject} -> {self.choice}" + (f"  [{lines}]" if lines else "")
        cost = "" if self.seconds is None else f" ({duration(self.seconds)} {self.basis})"
        rows = [head, f"    {self.why}{cost}"]
        for other in self.alternatives:
            note = other.refused or ("not priced" if other.seconds is None else duration(other.seconds))
            rows.append(f"    not {other.name}: {note}")
        return "\n".join(rows)


@dataclass(slots=True)
class DecisionLog:
    """The decisions of one compilation, in the order they were made."""

    decisions: list[Decision] = field(default_factory=list)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def __len__(self) -> int:
        return len(self.decisions)

    def of(self, stage: str) -> list[Decision]:
        """Return the decisions of one stage."""
        return [d for d in self.decisions if d.stage == stage]

    def __str__(self) -> str:
        return "\n".join(map(str, self.decisions)) or "no decisions"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the log as JSON values."""
        rows: list[dict[str, Any]] = json.loads(json.dumps([dataclasses.asdict(d) for d in self.decisions]))
        return rows

    @classmethod
    def from_json(cls, rows: object) -> DecisionLog:
        """Return the log that `to_json` gave. Raises: FormatError."""
        if not isinstance(rows, list):
            raise FormatError("decision log: a list of decisions", got=type(rows).__name__)
        return cls([_decision(row) for row in rows])


def _decision(row: object) -> Decision:
    if not isinstance(row, dict):
        raise FormatError("decision log: a decision is an object", got=type(row).__name__)
    try:
        values = dict(row)
        values["alternatives"] = tuple(Alternative(**a) for a in values.get("alternatives", ()))
        values["where"] = tuple(
            SourceLine(str(file), int(line), str(function), tuple(map(str, scope)), *map(str, module))
            for file, line, function, scope, *module in values.get("where", ())
        )
        return Decision(**values)
    except (TypeError, ValueError) as error:
        raise FormatError("decision log: not a decision", got=str(error)) from None


_LOG: ContextVar[DecisionLog | None] = ContextVar("stratal_decision_log", default=None)


def collect(into: DecisionLog | None = None) -> AbstractContextManager[DecisionLog]:
    """Collect the decisions made inside the block: in a log of their own, or in one given."""
    return during(_LOG, DecisionLog() if into is None else into)


def decide(
    stage: str, subject: str, choice: str, why: str, *, alternatives: Iterable[Alternative | str] = (),
    seconds: float | None = None, basis: Basis = "rule", where: Sequence[SourceLine] = ()
) -> None:
    """Record a choice in the running compilation's log, if any. A string is an alternative not priced."""
    log = _LOG.get()
    if log is None:
        return
    others = tuple(Alternative(a) if isinstance(a, str) else a for a in alternatives)
    log.decisions.append(Decision(stage, subject, choice, why, others, seconds, basis, tuple(where)))


def duration(seconds: float) -> str:
    """Return a time with three digits and a unit: `41.0 us`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def short_count(number: float, unit: str = "") -> str:
    """Return a number of things with a decimal prefix: `7.50 M`, `7.50 MF`, `310`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.2f} {prefix}{unit}"
    return f"{number:.0f} {unit}".rstrip()
