"""Rematerialization: which values of a task graph are dropped between two uses and computed again.

A value of a training step is used early (by the forward pass) and late (by the backward pass). In its longest
gap between two uses it may be dropped, and computed again as late as possible. A set of retained values
decides: all others are dropped in their gaps, and whatever needs one afterwards finds one recomputed
instance. So no task runs more than twice, and one set stands for one schedule.

    checkpoints   sets that cut the run into parts of equal bytes, each cut where fewest bytes cross it
                  (Chen et al., "Training deep nets with sublinear memory cost", 2016, for any graph)
    retain        from such a set on, retain what saves most seconds per byte while the budget has room
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np

from stratal.memory.accesses import Instances
from stratal.memory.exact import MOST_TASKS, quickest
from stratal.memory.ordering import late_as_possible, sinks_first
from stratal.memory.tasks import Schedule, TaskGraph, peak_bytes, used_bytes

NEVER: Final = 1 << 60
SHORTEST: Final = 0.02  # of all seconds: values that rest for less are not dropped
LITTLE_PART: Final = 64  # of the largest value, and
LITTLE_SUM: Final = 200  # of all values together: what is smaller is not dropped either
ROUNDS: Final = 4  # of retaining, each from the profile of the one before
RELEASED: Final = (12, 3)  # plans that are made smaller, then the best of them once more; each time in
MOST_RELEASES: Final = 150_000  # tries of one task
MOST_KNOWN: Final = 2  # plans of a similar graph that are tried
STARTS: Final = 4  # sets of checkpoints from which more is retained
LARGE: Final = 1500  # tasks of a graph for which one start has to do


class RematPlan(NamedTuple):
    """A schedule, the values it retains, and what it costs."""

    schedule: Schedule
    retained: frozenset[int]
    peak_bytes: int
    seconds: float


class Rematerialization:
    """Plans for one task graph, whose tasks first run in a given order."""

    def __init__(self, graph: TaskGraph, order: Schedule) -> None:
        self.graph: Final = graph
        self.order: Final = order
        self._made = {v: p for p, k in enumerate(order) for v in graph.tasks[k].writes}
        self._reads = [[r for r in dict.fromkeys(t.reads) if r in self._made] for t in graph.tasks]
        self._uses: dict[int, list[int]] = {v: [] for v in self._made}
        for position, number in enumerate(order):
            for r in self._reads[number]:
                self._uses[r].append(position)
        self._clock = list(accumulate((graph.tasks[k].seconds for k in order), initial=0.0))
        self._last_run = self._last_runs()
        self._little = self._little_values()
        self.gaps: Final = {v: gap for v in self._made if (gap := self._gap(v)) is not None}
        self._early = {v: self._early_end(v) for v in self._made}
        self._late_reads = [
            [r for r in self._reads[number] if self._early[r] < position]
            for position, number in enumerate(order)
        ]
        self._plans: dict[frozenset[int], RematPlan] = {}

    def _last_runs(self) -> list[int]:
        """Return the position up to which each task may run: then something that it reads is changed."""
        position = {number: p for p, number in enumerate(self.order)}
        return [
            min((position[c] for c in changing), default=NEVER) if task.repeatable else -1
            for task, changing in zip(self.graph.tasks, self.graph.not_after, strict=True)
        ]

    def _little_values(self) -> set[int]:
        """Return values too small to drop: in all they are nothing, and kernels wait for some for long."""
        sizes = sorted((self.graph.bytes_of(v), v) for v in self._made)
        most = sizes[-1][0] // LITTLE_PART if sizes else 0
        room = sum(n for n, _ in sizes) // LITTLE_SUM
        found = set()
        for nbytes, v in sizes:
            room -= nbytes
            if nbytes > most or room < 0:
                break
            found.add(v)
        return found

    def _gap(self, value: int) -> tuple[int, int] | None:
        """Return the two uses between which a value rests longest; None where it cannot be dropped there."""
        if not self.graph.bytes_of(value) or value in self.graph.outputs or value in self._little:
            return None
        points = [self._made[value], *self._uses[value]]
        rests = [(self._clock[b] - self._clock[a + 1], a, b) for a, b in pairwise(points)]
        seconds, first, last = max(rests, default=(0.0, 0, 0))
        if seconds < SHORTEST * self._clock[-1]:
            return None
        return (first, last) if self._last_run[self.graph.writer[value]] >= last else None

    def _early_end(self, value: int) -> int:
        """Return the last position that finds the first instance of a value which is not retained."""
        if value in self.gaps:
            return self.gaps[value][0]
        repeatable = self.graph.tasks[self.graph.writer[value]].repeatable
        if value in self.graph.outputs or value in self._little or not repeatable:
            return NEVER
        return self._uses[value][-1] if self._uses[value] else self._made[value]

    # -- one set ---------------------------------------------------------------------------------------------
    def plan(self, retained: Iterable[int]) -> RematPlan:
        """Return the plan that retains some values, and those which nothing could recompute in time."""
        key = frozenset(retained)
        if key not in self._plans:
            more = key
            while True:
                schedule, missed = self._unrolled(more)
                if not missed:
                    break
                more |= missed
            seconds = sum(self.graph.tasks[k].seconds for k in schedule)
            peak = peak_bytes(self.graph, schedule)
            self._plans[key] = RematPlan(schedule, more, peak, seconds)
        return self._plans[key]

    def _unrolled(self, retained: Set[int]) -> tuple[Schedule, set[int]]:
        """Return the schedule of a set, and which values it misses: they would come too late."""
        schedule: list[int] = []
        there: set[int] = set(retained)  # from now on to the end
        missed: set[int] = set()
        early, writer, last_run = self._early, self.graph.writer, self._last_run
        for position, number in enumerate(self.order):
            if there.issuperset(self._late_reads[position]):
                schedule.append(number)
                continue
            stack = [number]
            while stack:
                top = stack[-1]
                lacking = -1
                for r in self._reads[top]:
                    if early[r] < position and r not in there:
                        if last_run[writer[r]] >= position:
                            lacking = r
                            break
                        missed.add(r)
                        there.add(r)
                if lacking >= 0:
                    stack.append(writer[lacking])
                    continue
                stack.pop()
                schedule.append(top)
                if stack:
                    there.update(self.graph.tasks[top].writes)
        return tuple(schedule), missed

    # -- sets ------------------------------------------------------------------------------------------------
    @cached_property
    def candidates(self) -> list[RematPlan]:
        """The plans of sets of checkpoints, from no cut to one at every value that can be dropped."""
        return list(self._candidates())

    def _candidates(self) -> Iterator[RematPlan]:
        """Yield the plans of sets of checkpoints, from no cut to one at every value that can be dropped."""
        numbers = list(self._made)
        sizes = np.array([self.graph.bytes_of(v) for v in numbers], np.int64)
        first = np.array([self._made[v] for v in numbers], np.int64)
        last = np.minimum(np.array([self._early[v] for v in numbers], np.int64), len(self.order))
        droppable = np.array([v in self.gaps for v in numbers])
        end = len(self.order) + 1
        width = np.cumsum(np.bincount(first + 1, sizes, end + 1) - np.bincount(last + 1, sizes, end + 1))
        dropped = np.cumsum(np.bincount(first + 1, sizes * droppable, end + 1))
        count = 0
        while count <= len(self.gaps):
            cuts = _cuts(dropped, width, count)
            crossing = np.searchsorted(cuts, first, "right") < np.searchsorted(cuts, last, "right")
            yield self.plan(numbers[k] for k in np.nonzero(crossing)[0])
            count = max(count + 1, int(count * 1.25))
        yield self.plan(self._made)

    def smallest(self, known: Iterable[frozenset[int]] = (), enough: int = 0) -> list[RematPlan]:
        """Return plans, those of fewest bytes first; the smallest of the candidates release more values.

        `known` are sets of retained values that are small in a similar graph; a plan of `enough` bytes is not
        made smaller, and ends the search.
        """
        plans = [*self.candidates, *map(self.plan, known)]
        plans.sort(key=lambda p: (p.peak_bytes, p.seconds))
        tries = MOST_RELEASES // max(len(self.order), 1)
        for count in RELEASED:
            for plan in plans[:count]:
                plans.append(self._releasing(plan, tries // count + 1, enough))
                if plans[-1].peak_bytes <= enough:
                    break
            plans.sort(key=lambda p: (p.peak_bytes, p.seconds))
            if plans[0].peak_bytes <= enough:
                break
        return plans

    def _releasing(self, plan: RematPlan, tries: int, enough: int) -> RematPlan:
        """Return a plan that drops more of what is retained at the peak, while that lowers the peak."""
        while tries and plan.peak_bytes > enough:
            lives = self.graph.accesses.instances(plan.schedule)
            peak = int(np.argmax(used_bytes(self.graph, plan.schedule, lives)))
            there = lives.values[(lives.first <= peak) & (peak <= lives.last)]
            alive = plan.retained.intersection(there.tolist())
            for v in sorted(alive.intersection(self.gaps), key=lambda v: -self.graph.bytes_of(v)):
                tries -= 1
                tried = self.plan(plan.retained - {v})
                if tried.peak_bytes < plan.peak_bytes or not tries:
                    break
            else:
                return plan
            plan = min(plan, tried, key=lambda p: p.peak_bytes)
        return plan

    # -- within a budget -------------------------------------------------------------------------------------
    def within(self, budget: int) -> list[RematPlan]:
        """Return plans that need at most a number of bytes."""
        fit = [p for p in self.candidates if p.peak_bytes <= budget]
        if not fit:
            fit = [p for p in self.smallest(enough=budget)[:1] if p.peak_bytes <= budget]
        by_peak = sorted(fit, key=lambda p: (p.peak_bytes, p.seconds))
        starts = by_peak[:1] if len(self.order) > LARGE else by_peak[:: -(-len(by_peak) // STARTS) or 1]
        return fit + [self._retaining(p, budget, by_span) for p in starts for by_span in (False, True)]

    def _retaining(self, plan: RematPlan, budget: int, by_span: bool) -> RematPlan:
        """Return a plan that retains more within the budget: what saves most seconds per byte comes first."""
        for _ in range(ROUNDS):
            more = self._affordable(plan, budget, by_span)
            low, high, best = 0, len(more), plan
            count = high  # all of them fit by the profile of the plan, which changes with them
            while high > low:
                tried = self.plan(plan.retained.union(*more[:count]))
                if tried.peak_bytes <= budget:
                    low, best = count, min(best, tried, key=lambda p: p.seconds)
                else:
                    high = count - 1
                count = (low + high + 1) // 2
            if best is plan:
                break
            plan = best
        return plan

    def _affordable(self, plan: RematPlan, budget: int, by_span: bool) -> list[tuple[int, ...]]:
        """Return results of recomputations for which the profile has room if they are retained instead."""
        graph, schedule = self.graph, plan.schedule
        lives = graph.accesses.instances(schedule)
        used, ends = used_bytes(graph, schedule, lives), _ends(lives)
        items: list[tuple[float, list[tuple[int, int, int]], tuple[int, ...]]] = []
        seen: set[int] = set()
        for position, number in enumerate(schedule):
            if number not in seen:
                seen.add(number)
                continue
            task = graph.tasks[number]
            results = tuple(v for v in task.writes if graph.bytes_of(v) and ends[v][1] > position)
            rests = [(graph.bytes_of(v), ends[v][0] + 1, position) for v in results]
            cost = sum(n * ((b - a) if by_span else 1) for n, a, b in rests)
            if results:
                items.append((task.seconds / max(cost, 1), rests, results))
        items.sort(key=lambda item: -item[0])
        found = []
        for _, rests, results in items:
            if all(int(used[a : b + 1].max(initial=0)) + n <= budget for n, a, b in rests):
                for n, a, b in rests:
                    used[a : b + 1] += n
                found.append(results)
        return found


def _ends(lives: Instances) -> dict[int, tuple[int, int]]:
    """Return up to where the first instance of each value is needed, and its last one."""
    order = np.lexsort((lives.first, lives.values))
    values, last = lives.values[order], lives.last[order]
    starts = np.nonzero(np.diff(values, prepend=-1))[0]
    ends = np.append(starts[1:], len(values)) - 1 if len(values) else starts
    pairs = zip(last[starts].tolist(), last[ends].tolist(), strict=True)
    return dict(zip(values[starts].tolist(), pairs, strict=True))


def _cuts(dropped: np.ndarray, width: np.ndarray, count: int) -> np.ndarray:
    """Return cuts between positions: in each of so many parts of equal bytes, where fewest bytes cross."""
    found: list[int] = []
    for j in range(count):
        marks = dropped[-1] * np.array([j + 0.5, j + 1.0, j + 1.5]) / (count + 1)
        low, middle, high = np.searchsorted(dropped, marks)
        if high > low:
            window = np.arange(low, high)
            found.append(int(window[np.lexsort((abs(window - middle), width[low:high]))[0]]))
    return np.unique(np.array(found, np.int64))


class MemoryPlanner:
    """Finds schedules of one graph that need few bytes; plans are remembered from question to question."""

    def __init__(self, graph: TaskGraph, before: MemoryPlanner | None = None) -> None:
        """`before` plans a graph of which this one is a variant: values have the same numbers."""
        self.graph: Final = graph
        self._before: Final = before

    @cached_property
    def _searches(self) -> list[Rematerialization]:
        """The searches worth a try: of the order as it stands, and of that in which sinks run first.

        Where there are copies, of the second alone: it leaves kernels for them to run beside.
        """
        first = sinks_first(self.graph)
        if any(task.copies for task in self.graph.tasks):
            return [Rematerialization(self.graph, first)]
        return [Rematerialization(self.graph, order) for order in dict.fromkeys((self.graph.order, first))]

    @cached_property
    def _late(self) -> Rematerialization:
        """The search where those find nothing: of the order in which each task runs as late as it can."""
        return Rematerialization(self.graph, late_as_possible(self.graph))

    def fitted(self, budget: int) -> RematPlan | None:
        """Return the quickest plan that needs at most a number of bytes; None where none is found.

        That of a graph of at most `exact.MOST_TASKS` tasks is the quickest there is.
        """
        if len(self.graph.tasks) <= MOST_TASKS:
            with suppress(OverflowError):
                schedule = quickest(self.graph, budget)
                return None if schedule is None else _as_plan(self.graph, schedule)
        plans = [plan for search in self._searches for plan in search.within(budget)]
        plans = plans or self._late.within(budget)
        return min(plans, key=lambda p: (p.seconds, p.peak_bytes), default=None)

    @cached_property
    def smallest(self) -> list[RematPlan]:
        """Plans, those of fewest bytes first; the first of a small graph needs the least there is."""
        known = [plan.retained for plan in self._before.smallest[:MOST_KNOWN]] if self._before else []
        plans = [plan for search in (*self._searches, self._late) for plan in search.smallest(known)]
        plans.sort(key=lambda p: (p.peak_bytes, p.seconds))
        if len(self.graph.tasks) <= MOST_TASKS:
            with suppress(OverflowError):
                low, high = -1, plans[0].peak_bytes
                while high - low > 1:
                    budget = (low + high) // 2
                    schedule = quickest(self.graph, budget)
                    if schedule is None:
                        low = budget
                    else:
                        plans.insert(0, _as_plan(self.graph, schedule))
                        high = plans[0].peak_bytes
        return plans


def _as_plan(graph: TaskGraph, schedule: Schedule) -> RematPlan:
    seconds = sum(graph.tasks[k].seconds for k in schedule)
    return RematPlan(schedule, frozenset(), peak_bytes(graph, schedule), seconds)
