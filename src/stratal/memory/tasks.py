"""Task graphs: a program as the memory planner sees it, and what an order of its tasks costs.

    TaskGraph := tasks, bytes of each value, values that live to the end
    Schedule  := numbers of tasks in the order they run; a number that comes again is a recomputation
    evaluate  := TaskGraph, Schedule -> peak bytes, seconds, critical path

A value is what one task writes; when the task runs again, that is another instance of it, and whoever reads
the value afterwards reads the new one. Values that no task writes (inputs, states, constants) are always
there and take no bytes here, for they lie beside the arena.

Two instances may share memory where one is dead before the other begins; an instance that a task reads last
may be overwritten by an equally large one that it writes, where the task says so (`in_place`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from stratal.base.errors import VerifyError

Schedule = tuple[int, ...]


class Task(NamedTuple):
    """A command: how long it takes, which values it reads and writes, and the bytes it needs while it runs.

    `in_place` are pairs (read, written) that may share memory. `overwrites` are states that its results
    replace: nothing may read their old values afterwards. One that is not `repeatable` runs once. A run may
    end at one that `may_stop`, before any state is overwritten; those that are `ordered` run in their order.
    """

    seconds: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    overwrites: tuple[int, ...] = ()
    workspace_bytes: int = 0
    repeatable: bool = True
    may_stop: bool = False
    ordered: bool = False


class TaskGraph:
    """Tasks in an order in which they can run, and the bytes of each value they write."""

    def __init__(self, tasks: Sequence[Task], nbytes: Mapping[int, int], outputs: frozenset[int]) -> None:
        self.tasks = tuple(tasks)
        self.nbytes = dict(nbytes)
        self.outputs = outputs  # values of the arena that live to the end

    @property
    def order(self) -> Schedule:
        """The tasks as they stand, each once."""
        return tuple(range(len(self.tasks)))

    @cached_property
    def writer(self) -> dict[int, int]:
        """The task that makes each value."""
        return {v: k for k, task in enumerate(self.tasks) for v in task.writes}

    def bytes_of(self, value: int) -> int:
        return self.nbytes.get(value, 0)

    def __repr__(self) -> str:
        return f"<{len(self.tasks)} tasks, {len(self.nbytes)} values of {sum(self.nbytes.values())} bytes>"


class Evaluation(NamedTuple):
    """What a schedule costs: most bytes at a moment, all seconds, those of the longest chain of reads."""

    peak_bytes: int
    seconds: float
    critical_seconds: float


def evaluate(graph: TaskGraph, schedule: Schedule) -> Evaluation:
    """Return what a schedule costs. Raises: VerifyError where a task reads what is not there."""
    seconds = sum(graph.tasks[k].seconds for k in schedule)
    return Evaluation(max(profile(graph, schedule), default=0), seconds, critical_seconds(graph, schedule))


def profile(graph: TaskGraph, schedule: Schedule) -> list[int]:
    """Return the bytes in use while each task of a schedule runs."""
    dying = deaths(graph, schedule)
    found, live = [], 0
    for position, number in enumerate(schedule):
        task, dies = graph.tasks[number], dying[position]
        made = sum(map(graph.bytes_of, task.writes))
        shared = sum(graph.bytes_of(w) for r, w in shared_pairs(graph, task, dies))
        found.append(live + made - shared + task.workspace_bytes)
        live += made - sum(map(graph.bytes_of, dies))
    return found


def shared_pairs(graph: TaskGraph, task: Task, dies: frozenset[int]) -> list[tuple[int, int]]:
    """Return which values a task writes over which that it reads, each once."""
    found: dict[int, int] = {}
    for read, written in task.in_place:
        fits = read in dies and graph.bytes_of(read) == graph.bytes_of(written)
        if fits and read not in found.values() and written not in found:
            found[written] = read
    return [(r, w) for w, r in found.items()]


def deaths(graph: TaskGraph, schedule: Schedule) -> list[frozenset[int]]:
    """Return the values whose instances nobody needs after each task of a schedule."""
    last: dict[int, int] = {}  # of the living instance of each value
    dying: list[set[int]] = [set() for _ in schedule]
    overwritten: set[int] = set()
    writer = graph.writer
    for position, number in enumerate(schedule):
        task = graph.tasks[number]
        for read in task.reads:
            if read in last:
                last[read] = position
            elif read in writer or read in overwritten:
                raise VerifyError("schedule: a task reads what is not there", got=f"task {number}, %{read}")
        for written in task.writes:
            if written in last:
                dying[last[written]].add(written)
            last[written] = position
        overwritten.update(task.overwrites)
    for value, position in last.items():
        if value not in graph.outputs:
            dying[position].add(value)
    return [frozenset(values) for values in dying]


def critical_seconds(graph: TaskGraph, schedule: Schedule) -> float:
    """Return the seconds of the longest chain of tasks of which each reads what the one before it writes."""
    ready: dict[int, float] = {}
    longest = 0.0
    for number in schedule:
        task = graph.tasks[number]
        end = max((ready.get(r, 0.0) for r in task.reads), default=0.0) + task.seconds
        ready.update(dict.fromkeys(task.writes, end))
        longest = max(longest, end)
    return longest
