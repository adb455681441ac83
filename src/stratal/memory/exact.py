"""The quickest schedule of a small task graph within a budget, by exhaustive search.

A* over states (values in memory, tasks that have run) as bit masks; the seconds of the tasks that have not
run are the bound. A step runs a task whose operands are there, and drops as little as that needs. See "The
memory requirement of pebbling" in Sethi, "Complete register allocation problems", 1975, for why this is only
for small graphs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from stratal.memory.ordering import predecessors
from stratal.memory.tasks import Schedule, TaskGraph

MOST_TASKS: Final = 12
MOST_STATES: Final = 20_000


def quickest(graph: TaskGraph, budget: int) -> Schedule | None:
    """Return a schedule of fewest seconds that needs at most `budget` bytes at a time; None where there is
    none.

    Raises: OverflowError where the search grows beyond `MOST_STATES`.
    """
    search = _Search(graph, budget)
    return search.run()


class _Search:
    def __init__(self, graph: TaskGraph, budget: int) -> None:
        self.tasks, self.budget = graph.tasks, budget
        values = [v for v in graph.writer if graph.bytes_of(v)]
        bit = {v: 1 << k for k, v in enumerate(values)}
        self.sizes = [graph.bytes_of(v) for v in values]
        self.reads = [sum({bit[r] for r in t.reads if r in bit}) for t in graph.tasks]
        self.writes = [sum({bit[w] for w in t.writes if w in bit}) for t in graph.tasks]
        self.shares = [
            [
                (bit[r], bit[w])
                for r, w in t.in_place
                if r in bit and w in bit and graph.bytes_of(r) == graph.bytes_of(w)
            ]
            for t in graph.tasks
        ]
        self.outputs = sum(bit[v] for v in graph.outputs if v in bit)
        made_by = graph.writer
        self.before = [  # tasks that must have run; operands in memory are told by their bits
            sum(1 << b for b in earlier if not any(made_by.get(r) == b and r in bit for r in t.reads))
            for t, earlier in zip(graph.tasks, predecessors(graph), strict=True)
        ]
        self.ends = [sum(1 << c for c in changing) for changing in graph.not_after]

    def bytes_in(self, mask: int) -> int:
        total, k = 0, 0
        while mask:
            if mask & 1:
                total += self.sizes[k]
            mask >>= 1
            k += 1
        return total

    def run(self) -> Schedule | None:
        everything = (1 << len(self.tasks)) - 1
        left = sum(t.seconds for t in self.tasks)
        queue: list[tuple[float, int, int, float]] = [(left, 0, 0, 0.0)]  # bound, memory, done, seconds
        best: dict[tuple[int, int], float] = {(0, 0): 0.0}
        came: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
        while queue:
            _, memory, done, seconds = heapq.heappop(queue)
            if seconds > best[memory, done]:
                continue
            if done == everything and memory & self.outputs == self.outputs:
                return _path(came, (memory, done))
            for task, memory_after, done_after, cost in self.steps(memory, done):
                total, state = seconds + cost, (memory_after, done_after)
                if total < best.get(state, float("inf")):
                    if len(best) >= MOST_STATES:
                        raise OverflowError("too many states")
                    best[state] = total
                    came[state] = (memory, done), task
                    bound = total + sum(
                        t.seconds for k, t in enumerate(self.tasks) if not done_after >> k & 1
                    )
                    heapq.heappush(queue, (bound, memory_after, done_after, total))
        return None

    def steps(self, memory: int, done: int) -> Iterator[tuple[int, int, int, float]]:
        """Yield (task, memory, done, seconds) of each way to run a task next."""
        for k, task in enumerate(self.tasks):
            if self.reads[k] & ~memory or self.before[k] & ~done or self.ends[k] & done:
                continue
            if done >> k & 1 and (not task.repeatable or not self.writes[k] & ~memory):
                continue
            there = memory & ~self.writes[k]
            for overwritten, written in _sharings(self.shares[k]):
                needed = self.bytes_in(there) + self.bytes_in(self.writes[k] & ~written)
                over = needed + task.workspace_bytes - self.budget
                for dropped in self._drops(there & ~self.reads[k], over):
                    after = there & ~dropped & ~overwritten | self.writes[k]
                    yield k, after, done | 1 << k, task.seconds

    def _drops(self, candidates: int, over: int) -> list[int]:
        """Return the sets of values that free so many bytes, of which no part does."""
        if over <= 0:
            return [0]
        bits = [k for k in range(len(self.sizes)) if candidates >> k & 1]
        found: list[int] = []
        for count in range(1, len(bits) + 1):
            for chosen in combinations(bits, count):
                mask = sum(1 << k for k in chosen)
                enough = sum(self.sizes[k] for k in chosen) >= over
                if enough and all(mask & smaller != smaller for smaller in found):
                    found.append(mask)
        return found


def _sharings(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the sets of pairs that can be taken at once, as masks of what is overwritten and written."""
    found = [(0, 0)]
    for read, written in pairs:
        found += [(r | read, w | written) for r, w in found if not (r & read or w & written)]
    return found


def _path(came: dict[tuple[int, int], tuple[tuple[int, int], int]], state: tuple[int, int]) -> Schedule:
    steps = []
    while state in came:
        state, task = came[state]
        steps.append(task)
    return tuple(reversed(steps))
