"""Orders of tasks that need less memory: what only frees memory runs early, what only takes it runs late.

A task whose results leave the arena (a weight's gradient inside of the kernel that updates the weight) is a
sink. Run at once, a sink and what feeds it alone free what they read; at the end of the run they hold all of
it. A task that nothing needs for long (a factor of a derivative, computed beside the forward pass) may wait:
then its operand is there in between, which may be one that others need, too, or can be computed again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from stratal.memory.tasks import Schedule, TaskGraph

MOST_FEEDERS: Final = 256  # looked through for a sink
LITTLE: Final = 4096  # bytes that a task touches which may run at any time


def sinks_first(graph: TaskGraph) -> Schedule:
    """Return an order of all tasks, each once, in which sinks run as soon as what they read is there."""
    tasks = graph.tasks
    before = predecessors(graph)
    after: list[list[int]] = [[] for _ in tasks]
    for k, earlier in enumerate(before):
        for b in earlier:
            after[b].append(k)
    is_sink = _sinks(graph)
    feeds = _feeders(graph, is_sink)
    order: list[int] = []
    done = [False] * len(tasks)

    def lacking(number: int) -> list[int] | None:
        """Return the feeders that have to run before a task, in order; None if there is more to run."""
        found: set[int] = set()
        stack = [number]
        while stack:
            for b in before[stack.pop()]:
                if not done[b] and b not in found:
                    if not feeds[b] and not (is_sink[b] and tasks[b].writes):
                        return None
                    found.add(b)
                    stack.append(b)
        return sorted(found)

    def sinks_after(number: int) -> set[int]:
        """Return the sinks that a task might have made ready."""
        found: set[int] = set()
        stack, seen = [number], {number}
        while stack and len(seen) < MOST_FEEDERS:
            for a in after[stack.pop()]:
                if a not in seen and not done[a]:
                    seen.add(a)
                    if is_sink[a]:
                        found.add(a)
                    elif feeds[a]:
                        stack.append(a)
        return found

    def run(number: int) -> None:
        done[number] = True
        order.append(number)

    for first in range(len(tasks)):
        due = [first]
        while due:
            k = heapq.heappop(due)
            first_of_all = lacking(k) if is_sink[k] else []
            if (
                done[k]
                or first_of_all is None
                or any(not done[b] for b in before[k].difference(first_of_all))
            ):
                continue
            for b in (*first_of_all, k):
                run(b)
                for sink in sinks_after(b):
                    heapq.heappush(due, sink)
    return tuple(order) if len(order) == len(tasks) else graph.order


def late_as_possible(graph: TaskGraph) -> Schedule:
    """Return an order of all tasks, each once, in which each runs just before the first that needs it."""
    before = predecessors(graph)
    needed = set().union(*before)
    order: dict[int, None] = {}
    for last in range(len(graph.tasks)):
        if last in needed:
            continue
        stack = [last]
        while stack:
            # What comes last in the program goes first: it needs most of what the others need.
            lacking = max((b for b in before[stack[-1]] if b not in order), default=None)
            if lacking is None:
                order[stack.pop()] = None
            else:
                stack.append(lacking)
    return tuple(order)


def predecessors(graph: TaskGraph) -> list[set[int]]:
    """Return the tasks that each must follow: makers, readers of a state that it replaces, what may stop."""
    tasks = graph.tasks
    readers: dict[int, list[int]] = {}
    for k, task in enumerate(tasks):
        for r in task.reads:
            readers.setdefault(r, []).append(k)
    latest_writer: dict[int, int] = {}
    since: dict[int, list[int]] = {}  # readers of a value since it was written
    risks = [k for k, task in enumerate(tasks) if task.may_stop]
    found = []
    latest = -1  # of those that run in order
    for k, task in enumerate(tasks):
        before = {latest_writer[r] for r in task.reads if r in latest_writer}
        for v in task.updates:
            before.update(since.get(v, ()))
        for r in task.reads:
            since.setdefault(r, []).append(k)
        for v in (*task.writes, *task.updates):
            latest_writer[v] = k
            since[v] = []
        for state in task.overwrites:
            before.update(readers.get(state, ()))
        if task.overwrites:
            before.update(risks)
        if task.ordered:
            before.update({latest} - {-1})
            latest = k
        before.discard(k)
        found.append(before)
    return found


def _sinks(graph: TaskGraph) -> list[bool]:
    """Return which tasks leave no bytes: what they write is a state, or only copies take it to one."""
    tasks = graph.tasks
    readers = _readers(graph)

    def leaves(value: int) -> bool:
        stays = value in graph.outputs or not readers.get(value)
        return bool(graph.bytes_of(value)) and (stays or not all(tasks[k].copies for k in readers[value]))

    return [not t.ordered and not any(map(leaves, t.writes)) for t in tasks]


def _readers(graph: TaskGraph) -> dict[int, set[int]]:
    """Return the tasks that read each value."""
    found: dict[int, set[int]] = {}
    for k, task in enumerate(graph.tasks):
        for r in task.reads:
            found.setdefault(r, set()).add(k)
    return found


def _feeders(graph: TaskGraph, is_sink: Sequence[bool]) -> list[bool]:
    """Return which tasks may run early for a sink: what packs an operand for sinks alone, and little ones."""
    tasks, readers = graph.tasks, _readers(graph)
    found = []
    for task, sink in zip(tasks, is_sink, strict=True):
        used = {k for w in task.writes for k in readers.get(w, ())}
        for_sinks = bool(used) and all(is_sink[k] for k in used)
        touched = sum(map(graph.bytes_of, (*task.reads, *task.writes)))
        movable = not task.ordered and graph.outputs.isdisjoint(task.writes)
        found.append(movable and not sink and (for_sinks or touched <= LITTLE))
    return found
