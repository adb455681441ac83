"""Compile workers: processes that turn LLVM text into object code and live as long as this one.

Nothing here waits without a limit: who waits for a worker notices that it ended, and counts how long it has
been silent, so that one that was stopped can be killed and replaced. Signal handlers run outside the lock:
one that compiles needs a worker itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.codegen import assemble_worker

SCRIPT: Final = Path(assemble_worker.__file__)
START_S: Final = 0.1  # a Python process that imports llvmlite
READY_S: Final = 0.01  # one that runs already
REAP_S: Final = 1.0  # from when a worker ends by itself until it is reaped
KILL_S: Final = 5.0  # from when a worker is killed until it is reaped; longer only where the system hangs
LOOK_S: Final = 1.0  # of silence between two looks at a worker
MOST_UNSTARTED: Final = 2  # workers in a row that never greet, before this process compiles alone
PIPE_BYTES: Final = 1 << 20  # of text or code between two looks at a worker


class WorkerLostError(Exception):
    """The worker process ended, or was killed for its silence, before it answered."""


class Worker:
    """One compile worker and the two pipes to it, which never make the caller wait.

    `unanswered` are the keys of the jobs it was given and has not answered, in order. Used by one thread at a
    time.
    """

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
            pipesize=PIPE_BYTES,
            **group,  # type: ignore[call-overload]
        )
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        self.unanswered: Final[list[str]] = []
        self._going = bytearray()  # what did not fit into the pipe yet
        self._coming = bytearray()  # the part of an answer that is there
        self._ready = self._ended = False
        self._silent_s = 0.0
        self.lost = False  # it ended by itself, or was killed for its silence
        self.host: list[str] = []  # once it is ready: LLVM's triple, processor and features of this machine
        self._started = time.monotonic()

    @property
    def seconds_to_start(self) -> float:
        """About how long until it takes its first job."""
        return READY_S if self.ready else max(READY_S, START_S - (time.monotonic() - self._started))

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""
        if not self._ready:
            self._receive()
        return self._ready

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def give(self, key: str, triple: str, cpu: str, features: str, text: str) -> None:
        """Add a job to those before it."""
        if not self.unanswered:
            self._silent_s = 0.0
        self.unanswered.append(key)
        self._going += assemble_worker.pack_job(triple, cpu, features, text)
        self._send()

    def answers(self) -> Iterator[tuple[str, bool, bytes]]:
        """Yield what has been answered by now: key, and (True, object code) or (False, LLVM's message)."""
        self._send()
        self._receive()
        while self.unanswered and (found := assemble_worker.unpack_answer(self._coming)) is not None:
            yield self.unanswered.pop(0), *found

    def check(self, seconds: float) -> None:
        """Raise WorkerLostError where it has ended, or has been waited for that long since its last word: it
        is killed then.
        """
        if self._ended or self._silent_s >= seconds:
            self.lost = True
            self.kill()
            raise WorkerLostError

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until it takes jobs. Raises: WorkerLostError, as `check` does."""
        while not self.ready:
            self.check(seconds)
            wait_for_answers([self])

    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        jobs, answers = self._process.stdin, self._process.stdout
        if jobs is None or answers is None:
            raise WorkerLostError
        return jobs, answers

    def _send(self) -> None:
        """Write as much as the pipe takes."""
        try:
            while self._going:
                del self._going[: os.write(self._pipes()[0].fileno(), self._going)]
        except BlockingIOError:
            pass
        except (OSError, ValueError):  # nobody reads it any more, and `_receive` finds the end
            self._going.clear()

    def _receive(self) -> None:
        """Read what there is."""
        try:
            while not self._ended:
                part = os.read(self._pipes()[1].fileno(), PIPE_BYTES)
                self._coming += part
                self._silent_s = 0.0
                self._ended = not part
                if not self._ready and (greeting := assemble_worker.unpack_answer(self._coming)):
                    self.host, self._ready = greeting[1].decode().split("\n"), True
        except BlockingIOError:
            pass
        except (OSError, ValueError, WorkerLostError):
            self._ended = True

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # `alive` reaps it later
            self._process.wait(KILL_S)

    def close(self) -> None:
        """End the worker and reap it; nobody waits for its answers."""
        self._close_pipes()
        self.kill()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def forget(self) -> None:
        """Drop a worker that belongs to the parent of this forked process."""
        self._close_pipes()
        self._process.returncode = 0  # not our child: never wait for it


def wait_for_answers(workers: Iterable[Worker]) -> None:
    """Wait until one of some workers has said something, ended, or taken more of what it is given, for
    `LOOK_S` at most.

    Silence counts only while this process waits here: a worker that was stopped together with it is not late.
    """
    workers = list(workers)
    if not _poll(workers).poll(1000 * LOOK_S):
        for worker in workers:
            worker._silent_s += LOOK_S


def _poll(workers: Iterable[Worker]) -> select.poll:
    poll = select.poll()
    for worker in workers:
        jobs, answers = worker._pipes()
        poll.register(answers, select.POLLIN)
        if worker._going:
            poll.register(jobs, select.POLLOUT)
    return poll


class Workers:
    """The idle workers of this process. Killed ones are replaced when the next are taken.

    Those that end because nobody needs them are reaped soon after, by a thread that sleeps until then.

    The lock's holder starts or ends processes, or changes lists, and runs no signal handler meanwhile: nobody
    waits long for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._taken: set[Worker] = set()
        self._reaper: threading.Timer | None = None
        self._unstarted = 0  # workers lost before they were ready, since one was
        self._usable = bool(sys.executable) and hasattr(select, "poll") and SCRIPT.is_file()

    def take(self, count: int) -> list[Worker]:
        """Return up to `count` workers nobody else uses, started where too few are idle."""
        if not self._usable or self._unstarted >= MOST_UNSTARTED:
            return []
        with UNINTERRUPTIBLE, self._lock:
            self._drop_ended()
            idle = sorted(self._idle, key=lambda w: not w.ready)
            taken, self._idle = idle[:count], idle[count:]  # the one used last, so that others idle and end
            try:
                while len(taken) < count:
                    taken.append(Worker())
            except OSError:  # no more processes, no memory: this process compiles alone
                pass
            self._taken.update(taken)
            return taken

    def prepare(self) -> None:
        """Start a worker, unless one idles: somebody will soon need it."""
        self.give_back(self.take(1))

    def give_back(self, taken: list[Worker]) -> None:
        """Return workers whose last job is answered, or that were killed."""
        with UNINTERRUPTIBLE, self._lock:
            self._taken.difference_update(taken)
            for worker in reversed(taken):
                self._unstarted = 0 if worker.ready else self._unstarted + worker.lost
                if worker.alive:
                    self._idle.insert(0, worker)
                else:
                    worker.close()
            self._reap_later()

    def _drop_ended(self) -> None:
        for worker in [w for w in self._idle if not w.alive]:
            worker.close()
            self._idle.remove(worker)

    def _reap_later(self) -> None:
        """Look for workers that ended once they have been idle for long. Call with the lock held."""
        if self._reaper is None and self._idle:
            self._reaper = threading.Timer(assemble_worker.IDLE_S + REAP_S, self._reap)
            self._reaper.daemon = True
            self._reaper.start()

    def _reap(self) -> None:
        with UNINTERRUPTIBLE, self._lock:
            self._drop_ended()
            self._reaper = None
            self._reap_later()

    def seconds_to_start(self) -> float:
        """Return about how long until the next worker that is taken takes a job."""
        with UNINTERRUPTIBLE, self._lock:
            return min((w.seconds_to_start for w in self._idle if w.alive), default=START_S)

    def pids(self) -> list[int]:
        """Return the process ids of the idle workers."""
        with UNINTERRUPTIBLE, self._lock:
            return [w.pid for w in self._idle if w.alive]

    def close(self) -> None:
        with UNINTERRUPTIBLE, self._lock:
            for worker in (*self._idle, *self._taken):
                worker.close()
            self._idle, self._taken = [], set()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for worker in (*self._idle, *self._taken):
            worker.forget()
        self._idle, self._taken, self._reaper = [], set(), None


WORKERS: Final = Workers()
atexit.register(WORKERS.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS._after_fork)
