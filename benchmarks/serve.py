"""The server under load on this machine, client beside it: a row is `workload, system, ratio, gate, met`.

A ratio is over another system's figure, or a figure in the unit that the workload names; `bound` says whether
the gate is the most or the least. Client and server share the cores: with two, the client and the front end
have the first, and one worker the second. Loads of the mix are open loop, and latency counts from when a
request was due (`stratal.serve.loadtest`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import serving_load, serving_models, serving_onnx
from benchmarks.serving_load import Offered, Server, serving
from benchmarks.serving_models import BATCH_SIZES, KINDS
from stratal.serve.planning import LatencyTable, Session
from stratal.serve.planning_packing import pack

Row = dict[str, Any]
Rates = dict[str, float]
GOAL: Final = 0.99  # of all requests, in time
LEAST_SLA: Final = 0.025  # seconds: the system hands a busy core over in slices of 4 ms
REQUEST: Final = 0.002  # seconds that a request counts at least, so that small models do not make up the load
CLIENT_SHARE: Final = 0.25  # of the closed loop's rate: the open loop's client takes more than the front end
WARM_BATCHES: Final = 5  # of each size, whose predictions do not count: tables are refined meanwhile
WARM: Final = 0.3  # of a rate, for a trial that does not count: caches and tables of latency settle
BEYOND: Final = 1.5  # times the rate of the baseline, where SLAs are one


class TimeIsUpError(Exception):
    """A part has used its time."""


@dataclass(frozen=True)
class Run:
    """Where the models of a part are, and nothing else; how long a trial takes, and when the part ends."""

    folder: Path
    names: tuple[str, ...]
    seconds: float
    ends: float  # of the monotonic clock
    say: Callable[[str], None]

    def check(self) -> None:
        if time.monotonic() > self.ends:
            raise TimeIsUpError


def row(workload: str, ratio: float | None, gate: float, bound: str, **more: Any) -> Row:
    """Return a row; `bound` is "at most" or "at least", and without a ratio nothing was measured."""
    met = None if ratio is None else bool(ratio <= gate if bound == "at most" else ratio >= gate)
    return {"workload": workload, "system": "stratal", "ratio": ratio, "gate": gate, "met": met,
            "bound": bound, **more}  # fmt: skip


def cores() -> tuple[str, int]:
    """Return the cores of front end and workers as `serving_server` takes them, and the number of workers."""
    available = sorted(os.sched_getaffinity(0))
    front, *back = available
    return f"{front}/{','.join(map(str, back or [front]))}", max(1, len(back))


# -- overhead ------------------------------------------------------------------------------------------------
def overhead(run: Run) -> Iterator[Row]:
    """Yield what a request takes beyond its model, the highest rate of a small net, and a worker's memory."""
    own = serving_load.own_seconds(run.folder, run.names)
    grpc = importlib.util.find_spec("grpc") is not None
    with serving(run.folder, "--workers", "2", *(["--grpc"] if grpc else [])) as server:
        for name in run.names[:2]:
            text = serving_load.infer_request(server, name)
            yield _beyond("HTTP", name, serving_load.in_turn(server, text, 4000, run.seconds), own[name], 0.3)
            run.check()
            if grpc:
                took = serving_load.grpc_in_turn(server, name, 4000, run.seconds)
                yield _beyond("gRPC", name, took, own[name], 0.6)
                run.check()
        text = serving_load.infer_request(server, "digits")
        rate, share = serving_load.at_once(server, text, 64, 2 * run.seconds)
        yield row("digits, 64 connections, requests/s", rate, 12_000, "at least", client_share=share)
        serving_load.at_once(
            server, serving_load.infer_request(server, "resnet18"), 8, run.seconds
        )  # runs on both
        used = max(map(serving_load.private_bytes, server.workers[1:])) / 1e6
        yield row("second worker, MB", used, 10, "at most", models=len(run.names))


