"""Uncompiled steps of small models, texts they write, and plain calls, beside PyTorch's.

    python -m benchmarks.uncompiled [--only mlp,gpt,first,generate,calls] [--steps 40] [--json FILE]

Systems take turns step by step in one process and must compute the same; `first` and `generate` are timed in
a process of their own, whose cache is empty. Ratios are of medians from the fifth step on. Exits with 1 where
a bar is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.small_models import MODELS, training

ROOT = Path(__file__).parents[1]
BARS = {
    "text_cnn": 1.0, "transformer": 1.0, "siamese": 1.0, "gpt": 1.0, "mlp": 1.5, "calls": 2.0,  # ratios
    "first": 3.0, "generate_cold": 2.0, "generate_warm": 0.15,  # seconds
}  # fmt: skip
WARM_STEPS, FIRST_STEPS, TOKENS, PROMPT = 4, 20, 40, 3
DROPPED = 0.1
Row = dict[str, Any]


def _twins(name: str, p: float) -> list[tuple[Any, Callable[[], float]]]:
    """Return a model with its step of training for Stratal and for PyTorch, with equal weights and data."""
    import torch

    import stratal as st

    data = MODELS[name].data(np.random.default_rng(0))
    ours, theirs = (training(library, name, p) for library in (st, torch))
    ours[0].load_state_dict({key: value.numpy() for key, value in theirs[0].state_dict().items()})

    def on(library: Any, step: Callable[..., float]) -> Callable[[], float]:
        batch = [library.tensor(array) for array in data]
        return lambda: step(*batch)

    return [(model, on(lib, step)) for lib, (model, step) in zip((st, torch), (ours, theirs), strict=True)]


def steps(name: str, count: int) -> Row:
    """Return the times of whole steps, taking turns; without dropout both must lose the same."""
    exact = [run for _, run in _twins(name, 0.0)]
    losses = [[run() for _ in range(WARM_STEPS + 2)] for run in exact]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)
    took: list[list[float]] = [[], []]
    turns = [run for _, run in _twins(name, DROPPED)]
    for _ in range(WARM_STEPS + count):
        for times, run in zip(took, turns, strict=True):
            begun = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begun))
    ours, theirs = (statistics.median(times[WARM_STEPS:]) for times in took)
    return {"name": name, "ours_ms": ours, "torch_ms": theirs, "figure": ours / theirs}


def first() -> Row:
    """Return the seconds of the GPT's first steps together."""
    _, run = _twins("gpt", DROPPED)[0]
    begun = time.perf_counter()
    for _ in range(FIRST_STEPS):
        run()
    return {"name": "first", "figure": time.perf_counter() - begun}


def generate() -> list[Row]:
    """Return the seconds of the first text a GPT writes, and of the best of later ones beside PyTorch's."""
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
    return [
        {"name": "generate_cold", "figure": ours[0]},
        {"name": "generate_warm", "figure": min(ours[2:]), "torch_s": min(theirs[2:])},
    ]


def calls(threads: int) -> Row:
    """Return the median ratio of plain calls on 1,000 elements, of every public function PyTorch has, too."""
    from benchmarks import compare_surface

    rows = compare_surface.measure(compare_surface.chosen((), ()), [1000], threads, 0.02, lambda _: None)
    found = [row["ours"] / row["torch"] for row in rows if "torch" in row and not row.get("view")]
    return {"name": "calls", "figure": statistics.median(found), "functions": len(found)}


def measure(name: str, count: int, threads: int) -> list[Row]:
    """Return the rows of one measurement, made in this process."""
    import torch

    torch.set_num_threads(threads)
    if name == "generate":
        return generate()
    return [first() if name == "first" else calls(threads) if name == "calls" else steps(name, count)]


def _apart(name: str, count: int, threads: int) -> list[Row]:
    """Return the rows of one measurement, made in a new process with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        command = [sys.executable, "-m", "benchmarks.uncompiled", "--here", name]
        command += ["--steps", str(count), "--threads", str(threads)]
        changed = {"STRATAL_CACHE_DIR": cache, "STRATAL_THREADS": str(threads)}
        environment = {**os.environ, **changed}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return found


def text(row: Row) -> str:
    """Return a row as a line."""
    more = ", ".join(f"{key} {value:.2f}" for key, value in row.items() if key not in ("name", "figure"))
    bar = BARS[row["name"]]
    verdict = "" if row["figure"] <= bar else "  above the bar"
    return f"{row['name']:14} {row['figure']:7.3f}  (at most {bar:g}{'; ' + more if more else ''}){verdict}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uncompiled", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default=",".join([*MODELS, "first", "generate", "calls"]))
    parser.add_argument("--steps", type=int, default=40, help="of each model, timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.here:
        print(json.dumps(measure(arguments.here, arguments.steps, arguments.threads)))
        return 0
    rows: list[Row] = []
    for name in arguments.only.split(","):
        found = _apart(name, arguments.steps, arguments.threads)
        rows += found
        print("\n".join(map(text, found)), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["figure"] <= BARS[row["name"]] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
