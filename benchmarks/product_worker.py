"""One system with one part of `product` in a process of its own: commands on stdin, JSON lines on stdout.

    train SYSTEM NET ROWS                 pass -> {"seconds", "loss"}; of the system `stratal`, also
                                          pair -> {"fit", "loop", "losses"}: an epoch of each, in turn
    input SYSTEM WORKLOAD WAY FOLDER      pass -> {"seconds", "cpu_s", "rows"}, digest -> {"digest"}

Peers' interpreters need NumPy and the peer, not Stratal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import product_input, product_training
from benchmarks.product_data import FULL, SMOKE

Answer = dict[str, Any]


def training(system: str, net: str, rows: int) -> dict[str, Callable[[], Answer]]:
    """Return what answers the commands of training."""
    epoch = product_training.EPOCHS[system](net, rows)
    answers: dict[str, Callable[[], Answer]] = {"pass": lambda: epoch()._asdict()}
    if system == "stratal":
        loop = product_training.stratal_loop(net, rows)

        def pair() -> Answer:
            fit, own = epoch(), loop()
            return {"fit": fit.seconds, "loop": own.seconds, "losses": [fit.loss, own.loss]}

        answers["pair"] = pair
    return answers


def reading(
    system: str, workload: str, way: str, folder: Path, smoke: bool
) -> dict[str, Callable[[], Answer]]:
    """Return what answers the commands of input."""
    size = SMOKE if smoke else FULL

    def batches() -> Any:
        return product_input.batches_of(workload, system, way, folder, size)

    def passed() -> Answer:
        begun, before = time.perf_counter(), time.process_time()
        rows = product_input.passed(batches())
        took = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - before}
        return {**took, "rows": rows}

    ordered = workload not in product_input.SHUFFLED
    return {"pass": passed, "digest": lambda: {"digest": product_input.digest(batches(), ordered)}}


def limited(threads: int) -> None:
    """Keep this process to as many cores and threads as it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for library, function in (("torch", "set_num_threads"), ("pyarrow", "set_cpu_count")):
        if library in sys.modules:
            getattr(sys.modules[library], function)(threads)


def main() -> None:
    """Serve one part until the pipe ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.product_worker", description=__doc__)
    parser.add_argument("part", choices=("train", "input"))
    parser.add_argument("system")
    parser.add_argument("details", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what a library prints is no answer
    os.dup2(2, 1)
    limited(given.threads)
    if given.part == "train":
        net, rows = given.details
        served = training(given.system, net, int(rows))
    else:
        workload, way, folder = given.details
        served = reading(given.system, workload, way, Path(folder), given.smoke)
    limited(given.threads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(served[line.strip()]()), file=answers, flush=True)


if __name__ == "__main__":
    main()