def _beyond(kind: str, name: str, took: list[float], own: float, gate: float) -> Row:
    p50 = serving_load.median_ms(took)
    return row(f"{kind} overhead, {name}, ms", p50 - 1e3 * own, gate, "at most", p50_ms=p50, own_ms=1e3 * own)


# -- prediction ----------------------------------------------------------------------------------------------
def prediction(run: Run) -> Iterator[Row]:
    """Yield how far batches were from what the dispatcher predicted, beside a worker that is always busy.

    A prediction is a high quantile; it is compared with that quantile of what was measured. The round trip
    to the worker is part of both.
    """
    record = run.folder.parent / "batches.json"
    with serving(run.folder, "--workers", "2", "--record", str(record)) as server:
        os.kill(server.pid, signal.SIGUSR1)
        stop = threading.Event()
        slowest = max(run.names, key=lambda name: tables_of(server)[name].seconds[0])
        text = serving_load.infer_request(server, slowest, 3)
        busy = threading.Thread(target=_neighbour, args=(server, text, stop), daemon=True)
        busy.start()
        try:
            for name in run.names:
                for size in BATCH_SIZES:
                    run.check()
                    text = serving_load.infer_request(server, name, size)
                    serving_load.in_turn(server, text, 60, run.seconds, warm=0)
        finally:
            stop.set()
            busy.join(60)
    errors = prediction_errors(json.loads(record.read_text()))
    far = sorted(errors.items(), key=lambda pair: -abs(pair[1][0]))[:6]
    more = {
        "cells": len(errors),
        "furthest": {f"{name}, {size}": round(e, 3) for (name, size), (e, _) in far},
        "median_error_of_p50": float(np.median([abs(e) for _, e in errors.values()])),
    }
    found = [abs(e) for e, _ in errors.values()]
    yield row("prediction, median error", float(np.median(found)), 0.05, "at most", **more)
    yield row("prediction, 90 % error", float(np.quantile(found, 0.9)), 0.10, "at most", **more)


def prediction_errors(seen: list[Any]) -> dict[tuple[str, int], tuple[float, float]]:
    """Return, by model and size, predicted over measured less 1: by the 90 % quantile, and by the median."""
    batches: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for name, rows, predicted, measured in seen:
        if rows in BATCH_SIZES:
            batches.setdefault((name, rows), []).append((predicted, measured))
    errors = {}
    for key, pairs in batches.items():
        if len(pairs) > 2 * WARM_BATCHES:
            predicted, measured = np.array(pairs[WARM_BATCHES:]).T
            believed = np.median(predicted)
            errors[key] = (believed / np.quantile(measured, 0.9) - 1, believed / np.median(measured) - 1)
    return errors


def _neighbour(server: Server, text: bytes, stop: threading.Event) -> None:
    while not stop.is_set():
        serving_load.in_turn(server, text, 1, 60, warm=0)


# -- the mix -------------------------------------------------------------------------------------------------
def shares_of(tables: Mapping[str, LatencyTable]) -> Rates:
    """Return rates of the models, so that each is about as much work; their sum is 1."""
    parts = {name: 1 / (table.seconds[0] + REQUEST) for name, table in tables.items()}
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def grown(shares: Rates, total: float) -> Rates:
    """Return the rates of a total."""
    return {name: share * total for name, share in shares.items()}


def planned_rate(tables: Mapping[str, LatencyTable], shares: Rates, slas: Rates, workers: int) -> float:
    """Return the highest total rate whose packing needs no more than so many workers."""
    low, high = 0.0, 1e5
    for _ in range(30):
        middle = (low + high) / 2
        rates = grown(shares, middle)
        packing = pack([Session(n, tables[n], rates[n], slas[n]) for n in tables])
        fits = not packing.refused and len(packing.workers) <= workers
        low, high = (middle, high) if fits else (low, middle)
    return low


def front_end_rate(server: Server, run: Run) -> float:
    """Return what front end and open-loop client do, requests/s: a plan is of workers alone."""
    quickest = min(run.names, key=lambda name: tables_of(server)[name].seconds[0])
    text = serving_load.infer_request(server, quickest)
    return CLIENT_SHARE * serving_load.at_once(server, text, 16, run.seconds).a_second


