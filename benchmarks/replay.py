"""What a replayed training step costs beyond its kernels: the same calls, the program's commands left out.

    python -m benchmarks.replay [--only mlp,resnet18] [--calls 300] [--json FILE]

Prints the median and the fastest call in microseconds, with the number of the program's inputs. Exits with 1
where a median is above the bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import WORKLOADS
from stratal.runtime.program import LoadedProgram

BAR_US = 10.0
NAMES = "mlp", "lenet", "lstm", "gpt", "resnet18"
WARM_CALLS = 3  # until nothing changes from call to call


def training_step(name: str) -> tuple[Any, list[Any]]:
    """Return the compiled training step of a workload and its data."""
    import stratal as st
    from stratal import nn, optim

    workload = WORKLOADS[name]
    model = workload.build(nn)
    optimizer = workload.optimizer(optim, model.parameters())
    rng = np.random.default_rng(0)
    data = [st.tensor(array) for array in (*workload.data(rng), *workload.rest(rng))]

    @st.compile
    def step(*batch: Any) -> Any:
        loss = workload.loss(nn, model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, data


@contextmanager
def without_commands(program: LoadedProgram) -> Iterator[None]:
    """Let runs in this block do all but their commands: the number of commands in the run context is 0."""
    count, program._context[4] = int(program._context[4]), 0
    try:
        yield
    finally:
        program._context[4] = count


def measure(name: str, num_calls: int) -> dict[str, Any]:
    """Return the cost of calls of a training step whose commands do not run."""
    step, data = training_step(name)
    for _ in range(WARM_CALLS):
        step(*data)
    times = []
    with without_commands(step.program.loaded):
        for _ in range(num_calls):
            begun = time.perf_counter_ns()
            step(*data)
            times.append((time.perf_counter_ns() - begun) / 1e3)
    inputs = len(step.graph.inputs)
    return {"workload": name, "inputs": inputs, "median_us": statistics.median(times), "min_us": min(times)}


def main() -> None:
    """Run the measurement from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay")
    parser.add_argument("--only", default="mlp,resnet18", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--calls", type=int, default=300, help="calls that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.only.split(","):
        row = measure(name, arguments.calls)
        rows.append(row)
        figures = f"{row['median_us']:7.1f} us  (fastest {row['min_us']:.1f})"
        print(f"{name:10} {row['inputs']:4} inputs  {figures}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(row["median_us"] <= BAR_US for row in rows) else 1)


if __name__ == "__main__":
    main()
