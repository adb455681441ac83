"""Never slower by rewriting: each rewrite that a long search weighs, timed beside what was written."""

from __future__ import annotations

import datetime
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

from stratal.base import settings, tuning
from stratal.base.target import Target
from stratal.compiler import Program, lower, share_memory
from stratal.graph.graph import Graph, verify
from stratal.optimize.prologue import hoist
from stratal.optimize.simplify import simplify
from stratal.plan.partitioning import Lowerings
from stratal.plan.rewrites import searched
from stratal.search.found import AS_WRITTEN, REWRITTEN, Rewrite
from stratal.search.search import Limit
from stratal.tune.explore import FINAL_SECONDS, MARGIN
from stratal.tune.measure import FINAL_ROUNDS, Dropped, Measurer, Timing
from stratal.tune.trial import Trial, trial_program

WORTH: Final = 2.0  # a rewrite that should take longer by this factor is not timed


class RewriteVerdict(NamedTuple):
    """A rewrite beside what was written: `timing.ratio` is its time over that of what was written."""

    rewrite: Rewrite
    timing: Timing | None
    dropped: str = ""

    @property
    def won(self) -> bool:
        """Whether the rewrite is faster, with confidence and by a margin."""
        return self.timing is not None and self.timing.ratio.high < 1 - MARGIN

    @property
    def line(self) -> str:
        return next(map(str, self.rewrite.where), "")

    def record(self, target: Target, toolchain: str) -> tuning.Record:
        """Return the verdict as later compilations read it. Call where there is a timing."""
        assert self.timing is not None
        times = self.timing.seconds, self.timing.base_seconds
        ways = REWRITTEN, AS_WRITTEN
        (chosen, other), (seconds, beside) = (ways, times) if self.won else (ways[::-1], times[::-1])
        return tuning.Record(
            self.rewrite.piece.key, target.digest, toolchain, "time", chosen, (), seconds, 0, other, beside,
            0, 1, settings.threads.value, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            str(self.rewrite),
        )  # fmt: skip


def rewrites_of(programs: Iterable[Program], seconds: float, known: Container[str] = ()) -> list[Rewrite]:
    """Return the distinct rewrites that a search of so many seconds weighs, the most promising first.

    Those `known`, by their keys, are left out.
    """
    found: dict[str, Rewrite] = {}
    for program in programs:
        with settings.using(**program.made.chosen), tuning.using(tuning.UNTUNED):
            simple = simplify(verify(program.graph))
            made = searched(simple, program.made.target, Limit(1 << 20, of_site=256, seconds=seconds))
        for rewrite in (*made.applied, *made.rejected):
            key = rewrite.piece.key
            if key not in known and rewrite.seconds < WORTH * rewrite.before_seconds:
                found.setdefault(key, rewrite)
    return sorted(found.values(), key=lambda r: r.seconds - r.before_seconds)


def compare_rewrites(rewrites: Iterable[Rewrite], measurer: Measurer) -> Iterator[RewriteVerdict]:
    """Time each rewrite and what was written in turns. Raises: MeasurementError."""
    for rewrite in rewrites:
        written, other = (_trial(g, measurer.target) for g in rewrite.piece)
        found = measurer.compare(written, other, seconds=FINAL_SECONDS, rounds=FINAL_ROUNDS)
        if isinstance(found, Dropped):
            yield RewriteVerdict(rewrite, None, found.reason)
        else:
            yield RewriteVerdict(rewrite, found)


def _trial(graph: Graph, target: Target) -> Trial:
    """Return a graph as a trial; what frozen inputs decide is computed before it is timed."""
    draft = lower(hoist(simplify(verify(graph)), Lowerings()), target)
    share_memory(draft)
    return trial_program(draft, target, settings.threads.value)
