"""The differential fuzz: `python tests/fuzz/fuzz.py --graphs 2000 --start 0 --processes 2`.

Graphs run in worker processes, so that a crash is a finding like any other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


class Run:
    """What the workers found so far."""

    def __init__(self, limit_seconds: float) -> None:
        self.lock = threading.Lock()
        self.checked = 0
        self.faults: dict[int, list[str]] = {}
        self.limit_seconds = limit_seconds

    def note(self, seed: int, faults: list[str]) -> None:
        with self.lock:
            self.checked += 1
            if faults:
                self.faults[seed] = faults
                print(f"seed {seed}", *faults, sep="\n    ", flush=True)


def work(run: Run, start: int, stop: int, step: int) -> None:
    """Check seeds in worker processes; a worker that dies or hangs is replaced behind the seed it died of."""
    seed = start
    while seed < stop:
        command = [sys.executable, __file__, "--worker", str(seed), str(stop), str(step)]
        environment = {
            "STRATAL_COMPILE_WORKERS": "0", "STRATAL_CACHE_DIR": "off", "STRATAL_STRICT": "1", **os.environ,
        }  # fmt: skip
        worker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert worker.stdout is not None and worker.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=errors.extend, args=(worker.stderr,))
        reader.start()
        faults: list[str] = []
        current: int | None = None
        timer = threading.Timer(run.limit_seconds, worker.kill)
        timer.start()
        for line in worker.stdout:
            kind, _, text = line.rstrip("\n").partition(" ")
            if kind == "seed":
                current, faults = int(text), []
                timer.cancel()
                timer = threading.Timer(run.limit_seconds, worker.kill)
                timer.start()
            elif kind == "fault":
                faults.append(text)
            elif kind == "done" and current is not None:
                run.note(current, faults)
                seed, current = current + step, None
        code = worker.wait()  # `timer` ends it
        timer.cancel()
        reader.join()
        if current is None and code == 0:
            return
        last = errors[-1].strip() if errors else ""
        run.note(current if current is not None else seed, [f"the process ended with {code}: {last}"])
        seed = (current if current is not None else seed) + step


def worker(start: int, stop: int, step: int) -> None:
    """Check seeds one after the other; one line before each, one per fault, one after each."""
    sys.path.insert(0, str(SUPPORT))
    from differential import check_seed

    for seed in range(start, stop, step):
        print("seed", seed, flush=True)
        for fault in check_seed(seed):
            print("fault", fault.replace("\n", " | "), flush=True)
        print("done", seed, flush=True)


def fuzz(graphs: int, start: int, processes: int, limit_seconds: float) -> Run:
    """Check seeds from `start` on; print faults as they appear."""
    run = Run(limit_seconds)
    threads = [
        threading.Thread(target=work, args=(run, start + k, start + graphs, processes))
        for k in range(processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--worker"]:
        worker(*map(int, arguments[1:4]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit-seconds", type=float, default=120.0, help="for one graph")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    run = fuzz(options.graphs, options.start, options.processes, options.limit_seconds)
    kinds = Counter(f.split(":")[0] for faults in run.faults.values() for f in faults)
    seconds = time.perf_counter() - started
    found = f"{len(run.faults)} with faults: {sorted(run.faults)} {dict(kinds)}"
    print(f"{run.checked} graphs in {seconds:.0f} s, {found}")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
