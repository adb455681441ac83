"""Groups of ranks that train in turns: started, told to take steps through pipes, ended.

with Groups("gpt", folder) as groups:
    groups.turn("alone", 3)      seconds of three steps, of the slowest rank
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from benchmarks.parallel_training import ALONE, PEER, SILENT, STRATEGIES, write_weights
from stratal.base.processes import die_with_parent
from stratal.distributed.launcher import environment, mpirun_command

ROOT: Final = Path(__file__).parents[1]
RANKS: Final = 2
GROUPS: Final = (ALONE, SILENT, *STRATEGIES, PEER)


def start(command: Sequence[str], threads: int, **more: Any) -> subprocess.Popen[str]:
    """Start a command whose processes end with this one."""
    env = {**environment(RANKS, RANKS), "STRATAL_THREADS": str(threads), "OMP_NUM_THREADS": str(threads),
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           **more.pop("env", {})}  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, process_group=0,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM), **more,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """End a command and all it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Groups:
    """One rank with two threads, two ranks without communication and by each strategy, two of PyTorch: all
    begin with equal weights.
    """

    def __init__(self, name: str, folder: Path, seconds: float) -> None:
        self._folder: Final = folder
        self._until: Final = time.monotonic() + seconds
        self._processes: list[subprocess.Popen[str]] = []
        self._orders: dict[str, list[IO[str]]] = {}
        self._answers: dict[str, list[int]] = {}
        self._left: dict[int, bytes] = {}
        write_weights(name, folder)
        for group in GROUPS:
            self._open(group, name)

    def __enter__(self) -> Groups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            end(process)
        for orders in self._orders.values():
            for pipe in orders:
                pipe.close()
        for descriptors in self._answers.values():
            for descriptor in descriptors:
                os.close(descriptor)

    def _open(self, group: str, name: str) -> None:
        ranks = 1 if group == ALONE else RANKS
        self._orders[group], self._answers[group] = [], []
        for rank in range(ranks):
            for end_, flags in (("in", os.O_RDWR), ("out", os.O_RDWR | os.O_NONBLOCK)):
                path = self._folder / f"{group}.{rank}.{end_}"
                os.mkfifo(path)
                descriptor = os.open(path, flags)  # both ends, so that neither side waits for the other
                if end_ == "in":
                    self._orders[group].append(os.fdopen(descriptor, "w"))
                else:
                    self._answers[group].append(descriptor)
        command = [sys.executable, "-m", "benchmarks.parallel_training", group, name, str(self._folder)]
        if group == PEER:
            for rank in range(ranks):
                env = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
                self._processes.append(start(command, 1, env=env))
        elif group == ALONE:
            self._processes.append(start(command, RANKS))
        else:
            self._processes.append(start(mpirun_command(ranks, command), 1))

    def turn(self, group: str, steps: int) -> tuple[float, list[float]]:
        """Return the seconds of some steps of the slowest rank, and their losses, means over ranks.

        Raises: TimeoutError; RuntimeError where a process has ended.
        """
        for pipe in self._orders[group]:
            print(steps, file=pipe, flush=True)
        answers = [self._answer(descriptor, group) for descriptor in self._answers[group]]
        losses = [sum(x) / len(x) for x in zip(*(a["losses"] for a in answers), strict=True)]
        return max(a["seconds"] for a in answers), losses

    def _answer(self, descriptor: int, group: str) -> Mapping[str, Any]:
        while b"\n" not in self._left.get(descriptor, b""):
            if time.monotonic() > self._until:
                raise TimeoutError(f"{group} did not answer within the time limit")
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"a process has ended while {group} was to answer")
            if select.select([descriptor], [], [], 0.5)[0]:
                self._left[descriptor] = self._left.get(descriptor, b"") + os.read(descriptor, 1 << 16)
        line, _, self._left[descriptor] = self._left[descriptor].partition(b"\n")
        found: Mapping[str, Any] = json.loads(line)
        return found
