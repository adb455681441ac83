"""The stages of a compilation: written out, fed back edited, verified, and kept for the report of a failure.

    with recording(graph) as record:          around one compilation
        graph = stage("simplified", graph)    after each pass: one line, returns its value or the edited one

    STRATAL_DUMP=dir      dir/<name>-<digest>/00-captured.graph .. 09-decisions.txt
    STRATAL_OVERRIDE=dir  the same tree; a .graph or .kernel file that differs from what the compiler made is
                          used in its place, and the plan and its hash say so
    STRATAL_VERIFY=1      each stage is verified

When a pass fails, the stage it worked on is written to a file and the error tells how to reproduce it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from stratal.base import settings
from stratal.base.artifact import Executable
from stratal.base.errors import CompilerError, StratalError
from stratal.base.faults import failure_folder, is_fault
from stratal.base.log import DecisionLog, decide
from stratal.base.source import during
from stratal.graph.graph import Graph, graph_to_text, verify
from stratal.graph.partition import Partition
from stratal.loops.stmt import kernel_to_text
from stratal.memory.plan import arranged
from stratal.memory.render import render
from stratal.plan import check
from stratal.plan.commands import program_to_text
from stratal.plan.failure import offending
from stratal.plan.override import edited_graph, edited_kernels
from stratal.plan.record import Plan
from stratal.schedule.draft import Draft


class Finished(Protocol):
    """What is written of a finished program."""

    @property
    def plan(self) -> Plan: ...
    @property
    def log(self) -> DecisionLog: ...


T = TypeVar("T")
P = TypeVar("P", bound=Finished)
NUMBERS: Final = {
    "captured": "00", "simplified": "01", "partition": "02", "commands": "03", "kernels": "04", "llvm": "05",
    "linked": "06", "memory": "07", "plan": "08", "decisions": "09",
}  # fmt: skip
_RECORD: ContextVar[Record | None] = ContextVar("stratal_stages", default=None)


class Record:
    """One compilation under way: its last stage, where stages go and come from, what was overridden."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.last: tuple[str, object] = ("captured", graph)
        self.overrides: list[str] = []
        self.dump: Final = settings.dump.value
        self.override: Final = settings.override.value
        self.verify: Final = settings.verify.value
        self._seen: Counter[str] = Counter()
        self._folder = ""

    @property
    def folder(self) -> str:
        """The name of this program's folder: the same in every process."""
        if not self._folder:
            name = re.sub(r"[^\w.-]", "_", self.graph.name)[:60] or "graph"
            self._folder = f"{name}-{self.graph.digest[:8]}"
        return self._folder

    def pass_on(self, name: str, value: Any) -> Any:
        """Return the value of a stage, or its edited form; see the module."""
        if self.override is not None:
            value = self._overridden(name, value)
        self.last = (name, value)
        if self.verify:
            self._verified(value)
        if self.dump is not None:
            self.write(self.dump / self.folder, name, value)
        return value

    def _overridden(self, name: str, value: Any) -> Any:
        assert self.override is not None
        source = self.override / self.folder
        if isinstance(value, Graph):
            path = source / f"{NUMBERS[name]}-{name}.graph"
            found = edited_graph(value, path)
            if found is not None:
                self._note(name, f"{name} {found.digest[:8]}", str(path))
                return found
        elif isinstance(value, Draft):
            for symbol in edited_kernels(value, source / f"{NUMBERS['kernels']}-kernels"):
                self._note(name, f"kernel {symbol}", str(source))
        return value

    def _note(self, name: str, what: str, path: str) -> None:
        self.overrides.append(what)
        decide("override", name, what, f"edited by hand in {path}")

    def _verified(self, value: object) -> None:
        if isinstance(value, Graph):
            verify(value)
        elif isinstance(value, Partition):
            check.partition(value)
        elif isinstance(value, Draft):
            check.draft(value)
        elif isinstance(value, Executable):
            check.executable(value)

    def write(self, folder: Path, name: str, value: object) -> None:
        """Write a stage as text files. Raises: StratalError when the folder cannot be written."""
        self._seen[name] += 1
        again = f".{self._seen[name]}" if self._seen[name] > 1 else ""
        try:
            for path, text in _texts(name, again, value):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StratalError(f"dump: {folder} cannot be written", got=str(error)) from None

    def finished(self, program: P) -> P:
        """Return a finished program; write its plan and decisions where stages go."""
        if self.dump is not None:
            self.write(self.dump / self.folder, "plan", program.plan)
            self.write(self.dump / self.folder, "decisions", program.log)
        return program

    def failed(self, error: Exception) -> CompilerError:
        """Return the error to raise when a pass failed: with the stage in a file and how to reproduce it."""
        name, value = self.last
        got = f"{type(error).__name__}: {error}" if not isinstance(error, StratalError) else error.rule
        if isinstance(error, StratalError) and error.got:
            got += f": {error.got}"
        where = error.where if isinstance(error, StratalError) else ()
        rule = f"compiler: {self.graph.name} failed after stage {name!r}"
        hint = "this is a fault of Stratal; "
        try:
            base = self.dump or failure_folder()
            path = offending(value, self.graph).write(base / self.folder)
            hint += f"`{_environment()}stratal explain {path}` reproduces it"
        except OSError as unwritten:
            hint += f"its stages could not be written ({unwritten}); STRATAL_DUMP=dir chooses another place"
        return CompilerError(rule, got=got[:2000], where=where, hint=hint)


