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

from stratal.memory.accesses import Accesses, Instances, Numbers

Schedule = tuple[int, ...]
Bytes = Numbers


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

    @cached_property
    def workspace(self) -> Bytes:
        """The workspace of each task."""
        return np.array([task.workspace_bytes for task in self.tasks], np.int64)

    @cached_property
    def accesses(self) -> Accesses:
        """What the tasks read and write, in arrays."""
        reads, writes, pairs, states = zip(
            *((t.reads, t.writes, t.in_place, t.overwrites) for t in self.tasks), strict=True
        ) if self.tasks else ((), (), (), ())
        return Accesses(reads, writes, pairs, states, self.nbytes, self.outputs)

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
    return used_bytes(graph, schedule, graph.accesses.instances(schedule))


def used_bytes(graph: TaskGraph, schedule: Schedule, lives: Instances) -> Bytes:
    """Return the bytes in use while each task of a schedule runs, whose instances are known."""
    accesses, count = graph.accesses, len(schedule)
    sizes = accesses.nbytes[lives.values]
    begun = np.bincount(lives.first, sizes, count + 2)
    ended = np.bincount(lives.last + 1, sizes, count + 2)
    used = np.cumsum((begun - ended).astype(np.int64))[:count]
    used += graph.workspace[np.array(schedule, np.int64)]
    np.subtract.at(used, *accesses.shared(lives))
    return used


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