def tables_of(server: Server) -> dict[str, LatencyTable]:
    """Return what a server believes of its models."""
    return {
        m["name"]: LatencyTable.of({int(n): ms / 1e3 for n, ms in m["latency_ms"].items()})
        for m in server.status()["models"]
    }


def highest_rate(trial: Callable[[float], Offered], start: float, run: Run) -> tuple[float, Offered | None]:
    """Return the highest total rate with `GOAL` of all in time, within some 5 %, and what became of it."""
    low, high, best, total = 0.0, 0.0, None, start
    trial(WARM * start)
    while not high or high > 1.05 * low:
        run.check()
        found = trial(total)
        run.say(f"  {total:.0f}/s offered, {found.share:.1%} in time")
        if found.share >= GOAL:
            low, best = total, found
            total = (low * high) ** 0.5 if high else 1.4 * total
        else:
            high = total
            total = (low * high) ** 0.5 if low else total / 1.6
            if total < 1:
                return 0.0, None
    return low, best


def mix(run: Run) -> Iterator[Row]:
    """Yield the share in time at the planned rate, and what is left of the capacity at twice the load."""
    own = serving_load.own_seconds(run.folder, run.names)
    slas = _loose(own)
    pinned, workers = cores()
    with serving(run.folder, "--workers", str(workers), "--cores", pinned) as server:
        server.take("planned", slas)
        tables = tables_of(server)
        shares = shares_of(tables)
        planned, front = planned_rate(tables, shares, slas, workers), front_end_rate(server, run)
        run.say(
            f"planned: {planned:.0f}/s on {workers} workers; the front end and this client do {front:.0f}/s"
        )
        planned = min(planned, front)

        def trial(total: float, burst: float = 1.0) -> Offered:
            return serving_load.offer(server, grown(shares, total), slas, run.seconds, burst)

        trial(WARM * planned)
        for name, burst in (("Poisson", 1.0), ("bursts of 4", 4.0)):
            found = trial(planned, burst)
            yield row(
                f"mix at the planned rate, {name}", found.share, GOAL, "at least", **_of(found, planned)
            )
            run.check()
        capacity, _ = highest_rate(trial, 1.2 * planned, run)
        found = trial(2 * capacity)
        more = _of(found, 2 * capacity) | {"capacity": capacity}
        left = found.goodput / capacity if capacity else None
        yield row("mix at twice the capacity, goodput", left, 0.9, "at least", **more)
        admitted = found.admitted_share if capacity else None
        yield row("mix at twice the capacity, admitted in time", admitted, GOAL, "at least", **more)


def _loose(own: Rates) -> Rates:
    return {name: max(2 * LEAST_SLA, 10 * seconds) for name, seconds in own.items()}


def _of(found: Offered, total: float) -> Row:
    late = sorted(found.of_model.items(), key=lambda pair: pair[1][1] / max(1, pair[1][0]))[:3]
    return {
        "rate": total, "offered": found.offered, "refused": found.refused, "in_time": found.in_time,
        "client": "on the cores of the server",
        "lowest": {name: round(n / max(1, offered), 3) for name, (offered, n) in late},
    }  # fmt: skip


# -- batching ------------------------------------------------------------------------------------------------
def _tight(own: Rates) -> Rates:
    return {name: max(LEAST_SLA, 5 * seconds) for name, seconds in own.items()}


def _two(own: Rates) -> Rates:
    slas = {name: 0.04 if k % 2 else 0.3 for k, name in enumerate(own)}
    return {name: max(sla, 5 * own[name]) for name, sla in slas.items()}


def _one(own: Rates) -> Rates:
    return dict.fromkeys(own, max(0.1, 5 * max(own.values())))


CASES: Final[dict[str, tuple[Callable[[Rates], Rates], float | None]]] = {  # SLAs; gate over the shared queue
    "SLA 5 times the latency": (_tight, None),
    "SLAs differ": (_two, 1.4),
    "one SLA": (_one, 1.0),
}


