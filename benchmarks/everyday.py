"""What people do before they compile anything, beside PyTorch eager: calls, data sets, whole steps, texts.

Systems take turns in one process and must compute the same; each part has a process of its own with an empty
cache. A row is `workload, system, ratio, gate, met`; ratios are of medians after warm-up, of seconds where
the workload is called cold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.everyday_steps import AVERAGES, FAMILIES, Turn, beside
from benchmarks.small_models import MODELS, training

ROOT = Path(__file__).parents[1]
PARTS: Final = ("calls", "data", "models", "families", "averages", "generate")
WARM, MODEL_TURNS, FAMILY_TURNS, CALL_TURNS = 8, 40, 40, 30
STEPS, TOKENS, PROMPT, DROPPED = 4_000, 200, 3, 0.1
IMAGES, BATCH = 2_000, 64
Row = dict[str, Any]
Pair = Sequence[Callable[[], Any]]


def row(workload: str, ratio: float, gate: float | None, **more: Any) -> Row:
    """Return a row; without a gate it is part of another one."""
    met = None if gate is None else ratio <= gate
    return {"workload": workload, "system": "stratal", "ratio": ratio, "gate": gate, "met": met, **more}


def medians(pair: Pair, turns: int, each: int = 1) -> list[float]:
    """Return the median seconds of two that take turns, of `each` calls a turn."""
    took: list[list[float]] = [[], []]
    for _ in range(turns):
        for times, run in zip(took, pair, strict=True):
            begun = time.perf_counter()
            for _ in range(each):
                run()
            times.append((time.perf_counter() - begun) / each)
    return [statistics.median(times) for times in took]


def _compared(name: str, pair: Pair, turns: int, gate: float | None, each: int = 1) -> Row:
    ours, theirs = medians(pair, turns, each)
    return row(name, ours / theirs, gate, ours_ms=1e3 * ours, torch_ms=1e3 * theirs)


# -- calls ---------------------------------------------------------------------------------------------------
INDEXED: Final[dict[str, Callable[[Any, Any, int], Any]]] = {  # of the library, rows, and which turn it is
    "X[i]": lambda t, x, k: x[k % 64],
    "X[i:j]": lambda t, x, k: x[k % 32 : k % 32 + 16],
    "X[:, i]": lambda t, x, k: x[:, k % 16],
    "stack 64": lambda t, x, k: t.stack(list(x)),
    "roll": lambda t, x, k: t.roll(x, k % 5, 0),
}  # fmt: skip


def calls(threads: int) -> list[Row]:
    """Return the ratios of plain calls on 1,000 elements, of every public function PyTorch has, too; and of
    indices that differ from call to call.
    """
    import torch

    import stratal as st
    from benchmarks import compare_surface

    found = compare_surface.measure(compare_surface.chosen((), ()), [1000], threads, 0.02, lambda _: None)
    ratios = sorted(r["ours"] / r["torch"] for r in found if "torch" in r and not r.get("view"))
    far = sorted(((r["ours"] / r["torch"], r["name"]) for r in found if "torch" in r), reverse=True)[:12]
    slow = ratios[int(0.95 * len(ratios))]
    rows = [
        row("plain calls, median", statistics.median(ratios), 2.0, functions=len(ratios)),
        row("plain calls, 95th percentile", slow, 5.0, slowest={name: ratio for ratio, name in far}),
    ]
    data = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
    for name, call in INDEXED.items():
        pair = [_indexed(library, call, library.tensor(data)) for library in (st, torch)]
        np.testing.assert_array_equal(*[run().numpy() for run in pair])
        medians(pair, 4, 50)
        rows.append(_compared(name, pair, CALL_TURNS, 3.0, each=100))
    return rows


def _indexed(library: Any, call: Callable[[Any, Any, int], Any], x: Any) -> Callable[[], Any]:
    turn = count(1)
    return lambda: call(library, x, next(turn))


# -- data sets -----------------------------------------------------------------------------------------------
class Images:
    """A data set of tensors in memory, with or without random changes."""

    def __init__(self, library: Any, changed: bool) -> None:
        rng = np.random.default_rng(0)
        self.library, self.changed, self.random = library, changed, random.Random(0)
        self.x = library.tensor(rng.random((IMAGES, 1, 28, 28)).astype(np.float32))
        self.y = library.tensor(rng.integers(0, 10, IMAGES))

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        x = self.x[i]
        if self.changed:
            if self.random.random() < 0.5:
                x = self.library.flip(x, [2])
            x = self.library.roll(x, tuple(self.random.randrange(-2, 3) for _ in range(2)), (1, 2))
        return x, self.y[i]


def data() -> list[Row]:
    """Return the ratios of epochs over data sets, of batches by each library's loader."""
    import torch
    from torch.utils.data import DataLoader as Theirs

    import stratal as st
    from stratal.data import DataLoader as Ours

    rows = []
    for changed in (False, True):
        made = [(Images(st, changed), Ours), (Images(torch, changed), Theirs)]
        pair = [_epoch(loader(images, batch_size=BATCH)) for images, loader in made]
        sums = [run() for run in pair]
        np.testing.assert_allclose(*sums, rtol=1e-4)
        name = "data set, with flip and roll" if changed else "data set"
        rows.append(_compared(name, pair, 7, 3.0))
    return rows


def _epoch(batches: Iterable[Any]) -> Callable[[], float]:
    return lambda: sum(float(x.sum()) + float(y.sum()) for x, y in batches)


