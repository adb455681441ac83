"""Training steps of the spine's workloads: Stratal compiled against PyTorch eager, interleaved.

    python -m benchmarks.spine [--only mlp,gpt] [--rounds 7] [--json FILE]

Each library runs in a process of its own on the same weights and data. The processes take turns, so both
meet the same state of a shared machine; one that waits is blocked on its pipe. Cold and warm first calls are
taken in fresh processes with an empty and a filled cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import WORKLOADS, Workload

SPINE = ("mlp", "lenet", "gpt", "resnet18")
BARS = {"mlp": 1.0, "lenet": 1.0, "gpt": 1.2, "resnet18": 2.0}
# Torch keeps freed memory instead of returning it to the system after each op: its better setting here.
KEEP_FREED = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


# -- the worker: one library, one workload, commands on stdin --------------------------------------
class Ours:
    """The workload under `st.compile`."""

    def __init__(self, workload: Workload, weights: Path) -> None:
        import stratal as st
        from stratal import nn, optim

        self.model = workload.build(nn)
        if weights.exists():
            self.model.load_state_dict(dict(np.load(weights)))
        optimizer = workload.optimizer(optim, self.model.parameters())
        x, y = workload.data(np.random.default_rng(0))
        self.x, self.y = st.tensor(x), st.tensor(y)

        def step(x: Any, y: Any) -> Any:
            loss = workload.loss(nn, self.model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        self.step = st.compile(step)

    def run(self) -> float:
        return float(self.step(self.x, self.y))


class Torch:
    """The workload in PyTorch eager at its best: fused optimizers, the faster of its memory formats.

    It draws the weights that both start from.
    """

    def __init__(self, workload: Workload, weights: Path) -> None:
        import torch

        torch.set_num_threads(int(os.environ["STRATAL_THREADS"]))
        self.workload = workload
        formats = [torch.contiguous_format]
        self._build(formats[0])
        np.savez(weights, **{name: value.numpy() for name, value in self.model.state_dict().items()})
        if self.x.ndim == 4:
            formats.append(torch.channels_last)
        self._build(min(formats, key=self._seconds))

    def _build(self, memory_format: Any) -> None:
        import torch

        torch.manual_seed(0)
        self.model = self.workload.build(torch.nn).to(memory_format=memory_format)
        self.optimizer = self.workload.optimizer(FUSED, self.model.parameters())
        x, y = self.workload.data(np.random.default_rng(0))
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        if self.x.ndim == 4:
            self.x = self.x.contiguous(memory_format=memory_format)

    def _seconds(self, memory_format: Any) -> float:
        """Return the time of a warm step in one memory format."""
        self._build(memory_format)
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - begin)
        return min(times[1:])

    def run(self) -> float:
        import torch

        loss = self.workload.loss(torch.nn, self.model, self.x, self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


class _FusedOptimizers:
    """`torch.optim` with every optimizer in its fused form."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return partial(getattr(torch.optim, name), fused=True)


FUSED = _FusedOptimizers()


def worker(library: str, name: str, weights: Path) -> None:
    """Serve `steps K` and `quit` on stdin; answer with one JSON line each."""
    start = time.perf_counter()
    job: Ours | Torch = (Ours if library == "ours" else Torch)(WORKLOADS[name], weights)
    print(json.dumps({"setup_seconds": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        command, _, count = line.strip().partition(" ")
        if command == "quit":
            return
        times, losses = [], []
        for _ in range(int(count)):
            begin = time.perf_counter()
            losses.append(job.run())
            times.append(time.perf_counter() - begin)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"times": times, "losses": losses, "peak_rss_mb": peak}), flush=True)