def batching(run: Run) -> Iterator[Row]:
    """Yield the rate at 99 % in the SLA over that of greedy batchers, behind the same server."""
    own = serving_load.own_seconds(run.folder, run.names)
    pinned, workers = cores()
    with contextlib.ExitStack() as servers:  # both run from here on; the one that is not asked is idle
        few, many = (
            servers.enter_context(serving(run.folder, "--workers", str(count), "--cores", pinned))
            for count in (workers, len(run.names))
        )
        shares = shares_of(tables_of(few))
        for case, (slas_of, shared_gate) in CASES.items():
            slas = slas_of(own)
            rates: Rates = {}
            share_beyond: Rates = {}
            for policy, server in (("shared", few), ("per_model", many), ("planned", few)):
                run.check()
                run.say(f"{case}: {policy}")
                server.take(policy, slas)

                def trial(total: float, server: Server = server, slas: Rates = slas) -> Offered:
                    return serving_load.offer(server, grown(shares, total), slas, run.seconds)

                rates[policy], _ = highest_rate(trial, rates.get("shared") or 150.0, run)
                if case == "one SLA" and policy != "per_model":
                    share_beyond[policy] = trial(BEYOND * rates["shared"]).share
            yield _over(f"{case}, over a batcher for each model", rates, "per_model", 1.5)
            if shared_gate is not None:
                yield _over(f"{case}, over a shared greedy queue", rates, "shared", shared_gate)
            if share_beyond:
                ratio = share_beyond["planned"] / max(1e-3, share_beyond["shared"])
                name = f"{case}, in time at {BEYOND:g} times the load"
                yield row(name, ratio, 3.0, "at least", **share_beyond)


def _over(workload: str, rates: dict[str, float], baseline: str, gate: float) -> Row:
    more = {"rates": rates, "baseline": f"{baseline}, behind the same server", "client": "on its cores"}
    if not rates[baseline]:
        more["note"] = "the baseline keeps the SLA at no rate"
    ratio = rates["planned"] / rates[baseline] if rates[baseline] else None
    return row(workload, ratio, gate, "at least", **more)


# -- onnxruntime ---------------------------------------------------------------------------------------------
def onnxruntime(run: Run) -> Iterator[Row]:
    """Yield the rate of the mix at 99 % in the SLA over that with onnxruntime's sessions as models.

    Server, queue, SLAs, shares of the models and cores are the same; both answer the same to fresh rows.
    """
    name = "rate over onnxruntime, same server"
    if missing := serving_onnx.missing():
        yield row(name, None, 1.2, "at least", note=f"not run: {', '.join(missing)} not installed")
        return
    command = [sys.executable, "-m", "benchmarks.serving_onnx", "export", str(run.folder), *run.names]
    subprocess.run(command, cwd=serving_load.ROOT, timeout=serving_load.PATIENCE, check=True)
    slas = _loose(serving_load.own_seconds(run.folder, run.names))
    pinned, workers = cores()
    options = ["--workers", str(workers), "--cores", pinned]
    rates: Rates = {}
    ms: dict[str, Rates] = {}
    with contextlib.ExitStack() as servers:
        there = {
            backend: servers.enter_context(serving(run.folder, *options, "--backend", backend))
            for backend in ("onnxruntime", "stratal")
        }
        for model in run.names:
            x = KINDS[model].rows(3, seed=7)
            ours, theirs = (there[b].outputs(model, x) for b in ("stratal", "onnxruntime"))
            serving_models.difference(f"{model}, served, beside onnxruntime", ours, theirs)
        shares = shares_of(tables_of(there["stratal"]))
        for backend, server in there.items():
            run.check()
            run.say(f"the mix by {backend}")
            server.take("planned", slas)
            ms[backend] = {n: 1e3 * table.seconds[0] for n, table in tables_of(server).items()}

            def trial(total: float, server: Server = server) -> Offered:
                return serving_load.offer(server, grown(shares, total), slas, run.seconds)

            rates[backend], _ = highest_rate(trial, max(rates.values(), default=150.0) or 150.0, run)
    ratio = rates["stratal"] / rates["onnxruntime"] if rates["onnxruntime"] else None
    yield row(name, ratio, 1.2, "at least", rates=rates, row_ms=ms, client="on its cores")


