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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import serving_load, serving_models
from benchmarks.serving_capacity import batching, mix, onnxruntime, tables_of
from benchmarks.serving_load import Server, serving
from benchmarks.serving_models import BATCH_SIZES, KINDS
from benchmarks.serving_rows import Row, Run, TimeIsUpError, cores, row
from stratal.serve.planning_latency import QUANTILE

WARM_BATCHES: Final = 5  # of each size, whose predictions do not count: tables are refined meanwhile


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
        stages = {"after_small_nets_MB": _second_worker(server)}
        serving_load.at_once(
            server, serving_load.infer_request(server, "resnet18"), 8, run.seconds
        )  # runs on both; what its batches compute with is private, whatever is shared of the weights
        yield row("second worker, MB", _second_worker(server), 10, "at most", models=len(run.names), **stages)
    run.check()
    pinned, _ = cores()
    with serving(run.folder, "--workers", "1", "--cores", pinned) as server:
        text = serving_load.infer_request(server, "digits")
        with on_cores(pinned.partition("/")[2]):  # beside the worker: the front end has its own
            rate, share = serving_load.at_once(server, text, 64, 2 * run.seconds)
        yield row("digits, 64 connections, requests/s", rate, 12_000, "at least", client_share=share)


def _second_worker(server: Server) -> float:
    return max(map(serving_load.private_bytes, server.workers[1:])) / 1e6


@contextlib.contextmanager
def on_cores(cores: str) -> Iterator[None]:
    """Run a block on some cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _beyond(kind: str, name: str, took: list[float], own: float, gate: float) -> Row:
    p50 = serving_load.median_ms(took)
    return row(f"{kind} overhead, {name}, ms", p50 - 1e3 * own, gate, "at most", p50_ms=p50, own_ms=1e3 * own)


# -- prediction ----------------------------------------------------------------------------------------------
def prediction(run: Run) -> Iterator[Row]:
    """Yield how far batches were from what the dispatcher predicted, beside a worker that is always busy.

    Medians are compared with medians: for each model and size the median of what was predicted before each
    batch, and of what the batches took. The high quantile, which is planned with, is compared with the same
    quantile of what was measured, and told beside. The round trip to the worker is part of all of them.
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
    far = sorted(errors.items(), key=lambda pair: -abs(pair[1].median))[:6]
    found, high = ([abs(getattr(e, which)) for e in errors.values()] for which in ("median", "high"))
    more = {
        "cells": len(errors),
        "furthest": {f"{name}, {size}": round(e.median, 3) for (name, size), e in far},
        "high_quantile": {
            "median_error": float(np.median(high)), "90 % error": float(np.quantile(high, 0.9)),
            "batches_within": float(np.mean([e.within for e in errors.values()])),
        },
    }  # fmt: skip
    yield row("prediction, median error", float(np.median(found)), 0.05, "at most", **more)
    yield row("prediction, 90 % error", float(np.quantile(found, 0.9)), 0.10, "at most", **more)


class Error(NamedTuple):
    """Predicted over measured less 1, by the medians and by the high quantiles; `within`: the share of
    batches that took no longer than the high quantile that was predicted of them."""

    median: float
    high: float
    within: float


def prediction_errors(seen: list[Any]) -> dict[tuple[str, int], Error]:
    """Return the errors by model and size."""
    batches: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for name, rows, typical, high, measured in seen:
        if rows in BATCH_SIZES:
            batches.setdefault((name, rows), []).append((typical, high, measured))
    errors = {}
    for key, times in batches.items():
        if len(times) > 2 * WARM_BATCHES:
            typical, high, measured = np.array(times[WARM_BATCHES:]).T
            errors[key] = Error(
                float(np.median(typical) / np.median(measured) - 1),
                float(np.median(high) / np.quantile(measured, QUANTILE) - 1),
                float(np.mean(measured <= high)),
            )
    return errors


def _neighbour(server: Server, text: bytes, stop: threading.Event) -> None:
    while not stop.is_set():
        serving_load.in_turn(server, text, 1, 60, warm=0)


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
