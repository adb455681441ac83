"""Does the learned cost model find faster schedules than random draws, with as many measurements?

Products of several shapes are tuned one after the other by both. The model keeps what it learned; before it
tunes a shape, it ranks what the random draws measured there, which it has not seen.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

import stratal as st
from stratal.plan.host import current_target
from stratal.schedule.result import Candidate
from stratal.tune.explore import Explorer, Verdict
from stratal.tune.measure import Measurer
from stratal.tune.model import LearnedStrategy, RandomStrategy, features
from stratal.tune.session import Task, Watch, tasks_of

Row = dict[str, Any]
Array = np.ndarray[Any, Any]

SHAPES = ((256, 192, 320), (96, 384, 640), (512, 128, 160), (32, 512, 768))  # m, k, n


def measure(trials: int, seed: int) -> list[Row]:
    """Return a row for each shape: the best times found, relative to the default's, and the correlation."""
    learned, rows = LearnedStrategy(seed), []
    with Measurer(current_target()) as measurer:
        for number, (m, k, n) in enumerate(SHAPES):
            task = product_task(m, k, n)
            drawn = _tuned(measurer, RandomStrategy(seed + number), task, trials)
            correlation = _correlation(learned, drawn, (m, n)) if number else None
            found = _tuned(measurer, learned, task, trials)
            rows.append({
                "shape": [m, k, n], "trials": trials, "random": _best(drawn), "learned": _best(found),
                "rank_correlation": correlation,
            })  # fmt: skip
    return rows


def product_task(*shape: int) -> Task:
    """Return the kernel of a product of [m, k] and [k, n], after sizes of a batch, as a task of tuning."""
    *batch, m, k, n = shape
    with Watch() as watch:
        st.compile(lambda a, b: a @ b)(st.zeros((*batch, m, k)), st.zeros((*batch, k, n)))
    (task,) = tasks_of(watch.programs)
    return task


def _tuned(measurer: Measurer, strategy: Any, task: Task, trials: int) -> Verdict:
    return Explorer(measurer, strategy).tune(task.problem, task.default, trials=trials)


def _times(verdict: Verdict) -> list[tuple[Candidate, float]]:
    """Return the candidates that were measured, with their times relative to the default's."""
    return [(a.candidate, a.timing.ratio.median) for a in verdict.attempts if a.timing is not None]


def _best(verdict: Verdict) -> float:
    return min((ratio for _, ratio in _times(verdict)), default=1.0)


def rank_correlation(first: Any, second: Any) -> float:
    """Return how far two rows of numbers agree in their order, from -1 to 1 (Spearman); equal numbers share
    their places.
    """
    places = [_places(np.asarray(x, np.float64)) for x in (first, second)]
    a, b = (p - p.mean() for p in places)
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else 0.0


def _places(values: Array) -> Array:
    """Return the place of every value in their order, the middle one where several are equal."""
    ordered = np.sort(values)
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((left + right - 1) / 2, np.float64)


def _correlation(learned: LearnedStrategy, drawn: Verdict, shape: tuple[int, int]) -> float:
    ways, ratios = zip(*_times(drawn), strict=True)
    return rank_correlation(learned.predict(features(ways, drawn.default, shape)), ratios)


def met(rows: list[Row]) -> bool:
    """Return whether the model found what is at least as fast, over all shapes."""
    return sum(math.log(row["learned"] / row["random"]) for row in rows) <= 0.0


def text(rows: list[Row]) -> str:
    """Return the rows as text."""
    lines = ["best of as many trials, time relative to the default's; rank correlation on a shape not seen"]
    for row in rows:
        correlation = "-" if row["rank_correlation"] is None else f"{row['rank_correlation']:.2f}"
        name = "x".join(map(str, row["shape"]))
        lines.append(
            f"  {name:14} {row['trials']} trials: random {row['random']:.3f}, learned {row['learned']:.3f},"
            f" correlation {correlation}"
        )
    means = {key: statistics.geometric_mean(row[key] for row in rows) for key in ("random", "learned")}
    lines.append(f"  geometric mean: random {means['random']:.3f}, learned {means['learned']:.3f}")
    return "\n".join(lines)
