"""Several ranks beside one, beside PyTorch's and MPI's: training, all-reduces, servers, slow links.

    training      GPT 6x384 and ResNet-18, one global batch: two ranks with a thread each, one rank with two,
                  PyTorch's DistributedDataParallel over gloo; and two ranks that send nothing, the most that
                  hidden communication can reach
    allreduce     sums over two ranks in place, beside MPI's own Allreduce, 1 KB to 64 MB
    bookkeeping   steps with the ledger and the hashes of collectives, and without
    servers       a ring beside a parameter server, 2, 3 and 4 ranks; bytes equal the formulas
    slow          a link of 1 Gbit/s (`tc tbf` in a network of its own): what is hidden, what buckets save

Systems take turns, and must compute the same. A row is `workload, system, ratio, gate, met`; `gate_is` says
whether a ratio is at most or at least the gate; None stands for a row without one, `why` for a part that was
not run. Each part has a process of its own, and a limit of time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

import numpy as np

from benchmarks.models import WORKLOADS
from benchmarks.parallel_groups import GROUPS, RANKS, ROOT, Groups, end, start
from benchmarks.parallel_training import ALONE, PEER, SILENT, STRATEGIES
from stratal.distributed.launcher import find_mpirun, mpirun_command
from stratal.distributed.links import Link, estimate_ns, traffic

LIMIT_S: Final = 600.0
TURNS: Final = 12
TRAINED: Final = {  # title, gate, steps a turn
    "gpt": ("GPT 6x384", 0.94, 2), "resnet18": ("ResNet-18", 0.90, 4),
}  # fmt: skip
BESIDE_DDP, WARM_TURNS = 2.0, 2
SLOW: Final = "tc qdisc add dev lo root tbf rate 1gbit burst 128kb latency 50ms"
NETWORK: Final = f"ip link set lo up && ip link set lo mtu 9000 && {SLOW}"
Row = dict[str, Any]


def row(workload: str, ratio: float | None, gate: float | None, at_least: bool = False, **more: Any) -> Row:
    """Return a row; without a gate it informs, without a ratio it was not measured."""
    met = None
    if ratio is not None and gate is not None:
        met = ratio >= gate if at_least else ratio <= gate
    return {"workload": workload, "system": "stratal", "ratio": ratio, "gate": gate,
            "gate_is": "at least" if at_least else "at most", "met": met, **more}  # fmt: skip


def on_ranks(part: str, ranks: int, turns: int, limit_s: float, wrapped: Sequence[str] = (),
             command: Sequence[str] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """Return what rank 0 of some ranks printed of one part. Raises: RuntimeError; TimeoutError."""
    script = [sys.executable, "-m", "benchmarks.parallel_ranks", part, str(turns)]
    process = start([*wrapped, *(command or mpirun_command(ranks, script))], 1, stdout=subprocess.PIPE)
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{part} on {ranks} ranks did not end within {limit_s:g} s") from None
    finally:
        end(process)
    lines = out.splitlines()
    if process.returncode or not lines:
        raise RuntimeError(f"{part} on {ranks} ranks ended with {process.returncode}")
    found: list[dict[str, Any]] = json.loads(lines[-1])
    return found


# -- training ------------------------------------------------------------------------------------------------
def training(turns: int, limit_s: float) -> list[Row]:
    """Return samples per second of two ranks over those of one rank, and over PyTorch's."""
    rows = []
    for name in TRAINED:
        with tempfile.TemporaryDirectory(prefix="parallel-") as folder:
            rows += _trained(name, turns, Path(folder), limit_s / len(TRAINED))
    return rows


