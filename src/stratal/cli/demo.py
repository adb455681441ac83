"""`stratal demo`: the whole way on real data, from training to a saved model in a fresh process."""

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
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

import stratal as st
from stratal.base import settings
from stratal.base.errors import StratalError
from stratal.cli import plans
from stratal.cli.examples import digits as example
from stratal.cli.fresh_process import score_digest
from stratal.cli.report import add_json_option, console, whole, write_json
from stratal.data.digits import ATTRIBUTION, SPLIT

REFERENCE_SECONDS: Final = 2.0  # how long the reference interpreter is timed
FRESH_S: Final = 600.0  # that a process may take which compiles nothing


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "the figures")
    add = parser.add_argument
    add("--seeds", type=whole(1), default=1, metavar="N", help="train N times, with seeds 0 to N-1")
    add("--epochs", type=whole(1), default=example.EPOCHS, metavar="N", help="passes over the data")
    add("--save", type=Path, metavar="PATH", help="keep the model: in a folder, or in a file *.stratal")


@dataclass
class Result:
    """What one training run showed."""

    seed: int
    training: Any
    first_step_seconds: float = 0.0
    train_seconds: float = 0.0
    steps: int = 0
    accuracy: float = 0.0
    losses: list[float] = field(default_factory=list)

    @property
    def steps_per_second(self) -> float:
        """The rate after the first step, which compiles."""
        return (self.steps - 1) / max(self.train_seconds - self.first_step_seconds, 1e-9)


def run(args: argparse.Namespace) -> int:
    out = console()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stratal-demo-")))
        stack.enter_context(settings.cache_dir(work / "cache"))  # empty: the first step compiles everything
        out.print(f"Training on 1,438 real handwritten digits, testing on 359 others ({SPLIT}).")
        out.print(f"[dim]{ATTRIBUTION}[/dim]\n")
        results = [train(seed, args.epochs, out, alone=args.seeds == 1) for seed in range(args.seeds)]
        first = results[0]
        program = first.training.step.program
        report = figures(results)
        out.print(f"\nHeld-out accuracy [bold]{report['test_accuracy']:.4f}[/bold]" + _spread(results))
        report["reference_steps_per_second"] = reference_rate(first.training)
        _show_speed(out, report)
        out.print()
        plans.show_brief(out, program)
        plans.show_memory_map(out, program)
        model = args.save or work / "model"
        report.update(saved_and_loaded(out, first.training, model))
        out.print(f"Model kept in {model}" if args.save else "[dim]--save PATH keeps the model.[/dim]")
    write_json(args.json, report)
    _show_next(out)
    return 0


# -- training ------------------------------------------------------------------------------------------------
def train(seed: int, epochs: int, out: Console, alone: bool) -> Result:
    """Train once, with live progress where `out` is a terminal and a line per epoch where it is not."""
    training = example.Training(seed, epochs)
    result = Result(seed, training)
    total = epochs * len(training.loader)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        TextColumn("loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
        Rate(),
        TimeRemainingColumn(),
        console=out,
        disable=not out.is_terminal,
    ) as progress:
        task = progress.add_task(f"seed {seed}", total=total, epoch=1, epochs=epochs, loss="-", accuracy="-")
        for epoch, loss, accuracy in _epochs(result, progress, task):
            line = f"epoch {epoch:2}/{epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}"
            if alone and not out.is_terminal:
                out.print(f"{line}  {result.steps_per_second:.0f} steps/s")
    result.accuracy = training.accuracy()
    if not alone:
        out.print(f"seed {seed}: held-out accuracy {result.accuracy:.4f}, {result.train_seconds:.2f} s")
    return result


class Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f} steps/s")


def _epochs(result: Result, progress: Progress, task: Any) -> Iterator[tuple[int, float, float]]:
    """Train; yield epoch, mean loss and training accuracy after each epoch."""
    training = result.training
    started = time.perf_counter()
    for epoch in range(1, training.epochs + 1):
        losses, hits = [], []
        for x, y in training.loader:
            loss, right = training.step(x, y)
            training.schedule.step()
            losses.append(float(loss))
            hits.append(int(right))
            result.steps += 1
            result.train_seconds = time.perf_counter() - started
            if result.steps == 1:
                result.first_step_seconds = result.train_seconds
            share = sum(hits) / (len(hits) * example.BATCH)
            shown: dict[str, Any] = {"epoch": epoch, "loss": f"{losses[-1]:.3f}", "accuracy": f"{share:.3f}"}
            progress.update(task, advance=1, **shown)
        result.losses += losses
        yield epoch, statistics.fmean(losses), share


