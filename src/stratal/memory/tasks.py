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

import numpy as np
import numpy.typing as npt

from stratal.base.errors import VerifyError

Schedule = tuple[int, ...]
Bytes = npt.NDArray[np.int64]


class Task(NamedTuple):
    """A command: how long it takes, which values it reads and writes, and the bytes it needs while it runs.

    `in_place` are pairs (read, written) that may share memory. `overwrites` are states that its results
    replace: nothing may read their old values afterwards. `updates` are values that an earlier task made and
    that this one changes where they stand, such as what was filled with zeros: who reads them before and
    after stays there. One that is not `repeatable` runs once. A run may end at one that `may_stop`, before
    any state is overwritten; those that are `ordered` run in their order. One that `copies` brings a value
    from another memory space, or takes one there.
    """

    seconds: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    overwrites: tuple[int, ...] = ()
    workspace_bytes: int = 0
    repeatable: bool = True
    updates: tuple[int, ...] = ()
    may_stop: bool = False
    ordered: bool = False
    copies: bool = False


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

    @cached_property
    def not_after(self) -> list[frozenset[int]]:
        """The tasks after which each task may not run again: they replace or change what it reads."""
        changing: dict[int, list[int]] = {}
        for k, task in enumerate(self.tasks):
            for v in (*task.overwrites, *task.updates):
                changing.setdefault(v, []).append(k)
        return [
            frozenset(c for r in task.reads for c in changing.get(r, ()) if c > k)
            for k, task in enumerate(self.tasks)
        ]

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
    return Evaluation(peak_bytes(graph, schedule), seconds, critical_seconds(graph, schedule))


def peak_bytes(graph: TaskGraph, schedule: Schedule) -> int:
    """Return the most bytes in use at a moment of a schedule."""
    return int(profile(graph, schedule).max(initial=0))


def profile(graph: TaskGraph, schedule: Schedule) -> Bytes:
    """Return the bytes in use while each task of a schedule runs.

    Raises: VerifyError where a task reads what is not there.
    """
    lives = instances(graph, schedule)
    count = len(schedule)
    sizes = np.fromiter(map(graph.nbytes.__getitem__, lives.values), np.int64, len(lives.values))
    begun = np.bincount(lives.first, sizes, count + 2)
    ended = np.bincount(np.array(lives.last, np.int64) + 1, sizes, count + 2)
    used = np.cumsum((begun - ended).astype(np.int64))[:count]
    for position, number in enumerate(schedule):
        task = graph.tasks[number]
        if task.workspace_bytes:
            used[position] += task.workspace_bytes
        if task.in_place:
            used[position] -= _shared_bytes(graph, task, lives, position)
    return used


class Instances(NamedTuple):
    """The instances of values in a schedule: of which value, made where, needed up to where."""

    values: list[int]
    first: list[int]
    last: list[int]
    read_at: dict[tuple[int, int], int]  # the instance of a value that the task at a position reads in place


def instances(graph: TaskGraph, schedule: Schedule) -> Instances:
    """Return when each instance lives. Raises: VerifyError where a task reads what is not there."""
    nbytes, outputs, made_by = graph.nbytes, graph.outputs, graph.writer
    found = Instances([], [], [], {})
    values, first, last, read_at = found
    current: dict[int, int] = {}  # the living instance of each value
    replaced: set[int] = set()
    for position, number in enumerate(schedule):
        task = graph.tasks[number]
        for r in task.reads:
            instance = current.get(r)
            if instance is not None:
                last[instance] = position
            elif r in replaced or (r in made_by and nbytes.get(r)):
                raise VerifyError("schedule: a task reads what is not there", got=f"task {number}, %{r}")
        for r, _ in task.in_place:
            if r in current:
                read_at[position, r] = current[r]
        for w in task.writes:
            if nbytes.get(w):
                current[w] = len(values)
                values.append(w)
                first.append(position)
                last.append(position)
        if task.overwrites:
            replaced.update(task.overwrites)
    for v in outputs:
        if v in current:
            last[current[v]] = len(schedule)
    return found


def _shared_bytes(graph: TaskGraph, task: Task, lives: Instances, position: int) -> int:
    """Return the bytes of what a task writes over values that nobody reads after it."""
    total = 0
    taken: set[int] = set()
    for read, written in task.in_place:
        instance = lives.read_at.get((position, read))
        if instance is None or lives.last[instance] != position or not taken.isdisjoint((read, written)):
            continue
        if graph.bytes_of(read) == graph.bytes_of(written):
            taken |= {read, written}
            total += graph.bytes_of(written)
    return total


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
