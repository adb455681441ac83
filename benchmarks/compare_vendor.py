"""Generated kernels beside the vendor's library, shape by shape: which of them does the tuner keep?

The library is called as a kernel of a program, a piece of the result for each chunk, in every cut that the
tuner tries; the best of them meets the default once more, for longer. It is kept where it wins as a tuning
record must: by a margin, with confidence.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.compare_explorers import product_task
from benchmarks.functions import FUNCTIONS
from stratal.base import tuning
from stratal.plan.host import current_target
from stratal.tune.explore import FINAL_SECONDS, Objective
from stratal.tune.measure import FINAL_ROUNDS, Measurer, Timing
from stratal.tune.trial import trial_of

Row = dict[str, Any]
Shape = tuple[int, ...]  # m, k, n; before them the size of a batch, if there is one

_GEMMS = [f for f in FUNCTIONS.values() if f.kind == "gemm" and f.dtype == "float32"]
SHAPES: tuple[Shape, ...] = (
    *((*f.shapes[0], f.shapes[1][1]) for f in _GEMMS),
    (64, 64, 64), (256, 256, 256), (200, 300, 500), (2048, 256, 64), (32, 784, 512), (1000, 3, 1000),
    (16, 4096, 16), (3, 777, 1333), (768, 768, 768), (12, 128, 64, 128), (64, 32, 32, 32),
)  # fmt: skip


def measure(shapes: Iterable[Shape] = SHAPES, seconds: float = FINAL_SECONDS) -> list[Row]:
    """Return a row for each shape; where the library is missing, or no cut of it runs, without its time."""
    with Measurer(current_target()) as measurer:
        return [_row(measurer, shape, seconds) for shape in shapes]


def _row(measurer: Measurer, shape: Shape, seconds: float) -> Row:
    task = product_task(*shape)
    base = trial_of(task.problem, task.default)
    goal = Objective("time", task.default, base.workspace_bytes)
    found: list[tuple[float, Any]] = []
    for way in task.problem.variants():
        if way.algorithm == tuning.LIBRARY:
            timing = measurer.compare(base, trial_of(task.problem, way), seconds=seconds / 10)
            found += [(timing.ratio.median, way)] if isinstance(timing, Timing) else []
    row: Row = {"shape": "x".join(map(str, shape)), "own": str(task.default), "kept": "generated"}
    if not found:
        return row
    _, best = min(found, key=lambda one: one[0])
    trial = trial_of(task.problem, best)
    timing = measurer.compare(base, trial, seed=1, seconds=seconds, rounds=FINAL_ROUNDS)
    if isinstance(timing, Timing):
        wins = goal.wins(best, timing, trial.workspace_bytes)
        row |= {
            "library": str(best), "own_us": 1e6 * timing.base_seconds, "library_us": 1e6 * timing.seconds,
            "ratio": timing.ratio.median, "kept": "library" if wins else "generated",
        }  # fmt: skip
    return row


def text(rows: list[Row]) -> str:
    """Return the table."""
    lines = [f"  {'shape':18}{'own us':>10}{'library us':>12}{'library/own':>13}  kept"]
    for row in rows:
        if "ratio" in row:
            times = f"{row['own_us']:>10.1f}{row['library_us']:>12.1f}{row['ratio']:>13.2f}"
        else:
            times = f"{'-':>10}{'-':>12}{'-':>13}"
        lines.append(f"  {row['shape']:18}{times}  {row['kept']}")
    timed = [row for row in rows if "ratio" in row]
    if timed:
        mean = statistics.geometric_mean(row["ratio"] for row in timed)
        kept = statistics.geometric_mean(row["ratio"] if row["kept"] == "library" else 1.0 for row in timed)
        wins = sum(row["kept"] == "library" for row in timed)
        lines.append(
            f"  geometric mean of library/own {mean:.2f}; the library is kept for {wins} of {len(timed)}"
            f" shapes, after which products take {kept:.2f} of the time"
        )
    return "\n".join(lines)