def _trained(name: str, turns: int, folder: Path, limit_s: float) -> list[Row]:
    title, gate, steps = TRAINED[name]
    seconds: dict[str, list[float]] = {group: [] for group in GROUPS}
    losses: dict[str, list[float]] = {group: [] for group in GROUPS}
    with Groups(name, folder, limit_s) as groups:
        for _ in range(WARM_TURNS + turns):
            for group in GROUPS:
                taken, found = groups.turn(group, steps)
                seconds[group].append(taken / steps)
                losses[group] += found
    # Ranks that send nothing learn something else. Batch norm of each rank's part is another function than
    # that of the whole batch.
    together = [PEER, *STRATEGIES] + ([ALONE] if name == "gpt" else [])
    first = WARM_TURNS * steps  # later ones differ as rounding grows
    wanted = losses[together[0]][:first]
    for group in together[1:]:
        np.testing.assert_allclose(losses[group][:first], wanted, rtol=5e-3, err_msg=group)
    medians = {group: statistics.median(times[WARM_TURNS:]) for group, times in seconds.items()}
    size = len(WORKLOADS[name].data(np.random.default_rng(0))[0])
    rates = {group: size / median for group, median in medians.items()}
    best = max(STRATEGIES, key=lambda group: rates[group])
    more = {f"{group}_per_s": rate for group, rate in rates.items()}
    return [
        row(f"{title}, no communication beside one", rates[SILENT] / rates[ALONE], None),
        *(row(f"{title}, {group} beside one", rates[group] / rates[ALONE], None) for group in STRATEGIES),
        row(f"{title}, two ranks beside one", rates[best] / rates[ALONE], gate, True, strategy=best, **more),
        row(f"{title}, two ranks beside DDP", rates[best] / rates[PEER], BESIDE_DDP, True, strategy=best),
    ]


# -- the others ----------------------------------------------------------------------------------------------
def allreduce(turns: int, limit_s: float) -> list[Row]:
    """Return the time of our all-reduce over MPI's, by size; algorithms are chosen by measured links."""
    _measure_links([sys.executable, "-m"], limit_s, "-n", str(RANKS))
    rows = []
    for found in on_ranks("allreduce", RANKS, turns, limit_s):
        nbytes = found["nbytes"]
        gate = 1.1 if nbytes < 64 << 10 else 0.5 if nbytes >= 64 << 20 else 1.0
        name = f"all-reduce, {nbytes >> 10} KB" if nbytes < 1 << 20 else f"all-reduce, {nbytes >> 20} MB"
        rows.append(row(name, found["ours_us"] / found["mpi_us"], gate, **found))
    return rows


def bookkeeping(turns: int, limit_s: float) -> list[Row]:
    """Return the time of a step with the ledger and hashes over one without."""
    (found,) = on_ranks("bookkeeping", RANKS, 4 * turns, limit_s)
    return [row("ledger and hashes, MLP batch 128", found["on_ms"] / found["off_ms"], 1.01, **found)]


def servers(turns: int, limit_s: float) -> list[Row]:
    """Return counted bytes over the formulas', which must be equal, and a ring's time over a server's."""
    rows, link = [], Link()
    for ranks in (2, 3, 4):
        (ring,) = on_ranks("ring", ranks, turns, limit_s / 6)
        (served,) = on_ranks("servers", ranks, turns, limit_s / 6)
        nbytes, workers = ring["nbytes"], ranks - 1
        sent = ranks * traffic("all_reduce", "ring", nbytes, ranks).bytes * ring["steps"]
        pushed = 2 * nbytes * workers * served["steps"]
        for kind, found, formula, predicted in (
            ("ring, 2M(N-1)K", ring, sent, estimate_ns("all_reduce", "ring", nbytes, ranks, link)),
            (f"parameter server, 2M{workers}K", served, pushed,
             2 * link.alpha_ns + 2 * workers * nbytes * link.beta_ns),
        ):  # fmt: skip
            more = {"formula_bytes": int(formula), "predicted_ms": predicted / 1e6, **found}
            made = row(f"{ranks} ranks, {kind}", found["sent_bytes"] / formula, 1.0, **more)
            rows.append({**made, "gate_is": "exactly", "met": found["sent_bytes"] == formula})
        rows.append(row(f"{ranks} ranks, time of a ring over a server's", ring["ms"] / served["ms"], None))
    return rows


