"""The front of seconds against bytes: what each byte less of a program's memory is predicted to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratal.base.artifact import offloaded
from stratal.base.errors import DoesNotFit
from stratal.base.target import Target
from stratal.memory.render import format_bytes
from stratal.memory.tasks import critical_seconds
from stratal.plan.budget import BudgetPlanner, Planned, arena_bytes
from stratal.schedule.draft import Draft

HEAD: Final = ("peak", "of all", "time", "waiting", "critical path", "run again", "in a file")


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


@dataclass(frozen=True, slots=True, repr=False)
class Front:
    """Plans of one program, the largest and quickest first: each is slower than all that are larger."""

    name: str
    points: tuple[Point, ...]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        rows = [HEAD, *(_row(point, self.points[0]) for point in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"{self.name}: estimated time against planned memory", *lines])


def _row(point: Point, largest: Point) -> tuple[str, ...]:
    share = point.planned_peak_bytes / largest.planned_peak_bytes
    waiting, chain = (f"{s * 1e3:.3g} ms" for s in (point.waiting_seconds, point.critical_seconds))
    elsewhere = format_bytes(point.offloaded_bytes) if point.offloaded_bytes else ""
    return (
        format_bytes(point.planned_peak_bytes), f"{share:.0%}", f"{point.slowdown:.2f}",
        waiting if point.waiting_seconds else "", chain, str(point.recomputed or ""), elsewhere,
    )  # fmt: skip


def front(name: str, draft: Draft, target: Target, count: int) -> Front:
    """Return the front of a draft: plans at up to so many budgets, from what it needs down to the least."""
    planner = BudgetPlanner(draft, target)
    whole = least = planner.needed_bytes
    graph = next(planner.programs).planner.graph
    found = [Point(whole, 1.0, 0.0, critical_seconds(graph, graph.order), 0, 0)]
    try:
        planner.plan(1)
    except DoesNotFit as error:
        least = min(error.least_bytes, least)
    for step in range(1, count):
        budget = whole - (whole - least) * step // (count - 1)
        point = _point(planner, planner.plan(budget))
        if point.planned_peak_bytes >= found[-1].planned_peak_bytes:
            continue
        while len(found) > 1 and found[-1].slowdown >= point.slowdown:
            found.pop()
        found.append(point)
    return Front(name, tuple(found))


def _point(planner: BudgetPlanner, planned: Planned) -> Point:
    program, draft = planned.program, planned.draft
    graph, schedule = program.planner.graph, planned.schedule
    elsewhere = offloaded(draft.commands, draft.inputs)
    return Point(
        sum(program.fixed) + arena_bytes(draft), planned.seconds / planner.seconds, planned.waiting,
        critical_seconds(graph, schedule), len(schedule) - len(set(schedule)),
        sum(draft.values[draft.inputs[k]].nbytes for k in elsewhere),
    )  # fmt: skip