class Worker:
    """A worker process and its answers."""

    def __init__(self, library: str, name: str, weights: Path, cache: Path, threads: int) -> None:
        environment = {**os.environ, "STRATAL_THREADS": str(threads), "STRATAL_CACHE_DIR": str(cache)}
        if library == "torch":
            environment |= KEEP_FREED
        command = [sys.executable, "-m", "benchmarks.spine", "--worker", library, name, str(weights)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.setup = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with exit code {self.process.wait()}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def steps(self, count: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"steps {count}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait()


# -- the comparison --------------------------------------------------------------------------------
def measure(name: str, rounds: int, threads: int, with_torch: bool, cache: Path) -> dict[str, Any]:
    """Return one row: medians, ratio, losses, first calls, memory."""
    folder = Path(tempfile.mkdtemp(prefix="spine-"))
    weights, own_cache = folder / "weights.npz", cache if cache.name else folder / "cache"
    own_cache.mkdir(exist_ok=True, mode=0o700)
    peer = Worker("torch", name, weights, own_cache, threads) if with_torch else None
    cold = Worker("ours", name, weights, own_cache, threads)
    cold_first = cold.steps(1)["times"][0]
    cold.close()
    ours = Worker("ours", name, weights, own_cache, threads)
    first = ours.steps(1)
    row: dict[str, Any] = {
        "workload": name, "threads": threads, "rounds": rounds,
        "cold_first_call_seconds": cold_first, "warm_first_call_seconds": first["times"][0],
        "setup_seconds": ours.setup["setup_seconds"],
    }  # fmt: skip
    peer_first = peer.steps(1) if peer else None
    count = max(3, min(200, int(0.4 / max(1e-4, ours.steps(2)["times"][-1]))))
    if peer:
        peer.steps(2)
    timed: dict[str, list[float]] = {"ours": [], "torch": []}
    losses: dict[str, list[float]] = {
        "ours": first["losses"],
        "torch": peer_first["losses"] if peer_first else [],
    }
    for round_number in range(rounds + 1):
        for library, who in (("ours", ours), ("torch", peer)):
            if who is None:
                continue
            answer = who.steps(count)
            losses[library] += answer["losses"]
            row[f"{library}_peak_rss_mb"] = answer["peak_rss_mb"]
            if round_number:  # the first round warms up
                timed[library].append(statistics.median(answer["times"]))
    ours.close()
    row["ours_ms"] = 1e3 * statistics.median(timed["ours"])
    row["first_loss"], row["last_loss"] = losses["ours"][0], losses["ours"][-1]
    if peer:
        peer.close()
        row["torch_ms"] = 1e3 * statistics.median(timed["torch"])
        row["ratio"] = statistics.median(a / b for a, b in zip(timed["ours"], timed["torch"], strict=True))
        row["bar"] = BARS.get(name)
        pairs = list(zip(losses["ours"], losses["torch"], strict=False))[:20]
        # Below 1e-3 the rounding of one unit of float32 is all that is left of a loss.
        row["loss_difference"] = max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)
    return row


def show(row: dict[str, Any]) -> str:
    """Return a row as one line of text."""
    text = f"{row['workload']:9} ours {row['ours_ms']:9.2f} ms"
    if "torch_ms" in row:
        text += f"   torch {row['torch_ms']:9.2f} ms   ratio {row['ratio']:6.2f}"
        text += f" (bar {row['bar']})" if row["bar"] else ""
        text += f"   losses differ {row['loss_difference']:.1e}"
    text += f"   loss {row['first_loss']:.4f} -> {row['last_loss']:.4f}"
    text += f"   first call cold {row['cold_first_call_seconds']:.2f} s"
    text += f" warm {row['warm_first_call_seconds']:.2f} s"
    text += f"   peak {row['ours_peak_rss_mb']:.0f} MB"
    return text + (f" (torch {row['torch_peak_rss_mb']:.0f})" if "torch_peak_rss_mb" in row else "")


def _has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spine", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--only", default=",".join(SPINE), help=f"workloads, comma separated, of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds after one of warm-up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--no-torch", action="store_true", help="time Stratal alone")
    parser.add_argument(
        "--cache", type=Path, default=Path(), help="keep kernels here instead of in a new folder"
    )
    parser.add_argument(
        "--worker", nargs=3, metavar=("LIBRARY", "WORKLOAD", "WEIGHTS"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker[0], arguments.worker[1], Path(arguments.worker[2]))
        return
    names = [n for n in arguments.only.split(",") if n]
    unknown = [n for n in names if n not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    rows = []
    for name in names:
        with_torch = _has_torch() and not arguments.no_torch
        rows.append(measure(name, arguments.rounds, arguments.threads, with_torch, arguments.cache))
        print(show(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
