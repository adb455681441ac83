"""Prices of kernels beside their measured times, over the distinct kernels of training steps and inference.

Each model is compiled without a cache and without tuning records; every group of its program that a tactic
schedules is priced (`stratal.schedule.pricing`) and then timed in place, in runs of the whole program, with
what packs its operands. Groups of equal structure count once, with the mean of their medians.

Rows are `workload, system, ratio, gate, met`: for all kernels together the rank correlation of prices with
times (Spearman's) and the median of |price - time| / time; for each model the same without gates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.memory_models import MEMORY_WORKLOADS
from benchmarks.models import WORKLOADS, Workload

TRAINING: Final[dict[str, Workload]] = {
    **{name: WORKLOADS[name] for name in ("mlp", "lenet", "gpt", "resnet18", "lstm")},
    **{name: MEMORY_WORKLOADS[name] for name in ("unet", "llama")},
}
FORWARD: Final = ("lenet", "gpt", "resnet18")  # also as inference
RANK_GATE, ERROR_GATE = 0.95, 0.15
WARM, FEWEST, RUNS, LIMIT_S = 3, 3, 30, 6.0
Row = dict[str, Any]


class Kernel(NamedTuple):
    """One kernel: its price and its time in seconds, and the number of groups that it computes."""

    model: str
    name: str
    kind: str
    tactic: str
    bound: str
    price: float
    seconds: float
    groups: int

    @property
    def error(self) -> float:
        return abs(self.price - self.seconds) / self.seconds


def step_of(task: Workload, train: bool) -> Callable[[], Any]:
    """Return what runs a step of training once, or of inference."""
    import stratal as st
    from stratal import nn, optim

    st.manual_seed(0)
    model = task.build(nn)
    drawn = (*task.data(np.random.default_rng(0)), *task.rest(np.random.default_rng(0)))
    data = [st.tensor(a) for a in drawn]
    if not train:
        model.eval()
        forward = st.compile(lambda x, *rest: model(x, *rest))

        def infer() -> Any:
            with st.no_grad():
                return forward(data[0], *data[2:])

        return infer
    opt = task.optimizer(optim, list(model.parameters()))

    @st.compile
    def step(x: Any, y: Any, *rest: Any) -> Any:
        loss = task.loss(nn, model, x, y, *rest)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return lambda: step(*data)


def kernels(model: str, run: Callable[[], Any], threads: int) -> list[Kernel]:
    """Return the kernels of the programs that a model runs, with prices and times."""
    from stratal.inspect.recorder import Recorder
    from stratal.schedule.pricing import is_cold, kernel_price
    from stratal.schedule.select import watched_problems

    with watched_problems() as problems:
        run()
    begun = time.perf_counter()
    with Recorder() as recorder:
        for k in range(WARM + RUNS):
            if k >= WARM + FEWEST and time.perf_counter() - begun > LIMIT_S:
                break
            run()
    found = []
    for times in recorder.programs:
        seconds = seconds_by_kernel(times)
        number = {id(group): k for k, group in enumerate(times.program.draft.groups)}
        kernel_of = {k: kernel for kernel, groups in seconds.items() for k in groups}
        cold = is_cold(times.program.made.target, times.program.plan.planned_peak_bytes)
        for problem, _ in problems:
            kernel = kernel_of.get(number.get(id(problem.group), -1))
            if kernel is not None:
                price, taken = kernel_price(problem, threads, cold=cold), list(seconds[kernel].values())
                found.append(Kernel(model, price.name, problem.group.kind, price.tactic, price.bound,
                                    price.seconds, statistics.mean(taken), len(taken)))  # fmt: skip
    return found


def seconds_by_kernel(times: Any) -> dict[str, dict[int, float]]:
    """Return the seconds of each group of a program that runs outside of loops, by its kernel."""
    from stratal.base.artifact import Launch

    medians = np.median(times.samples[WARM - 1 :] / 1e9, axis=0)  # the first run is not among them
    calls = times.calls / max(times.num_runs, 1)
    taken: dict[int, float] = defaultdict(float)
    kernel: dict[int, str] = {}
    for index, step in enumerate(times.timed.steps):
        if isinstance(step, Launch) and step.group >= 0 and calls[index] == 1:
            taken[step.group] += float(medians[index])
            kernel[step.group] = step.kernel  # what packs operands is launched before
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for group, name in kernel.items():
        found[name][group] = taken[group]
    return found


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values are ranked as they come."""
    ranks = [np.argsort(np.argsort(np.asarray(v))).astype(float) for v in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def rows_of(found: Sequence[Kernel]) -> Iterator[Row]:
    """Yield the rows of all kernels, then those of each model."""
    for model in ("all kernels", *dict.fromkeys(k.model for k in found)):
        own = [k for k in found if model in ("all kernels", k.model)]
        rank = rank_correlation([k.price for k in own], [k.seconds for k in own])
        error = statistics.median(k.error for k in own)
        gates = (RANK_GATE, ERROR_GATE) if model == "all kernels" else (None, None)
        for what, ratio, gate, met in (
            ("rank correlation", rank, gates[0], rank >= RANK_GATE),
            ("median relative error", error, gates[1], error <= ERROR_GATE),
        ):
            yield {"workload": f"{model}, {what}", "system": "stratal", "ratio": ratio, "gate": gate,
                   "met": None if gate is None else met, "kernels": len(own)}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    models = ",".join(TRAINING)
    parser.add_argument("--only", default=models, metavar="LIST", help=f"of {models} (default: all)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and kernels to FILE")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Price and time the kernels of the models; return 1 where a gate is not met."""
    chosen = arguments.only.split(",")
    if unknown := {*chosen} - {*TRAINING}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(TRAINING)}")
    from stratal.base import settings

    found: list[Kernel] = []
    ways = [(name, train) for name in chosen for train in ((True, False) if name in FORWARD else (True,))]
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as cache, settings.threads(arguments.threads),
        settings.cache_dir(Path(cache)), settings.tuning("off"),
    ):  # fmt: skip
        for name, train in ways:
            model = name if train else f"{name} forward"
            found += kernels(model, step_of(TRAINING[name], train), arguments.threads)
            print(f"{model}: {sum(k.model == model for k in found)} kernels", flush=True)
    rows = list(rows_of(found))
    for row in rows:
        verdict = "" if row["met"] is None else f"  gate {row['gate']:g} {'met' if row['met'] else 'NOT MET'}"
        print(f"{row['workload']:40} {row['ratio']:7.3f}  of {row['kernels']} kernels{verdict}")
    if arguments.json:
        listed = [k._asdict() for k in found]
        arguments.json.write_text(json.dumps({"rows": rows, "kernels": listed}, indent=1) + "\n")
    return 1 if any(r["met"] is False for r in rows) else 0
