"""Random contractions and convolutions: are they right, and how long do they take beside the best peer?

Stratal's kernels are compiled first, by as many processes as there are threads, and their results compared
with NumPy's in float64. Then the systems take turns, case by case. A case counts where Stratal or its best
peer needs `LEAST_S`; one that looks slow is timed twice more, and its middle ratio counts.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case, num_products
from benchmarks.compare import OWN, SETTLE_S, Say
from benchmarks.process import Settings, Worker, WorkerError
from benchmarks.reference import fault
from benchmarks.systems import SYSTEMS
from benchmarks.worker import CASES

Row = dict[str, Any]

LEAST_S = 20e-6
SLOW = 1.5  # a ratio that is looked at again
AGAIN = 2
ROUND_S = 4e-3  # of calls of one system in one round
WARM_CALLS = 3  # after that pause, not counted
BOUNDS = {0.95: 1.2, 0.99: 1.5}  # of the ratio, by share of the cases
WORST = 10


def check(cases: list[Case], settings: Settings, cache: Path, say: Say) -> list[Row]:
    """Compile every case and compare its result with the reference; return a row for each."""
    parts = [cases[k :: settings.threads] for k in range(settings.threads)]
    with ThreadPoolExecutor(settings.threads) as pool:
        rows = [row for part in pool.map(lambda part: _checked(part, settings, cache), parts) for row in part]
    for row in rows:
        if row["fault"]:
            say(f"{row['group']} {row['dtype']} {row['what']}: {row['fault']}")
    return sorted(rows, key=lambda row: int(row["number"]))


def _checked(cases: list[Case], settings: Settings, cache: Path) -> list[Row]:
    rows = []
    with Worker(OWN, CASES, settings, variant="", cache=cache) as worker:
        for case in cases:
            faults = [_fault(worker, case, variant) for variant in variants(OWN, case)]
            wrong = "; ".join(filter(None, faults))
            rows.append({
                "number": case.number, "group": case.group, "dtype": case.dtype, "what": str(case),
                "products": num_products(case), "fault": wrong, "case": case.to_json(),
            })  # fmt: skip
    return rows


def _build(worker: Worker, case: Case, variant: str) -> Row:
    return worker.ask(f"case {variant} {json.dumps(case.to_json())}")


def variants(system: str, case: Case) -> tuple[str, ...]:
    """Return the forms in which a system is given a case: images in either memory format."""
    return ("",) if case.spec else SYSTEMS[system].image_variants


def _fault(worker: Worker, case: Case, variant: str) -> str:
    """Return what is wrong with the case in one form; empty where nothing is."""
    answer = _build(worker, case, variant)
    if "seconds" not in answer:
        return str(answer.get("fault") or answer["unsupported"])
    with tempfile.TemporaryDirectory(prefix="outputs-") as folder:
        path = Path(folder) / "outputs.npz"
        worker.ask(f"outputs {path}")
        with np.load(path) as found:
            return fault(case, found[found.files[0]])


# -- timing ------------------------------------------------------------------------------------------------
class Turns:
    """One process per system, kept for all cases."""

    def __init__(self, systems: Iterable[str], settings: Settings, cache: Path, stack: ExitStack) -> None:
        self.settings = settings
        self.workers = {
            s: stack.enter_context(Worker(s, CASES, settings, variant="", cache=_cache(s, settings, cache)))
            for s in systems
        }

    def time(self, case: Case) -> Row:
        """Return the times of each system that has the case, in milliseconds, and the ratio to the best."""
        calls = {}
        for system in self.workers:
            seconds = self._prepare(system, case)
            if seconds is not None:
                calls[system] = max(2, min(100, int(ROUND_S / max(1e-7, seconds))))
        rounds: dict[str, list[float]] = {system: [] for system in calls}
        for number in range(self.settings.rounds):
            order = list(calls)
            for system in [*order[number % len(order) :], *order[: number % len(order)]]:
                rounds[system].append(1e3 * self._median(system, calls[system]))
        return _ratio(rounds)

    def _prepare(self, system: str, case: Case) -> float | None:
        """Build the case in its fastest variant; return the seconds of a call, None where there is no way."""
        found: dict[str, float] = {}
        forms = variants(system, case)
        for variant in forms:
            answer = _build(self.workers[system], case, variant)
            if "seconds" in answer:
                found[variant] = self._median(system, 5)
        if not found:
            return None
        best = min(found, key=lambda variant: found[variant])
        if best != forms[-1]:
            _build(self.workers[system], case, best)
        return found[best]

    def _median(self, system: str, calls: int) -> float:
        """Return the seconds of a call once the cores are free."""
        time.sleep(SETTLE_S)
        times = self.workers[system].ask(f"calls {calls + WARM_CALLS}")["times"]
        return statistics.median(times[WARM_CALLS:])


def _cache(system: str, settings: Settings, cache: Path) -> Path:
    """Return where a system keeps what it compiled; peers keep it between runs."""
    name = f"random-{system}-{settings.versions.get(system, '')}"
    folder = cache if system == OWN else settings.keep / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _ratio(rounds: dict[str, list[float]]) -> Row:
    medians = {system: statistics.median(times) for system, times in rounds.items()}
    peers = [system for system in medians if system != OWN]
    if OWN not in medians or not peers:
        return {"ms": medians, "best_peer": None, "ratio": None}
    best = min(peers, key=lambda system: medians[system])
    pairs = zip(rounds[OWN], rounds[best], strict=True)
    return {"ms": medians, "best_peer": best, "ratio": statistics.median(a / b for a, b in pairs)}


def measure(rows: list[Row], systems: list[str], settings: Settings, cache: Path, say: Say) -> None:
    """Add times and ratios to the rows of cases that are timed and right."""
    with ExitStack() as stack:
        turns = Turns(systems, settings, cache, stack)
        for row in rows:
            case = Case.from_json(row["case"])
            if not case.timed or row["fault"]:
                continue
            try:
                _measure(row, case, turns)
            except WorkerError as error:
                row["fault"] = str(error)
                say(f"{row['what']}: {error}")
                return


def _measure(row: Row, case: Case, turns: Turns) -> None:
    row |= turns.time(case)
    if counts(row) and row["ratio"] > SLOW:
        again = sorted([row, *(turns.time(case) for _ in range(AGAIN))], key=lambda r: float(r["ratio"]))
        row |= {key: again[len(again) // 2][key] for key in ("ms", "best_peer", "ratio")}


def counts(row: Row) -> bool:
    """Return whether a row was timed, long enough to say something."""
    if row.get("ratio") is None:
        return False
    return bool(max(row["ms"][OWN], row["ms"][row["best_peer"]]) >= 1e3 * LEAST_S)


# -- what it says ------------------------------------------------------------------------------------------
def quantile(values: list[float], share: float) -> float:
    """Return the least value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]