# -- figures -------------------------------------------------------------------------------------------------
def figures(results: list[Result]) -> dict[str, Any]:
    """Return the figures of the runs; speeds and memory are those of the first."""
    first = results[0]
    program = first.training.step.program
    return {
        "split": SPLIT,
        "seeds": len(results),
        "test_accuracy": statistics.median(r.accuracy for r in results),
        "test_accuracies": [r.accuracy for r in results],
        "final_loss": first.losses[-1],
        "train_seconds": first.train_seconds,
        "steps": first.steps,
        "steps_per_second": first.steps_per_second,
        "cold_compile_seconds": first.first_step_seconds,
        "threads": settings.threads.value,
        "plan": program.plan.hash,
        "kernels": len(program.plan.kernels),
        "planned_peak_bytes": program.plan.planned_peak_bytes,
        "observed_peak_bytes": plans.observed_peak_bytes(program),
    }


def reference_rate(training: Any) -> float:
    """Return training steps per second on the reference interpreter, on a network of its own."""
    other = example.Training(epochs=training.epochs)
    batches = (batch for _ in itertools.count() for batch in other.loader)  # epoch after epoch
    steps, started = 0, time.perf_counter()
    with st.eager():
        while time.perf_counter() - started < REFERENCE_SECONDS:
            x, y = next(batches)
            float(other.train_step(x, y)[0])
            steps += 1
    return steps / (time.perf_counter() - started)


def _spread(results: list[Result]) -> str:
    if len(results) == 1:
        return f" after {results[0].train_seconds:.1f} s of training."
    low, high = min(r.accuracy for r in results), max(r.accuracy for r in results)
    return f", the median of {len(results)} seeds ({low:.4f} to {high:.4f})."


def _show_speed(out: Console, report: dict[str, Any]) -> None:
    ours, theirs = report["steps_per_second"], report["reference_steps_per_second"]
    out.print(
        f"{ours:.0f} steps/s; the reference interpreter does {theirs:.1f}: "
        f"[bold]{ours / theirs:.0f}x[/bold]. "
        f"First step, compiled from nothing: {report['cold_compile_seconds']:.2f} s."
    )


# -- save, load, predict -------------------------------------------------------------------------------------
def saved_and_loaded(out: Console, training: Any, path: Path) -> dict[str, Any]:
    """Save the network, load it in a fresh process, and check that it gives the same bits there."""
    images = training.test.arrays[0]
    training.net.eval()
    options = {"epochs": training.epochs, "batch": example.BATCH, "split": SPLIT}
    st.save(training.net, path, inputs=st.tensor(images), optimizer=training.optimizer, options=options)
    with st.no_grad():
        here = score_digest(training.scores(st.tensor(images)))
    found = _ask_fresh_process(path)
    if found["digest"] != here:
        raise StratalError("demo: the loaded model gives other scores than the saved one", got=str(found))
    out.print(
        f"\nSaved as a readable graph and its weights. A fresh process loaded it, predicted in "
        f"{found['load_and_predict_seconds']:.2f} s: accuracy {found['accuracy']:.4f}, the same bits. "
        f"Its first training step, from the cache: {found['first_step_seconds']:.2f} s."
    )
    return {
        "warm_compile_seconds": found["first_step_seconds"],
        "load_and_predict_seconds": found["load_and_predict_seconds"],
        "loaded_test_accuracy": found["accuracy"],
    }


def _ask_fresh_process(path: Path) -> dict[str, Any]:
    """Return what `fresh_process` prints. Raises: StratalError with its error."""
    environment = {**os.environ, settings.cache_dir.variable: str(settings.cache_dir.value)}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "stratal.cli.fresh_process", str(path)],
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=FRESH_S,
        )
    except subprocess.TimeoutExpired:
        raise StratalError(f"demo: the fresh process took more than {FRESH_S:g} s") from None
    if child.returncode:
        raise StratalError("demo: the fresh process failed", got=child.stderr.strip()[-500:])
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def _show_next(out: Console) -> None:
    script = os.path.relpath(example.__file__)
    script = script if len(script) < len(example.__file__) else example.__file__
    out.print("\nThree commands to try next:")
    out.print(f"  stratal explain {script}   [dim]why each kernel is what it is[/dim]", soft_wrap=True)
    out.print("  stratal ops   [dim]the primitives everything is made of[/dim]")
    out.print("  stratal doctor   [dim]this machine, and every setting[/dim]")
