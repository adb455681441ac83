"""Training within memory budgets, beside the same step without one and beside PyTorch's ways to save memory.

Each workload trains at shares of the peak that our unconstrained plan needs. Our step without a budget and
our step within it take turns in one process; losses are equal to the bit. Within a budget states may wait in
a file, where the planner finds that quicker. PyTorch eager as it is and with `torch.utils.checkpoint` around
each block is measured in processes of their own, for their peak is that of the process beyond its start.

A row is `workload, system, ratio, gate, met`; ratios are of medians after warm-up. A budget that cannot be
kept gives a row without a ratio that says the least one. Rows "in parts" allow micro-batches, where sums over
the batch are added up in another order: there losses are equal to 1e-5.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.memory_models import MEMORY_WORKLOADS, blocks_of
from benchmarks.models import Workload

ROOT: Final = Path(__file__).parents[1]
SHARES: Final = {  # of the unconstrained peak: gates of the time
    "gpt": {0.6: 1.10, 0.4: 1.25}, "resnet18": {0.6: 1.10, 0.4: 1.25}, "unet": {0.6: 1.10, 0.4: 1.25},
    "llama": {0.6: 1.10, 0.4: 1.25}, "gpt48": {0.2: 1.33},
}  # fmt: skip
WITH_BATCH_NORM: Final = ("resnet18", "unet")  # whose batch is not split
PEERS: Final = ("torch", "torch_checkpoint")
WARM, TURNS, LIMIT_S = 3, 12, 60.0
Row = dict[str, Any]
Step = Callable[[], float]


def row(workload: str, ratio: float | None, gate: float | None, **more: Any) -> Row:
    """Return a row; without a gate it informs, without a ratio the budget could not be kept."""
    met = None if gate is None else ratio is not None and ratio <= gate
    return {"workload": workload, "system": "stratal", "ratio": ratio, "gate": gate, "met": met, **more}


def training(task: Workload, memory: int | None, in_parts: bool = False) -> tuple[Any, Step]:
    """Return a compiled training step of ours and what runs it once on data that is always the same."""
    import stratal as st
    from stratal import nn, optim

    st.manual_seed(0)
    model = task.build(nn)
    opt = task.optimizer(optim, list(model.parameters()))
    x, y = (st.tensor(a) for a in task.data(np.random.default_rng(0)))

    @st.compile(memory=memory, micro_batches=in_parts, audit=False)
    def step(x: Any, y: Any) -> Any:
        loss = task.loss(nn, model, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step, lambda: float(step(x, y))


def ours(name: str) -> list[Row]:
    """Return the rows of one workload's budgets."""
    from stratal.base.errors import DoesNotFit

    task = MEMORY_WORKLOADS[name]
    begun = time.perf_counter()
    free, run_free = training(task, None)
    losses = [run_free()]
    cold_s = time.perf_counter() - begun
    peak = free.plan.planned_peak_bytes
    rows = [row(f"{name}, no budget", 1.0, None, peak_mb=peak / 1e6, cold_seconds=cold_s)]
    for (share, gate), in_parts in itertools.product(SHARES[name].items(), (False, True)):
        if in_parts and name in WITH_BATCH_NORM:
            continue
        title = f"{name}, {share:.0%} of its peak" + (", in parts" if in_parts else "")
        begun = time.perf_counter()
        step, run = training(task, int(share * peak), in_parts)
        try:
            found = [run()]
        except DoesNotFit as error:
            least = error.least_bytes / peak
            rows.append(row(title, None, gate, why=f"the least budget is {least:.1%} of the peak"))
            continue
        cold = (time.perf_counter() - begun) / cold_s
        seconds = turns([run_free, run], [losses, found])
        tolerance = 1e-5 if in_parts else 0.0
        if any(abs(a - b) > tolerance * abs(a) for a, b in zip(losses, found, strict=False)):
            raise SystemExit(f"{title}: other losses than without a budget")
        planned = step.plan.planned_peak_bytes
        estimate = step.plan.estimated_seconds / free.plan.estimated_seconds
        more = {"peak_mb": planned / 1e6, "estimate": estimate}
        if parts := [d.choice for d in step.program.log if d.subject == "micro-batches"]:
            more["why"] = f", {parts[0]}"
        if moved := step.plan.memory.get("offloaded_bytes"):
            more["offloaded_mb"] = moved / 1e6
        rows.append(row(title, seconds[1] / seconds[0], gate, ms=1e3 * seconds[1], **more))
        rows.append(row(f"{title}, cold compile", cold, None))
        del step, run
    return rows


