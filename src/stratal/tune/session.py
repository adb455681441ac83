"""Tuning the programs a script ran: which kernels, in which order, and where the verdicts go.

with Watch() as watch:
    run_the_script()
for verdict in tune(tasks_of(watch), ...): ...
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from stratal.base import settings, tuning
from stratal.base.artifact import Command, Launch, Loop, bodies
from stratal.base.errors import FormatError
from stratal.base.interrupts import Block
from stratal.codegen.assemble import toolchain_digest
from stratal.compiler import Program, decided
from stratal.runtime.storage import Storage
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem, watched_problems
from stratal.schedule.tactics import tunable
from stratal.tensor.lazy import program_cache
from stratal.tune.explore import Attempt, Explorer, Verdict


class Watch(Block):
    """Counts the runs of every program in its block."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: Final[Counter[int]] = Counter()
        self._programs: Final[dict[int, Program]] = {}

    def during(self) -> Generator[Self]:
        with program_cache.watched(self):
            yield self

    def compiled(self, program: Any, started_ns: int) -> None:
        """What is compiled counts once it runs."""

    def run(self, program: Any, inputs: list[Storage]) -> list[Storage]:
        """Run a program, and count it."""
        made: list[Storage] = program.run(inputs)
        self._programs[id(program)] = program
        self.runs[id(program)] += 1
        return made

    @property
    def programs(self) -> list[tuple[Program, int]]:
        """The programs that ran, each with how often."""
        return [(program, self.runs[key]) for key, program in self._programs.items()]


class Task(NamedTuple):
    """A kernel to tune; `weight` is what it should take of the script's time, in seconds on one core."""

    problem: Problem
    default: Candidate
    weight: float

    @property
    def name(self) -> str:
        anchor = self.problem.group.members[0]
        return f"{anchor.op.name} {anchor.type}"

    @property
    def line(self) -> str:
        return next((str(w) for w in self.problem.group.members[0].where), "")


def tasks_of(watched: Iterable[tuple[Program, int]]) -> list[Task]:
    """Return the distinct kernels there is a choice for, the heaviest by estimate first."""
    found: dict[str, Task] = {}
    for program, runs in watched:
        for problem, default, count in problems_of(program):
            digest, weight = problem.digest, default.seconds * count * runs
            known = found.get(digest)
            found[digest] = Task(problem, default, weight + (known.weight if known else 0.0))
    return sorted(found.values(), key=lambda t: -t.weight)


def problems_of(program: Program) -> Iterator[tuple[Problem, Candidate, int]]:
    """Yield each distinct kernel with a choice, what is chosen without records, and its launches per run."""
    made = program.made
    if made.fallbacks:
        return  # what is broken is not measured
    with watched_problems() as found, settings.using(**made.chosen), tuning.using(tuning.UNTUNED):
        draft, _ = decided(program.graph, made.target, fused=made.fused)
        counts = _launches(draft.commands, 1)
        for problem, default in found:
            if tunable(problem.group.kind):
                yield problem, default, counts[problem.schedule(default).kernel.name]


def _launches(commands: Sequence[Command], times: int) -> Counter[str]:
    """Return how often each kernel is launched in one run; loops of unknown length count one trip."""
    counts: Counter[str] = Counter()
    for c in commands:
        if isinstance(c, Launch):
            counts[c.kernel] += times
        inside = times * max(c.trips, 1) if isinstance(c, Loop) else times
        for body in bodies(c).values():
            counts.update(_launches(body, inside))
    return counts


def toolchain() -> str:
    """Return the digest that records of this compiler carry."""
    return toolchain_digest("schedule")


def known_records(path: Path, objective: str) -> dict[str, tuning.Record]:
    """Return the verdicts of a file that count here, by kernel. A file that cannot be read holds none."""
    try:
        rows = tuning.read_file(path)
    except (FormatError, OSError):
        return {}
    made = toolchain()
    return {r.kernel: r for r in rows if r.toolchain == made and r.objective == objective}


def tune(
    tasks: Sequence[Task], explorer: Explorer, path: Path, *, trials: int, seconds: float = float("inf"),
    started: Callable[[Task], None] = lambda _: None, seen: Callable[[Attempt], None] = lambda _: None
) -> Iterator[tuple[Task, Verdict]]:
    """Tune kernels one by one; write each verdict to the file as soon as it is there.

    A kernel's share of the time left grows with its weight. Raises: CacheError, MeasurementError.
    """
    deadline = time.monotonic() + seconds
    for number, task in enumerate(tasks):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        started(task)
        share = _share([t.weight for t in tasks[number:]])
        until = time.monotonic() + left * share
        verdict = explorer.tune(task.problem, task.default, trials=trials, deadline=until, seen=seen)
        if verdict.attempts:
            tuning.write_file(path, [verdict.record(toolchain(), explorer.objective)])
        yield task, verdict
        if verdict.interrupted:
            return


def _share(weights: Sequence[float]) -> float:
    """Return the first one's share of the time: half by weight, half in equal parts."""
    total = sum(weights)
    return (weights[0] / total + 1 / len(weights)) / 2 if total else 1 / len(weights)