# -- the command ---------------------------------------------------------------------------------------------
OVERHEAD: Final = ("digits", "mlp", "resnet18")
PARTS: Final[dict[str, Callable[[Run], Iterator[Row]]]] = {
    "overhead": overhead, "prediction": prediction, "mix": mix, "batching": batching,
    "onnxruntime": onnxruntime,
}  # fmt: skip
WEIGHTS: Final = {"overhead": 1, "prediction": 3, "mix": 2, "batching": 6, "onnxruntime": 3}  # of the time


def measured(part: str, artefacts: Path, names: Sequence[str], seconds: float, limit: float) -> list[Row]:
    """Return the rows of a part; where its time is up, the last one says so."""
    rows: list[Row] = []
    names = OVERHEAD if part == "overhead" else tuple(names)
    with tempfile.TemporaryDirectory(prefix=f"{part}-", dir=artefacts) as scratch:
        folder = Path(scratch) / "models"
        folder.mkdir()
        for name in names:
            os.link(artefacts / f"{name}.stratal", folder / f"{name}.stratal")
        run = Run(folder, names, seconds, time.monotonic() + limit, say)
        return _measured(part, run, rows)


def say(line: str) -> None:
    print(line, flush=True)


def _measured(part: str, run: Run, rows: list[Row]) -> list[Row]:
    try:
        for found in PARTS[part](run):
            rows.append(found)
            print(text(found), flush=True)
    except TimeIsUpError:
        rows.append({"workload": part, "system": "stratal", "ratio": None, "gate": None, "met": None,
                     "note": "the rest was not run: its time was up"})  # fmt: skip
        print(text(rows[-1]), flush=True)
    return rows


def text(found: Row) -> str:
    """Return a row as a line."""
    ratio = "" if found["ratio"] is None else f"{found['ratio']:.4g}"
    gate = "" if found["gate"] is None else f"{found['bound']} {found['gate']:g}"
    verdict = {True: "", False: "  missed", None: f"  {found.get('note', 'not measured')}"}[found["met"]]
    return f"{found['workload']:52} {ratio:>10}  {gate:16}{verdict}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument(
        "--limit", type=float, default=1140.0, metavar="S", help="of all parts together (default: 1140)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of a trial (default: 5)")
    parser.add_argument(
        "--only", default=",".join(KINDS), metavar="LIST", help="only these models of the mix"
    )
    parser.add_argument("--models", type=Path, metavar="DIR", help="keep the frozen models there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the parts; return 1 where a gate is missed."""
    for package in ("starlette", "uvicorn", "httptools", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"the server needs {package}: pip install 'stratal[serve]'")

    names = arguments.only.split(",")
    if unknown := set(names) - set(KINDS):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    begun = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-serve-") as scratch:
        artefacts = arguments.models or Path(scratch)
        wanted = {*names, *OVERHEAD} - {path.stem for path in artefacts.glob("*.stratal")}
        serving_models.save(artefacts, sorted(wanted), say)
        say("comparing saved models with their modules")
        serving_models.check(artefacts, sorted({*names, *OVERHEAD}))
        ends = begun + arguments.limit
        parts = list(arguments.part or PARTS)
        for k, part in enumerate(parts):
            share = WEIGHTS[part] / sum(WEIGHTS[p] for p in parts[k:])  # of what the parts before left
            rows += measured(part, artefacts, names, arguments.seconds, share * (ends - time.monotonic()))
            say(f"{part} took until {time.monotonic() - begun:.0f} s")
            if arguments.json:
                arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if any(r["met"] is False for r in rows) else 0
