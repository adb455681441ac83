"""The front of seconds against bytes: what each byte less of a program's memory is predicted to cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratal.base.artifact import offloaded
from stratal.base.errors import DoesNotFit
from stratal.base.target import Target
from stratal.memory.render import format_bytes
from stratal.memory.tasks import critical_seconds
from stratal.optimize.batch_parts import NotSplit
from stratal.plan.budget import BudgetPlanner, InParts, Planned, arena_bytes
from stratal.schedule.draft import Draft

HEAD: Final = ("peak", "of all", "time", "waiting", "critical path", "run again", "in a file", "parts")


class Point(NamedTuple):
    """A plan of the front. Seconds are estimated; `slowdown` is the time over that without a budget.

    `critical_seconds`: of the longest chain of kernels of which each needs what the one before it makes.
    """

    planned_peak_bytes: int
    slowdown: float
    waiting_seconds: float  # of kernels, for copies
    critical_seconds: float
    recomputed: int  # kernels and copies that run again
    offloaded_bytes: int
    parts: int = 1  # in which the batch is computed


@dataclass(frozen=True, slots=True, repr=False)
class Front:
    """Plans of one program, the largest and quickest first: each is slower than all that are larger.

    `not_split`: why its batch is not computed in parts, where that was asked for.
    """

    name: str
    points: tuple[Point, ...]
    not_split: str = ""

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        rows = [HEAD, *(_row(point, self.points[0]) for point in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        note = [f"not in parts: {self.not_split}"] if self.not_split else []
        return "\n".join([f"{self.name}: estimated time against planned memory", *lines, *note])


def _row(point: Point, largest: Point) -> tuple[str, ...]:
    share = point.planned_peak_bytes / largest.planned_peak_bytes
    waiting, chain = (f"{s * 1e3:.3g} ms" for s in (point.waiting_seconds, point.critical_seconds))
    elsewhere = format_bytes(point.offloaded_bytes) if point.offloaded_bytes else ""
    return (
        format_bytes(point.planned_peak_bytes), f"{share:.0%}", f"{point.slowdown:.2f}",
        waiting if point.waiting_seconds else "", chain, str(point.recomputed or ""), elsewhere,
        str(point.parts) if point.parts > 1 else "",
    )  # fmt: skip


def front(name: str, draft: Draft, target: Target, count: int, in_parts: Iterable[InParts] = ()) -> Front:
    """Return the front of a draft: plans at up to so many budgets, from what it needs down to the least.

    `in_parts` are drafts of the same program by parts of its batch.
    """
    whole = BudgetPlanner(draft, target)
    planners, not_split = {1: whole}, ""
    try:
        planners |= {tried.parts: BudgetPlanner(tried.draft, target) for tried in in_parts}
    except NotSplit as reason:
        not_split = str(reason)
    needed = whole.needed_bytes
    least = min([needed, *map(_least_bytes, planners.values())])
    graph = next(whole.programs).planner.graph
    found = [Point(needed, 1.0, 0.0, critical_seconds(graph, graph.order), 0, 0)]
    for step in range(1, count):
        point = _quickest(planners, needed - (needed - least) * step // (count - 1))
        if point.planned_peak_bytes >= found[-1].planned_peak_bytes:
            continue
        while len(found) > 1 and found[-1].slowdown >= point.slowdown:
            found.pop()
        found.append(point)
    return Front(name, tuple(found), not_split)


def _least_bytes(planner: BudgetPlanner) -> int:
    """Return the fewest bytes that a plan of a program is known to need."""
    try:
        planner.plan(1)
    except DoesNotFit as error:
        return error.least_bytes
    return 1


def _quickest(planners: Mapping[int, BudgetPlanner], budget: int) -> Point:
    """Return the quickest plan within a budget that one program at least fits."""
    found = []
    for parts, planner in planners.items():
        with suppress(DoesNotFit):
            found.append(_point(planner.plan(budget), planners[1].seconds, parts))
    return min(found, key=lambda point: point.slowdown)


def _point(planned: Planned, seconds: float, parts: int) -> Point:
    program, draft = planned.program, planned.draft
    graph, schedule = program.planner.graph, planned.schedule
    elsewhere = offloaded(draft.commands, draft.inputs)
    return Point(
        sum(program.fixed) + arena_bytes(draft), planned.seconds / seconds, planned.waiting,
        critical_seconds(graph, schedule), len(schedule) - len(set(schedule)),
        sum(draft.values[draft.inputs[k]].nbytes for k in elsewhere), parts,
    )  # fmt: skip
