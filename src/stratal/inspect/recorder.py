"""What runs while somebody watches: every program, each of its commands, and who asked for it.

    with Recorder() as recorder:
        train()
    recorder.programs        times of each program that ran

Programs run timed, on the code, memory and threads they always use. Only the thread that runs a program is
seen, and what runs inside of host calls counts as their time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Generator
from functools import cached_property
from typing import Any, Final, Self

import numpy as np

from stratal.base.interrupts import Block
from stratal.base.source import SourceLine, user_line
from stratal.runtime.storage import Storage
from stratal.runtime.timing import TimedProgram
from stratal.tensor.lazy import program_cache

RUNS_KEPT: Final = 512  # runs whose times are kept one by one; medians are over these
SPANS_KEPT: Final = 100_000  # runs whose start and end are kept, for the trace
EVENTS_PER_LOG: Final = 100_000  # of a traced program: 3.2 MB for each thread, touched as it fills

Array = np.ndarray[Any, Any]


class ProgramTimes:
    """The runs of one program.

    `per_run` holds nanoseconds of each command in the runs seen last, `spans` start and end of runs by
    `time.perf_counter_ns`, `callers` the user's lines that ran it.
    """

    def __init__(self, program: Any, events_per_log: int) -> None:
        self.program: Final = program
        self.timed: Final = TimedProgram(program.loaded, events_per_log=events_per_log)
        self.num_runs = 0
        self.total_ns: Array = np.zeros(len(self.timed.steps) + 1, np.int64)
        self.calls: Array = np.zeros(len(self.timed.steps) + 1, np.int64)
        self.first: Array | None = None  # the first run's times; later ones are warm
        self.per_run: deque[Array] = deque(maxlen=RUNS_KEPT)
        self.spans: deque[tuple[int, int]] = deque(maxlen=SPANS_KEPT)
        self.callers: Counter[SourceLine | None] = Counter()

    def run(self, inputs: list[Storage]) -> list[Storage]:
        """Run once; a run that fails is not counted."""
        start = time.perf_counter_ns()
        made = self.timed.run(inputs)
        end = time.perf_counter_ns()
        taken = self.timed.total_ns
        self.num_runs += 1
        self.total_ns += taken
        self.calls += self.timed.calls
        self.spans.append((start, end))
        if self.first is None:
            self.first = taken
        else:
            self.per_run.append(taken)
        return made

    @cached_property
    def events(self) -> tuple[list[Array], int]:
        """The trace of all runs, see `TimedProgram.take_events`; taken when first asked for."""
        return self.timed.take_events()

    @property
    def warm(self) -> bool:
        """Whether there are runs besides the first."""
        return bool(self.per_run)

    @property
    def samples(self) -> Array:
        """Nanoseconds int64[runs, commands + 1] of warm runs, or of the only one; last column: the run."""
        rows = list(self.per_run) if self.warm else [] if self.first is None else [self.first]
        return np.stack(rows) if rows else np.zeros((0, len(self.total_ns)), np.int64)


class Recorder(Block):
    """Times every program that runs in its block, in order of first run; `trace` keeps events, too."""

    def __init__(self, *, trace: bool = False) -> None:
        super().__init__()
        self._events_per_log: Final = EVENTS_PER_LOG if trace else 0
        self._of: Final[dict[int, ProgramTimes]] = {}
        self.compiled_spans: Final[list[tuple[str, int, int]]] = []  # name, start and end
        self.started_ns = 0
        self.ended_ns = 0

    def during(self) -> Generator[Self]:
        with program_cache.watched(self):
            self.started_ns = time.perf_counter_ns()
            try:
                yield self
            finally:
                self.ended_ns = time.perf_counter_ns()

    @property
    def programs(self) -> list[ProgramTimes]:
        """The programs that ran to their end at least once, in order of their first run."""
        return [times for times in self._of.values() if times.num_runs]

    @property
    def seconds(self) -> float:
        """How long the block took, or has taken so far."""
        return ((self.ended_ns or time.perf_counter_ns()) - self.started_ns) / 1e9

    def compiled(self, program: Any, started_ns: int) -> None:
        """Note a program that has just been compiled."""
        self.compiled_spans.append((program.graph.name, started_ns, time.perf_counter_ns()))

    def run(self, program: Any, inputs: list[Storage]) -> list[Storage]:
        """Run a program, timed."""
        times = self._of.get(id(program))
        if times is None:
            times = self._of[id(program)] = ProgramTimes(program, self._events_per_log)
        made = times.run(inputs)
        times.callers[user_line()] += 1
        return made
