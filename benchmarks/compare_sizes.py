"""A training step at three sizes by turns: does what is fast at the sizes of the tables stay fast at others?

With odd sizes a system should keep `KEEP` of the GFLOP/s; twice the batch (nodes and edges of the graph)
should take at most `TWICE` times as long, or `BEYOND` times what the roofline predicts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare import Entrant, Row, Say, enter, take_turns, warm
from benchmarks.process import Settings, WorkerError
from benchmarks.show import busy_lines
from benchmarks.sizes import task
from benchmarks.task import Task
from benchmarks.tasks import TRAINING
from benchmarks.work import F32

KEEP, TWICE, BEYOND = 0.70, 2.1, 1.05
FloorSeconds = Callable[[Task], float]


def measure(
    name: str, system: str, settings: Settings, folder: Path, floor_s: FloorSeconds, say: Say
) -> list[Row]:
    """Return a row for each size of a training step: GFLOP/s, the share kept, the ratio of times.

    A size that fails has its error in its row.
    """
    rows: list[Row] = []
    with ExitStack() as stack:
        entrants = []
        for size in (name, f"{name}+odd", f"{name}+twice"):
            row: Row = {"workload": size, "system": system}
            rows.append(row)
            try:
                entrants.append(enter(task(size), system, settings, folder / size, row, say))
            except WorkerError as error:
                row["error"] = str(error)
            else:
                stack.callback(entrants[-1].worker.close)
        take_turns(warm(entrants, say), settings.rounds, say)
    _judge([e for e in entrants if e.rounds_ms], floor_s)
    return rows


def _judge(entrants: list[Entrant], floor_s: FloorSeconds) -> None:
    """Add GFLOP/s, and what the other sizes are to the first where it ran."""
    for e in entrants:
        size = task(e.row["workload"])
        e.row["gflops"] = size.work.operations[F32] / e.row["median_ms"] / 1e6
        e.row["floor_ms"] = 1e3 * floor_s(size)
    base = next((e for e in entrants if "+" not in e.row["workload"]), None)
    for e in entrants if base else ():
        assert base is not None
        slower = statistics.median(x / y for x, y in zip(e.rounds_ms, base.rounds_ms, strict=False))
        more = [task(x.row["workload"]).work.operations[F32] for x in (e, base)]
        if e.row["workload"].endswith("+odd"):
            kept = more[0] / more[1] / slower
            e.row |= {"kept": kept, "gate": KEEP, "met": kept >= KEEP}
        elif e is not base:
            most = max(TWICE, BEYOND * e.row["floor_ms"] / base.row["floor_ms"])
            e.row |= {"slower": slower, "gate": most, "met": slower <= most}


def text(rows: list[Row]) -> str:
    """Return the rows of one training step as text."""
    return "\n".join([*map(_line, rows), *busy_lines(rows)])


def _line(row: Row) -> str:
    if "gflops" not in row:
        return f"  {row['workload']:16} {row['error']}"
    text = f"  {row['workload']:16}{row['median_ms']:>10.2f} ms{row['gflops']:>9.1f} GFLOP/s"
    if "kept" in row:
        text += f"   keeps {row['kept']:.0%} of them (gate {row['gate']:.0%})"
    if "slower" in row:
        text += f"   {row['slower']:.2f}x the time (gate {row['gate']:.2f})"
    return text + ("" if row.get("met", True) else "   MISSED")


NAMES = tuple(t.name for t in TRAINING)