def slow(turns: int, limit_s: float) -> list[Row]:
    """Return what is hidden of the communication over a slow link, and what buckets save."""
    gates = {"slow link, hidden of what fits": 0.9, "slow link, buckets beside tensors": 1.3}
    if why := _cannot_slow():
        return [row(name, None, gate, True, why=why) for name, gate in gates.items()]
    options = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo",
               "--mca", "accelerator", "null", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none",
               "--map-by", ":OVERSUBSCRIBE"]  # fmt: skip
    ranks = [find_mpirun(), "-n", str(RANKS), *options, sys.executable, "-m"]
    inside = ["unshare", "-Urn", "sh", "-c", f'{NETWORK} && exec "$@"', "sh"]
    _measure_links([*inside, *ranks], limit_s)
    script = [*ranks, "benchmarks.parallel_ranks", "slow", str(turns)]
    (found,) = on_ranks("slow", RANKS, turns, limit_s, inside, script)
    hidden_ms = found["silent_ms"] + found["sending_ms"] - found["bucketed_ms"]
    # The last gradients are there when backward ends: what is left of them then, nothing can hide.
    fits_ms = found["sending_ms"] - found["unhidden_ms"]
    values = (hidden_ms / fits_ms, found["single_ms"] / found["bucketed_ms"])
    pairs = zip(gates.items(), values, strict=True)
    return [
        row("slow link, hidden of all", hidden_ms / found["sending_ms"], None),
        *(row(name, value, gate, True, **found) for (name, gate), value in pairs),
    ]


def _measure_links(python: Sequence[str], limit_s: float, *more: str) -> None:
    """Measure what messages cost, for those that come after; `python` ends with its `-m`."""
    doctor = start([*python, "stratal", "doctor", "--cluster", *more], 1, stdout=DEVNULL)
    try:
        doctor.wait(limit_s)
    finally:
        end(doctor)


def _cannot_slow() -> str:
    """Return why links cannot be slowed here, nothing where they can."""
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"not run: there is no {', '.join(missing)}"
    trial = ["unshare", "-Urn", "sh", "-c", NETWORK]
    tried = subprocess.run(trial, capture_output=True, text=True, timeout=20, check=False)
    said = (tried.stderr.strip().splitlines() or ["it failed"])[-1]
    return f"not run: tc tbf in a network of its own is not permitted ({said})" if tried.returncode else ""


PARTS: Final[dict[str, Callable[[int, float], list[Row]]]] = {
    f.__name__: f for f in (training, allreduce, bookkeeping, servers, slow)
}


# -- the command ---------------------------------------------------------------------------------------------
def _apart(part: str, turns: int, limit_s: float) -> list[Row]:
    """Return the rows of one part, measured in a new process with an empty cache; one row where it failed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        command = [sys.executable, "-m", "benchmarks", "parallel", "--here", part, "--turns", str(turns),
                   "--limit", str(limit_s)]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "STRATAL_CACHE_DIR": cache}, stdout=subprocess.PIPE,
            text=True, process_group=0,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit_s + 20)
            failed = f"ended with status {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            out, failed = "", f"did not end within {limit_s:g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if failed:
            return [{**row(part, None, None), "met": False, "why": f"{part} {failed}"}]
        found: list[Row] = json.loads(out.splitlines()[-1])
        return found


def text(found: Row) -> str:
    """Return a row as a line."""
    if found["ratio"] is None:
        return f"{found['workload']:44}       -  {found['why']}"
    figures = {k: v for k, v in found.items() if k.endswith(("_ms", "_us", "_per_s")) or k == "ms"}
    times = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
    gate = "" if found["gate"] is None else f"{found['gate_is']} {found['gate']:g}"
    verdict = "  NOT MET" if found["met"] is False else ""
    return f"{found['workload']:44} {found['ratio']:7.3f}  {gate:14} {times}{verdict}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--part", default=",".join(PARTS), metavar="LIST", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"of each system ({TURNS})")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S",
                        help=f"seconds of one part ({LIMIT_S:g})")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--here", metavar="PART", help=argparse.SUPPRESS)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the parts; return 1 where a gate is not met."""
    if arguments.here:
        print(json.dumps(PARTS[arguments.here](arguments.turns, arguments.limit)))
        return 0
    chosen = arguments.part.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in chosen:
        found = _apart(part, arguments.turns, arguments.limit)
        rows += found
        print("\n".join(map(text, found)), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if any(r["met"] is False for r in rows) else 0
