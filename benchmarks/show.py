"""Rows as text: a block per workload as it ends, and a summary of what Stratal reached."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.task import Task

Row = dict[str, Any]
BUSY = 0.05  # share of all cores at work for others from which times are in doubt


def block(task: Task, rows: list[Row]) -> str:
    """Return the systems of one workload, fastest first, then those that failed."""
    floor = rows[0].get("floor_ms")
    title = f"{task.name}: {task.title}" + (f"; floor {number(floor)} ms" if floor else "")
    timed = sorted((r for r in rows if "median_ms" in r), key=lambda r: float(r["median_ms"]))
    lines = [title, _HEADER] + [_line(row) for row in timed]
    lines += [f"  {row['system']:14} {row['error']}" for row in rows if "error" in row]
    return "\n".join([*lines, *busy_lines(rows)])


def busy_lines(rows: list[Row]) -> list[str]:
    """Return a warning where other processes took more than a little of the machine."""
    busy = max((row.get("others_busy", 0.0) for row in rows), default=0.0)
    if busy <= BUSY:
        return []
    return [f"  other processes took {busy:.0%} of the machine meanwhile: do not trust these times"]


_HEADER = (
    f"  {'system':14}{'median ms':>10}{'min ms':>10}{'to best peer':>14}{'to floor':>10}"
    f"{'first call s':>14}{'warm s':>8}{'peak MB':>9}{'import MB':>11}  agreement"
)


def _line(row: Row) -> str:
    ratio, floors = row.get("ratio_to_best_peer"), row.get("ratio_to_floor")
    return (
        f"  {row['system']:14}{number(row['median_ms']):>10}{number(row['min_ms']):>10}"
        f"{f'{ratio:.2f}' if ratio else '-':>14}{f'{floors:.1f}' if floors else '-':>10}"
        f"{row['first_call_s']:>14.2f}{row['warm_call_s']:>8.2f}{row['peak_rss_mb']:>9.0f}"
        f"{row['import_rss_mb']:>11.0f}  {_agreement(row)}"
    )


def _agreement(row: Row) -> str:
    if row["outputs_agree"] is None:
        return "nothing to compare with"
    verdict, difference = "agrees" if row["outputs_agree"] else "DIFFERS", row["outputs_difference"]
    far = "not a number" if difference is None else f"{difference:.0e}"
    return f"{verdict} with {row['compared_with']}: {far}"


def number(x: float) -> str:
    """Return three significant digits."""
    if x >= 100:
        return f"{x:.0f}"
    return f"{x:.{max(0, 2 - math.floor(math.log10(max(x, 1e-4))))}f}"


def summary(rows: list[Row]) -> str:
    """Return one line per workload that Stratal ran: ratio, gate, aim, first calls, memory, verdict.

    A `!` stands by a first call or a memory ratio that misses its gate.
    """
    lines = [
        f"{'workload':24}{'ratio':>7}{'gate':>7}{'aim':>7}{'to floor':>10}{'cold s':>9}{'warm s':>9}"
        f"{'memory':>9}  verdict"
    ]
    for row in rows:
        if row["system"] == "stratal" and "error" in row:
            lines.append(f"{row['workload']:24}  error: {row['error'].splitlines()[0][:80]}")
        elif row["system"] == "stratal":
            lines.append(_summary_line(row))
    return "\n".join(lines)


def _summary_line(row: Row) -> str:
    ratios = (row["ratio_to_best_peer"], row["gate"], row["aim"])
    verdict = "no peer" if row["ratio_to_best_peer"] is None else verdict_of(row)
    cells = [
        _gated(row.get("first_call_s"), row.get("first_call_gate_s")),
        _gated(row.get("warm_call_s"), row.get("warm_call_gate_s")),
        _gated(row.get("rss_ratio"), row.get("rss_gate")),
    ]
    return (
        f"{row['workload']:24}{''.join(f'{_plain(x, 2):>7}' for x in ratios)}"
        f"{_plain(row.get('ratio_to_floor'), 1):>10}{''.join(f'{cell:>9}' for cell in cells)}  {verdict}"
    )


def _plain(x: float | None, digits: int) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


def _gated(x: float | None, gate: float | None) -> str:
    return _plain(x, 2) + ("!" if x is not None and gate is not None and x > gate else " ")


def verdict_of(row: Row) -> str:
    """Return what the ratio means: how much slower or faster, and whether gate and aim are met."""
    ratio, gate, aim = row["ratio_to_best_peer"], row["gate"], row["aim"]
    against = row.get("best_peer") or "its peers"
    pace = f"{1 / ratio:.2f}x as fast as {against}" if ratio <= 1 else f"{ratio:.2f}x SLOWER than {against}"
    if gate is None:
        return pace
    if row.get("kernels", 0) < row.get("of_kernels", 0):
        return f"{pace}: {row['kernels']} of {row['of_kernels']} kernels were run"
    if aim is not None and ratio <= aim:
        return f"{pace}: aim met"
    return f"{pace}: gate {'met' if ratio <= gate else 'MISSED'}"
