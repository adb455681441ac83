"""Parts of the serving benchmarks that load the mix: rates within SLAs by plan, greedy, by onnxruntime."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from benchmarks import serving_load, serving_models, serving_onnx
from benchmarks.serving_load import Offered, Server, serving
from benchmarks.serving_models import KINDS
from benchmarks.serving_rows import Rates, Row, Run, cores, row
from stratal.serve.planning import LatencyTable, Session
from stratal.serve.planning_file import plan_serving
from stratal.serve.planning_packing import pack_onto
from stratal.serve.planning_simulator import Traffic

GOAL: Final = 0.99  # of all requests, in time
LEAST_SLA: Final = 0.025  # seconds: the system hands a busy core over in slices of 4 ms
REQUEST: Final = 0.002  # seconds that a request counts at least, so that small models do not make up the load
CLIENT_SHARE: Final = 0.25  # of the closed loop's rate: the open loop's client takes more than the front end
WARM: Final = 0.3  # of a rate, for a trial that does not count: caches and tables of latency settle
LIKELY: Final = 0.6  # below what batchers reach with loose SLAs, above what they reach with tight ones
FAR: Final = 0.8  # in time: no stall makes a trial of seconds miss by so much
BEYOND: Final = 1.5  # times the rate of the baseline, where SLAs are one


# -- the mix -------------------------------------------------------------------------------------------------
def shares_of(tables: Mapping[str, LatencyTable]) -> Rates:
    """Return rates of the models, so that each is about as much work; their sum is 1."""
    parts = {name: 1 / (table.seconds[0] + REQUEST) for name, table in tables.items()}
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def grown(shares: Rates, total: float) -> Rates:
    """Return the rates of a total."""
    return {name: share * total for name, share in shares.items()}


def likely_rate(tables: Mapping[str, LatencyTable], shares: Rates, workers: int) -> float:
    """Return a total rate to begin a search at: `LIKELY` of what so many workers do row by row."""
    return LIKELY * workers / sum(share * tables[name].seconds[0] for name, share in shares.items())


def planned_rate(
    tables: Mapping[str, LatencyTable], shares: Rates, slas: Rates, workers: int, burst: float = 1.0
) -> float:
    """Return the highest total rate for which `stratal plan-serving` needs no more than so many workers.

    That is by packing, and then less, as long as less than `GOAL` of it is in time in the simulation.
    """
    low, high = 0.0, 1e5
    for _ in range(30):
        middle = (low + high) / 2
        rates = grown(shares, middle)
        packing = pack_onto([Session(n, tables[n], rates[n], slas[n]) for n in tables], workers)
        fits = not packing.refused and len(packing.workers) <= workers
        low, high = (middle, high) if fits else (low, middle)
    while low > 1:
        rates = grown(shares, low)
        sessions = [Session(n, tables[n], rates[n], slas[n]) for n in tables]
        plan = plan_serving([Traffic(session, burst) for session in sessions], workers)
        if not plan.packing.refused and plan.report.share_in_time >= GOAL:
            break
        low *= 0.95
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
        if FAR < found.share < GOAL:  # a stall of the machine is no limit: what misses, misses twice
            found = max(found, trial(total), key=lambda tried: tried.share)
        run.say(f"  {total:.0f}/s offered, {found.share:.1%} in time; client {found.lag * 1e3:.1f} ms late")
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
        front = front_end_rate(server, run)
        run.say(f"{workers} workers; the front end and this client do {front:.0f}/s")

        def trial(total: float, burst: float = 1.0) -> Offered:
            return serving_load.offer(server, grown(shares, total), slas, run.seconds, burst)

        rates = {b: min(front, planned_rate(tables, shares, slas, workers, b)) for b in (4.0, 1.0)}
        trial(WARM * rates[1.0])
        for burst, planned in rates.items():
            found = trial(planned, burst)
            name = f"bursts of {burst:g}" if burst > 1 else "Poisson"
            more = _of(found, planned)
            yield row(f"mix at the planned rate, {name}", found.share, GOAL, "at least", **more)
            run.check()
        capacity, _ = highest_rate(trial, 1.2 * rates[1.0], run)
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
        "client": "on the cores of the server", "client_lag_p99_ms": 1e3 * found.lag,
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
        shares = shares_of(tables := tables_of(few))
        likely = likely_rate(tables, shares, workers)
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

                rates[policy], _ = highest_rate(trial, rates.get("shared") or likely, run)
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
        shares = shares_of(tables := tables_of(there["stratal"]))
        likely = likely_rate(tables, shares, workers)
        for backend, server in there.items():
            run.check()
            run.say(f"the mix by {backend}")
            server.take("planned", slas)
            ms[backend] = {n: 1e3 * table.seconds[0] for n, table in tables_of(server).items()}

            def trial(total: float, server: Server = server) -> Offered:
                return serving_load.offer(server, grown(shares, total), slas, run.seconds)

            rates[backend], _ = highest_rate(trial, rates.get("onnxruntime") or likely, run)
    ratio = rates["stratal"] / rates["onnxruntime"] if rates["onnxruntime"] else None
    yield row(name, ratio, 1.2, "at least", rates=rates, row_ms=ms, client="on its cores")