def _environment() -> str:
    """Return the settings a reproduction needs, as words before a command."""
    asked = [s for s in settings.SHAPING if s.origin != "default"]
    return "".join(f"{s.variable}={settings.as_text(s.value)} " for s in asked)


def _texts(name: str, again: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the files of a stage: path, text."""
    head = f"{NUMBERS[name]}-{name}{again}"
    if isinstance(value, Graph):
        yield f"{head}.graph", graph_to_text(value) + "\n"
    elif isinstance(value, Draft):
        yield f"{head}.txt", program_to_text(value.values, value.commands)
        for symbol, scheduled in value.kernels.items():
            yield f"{NUMBERS['kernels']}-kernels/{symbol}.kernel", kernel_to_text(scheduled.kernel) + "\n"
    elif isinstance(value, Executable):
        yield f"{head}.txt", program_to_text(value.values, value.commands)
        arena = arranged(value.values, value.commands, value.outputs)
        yield f"{NUMBERS['memory']}-memory.txt", render(arena, value.values) + "\n"
    elif isinstance(value, Plan):
        yield f"{head}.txt", f"{value}\n"
        yield f"{head}.json", json.dumps(value.to_json(), indent=1) + "\n"
    elif isinstance(value, Mapping):
        for symbol, text in value.items():
            yield f"{head}/{symbol}.ll", text
    else:
        yield f"{head}.txt", f"{value}\n"


@contextmanager
def recording(graph: Graph) -> Iterator[Record]:
    """Follow one compilation; a failure that is the compiler's own becomes one that can be reproduced."""
    record = Record(graph)
    try:
        with during(_RECORD, record):
            yield record
    except Exception as error:
        if isinstance(error, OSError) or not is_fault(error):
            raise
        raise record.failed(error) from error


def stage(name: str, value: T) -> T:
    """Mark the end of a pass: return its value, or the one edited by hand."""
    record = _RECORD.get()
    if record is None:
        return value
    passed: T = record.pass_on(name, value)
    return passed


def strict() -> bool:
    """Return whether what fails is raised: asked for, or somebody verifies or edits stages."""
    return settings.strict.value or settings.verify.value or settings.override.value is not None


def in_force() -> bool:
    """Return whether stages are written or fed back: a program from a cache has none."""
    return settings.dump.value is not None or settings.override.value is not None