def met(rows: list[Row]) -> bool:
    """Return whether every result is right and the ratios keep their bounds."""
    ratios = [row["ratio"] for row in rows if counts(row)]
    kept = all(quantile(ratios, share) <= most for share, most in BOUNDS.items()) if ratios else True
    return kept and not any(row["fault"] for row in rows)


def text(rows: list[Row]) -> str:
    """Return the distribution of the ratios, by group too, and the worst cases."""
    wrong = [row for row in rows if row["fault"]]
    lines = [f"{len(rows)} cases, {len(rows) - len(wrong)} right"]
    lines += [f"  WRONG {row['group']} {row['dtype']} {row['what']}: {row['fault']}" for row in wrong]
    timed = [row for row in rows if counts(row)]
    if not timed:
        return "\n".join(lines)
    lines.append(f"{len(timed)} timed, of {LEAST_S * 1e6:.0f} us or more; time / best peer's")
    names = ("p50", "p90", "p95", "p99", "max")
    lines.append(f"  {'group':22}{'cases':>6}" + "".join(f"{name:>8}" for name in names))
    groups: dict[str, list[float]] = {}
    for row in timed:
        for name in ("all", row["group"] + (" bf16" if row["dtype"] == "bfloat16" else "")):
            groups.setdefault(name, []).append(row["ratio"])
    for name, ratios in groups.items():
        values = [*(quantile(ratios, share) for share in (0.5, 0.9, 0.95, 0.99)), max(ratios)]
        lines.append(f"  {name:22}{len(ratios):>6}" + "".join(f"{v:>8.2f}" for v in values))
    bounds = ", ".join(f"p{100 * share:.0f} <= {most}" for share, most in BOUNDS.items())
    lines.append(f"  bounds {bounds}: {'kept' if met(rows) else 'MISSED'}; the worst:")
    worst = sorted(timed, key=lambda row: -row["ratio"])[:WORST]
    return "\n".join([*lines, *map(_line, worst)])


def _line(row: Row) -> str:
    own, peer = row["ms"][OWN], row["ms"][row["best_peer"]]
    speed = 2e-6 * row["products"] / own
    return (f"  {row['ratio']:>6.2f}  {own:.3f} ms, {row['best_peer']} {peer:.3f} ms, {speed:.1f} GFLOP/s  "
            f"[{row['number']}] {row['group']}, {row['dtype']}: {row['what']}")  # fmt: skip
