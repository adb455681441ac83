"""One task on several systems: first calls, agreement, and rounds in which the systems take turns.

The processes take turns within each round, in an order that rotates, so all meet the same state of a shared
machine; one that waits is blocked on its pipe. The ratio of two systems is the median of their ratios by
round.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.export import digest
from benchmarks.process import Settings, Worker, WorkerError, exported
from benchmarks.systems import SYSTEMS
from benchmarks.task import Table, Task
from benchmarks.tasks import TABLES, TASKS

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
Say = Callable[[str], None]

ROUND_S = 0.4  # of calls of one system in one round
MOST_CALLS = 1000
SETTLE_S = 0.15  # threads of the system that ran last spin on for up to 110 ms, on the cores of the next
NUM_LOSSES = 10  # of the first steps, which are compared
RSS_GATE = 0.7  # of the leanest peer's peak, in training
WARM_GATE_S = 0.3
OWN = "stratal"


@dataclass
class Entrant:
    """A system that runs the task, with what is known of it."""

    system: str
    worker: Worker
    row: Row
    losses: list[float] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    calls: int = 3
    rounds_ms: list[float] = field(default_factory=list)
    least_ms: float = math.inf
    cpu_s: float = 0.0  # of its process so far


def measure(task: Task, systems: Iterable[str], settings: Settings, folder: Path, say: Say) -> list[Row]:
    """Return one row per system; a system that fails has its error in its row."""
    rows: list[Row] = []
    with ExitStack() as stack:
        entrants = []
        for system in systems:
            row: Row = {"workload": task.name, "system": system}
            rows.append(row)
            try:
                entrant = enter(task, system, settings, folder, row, say)
            except WorkerError as error:
                row["error"] = str(error)
                row["unsupported"] = error.unsupported
                say(f"{task.name}: {system}: {error}")
                continue
            stack.callback(entrant.worker.close)
            entrants.append(entrant)
        entrants = warm(entrants, say)
        _agree(task, entrants)
        take_turns(entrants, settings.rounds, say)
    _compare(task, [e for e in entrants if e.rounds_ms])
    return rows


# -- before the rounds -----------------------------------------------------------------------------
def enter(task: Task, system: str, settings: Settings, folder: Path, row: Row, say: Say) -> Entrant:
    """Make the first call cold, choose the fastest variant, and return the process that is measured."""
    about = SYSTEMS[system]
    varies = task.images and task.suite in about.variant_suites
    variants = about.image_variants if varies else ("",)
    tried: dict[str, float] = {}
    for variant in variants:
        worker = _start(task, system, settings, folder, variant, say)
        say(f"{task.name}: {system} {variant}: first call")
        try:
            first = worker.ask("first")
            row.setdefault("first_calls", {})[variant] = _cold(
                worker, first["seconds"], settings, task, variant
            )
            if not about.caches and len(variants) == 1:
                return _measured(task, worker, first, variant, row)
            tried[variant] = min(worker.ask("calls 3")["times"]) if len(variants) > 1 else 0.0
        except BaseException:
            worker.close()
            raise
        worker.close()
    best = min(tried, key=lambda variant: tried[variant])
    worker = _start(task, system, settings, folder, best, say)
    say(f"{task.name}: {system} {best}: first call again, warm")
    try:
        return _measured(task, worker, worker.ask("first"), best, row)
    except BaseException:
        worker.close()
        raise


def _start(task: Task, system: str, settings: Settings, folder: Path, variant: str, say: Say) -> Worker:
    cache = _cache(system, task.name, variant, settings, folder)
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    model_file = exported(task, settings, say) if SYSTEMS[system].needs_export else Path()
    return Worker(system, task.name, settings, variant=variant, cache=cache, model_file=model_file)


def _cache(system: str, task: str, variant: str, settings: Settings, folder: Path) -> Path:
    """Return where a system keeps what it compiled: in the folder of this run, which starts empty, or for
    those slow to compile in one that stays.
    """
    if not SYSTEMS[system].slow_to_compile:
        return folder / f"{system}-{variant}"
    parts = (system, settings.versions.get(system, ""), task, variant, str(settings.threads), digest())
    return settings.keep / "-".join(filter(None, parts))


def _cold(worker: Worker, seconds: float, settings: Settings, task: Task, variant: str) -> float:
    """Return how long the first call took with an empty cache; of a cache that stays, as it was measured
    when the cache was empty.
    """
    if not SYSTEMS[worker.system].slow_to_compile:
        return seconds
    note = _cache(worker.system, task.name, variant, settings, Path()) / "first_call.json"
    if note.exists():
        return float(json.loads(note.read_text())["seconds"])
    note.write_text(json.dumps({"seconds": seconds}))
    return seconds


def _measured(task: Task, worker: Worker, first: dict[str, Any], variant: str, row: Row) -> Entrant:
    row |= {
        "variant": variant, "first_call_s": row.pop("first_calls")[variant], "warm_call_s": first["seconds"],
        "import_s": worker.facts["import_s"], "import_rss_mb": worker.facts["import_rss_mb"],
    }  # fmt: skip
    return Entrant(worker.system, worker, row, list(first["losses"]))


def warm(entrants: list[Entrant], say: Say) -> list[Entrant]:
    """Call each until it is warm and its outputs and first losses are known; return those that still live."""
    living = []
    for e in entrants:
        try:
            e.outputs = _outputs(e.worker)
            answer = e.worker.ask(f"calls {NUM_LOSSES - 1 if e.losses else 2}")
            e.losses += answer["losses"]
            e.calls = max(2, min(MOST_CALLS, int(ROUND_S / max(1e-6, min(answer["times"])))))
            e.row["peak_rss_mb"], e.cpu_s = answer["peak_rss_mb"], answer["cpu_s"]
        except WorkerError as error:
            e.row["error"] = str(error)
            say(f"{e.row['workload']}: {e.system}: {error}")
        else:
            living.append(e)
    return living


def _outputs(worker: Worker) -> list[Array]:
    with tempfile.TemporaryDirectory(prefix="outputs-") as folder:
        path = Path(folder) / "outputs.npz"
        worker.ask(f"outputs {path}")
        with np.load(path) as found:
            return [found[name] for name in found.files]


# -- agreement -------------------------------------------------------------------------------------
def _agree(task: Task, entrants: list[Entrant]) -> None:
    """Compare each with the first peer that ran (Stratal with it too); alone there is nothing to compare."""
    peers = [e for e in entrants if e.system != OWN]
    for e in entrants:
        others = [p for p in peers if p is not e] or [o for o in entrants if o is not e]
        if not others:
            e.row |= {"outputs_agree": None, "outputs_difference": None, "compared_with": None}
            continue
        difference = _difference(e, others[0])
        e.row |= {
            "outputs_agree": difference is not None and difference <= task.tolerance,
            "outputs_difference": difference, "compared_with": others[0].system, "tolerance": task.tolerance,
        }  # fmt: skip


def _difference(a: Entrant, b: Entrant) -> float | None:
    """Return the largest difference of the first losses, or of the results on the scale of the largest; None
    where there is no such number.
    """
    if a.losses and b.losses:
        pairs = list(zip(a.losses, b.losses, strict=False))[:NUM_LOSSES]
        differences = [abs(x - y) / max(abs(y), 1.0) for x, y in pairs]
    elif [x.shape for x in a.outputs] != [y.shape for y in b.outputs]:
        return None
    else:
        differences = [_relative(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)]
    worst = float(np.max(differences))  # NaN where one of them is
    return worst if math.isfinite(worst) else None


def _relative(x: Array, y: Array) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.abs(x - y).max(initial=0.0)) / max(float(np.abs(y).max(initial=0.0)), 1e-30)


# -- rounds and what they say ----------------------------------------------------------------------
def take_turns(entrants: list[Entrant], rounds: int, say: Say) -> None:
    """Time each in every round, and note what else the machine did meanwhile."""
    begin, own_s = cpu_seconds(), sum(e.cpu_s for e in entrants)
    _run_rounds(entrants, rounds, say)
    _note_others(entrants, begin, own_s)


def _run_rounds(entrants: list[Entrant], rounds: int, say: Say) -> None:
    for number in range(rounds):
        turn = entrants[number % len(entrants) :] + entrants[: number % len(entrants)] if entrants else []
        for e in turn:
            if "error" in e.row:
                continue
            time.sleep(SETTLE_S)
            try:
                answer = e.worker.ask(f"calls {e.calls}")
            except WorkerError as error:
                e.row["error"] = str(error)
                say(f"{e.row['workload']}: {e.system}: {error}")
                continue
            e.rounds_ms.append(1e3 * statistics.median(answer["times"]))
            e.least_ms = min(e.least_ms, 1e3 * min(answer["times"]))
            e.row["peak_rss_mb"], e.cpu_s = answer["peak_rss_mb"], answer["cpu_s"]
    for e in entrants:
        if e.rounds_ms:
            e.row |= {
                "median_ms": statistics.median(e.rounds_ms), "min_ms": e.least_ms,
                "rounds": len(e.rounds_ms), "calls_per_round": e.calls,
            }  # fmt: skip


def cpu_seconds() -> tuple[float, float] | None:
    """Return seconds of all cores so far, at work (what the hypervisor took included) and in all.

    None where the system does not say.
    """
    try:
        ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def _note_others(entrants: list[Entrant], begin: tuple[float, float] | None, own_s: float) -> None:
    """Add which share of all cores went to neither the entrants nor idleness while they took turns."""
    end = cpu_seconds()
    if begin is None or end is None or end[1] <= begin[1]:
        return
    others = (end[0] - begin[0]) - (sum(e.cpu_s for e in entrants) - own_s)
    for e in entrants:
        e.row["others_busy"] = round(max(0.0, others / (end[1] - begin[1])), 3)


def _compare(task: Task, entrants: list[Entrant]) -> None:
    peers = [e for e in entrants if e.system != OWN and "error" not in e.row]
    for e in entrants:
        e.row |= {"gate": task.gate, "aim": task.aim, "ratio_to_best_peer": None, "best_peer": None}
        others = [p for p in peers if p is not e]
        if not others:
            continue
        best = min(others, key=lambda p: p.row["median_ms"])
        e.row["best_peer"] = best.system
        pairs = zip(e.rounds_ms, best.rounds_ms, strict=False)
        e.row["ratio_to_best_peer"] = statistics.median(a / b for a, b in pairs)
        if e.system == OWN:
            e.row["met"] = None if task.gate is None else e.row["ratio_to_best_peer"] <= task.gate
            _compare_first_calls(task, e.row, [p.row for p in others])


def _compare_first_calls(task: Task, row: Row, peers: list[Row]) -> None:
    """Add the gates of first calls and of memory, which training steps have."""
    if task.cold_gate_s is not None:
        row |= {"first_call_gate_s": task.cold_gate_s, "warm_call_gate_s": WARM_GATE_S}
    if task.suite == "train":
        row["rss_ratio"] = row["peak_rss_mb"] / min(p["peak_rss_mb"] for p in peers)
        row["rss_gate"] = RSS_GATE


def table_rows(rows: list[Row]) -> list[Row]:
    """Return a row for each table of kernels that were measured: the geometric mean of Stratal's ratios."""
    return [row for table in TABLES if (row := _table_row(table, rows)) is not None]


def _table_row(table: Table, rows: list[Row]) -> Row | None:
    names = {task.name for task in TASKS.values() if task.table == table.name}
    own = [r for r in rows if r["system"] == OWN and r["workload"] in names]
    ratios = [r["ratio_to_best_peer"] for r in own if r.get("ratio_to_best_peer")]
    if not ratios:
        return None
    ratio = statistics.geometric_mean(ratios)
    return {
        "workload": f"{table.name} table", "system": OWN, "ratio_to_best_peer": ratio, "best_peer": None,
        "worst_ratio": max(ratios), "kernels": len(ratios), "of_kernels": len(names),
        "gate": table.gate, "aim": table.aim, "met": len(ratios) == len(names) and ratio <= table.gate,
    }  # fmt: skip
