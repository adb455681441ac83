"""Compile workers: processes that turn LLVM text into object code and live as long as this one."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from stratal.codegen import assemble_worker

SCRIPT: Final = Path(assemble_worker.__file__)
START_S: Final = 0.35  # a Python process that imports llvmlite
READY_S: Final = 0.01  # one that runs already


class WorkerLostError(Exception):
    """The worker process ended, or was killed, before it answered."""


class Worker:
    """One compile worker and the two pipes to it. Used by one thread at a time."""

    def __init__(self) -> None:
        import llvmlite

        site = str(Path(llvmlite.__file__).parent.parent)
        # Its own process group, so that the terminal's Ctrl-C reaches only the process the user talks to.
        group = {"process_group": 0} if os.name == "posix" else {}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), site],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            **group,  # type: ignore[call-overload]
        )
        self.ready = False
        self._started = time.monotonic()

    @property
    def seconds_to_start(self) -> float:
        """About how long until it takes its first job."""
        return READY_S if self.ready else max(READY_S, START_S - (time.monotonic() - self._started))

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        jobs, answers = self._process.stdin, self._process.stdout
        if jobs is None or answers is None:
            raise WorkerLostError
        return jobs, answers

    def wait_until_ready(self, still_wanted: Callable[[], bool]) -> bool:
        """Return whether the worker takes jobs, waiting for its start while it is wanted."""
        try:
            _, answers = self._pipes()
            poll = select.poll()
            poll.register(answers, select.POLLIN)
            while not self.ready and still_wanted():
                if poll.poll(10):
                    self.ready = answers.read(1) == b"R"
                    if not self.ready:
                        break
        except (OSError, ValueError, WorkerLostError):
            self.ready = False
        return self.ready

    def compile(self, triple: str, cpu: str, features: str, text: str) -> tuple[bool, bytes]:
        """Return (True, object code) or (False, LLVM's message). Raises: WorkerLostError."""
        jobs, answers = self._pipes()
        try:
            remaining = memoryview(assemble_worker.pack_job(triple, cpu, features, text))
            while remaining:
                remaining = remaining[jobs.write(remaining) :]
            return assemble_worker.read_answer(answers)
        except (OSError, EOFError, ValueError) as error:
            self.kill()
            raise WorkerLostError from error

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let the worker end: its input ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def forget(self) -> None:
        """Drop a worker that belongs to the parent of this forked process."""
        self.close()
        self._process.returncode = 0  # not our child: never wait for it


class Workers:
    """The idle workers of this process. Killed ones are replaced when the next are taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._taken: set[Worker] = set()
        self._usable = bool(sys.executable) and hasattr(select, "poll") and SCRIPT.is_file()

    def take(self, count: int) -> list[Worker]:
        """Return up to `count` workers nobody else uses, started where too few are idle."""
        if not self._usable:
            return []
        with self._lock:
            idle = [w for w in self._idle if w.alive]
            taken, self._idle = idle[:count], idle[count:]
            try:
                while len(taken) < count:
                    taken.append(Worker())
            except OSError:  # no more processes, no memory: this process compiles alone
                pass
            self._taken.update(taken)
            return taken

    def give_back(self, taken: list[Worker]) -> None:
        """Return workers whose last job is answered, or that were killed."""
        with self._lock:
            self._taken.difference_update(taken)
            for worker in taken:
                if worker.alive:
                    self._idle.append(worker)
                else:
                    worker.close()

    def prepare(self) -> None:
        """Start a worker that somebody will take soon, unless there is one."""
        with self._lock, contextlib.suppress(OSError):
            if self._usable and not self._taken and not any(w.alive for w in self._idle):
                self._idle.append(Worker())

    def seconds_to_start(self) -> float:
        """Return about how long until the next worker that is taken takes a job."""
        with self._lock:
            return min((w.seconds_to_start for w in self._idle if w.alive), default=START_S)

    def pids(self) -> list[int]:
        """Return the process ids of the idle workers."""
        with self._lock:
            return [w.pid for w in self._idle if w.alive]

    def close(self) -> None:
        with self._lock:
            for worker in (*self._idle, *self._taken):
                worker.close()
            self._idle, self._taken = [], set()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for worker in (*self._idle, *self._taken):
            worker.forget()
        self._idle, self._taken = [], set()


WORKERS: Final = Workers()
atexit.register(WORKERS.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS._after_fork)
