"""Many modules to object code: a batch that grows while worker processes compile it."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from stratal.base import settings
from stratal.base.collector import collect_paused
from stratal.base.faults import is_fault
from stratal.codegen.assemble import MachineTarget, assemble, rejected
from stratal.codegen.assemble_workers import WORKERS, Worker, WorkerLostError, wait_for_answers

NODES_PER_WORKER: Final = 60  # of a graph: their kernels take as long to compile as a worker to start
SECONDS_PER_BYTE: Final = 7.0e-7  # of LLVM text, measured on explicit-vector kernels of 2 to 25 kB
SLOWEST: Final = 100.0  # times what LLVM takes here, on a machine that is slow and busy
SECONDS_PER_KERNEL: Final = 2.0e-3
AHEAD_S: Final = 0.1  # of work that a worker has before it: this process looks after it between other things
WAITING_AHEAD_S: Final = 0.005  # while this process does nothing else
MOST_LOST: Final = 2  # workers a module may end, before it is taken for the cause: it would end this process


def compile_all(
    jobs: Iterable[tuple[str, str]], target: MachineTarget, *, num_workers: int | None = None
) -> dict[str, bytes]:
    """Return key -> object code for (key, LLVM text) jobs. See: `Assembly`. Raises: CompilerError."""
    with Assembly(target, num_workers=num_workers) as assembly:
        for key, text in jobs:
            assembly.add(key, text)
        return assembly.finish()


def estimated_seconds(text: str) -> float:
    """Return about how long one process needs to compile a module."""
    return SECONDS_PER_KERNEL + SECONDS_PER_BYTE * len(text)


class Assembly:
    """Modules that are compiled while the caller still makes others.

    Worker processes do it, at most `num_workers` (default: the setting `compile_workers`). LLVM would stay in
    this process with 70 MB, so it compiles here only where there is no worker; the code is the same. No
    thread looks after the workers, which would wait for its turn while this one runs Python: each `add` does,
    and they have work ahead for the time between. A `with` block ends what nobody waits for any more.
    """

    def __init__(self, target: MachineTarget, *, num_workers: int | None = None) -> None:
        wanted = settings.compile_workers.value if num_workers is None else num_workers
        self._target: Final = target
        self._most_helpers = wanted
        self._most_beside = min(wanted, max(1, wanted - 1))  # this process needs a core until `finish`
        self._texts: Final[dict[str, str]] = {}
        self._pending: Final[list[tuple[int, str]]] = []  # a heap: (-size, key)
        self._pending_seconds = 0.0
        self._done: Final[dict[str, bytes]] = {}
        self._refused: Final[dict[str, Exception]] = {}
        self._lost: Final[Counter[str]] = Counter()  # workers that ended while they compiled it
        self._helpers: list[Worker] = []
        self._taken: Final[list[Worker]] = []

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the workers back."""
        for worker in self._taken:
            if worker.unanswered:  # what it would answer has no reader any more
                worker.kill()
        WORKERS.give_back(self._taken)

    def expect(self, num_nodes: int) -> None:
        """Start workers for the kernels of a graph of so many nodes, which this process still decides."""
        for _ in range(len(self._taken), 1 + num_nodes // NODES_PER_WORKER):
            self._take_helper(self._most_beside)

    def add(self, key: str, text: str) -> None:
        """Have a module compiled; a key that comes again is compiled once."""
        if key not in self._texts:
            self._texts[key] = text
            self._put(key)
            if self._pending_seconds >= 1.5 * WORKERS.seconds_to_start() * len(self._taken):
                self._take_helper(self._most_beside)
        self._look_after_helpers(AHEAD_S)

    def finish(self) -> dict[str, bytes]:
        """Wait until all is compiled; return the code by key, in the order of `add`.

        Raises: CompilerError.
        """
        codes, refused = self.collect()
        for key in sorted(refused):
            raise refused[key]
        return codes

    def collect(self) -> tuple[dict[str, bytes], dict[str, Exception]]:
        """Wait until all is compiled; return the code, and the errors of what LLVM does not take, by key."""
        while self._pending_seconds > WORKERS.seconds_to_start() * len(self._taken):
            if not self._take_helper(self._most_helpers):
                break
        self._look_after_helpers(AHEAD_S)
        if any(worker.unanswered for worker in self._helpers):
            collect_paused()
        while len(self._done) + len(self._refused) < len(self._texts):
            if self._helpers:
                wait_for_answers(self._helpers)
                self._look_after_helpers(WAITING_AHEAD_S)
            elif key := self._next():
                if self._lost[key] and self._most_helpers and self._take_helper(len(self._taken) + 1):
                    self._put(key)  # rather than here: if it ends a second process, it shall not be this one
                else:
                    self._compile_here(key)
        return {key: self._done[key] for key in self._texts if key in self._done}, dict(self._refused)

    def give_up_helpers(self) -> None:
        """Let this process compile all that is not done."""
        self._helpers.clear()
        self._most_helpers = self._most_beside = 0
        waiting = {key for _, key in self._pending}
        for key in self._texts:
            if key not in waiting and key not in self._done and key not in self._refused:
                self._put(key)

    def _compile_here(self, key: str) -> None:
        try:
            self._done[key] = assemble(self._texts[key], self._target)
        except Exception as error:
            if not is_fault(error):
                raise
            self._refused[key] = error

    def _put(self, key: str) -> None:
        heapq.heappush(self._pending, (-len(self._texts[key]), key))
        self._pending_seconds += estimated_seconds(self._texts[key])

    def _next(self) -> str | None:
        """Take the largest pending job."""
        if not self._pending:
            return None
        _, key = heapq.heappop(self._pending)
        self._pending_seconds -= estimated_seconds(self._texts[key])
        return key

    def _take_helper(self, most: int) -> bool:
        """Take another worker, unless there are that many; return whether there is one more."""
        if len(self._taken) >= most:
            return False
        taken = WORKERS.take(1)
        self._taken.extend(taken)
        self._helpers.extend(taken)
        return bool(taken)

    def _look_after_helpers(self, ahead_s: float) -> None:
        """Take what the helpers have compiled, and give each work for so many seconds."""
        for worker in list(self._helpers):
            try:
                for key, worked, answer in worker.answers():
                    if worked:
                        self._done[key] = answer
                    else:
                        self._refused[key] = rejected(answer.decode(errors="replace"))
                worker.check(self._patience(worker))
                self._give(worker, ahead_s)
            except WorkerLostError:  # others compile what it leaves
                self._helpers.remove(worker)
                if worker.ready:  # it has begun the first
                    self._lost.update(worker.unanswered[:1])
                for key in worker.unanswered:
                    if self._lost[key] < MOST_LOST:
                        self._put(key)
                    else:
                        self._refused[key] = rejected("two processes that compiled it ended, or were silent")
                worker.unanswered.clear()

    def _patience(self, worker: Worker) -> float:
        """Return how many seconds a worker may be silent."""
        if not worker.unanswered:
            return math.inf
        first = self._texts[worker.unanswered[0]]
        return settings.compile_timeout.value + SLOWEST * estimated_seconds(first)

    def _give(self, worker: Worker, ahead_s: float) -> None:
        target = self._target
        before_it = sum(estimated_seconds(self._texts[key]) for key in worker.unanswered)
        while before_it < ahead_s and (key := self._next()) is not None:
            before_it += estimated_seconds(self._texts[key])
            worker.give(key, target.triple, target.cpu, target.features, self._texts[key])