# -- steps ---------------------------------------------------------------------------------------------------
def _twins(name: str, p: float) -> list[tuple[Any, Turn]]:
    """Return a model with its step of training for Stratal and for PyTorch, with equal weights and data."""
    import torch

    import stratal as st

    arrays = MODELS[name].data(np.random.default_rng(0))
    ours, theirs = (training(library, name, p) for library in (st, torch))
    ours[0].load_state_dict({key: value.numpy() for key, value in theirs[0].state_dict().items()})

    def on(library: Any, step: Callable[..., float]) -> Turn:
        batch = [library.tensor(array) for array in arrays]
        return lambda: step(*batch)

    return [(model, on(lib, step)) for lib, (model, step) in zip((st, torch), (ours, theirs), strict=True)]


def _same(pair: Pair, turns: int) -> None:
    """Both must lose the same."""
    losses = [[run() for _ in range(turns)] for run in pair]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)


def models() -> list[Row]:
    """Return the ratios of whole steps of small models; without dropout both must lose the same."""
    rows = []
    for name in MODELS:
        _same([run for _, run in _twins(name, 0.0)], 6)
        pair = [run for _, run in _twins(name, DROPPED)]
        medians(pair, WARM)
        rows.append(_compared(name, pair, MODEL_TURNS, None))
    return rows


def families() -> list[Row]:
    """Return the ratios of steps of kinds that are hard to be quick at."""
    import torch

    import stratal as st

    rows = []
    for name, make in FAMILIES.items():
        pair = [make(st), make(torch)]
        _same(pair, WARM)
        medians(pair, WARM)
        rows.append(_compared(name, pair, FAMILY_TURNS, 1.3))
    return rows


def averages() -> list[Row]:
    """Return what 4,000 steps take with something kept beside them, over those without."""
    import stratal as st

    rows = []
    for name in AVERAGES:
        took = []
        for kept in (None, name):
            turn = beside(st, kept)
            for _ in range(WARM):
                turn()
            begun = time.perf_counter()
            for _ in range(STEPS):
                turn()
            took.append(time.perf_counter() - begun)
        rows.append(row(f"steps with {name}", took[1] / took[0], 1.3, seconds=took[1]))
    return rows


# -- texts ---------------------------------------------------------------------------------------------------
def generate() -> list[Row]:
    """Return the seconds of the first text of 200 tokens, and the best of later ones over PyTorch's."""
    import torch

    import stratal as st

    twins = [model.eval() for model, _ in _twins("gpt", 0.0)]
    prompt = np.random.default_rng(1).integers(0, 65, (1, PROMPT))
    took: list[list[float]] = [[], []]
    for _ in range(5):
        texts = []
        for times, library, model in zip(took, (st, torch), twins, strict=True):
            begun = time.perf_counter()
            texts.append(model.generate(library.tensor(prompt), TOKENS).numpy())
            times.append(time.perf_counter() - begun)
        np.testing.assert_array_equal(*texts)
    ours, theirs = took
    warm = min(ours[2:]), min(theirs[2:])
    return [
        row("generate, cold seconds", ours[0], 5.0),
        row("generate, warm", warm[0] / warm[1], 1.2, ours_ms=1e3 * warm[0], torch_ms=1e3 * warm[1]),
    ]


# -- the command ---------------------------------------------------------------------------------------------
def measure(part: str, threads: int) -> list[Row]:
    """Return the rows of one part, measured in this process."""
    import torch

    torch.set_num_threads(threads)
    if part == "calls":
        return calls(threads)
    parts = {"data": data, "models": models, "families": families, "averages": averages, "generate": generate}
    return parts[part]()


def _apart(part: str, threads: int) -> list[Row]:
    """Return the rows of one part, measured in a new process with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        command = [sys.executable, "-m", "benchmarks", "everyday", "--here", part, "--threads", str(threads)]
        changed = {"STRATAL_CACHE_DIR": cache, "STRATAL_THREADS": str(threads)}
        environment = {**os.environ, **changed}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def geometric_mean(rows: Iterable[Row]) -> Row:
    """Return the row of all whole steps together."""
    steps = [r["ratio"] for r in rows if r["workload"] in (*MODELS, *FAMILIES)]
    return row("whole steps, geometric mean", statistics.geometric_mean(steps), 0.8, steps=len(steps))


def text(found: Row) -> str:
    """Return a row as a line."""
    seconds = {key: value for key, value in found.items() if key.endswith(("_ms", "seconds"))}
    times = ", ".join(f"{key} {value:.3g}" for key, value in seconds.items())
    gate = "" if found["gate"] is None else f"at most {found['gate']:g}"
    verdict = "  above the gate" if found["met"] is False else ""
    return f"{found['workload']:32} {found['ratio']:7.2f}  {gate:12} {times}{verdict}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--only", default=",".join(PARTS), metavar="LIST", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of each system (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--here", metavar="PART", help=argparse.SUPPRESS)


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Measure the parts; return 1 where a gate is not met."""
    if arguments.here:
        print(json.dumps(measure(arguments.here, arguments.threads)))
        return 0
    chosen = arguments.only.split(",")
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    for part in chosen:
        found = _apart(part, arguments.threads)
        rows += found
        print("\n".join(map(text, found)), flush=True)
    if {"models", "families"} <= set(chosen):
        rows.append(geometric_mean(rows))
        print(text(rows[-1]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 1 if any(r["met"] is False for r in rows) else 0
