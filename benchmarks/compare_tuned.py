"""How far does the default stand behind what tuning finds? Tasks without records and with them, in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.functions import convolution
from benchmarks.systems import Job, stratal_compiled
from benchmarks.tasks import TASKS
from stratal.base import settings
from stratal.inspect.timer import compare
from stratal.plan.host import current_target
from stratal.tune.explore import Explorer
from stratal.tune.measure import Measurer
from stratal.tune.model import strategy
from stratal.tune.session import Watch, tasks_of, tune

Row = dict[str, Any]

BOUND: Final = 1.10  # of the default's time to the tuned one's

# The convolution of the lecture on performance: 64 filters 3x3, batch 32, channels = width = height = 64.
_LECTURE = convolution(32, 64, 64, 64, 3)
_BACKWARD = dataclasses.replace(_LECTURE, shapes=(*_LECTURE.shapes, (32, 64, 64, 64)), gradients=True)
LECTURE: Final = {"conv_64_64x64": _LECTURE, "conv_64_64x64_backward": _BACKWARD}
NAMES: Final = (*LECTURE, *TASKS)


def measure(
    name: str, trials: int, seconds: float, model: str, folder: Path, say: Callable[[str], None]
) -> Row:
    """Tune the kernels of one task and time the whole task without and with what was found.

    `trials` bounds the candidates per kernel, `seconds` the search of the task; `folder` takes the records.
    """
    with settings.tuning("off"), Watch() as watch:
        default = _job(name)
        default.call()
    tasks = tasks_of(watch.programs)
    records = folder / f"{name}.json"
    found = []
    with Measurer(current_target()) as measurer:
        explorer = Explorer(measurer, strategy(model, 0))
        for task, verdict in tune(tasks, explorer, records, trials=trials, seconds=seconds):
            say(f"{name}: {task.name}: {verdict.seconds / verdict.default_seconds:.2f} of the default's time")
            found.append(verdict)
    with settings.tuning(str(records)):
        tuned = _job(name)
        tuned.call()
        times = compare({"tuned": tuned.call, "default": default.call})
    ratio = times.ratio("default")
    return {
        "workload": name, "kernels": len(tasks), "searched": len(found),
        "candidates": sum(len(v.attempts) for v in found),
        "replaced": sum(v.timing is not None for v in found),
        "default_ms": 1e3 * times.measurements["default"].median,
        "tuned_ms": 1e3 * times.measurements["tuned"].median,
        "default_to_tuned": ratio.median, "low": ratio.low, "high": ratio.high,
    }  # fmt: skip


def _job(name: str) -> Job:
    if name in LECTURE:
        return stratal_compiled.function_job(LECTURE[name])
    return stratal_compiled.build(TASKS[name], "", Path())


def met(rows: list[Row]) -> bool:
    """Return whether no default is more than 10 % behind, with confidence."""
    return all(row["low"] <= BOUND for row in rows)


def text(rows: list[Row]) -> str:
    """Return the rows as text."""
    head = f"{'task':24}{'default ms':>12}{'tuned ms':>10}{'default / tuned':>17}  {'interval':14}  search"
    return "\n".join([head, *map(_line, rows)])


def _line(row: Row) -> str:
    interval = f"{row['low']:.2f} to {row['high']:.2f}"
    search = (
        f"{row['candidates']} candidates of {row['searched']} of {row['kernels']} kernels,"
        f" {row['replaced']} replaced"
    )
    times = f"{row['default_ms']:>12.4g}{row['tuned_ms']:>10.4g}{row['default_to_tuned']:>17.2f}"
    return f"{row['workload']:24}{times}  {interval:14}  {search}"
