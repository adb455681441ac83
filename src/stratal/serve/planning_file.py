"""A load to plan for, as a TOML file, and the plan for it.

[[model]]
name = "digits"
artefact = "digits.stratal"          # measured on this machine, or instead:
latency_ms = { 1 = 2.1, 8 = 4.0 }    # batch size = milliseconds
rate = 120                           # rows a second
sla_ms = 50
burst = 4                            # rows that arrive at once, on average; 1 where left out
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stratal.base.errors import AttributeValueError
from stratal.formats.artifact import FrozenModel
from stratal.formats.saved import load
from stratal.serve.measuring import measured_tables
from stratal.serve.planning import LatencyTable, Session, regime
from stratal.serve.planning_packing import GOAL, Packing, admit, pack
from stratal.serve.planning_simulator import Report, Traffic, simulate

_KEYS = {"name", "artefact", "latency_ms", "rate", "sla_ms", "burst"}
SIMULATED_ROWS = 8_000
MOST_ADDED = 8


class ServingPlan(NamedTuple):
    """How many workers a load needs: what packing says, and what the simulation then asked for."""

    workers: int
    packing: Packing
    report: Report
    added: int  # workers that the simulated traffic needed beyond the packing


def read_traffic(path: Path, rate: float | None = None, sla: float | None = None) -> list[Traffic]:
    """Return the traffic a file declares.

    `rate` (rows/s) scales the rates so that they add up to it, equal ones where the file has none; `sla`
    (seconds) is that of models without one. Raises: AttributeValueError naming what is missing or odd.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AttributeValueError(f"plan-serving: cannot read {path.name}", got=str(error)[:120]) from None
    rows = data.get("model")
    if set(data) != {"model"} or not isinstance(rows, list) or not rows:
        raise AttributeValueError(
            "plan-serving: the file is a list of [[model]]", got=", ".join(data) or "nothing"
        )
    found = [_traffic(row, path.parent, rate is not None, sla) for row in rows]
    names = [t.session.name for t in found]
    if len(set(names)) != len(names):
        raise AttributeValueError("plan-serving: two models have one name", got=", ".join(names)[:100])
    total = sum(t.session.rate for t in found)
    if rate is not None:
        found = [t._replace(session=_at_rate(t.session, t.session.rate * rate / total)) for t in found]
    return found


def _traffic(row: Any, folder: Path, rate_given: bool, sla: float | None) -> Traffic:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise AttributeValueError("plan-serving: every model has a name", got=repr(row)[:80])
    name = row["name"]
    if set(row) - _KEYS:
        unknown = sorted(set(row) - _KEYS)[0]
        raise AttributeValueError(
            f"plan-serving: {name} has an unknown key", got=unknown, hint=", ".join(_KEYS)
        )
    if ("artefact" in row) == ("latency_ms" in row):
        raise AttributeValueError(f"plan-serving: {name} has an artefact or latency_ms, one of both")
    rate = _number(row, "rate", 1.0 if rate_given else None)
    seconds = _number(row, "sla_ms", None if sla is None else sla * 1e3) / 1e3
    session = Session(name, _table(row, folder), rate, seconds)
    return Traffic(session, max(1.0, _number(row, "burst", 1.0)))


def _number(row: dict[str, Any], key: str, default: float | None) -> float:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise AttributeValueError(
            f"plan-serving: {row['name']} needs {key}, a number above 0", got=repr(value),
            hint="in the file, or as --rate or --sla for all",
        )  # fmt: skip
    return float(value)


def _table(row: dict[str, Any], folder: Path) -> LatencyTable:
    if "artefact" in row:
        model = load(folder / str(row["artefact"]))
        if not isinstance(model, FrozenModel) or not model.signature.batched:
            raise AttributeValueError(
                f"plan-serving: {row['name']} is no artefact with a batch axis", got=type(model).__name__
            )
        return measured_tables(model).high
    entries = row["latency_ms"]
    if not isinstance(entries, dict) or not all(k.isdecimal() for k in entries):
        raise AttributeValueError(f"plan-serving: latency_ms of {row['name']} maps sizes to milliseconds")
    return LatencyTable.of({int(k): _number({**row, k: v}, k, None) / 1e3 for k, v in entries.items()})


def _at_rate(session: Session, rate: float) -> Session:
    return Session(session.name, session.table, rate, session.sla)


def plan_serving(traffic: Sequence[Traffic], workers: int | None = None) -> ServingPlan:
    """Return the workers a load needs, by packing and then by simulating it.

    Where less than 99 % of the simulated rows are in time, workers are added until they are (at most 8).
    With `workers`, sessions are admitted in order as long as they fit onto so many.
    """
    sessions = [t.session for t in traffic]
    packing = pack(sessions) if workers is None else admit(sessions, workers)
    refused = {r.session.name for r in packing.refused}
    taken = [t for t in traffic if t.session.name not in refused]
    seconds = SIMULATED_ROWS / max(1e-9, sum(t.session.rate for t in taken))
    count = len(packing.workers)
    report = simulate(taken, count, seconds) if count else Report()
    added = 0
    while count and report.share_in_time < GOAL and added < MOST_ADDED and workers is None:
        added += 1
        report = simulate(taken, count + added, seconds)
    return ServingPlan(count + added, packing, report, added)


def to_json(traffic: Sequence[Traffic], plan: ServingPlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "workers": plan.workers,
        "added_by_simulation": plan.added,
        "models": [
            {"name": t.session.name, "rate": t.session.rate, "sla_ms": t.session.sla * 1e3, "burst": t.burst}
            | {"regime": regime(t.session)._asdict()}
            for t in traffic
        ],
        "packing": [
            {
                "occupancy": w.occupancy,
                "duty_cycle_ms": w.duty_cycle * 1e3,
                "models": [{"name": s.session.name, "batch": s.batch, "rate": s.rate} for s in w.shares],
            }
            for w in plan.packing.workers
        ],
        "refused": [{"name": r.session.name, "reason": r.reason} for r in plan.packing.refused],
        "simulated": {
            "offered": plan.report.offered,
            "in_time": plan.report.share_in_time,
            "rows_per_batch": plan.report.rows_per_batch,
        },
    }
