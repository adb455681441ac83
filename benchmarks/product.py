"""Training and input as people call them, beside what they use today.

    fit      `Trainer.fit` over a loop by hand on the same compiled step, in one process: epochs take turns
    epochs   `Trainer.fit` over the fit of Keras (on PyTorch) and of Lightning: same net, weights and batches
    input    batches from Parquet, CSV, SQLite and pictures over PyTorch's DataLoader with pyarrow, pandas,
             sqlite3 and pillow, each in its quickest way: the same float32 batches, checked before

A row is `workload, system, ratio, gate, met`. Ratios are of medians of turns: of seconds in the first two,
where the gate is the most, and of rows per second of input, where it is the least; `bound` says which.
Systems have processes of their own. A peer that is not installed gets no row, and a line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import product_data, product_input, product_training
from benchmarks.process import FRAMEWORKS, ROOT, Process, WorkerError, interpreters
from benchmarks.systems import KEEP_FREED

PARTS: Final = ("fit", "epochs", "input")
FIT_GATES: Final = {"mlp": 1.03, "resnet18": 1.01}
PEERS: Final = (*FRAMEWORKS, "torch")
LOSSES_AGREE: Final = 1e-3  # relative, of the first epoch's mean
LATER_LOSSES_AGREE: Final = 0.05  # where roundings, and another epsilon in Keras's Adam, have grown;
OF_FIRST: Final = 0.1  # of this share of the first loss where a loss is smaller still
Row = dict[str, Any]


def row(workload: str, against: str, ratio: float, gate: float, bound: str, **more: Any) -> Row:
    """Return a row."""
    met = ratio <= gate if bound == "at most" else ratio >= gate
    return {"workload": workload, "system": "stratal", "against": against, "ratio": ratio, "gate": gate,
            "bound": bound, "met": met, **more}  # fmt: skip


class Run:
    """What holds for all parts."""

    def __init__(self, arguments: argparse.Namespace, pythons: dict[str, str], folder: Path) -> None:
        self.threads, self.smoke, self.folder = arguments.threads, arguments.smoke, folder
        self.rounds = 1 if self.smoke else arguments.rounds
        self.patience_s, self.pythons = arguments.patience, pythons
        self.size = product_data.SMOKE if self.smoke else product_data.FULL
        self.only = arguments.only.split(",")
        self.against = [] if arguments.against == "none" else arguments.against.split(",")

    def python(self, system: str) -> str:
        """Return the interpreter of a system."""
        own = sys.executable if system == "stratal" else self.pythons.get("peers", sys.executable)
        return self.pythons.get(system, own)

    def has(self, system: str) -> bool:
        """Return whether a peer is asked for and installed; say where it is not."""
        if system not in self.against:
            return False
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({system!r}) is None)"
        there = subprocess.run([self.python(system), "-c", code], cwd=ROOT, timeout=60).returncode == 0
        if not there:
            print(f"{system} is skipped: {self.python(system)} has no such package", flush=True)
        return there

    def process(self, system: str, part: str, *details: str) -> Process:
        """Start a system with a part."""
        threads = str(self.threads)
        environment = {
            "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "STRATAL_THREADS": threads,
            "STRATAL_CACHE_DIR": os.environ.get("STRATAL_CACHE_DIR", str(self.folder / "cache")),
            "KERAS_BACKEND": "torch", "KERAS_HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": "",
            **({} if system == "stratal" else KEEP_FREED),
        }  # fmt: skip
        command = [self.python(system), "-m", "benchmarks.product_worker", part, system, *details]
        command += ["--threads", threads, *(["--smoke"] if self.smoke else [])]
        return Process(command, environment, self.patience_s)

    def rows_of(self, net: str) -> int:
        """Return how many rows an epoch of a net has."""
        return product_training.SMOKE_ROWS if self.smoke else product_training.NETS[net].rows


def fit(run: Run) -> Iterator[Row]:
    """Yield what `fit` takes over a loop."""
    for net, gate in FIT_GATES.items():
        if run.smoke and net == "resnet18":
            continue  # compiles for half a minute
        with run.process("stratal", "train", net, str(run.rows_of(net))) as process:
            warm = process.ask("pair")
            found = [process.ask("pair") for _ in range(3 * run.rounds)]
        for fitted, looped in (answer["losses"] for answer in (warm, *found)):
            if fitted != looped:
                raise SystemExit(f"{net}: fit has the loss {fitted}, the loop {looped}")
        fitted, looped = (statistics.median(answer[k] for answer in found) for k in ("fit", "loop"))
        yield row(f"fit, {net}", "a loop by hand", fitted / looped, gate, "at most",
                  seconds=fitted, loop_seconds=looped)  # fmt: skip


def epochs(run: Run) -> Iterator[Row]:
    """Yield what an epoch takes beside each peer."""
    peers = [system for system in FRAMEWORKS if run.has(system)]
    for net in ("mlp", "cnn") if peers else ():
        with ExitStack() as stack:
            systems = {
                system: stack.enter_context(run.process(system, "train", net, str(run.rows_of(net))))
                for system in ("stratal", *peers)
            }
            found = turns({name: _asking(p, "pass") for name, p in systems.items()}, run.rounds)
        losses = {system: [answer["loss"] for answer in answers] for system, answers in found.items()}
        for system in peers:
            for k, (own, theirs) in enumerate(zip(losses["stratal"], losses[system], strict=True)):
                least = OF_FIRST * abs(losses[system][0])
                if abs(own - theirs) > (LATER_LOSSES_AGREE if k else LOSSES_AGREE) * max(abs(theirs), least):
                    raise SystemExit(f"{net}: losses {losses['stratal']}, {system}'s {losses[system]}")
            own_s, peer_s = (_seconds(found[name]) for name in ("stratal", system))
            yield row(f"epoch, {net}", system, own_s / peer_s, 1.0, "at most",
                      seconds=own_s, peer_seconds=peer_s)  # fmt: skip


def reading(run: Run) -> Iterator[Row]:
    """Yield how many rows a second come from files, over PyTorch's quickest way."""
    against = run.has("torch")
    for workload in run.only:
        systems = product_input.WAYS[workload]
        kind = product_input.kind_of(workload)
        if not (run.folder / product_data.FILES[kind]).exists():
            product_data.write(kind, run.folder, run.size)
        ways = {(s, way) for s, found in systems.items() if s == "stratal" or against for way in found}
        with ExitStack() as stack:
            processes = {
                (s, way): stack.enter_context(run.process(s, "input", workload, way, str(run.folder)))
                for s, way in sorted(ways)
            }
            digests = {way: process.ask("digest")["digest"] for way, process in processes.items()}
            if len(set(digests.values())) > 1:
                raise SystemExit(f"{workload}: batches differ: {digests}")
            found = turns({way: _asking(p, "pass") for way, p in processes.items()}, run.rounds)
        speeds = {way: answers[0]["rows"] / _seconds(answers) for way, answers in found.items()}
        own = max(speed for (system, _), speed in speeds.items() if system == "stratal")
        peers = {way: speed for (system, way), speed in speeds.items() if system != "stratal"}
        if peers:
            best = max(peers, key=lambda way: peers[way])
            cpu = {f"{s} {way}".strip(): _median(found[s, way], "cpu_s") for s, way in found}
            yield row(f"input, {workload}", f"torch, {best}", own / peers[best], 1.0, "at least",
                      rows_per_s=own, peers_rows_per_s=peers, cpu_s=cpu)  # fmt: skip