def turns(runs: list[Step], losses: list[list[float]]) -> list[float]:
    """Return the median seconds of steps that take turns."""
    took: list[list[float]] = [[] for _ in runs]
    begun = time.perf_counter()
    for turn in range(WARM + TURNS):
        for run, times, found in zip(runs, took, losses, strict=True):
            start = time.perf_counter()
            found.append(run())
            times.append(time.perf_counter() - start)
        if turn > WARM and time.perf_counter() - begun > LIMIT_S:
            break
    return [statistics.median(times[WARM:]) for times in took]


def peer(system: str, name: str, threads: int) -> dict[str, float]:
    """Return the median seconds of a step of PyTorch's, and the bytes the process takes beyond its start."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    task = MEMORY_WORKLOADS[name]
    x, y = (torch.from_numpy(np.ascontiguousarray(a)) for a in task.data(np.random.default_rng(0)))
    before = resident_bytes("VmRSS")
    model = task.build(torch.nn)
    if system == "torch_checkpoint":
        for block in blocks_of(name, model):
            block.forward = _checkpointed(checkpoint, block.forward)
    opt = task.optimizer(torch.optim, list(model.parameters()))

    def run() -> float:
        loss = task.loss(torch.nn, model, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return float(loss.detach())

    (seconds,) = turns([run], [[]])
    return {"ms": 1e3 * seconds, "peak_mb": (resident_bytes("VmHWM") - before) / 1e6}


def _checkpointed(checkpoint: Any, forward: Any) -> Any:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def resident_bytes(which: str) -> int:
    """Return a figure of this process's memory, VmRSS or VmHWM. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(which + ":"))


def apart(part: str, system: str, threads: int) -> Any:
    """Return what a new process with an empty cache finds."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        command = [sys.executable, "-m", "benchmarks", "memory", "--here", f"{system}:{part}"]
        environment = {**os.environ, "STRATAL_CACHE_DIR": cache, "STRATAL_THREADS": str(threads)}
        environment["STRATAL_OFFLOAD_DIR"] = cache
        command += ["--threads", str(threads)]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def beside_peers(rows: Iterable[Row], found: dict[str, dict[str, float]]) -> list[Row]:
    """Return, for each budget that was kept, its time over that of the peer's best setting for that peak."""
    made = []
    for ours_row in rows:
        if ours_row["ratio"] is None or "ms" not in ours_row:
            continue
        fits = {s: f for s, f in found.items() if f["peak_mb"] <= ours_row["peak_mb"]}
        best = min(fits.values() or found.values(), key=lambda f: f["ms"])
        note = {} if fits else {"note": "no setting of PyTorch's has so small a peak"}
        ratio = ours_row["ms"] / best["ms"]
        made.append(row(f"{ours_row['workload']}, beside PyTorch", ratio, 1.0, peer_ms=best["ms"],
                        peer_peak_mb=best["peak_mb"], **note))  # fmt: skip
    return made


def text(found: Row) -> str:
    """Return a row as a line."""
    figures = {k: v for k, v in found.items() if k.endswith(("ms", "_mb", "seconds", "estimate"))}
    said = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
    said += found.get("why", "") + (f" ({found['note']})" if "note" in found else "")
    ratio = "      -" if found["ratio"] is None else f"{found['ratio']:7.3f}"
    gate = "" if found["gate"] is None else f"at most {found['gate']:g}"
    verdict = "  NOT MET" if found["met"] is False else ""
    return f"{found['workload']:44} {ratio}  {gate:12} {said}{verdict}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--only", default=",".join(SHARES), metavar="LIST", help=f"of {', '.join(SHARES)}")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each system (default: 2)")
    parser.add_argument("--against", default=",".join(PEERS), metavar="LIST",
                        help=f"none, or of {', '.join(PEERS)}")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--here", metavar="PART", help=argparse.SUPPRESS)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the workloads; return 1 where a gate is not met."""
    if arguments.here:
        system, _, name = arguments.here.partition(":")
        found = ours(name) if system == "stratal" else peer(system, name, arguments.threads)
        print(json.dumps(found))
        return 0
    chosen = arguments.only.split(",")
    peers = [] if arguments.against == "none" else arguments.against.split(",")
    if unknown := {*chosen, *peers} - {*SHARES, *PEERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join((*SHARES, *PEERS))}")
    rows: list[Row] = []
    for name in chosen:
        found = apart(name, "stratal", arguments.threads)
        found += beside_peers(found, {s: apart(name, s, arguments.threads) for s in peers}) if peers else []
        rows += found
        print("\n".join(map(text, found)), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if any(r["met"] is False for r in rows) else 0
