"""The search for a faster way to compute one kernel, and the verdict on what was found.

Candidates are measured in turns with the default. The best few are measured again, longer and on other
inputs: the fastest of many noisy readings is fast by luck as well. A way that does not win by a margin, with
confidence, is dropped, so that tuning never makes anything slower.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.errors import StratalError
from stratal.base.tuning import Record
from stratal.schedule.result import Candidate
from stratal.schedule.select import Problem
from stratal.tune.measure import FINAL_ROUNDS, Dropped, Measurer, Timing
from stratal.tune.model import Strategy, features
from stratal.tune.trial import Trial, trial_of

MARGIN: Final = 0.02  # by which a way must win
FINALISTS: Final = 3
FINAL_SECONDS: Final = 0.25


class Attempt(NamedTuple):
    """One candidate: its times beside the default's, or why it has none."""

    candidate: Candidate
    timing: Timing | None
    dropped: str
    workspace_bytes: int = 0


@dataclass
class Verdict:
    """What the search for one kernel found: the chosen way, its confirmed times, everything tried."""

    problem: Problem
    default: Candidate
    chosen: Candidate
    timing: Timing | None  # of the chosen way beside the default; None where the default stays
    workspace_bytes: int
    default_workspace_bytes: int
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: bool = False

    @property
    def default_seconds(self) -> float:
        """The default's time: from the last measurement it took part in."""
        timings = [self.timing, *(a.timing for a in reversed(self.attempts))]
        return next((t.base_seconds for t in timings if t is not None), self.default.seconds)

    @property
    def seconds(self) -> float:
        return self.default_seconds if self.timing is None else self.timing.seconds

    def record(self, toolchain: str, objective: str) -> Record:
        """Return the verdict as later compilations read it."""
        anchor = self.problem.group.members[0]
        return Record(
            self.problem.digest, self.problem.target.digest, toolchain, objective, self.chosen.algorithm,
            self.chosen.parameters, self.seconds, self.workspace_bytes, str(self.default),
            self.default_seconds, self.default_workspace_bytes, len(self.attempts), settings.threads.value,
            datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            f"{anchor.op.name} {anchor.type}",
        )  # fmt: skip


class Objective:
    """What is optimised, relative to the default: smaller keys are better."""

    def __init__(self, name: str, default: Candidate, workspace_bytes: int) -> None:
        self.name: Final = name
        self.default: Final = default
        self.workspace_bytes: Final = workspace_bytes

    def key(self, candidate: Candidate, ratio: float, workspace_bytes: int) -> tuple[float, float]:
        """Return what a way costs, `ratio` being its time relative to the default's."""
        if self.name == "memory":
            return float(workspace_bytes), ratio
        return self._work(candidate) * ratio, ratio

    def wins(self, candidate: Candidate, timing: Timing, workspace_bytes: int) -> bool:
        """Return whether a way is better with confidence."""
        if self.name == "memory" and workspace_bytes != self.workspace_bytes:
            return workspace_bytes < self.workspace_bytes
        return self._work(candidate) * timing.ratio.high < 1 - MARGIN

    def _work(self, candidate: Candidate) -> float:
        """Return the default's arithmetic over the candidate's where utilisation counts: operations done per
        second, not results.
        """
        if self.name != "utilisation" or not candidate.operations:
            return 1.0
        return self.default.operations / candidate.operations


class Explorer:
    """Searches kernel by kernel; what a strategy learns of one helps with the next."""

    def __init__(
        self, measurer: Measurer, strategy: Strategy, objective: str = "time", seed: int = 0
    ) -> None:
        self.measurer: Final = measurer
        self.strategy: Final = strategy
        self.objective: Final = objective
        self.seed: Final = seed

    def tune(
        self, problem: Problem, default: Candidate, *, trials: int, deadline: float = float("inf"),
        seen: Callable[[Attempt], None] = lambda _: None
    ) -> Verdict:
        """Measure up to `trials` candidates, until `deadline` on the monotonic clock, and confirm the best.

        Ctrl-C ends the search; what was found until then is confirmed and returned. Raises: MeasurementError.
        """
        base = trial_of(problem, default)
        goal = Objective(self.objective, default, base.workspace_bytes)
        verdict = Verdict(problem, default, default, None, base.workspace_bytes, base.workspace_bytes)
        try:
            for candidate in self._proposals(problem, default, verdict, trials, deadline):
                attempt = self._attempt(problem, base, candidate)
                verdict.attempts.append(attempt)
                seen(attempt)
        except KeyboardInterrupt:
            verdict.interrupted = True
        self._confirm(verdict, base, goal)
        return verdict

    def _proposals(
        self, problem: Problem, default: Candidate, verdict: Verdict, trials: int, deadline: float
    ) -> Iterator[Candidate]:
        """Yield priced candidates and one of each algorithm that has no price, then what the strategy
        proposes; learn from what became of them.
        """
        priced = [c for c in problem.candidates() if str(c) != str(default)]
        known = {c.algorithm for c in (default, *priced)}
        others = [c for c in problem.variants() if str(c) != str(default)]
        first = {c.algorithm: c for c in reversed(others) if c.algorithm not in known}.values()
        sure = [*priced, *first]
        pool = [*sure, *(c for c in others if all(c is not one for one in first))]
        if not pool:
            return
        rows = features(pool, default, problem.group.members[0].aval.ints)
        left = list(range(len(pool)))
        for number in range(min(trials, len(pool))):
            if time.monotonic() > deadline:
                return
            k = left.pop(0 if number < len(sure) else self.strategy.propose(rows[left]))
            yield pool[k]
            timing = verdict.attempts[-1].timing
            if timing is not None:
                self.strategy.learn(rows[k], timing.ratio.median)

    def _attempt(self, problem: Problem, base: Trial, candidate: Candidate) -> Attempt:
        try:
            trial = trial_of(problem, candidate)
        except (StratalError, ValueError, AssertionError, StopIteration) as error:
            rule = error.rule if isinstance(error, StratalError) else str(error)
            return Attempt(candidate, None, f"it cannot be scheduled: {rule}")
        found = self.measurer.compare(base, trial, seed=self.seed)
        if isinstance(found, Dropped):
            return Attempt(candidate, None, found.reason, trial.workspace_bytes)
        return Attempt(candidate, found, "", trial.workspace_bytes)

    def _confirm(self, verdict: Verdict, base: Trial, goal: Objective) -> None:
        """Measure the best again and keep the first that wins with confidence."""

        def key(a: Attempt) -> tuple[float, float]:
            assert a.timing is not None
            return goal.key(a.candidate, a.timing.ratio.median, a.workspace_bytes)

        here = goal.key(verdict.default, 1.0, base.workspace_bytes)
        better = [a for a in verdict.attempts if a.timing is not None and key(a) < here]
        for attempt in sorted(better, key=key)[:FINALISTS]:
            found = self.measurer.compare(
                base, trial_of(verdict.problem, attempt.candidate), seed=self.seed + 1,
                seconds=FINAL_SECONDS, rounds=FINAL_ROUNDS,
            )  # fmt: skip
            if isinstance(found, Timing) and goal.wins(attempt.candidate, found, attempt.workspace_bytes):
                verdict.chosen, verdict.timing = attempt.candidate, found
                verdict.workspace_bytes = attempt.workspace_bytes
                return