def _asking(process: Process, command: str) -> Callable[[], Any]:
    return lambda: process.ask(command)


def turns(runs: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[Any]]:
    """Return the answers of what takes turns, A B A B; the first round warms up, and is in no median."""
    found: dict[Any, list[Any]] = {name: [] for name in runs}
    for _ in range(1 + rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def _median(answers: Sequence[Any], what: str) -> float:
    """Return the median of a figure in the answers after the first."""
    return statistics.median(answer[what] for answer in answers[1:])


def _seconds(answers: Sequence[Any]) -> float:
    return _median(answers, "seconds")


RUNS: Final = {"fit": fit, "epochs": epochs, "input": reading}


def text(found: Row) -> str:
    """Return a row as a line."""
    figures = ", ".join(f"{k} {v:.4g}" for k, v in found.items() if k.endswith("seconds"))
    if "rows_per_s" in found:
        ways = "; ".join(f"{way} {speed:,.0f}" for way, speed in found["peers_rows_per_s"].items())
        cpu = ", ".join(f"{way} {seconds:.2f}" for way, seconds in found["cpu_s"].items())
        figures = f"{found['rows_per_s']:,.0f} rows/s; {ways}; processor seconds: {cpu}"
    verdict = "" if found["met"] else "  NOT MET"
    head = f"{found['workload']:24} {found['ratio']:7.3f}  {found['bound']} {found['gate']:g}"
    return f"{head:52} over {found['against']}: {figures}{verdict}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--part", default=",".join(PARTS), metavar="LIST", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--only", default=",".join(product_input.WAYS), metavar="LIST",
                        help=f"inputs, of {', '.join(product_input.WAYS)}")  # fmt: skip
    parser.add_argument("--against", default=",".join(PEERS), metavar="LIST",
                        help=f"none, or of {', '.join(PEERS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of turns (default: 5)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each system (default: 2)")
    parser.add_argument("--smoke", action="store_true", help="little data and one round: does it run?")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where data is written, and found again")
    parser.add_argument("--python", action="append", default=[], metavar="SYSTEM=PATH",
                        help="interpreter of a peer, or of all with peers=PATH; may be repeated")  # fmt: skip
    parser.add_argument("--patience", type=float, default=300.0, metavar="S",
                        help="seconds to wait for an answer, then give up (default: 300)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the parts; return 1 where a gate is not met, or a system failed."""
    parts = arguments.part.split(",")
    peers = [] if arguments.against == "none" else arguments.against.split(",")
    known = (*PARTS, *PEERS, *product_input.WAYS)
    if unknown := {*parts, *peers, *arguments.only.split(",")} - {*known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    pythons = interpreters(parser, arguments.python)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as made:
        folder = Path(made) if arguments.folder is None else arguments.folder
        settings = Run(arguments, pythons, folder.absolute())
        failed = False
        for part in parts:
            try:
                for found in RUNS[part](settings):
                    rows.append(found)
                    print(text(found), flush=True)
                    if arguments.json:
                        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            except WorkerError as error:
                failed = True
                print(f"{part}: {error}", flush=True)
    return 1 if failed or any(not r["met"] for r in rows) else 0
