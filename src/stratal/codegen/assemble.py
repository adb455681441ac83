"""LLVM text to object code, here or in worker processes, and the digest of all that shapes that code."""

from __future__ import annotations

import hashlib
import heapq
import os
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from stratal.base import settings
from stratal.base.errors import CompilerError
from stratal.codegen.assemble_worker import assembly_of, emit_object
from stratal.codegen.assemble_workers import WORKERS, Worker, WorkerLostError

NODES_WORTH_A_WORKER: Final = 60  # of a graph: its kernels take as long to compile as a worker to start
SECONDS_PER_BYTE: Final = 7.0e-7  # of LLVM text, measured on explicit-vector kernels of 2 to 25 kB
SECONDS_PER_KERNEL: Final = 2.0e-3
_KERNEL_SOURCES: Final = ("base", "loops", "codegen")
_SCHEDULE_SOURCES: Final = (*_KERNEL_SOURCES, "schedule")
_PROGRAM_SOURCES: Final = (*_KERNEL_SOURCES, "graph", "ops", "optimize", "schedule", "memory", "compiler.py")


class MachineTarget(Protocol):
    """What code generation must know to emit objects: LLVM's names for the machine."""

    @property
    def triple(self) -> str: ...
    @property
    def cpu(self) -> str: ...
    @property
    def features(self) -> str: ...


class Machine(NamedTuple):
    """A target machine in LLVM's words."""

    triple: str
    cpu: str
    features: str


@lru_cache(maxsize=1)
def host_machine() -> Machine:
    """Return the machine this process runs on."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    return Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def assemble(llvm_text: str, target: MachineTarget) -> bytes:
    """Return the object code of one LLVM module. Raises: CompilerError with the reason LLVM gave."""
    try:
        return emit_object(target.triple, target.cpu, target.features, llvm_text)
    except (RuntimeError, ValueError) as error:
        raise _rejected(str(error)) from None


def emit_assembly(llvm_text: str, target: MachineTarget) -> str:
    """Return the assembly of one LLVM module, for people to read. Raises: CompilerError."""
    try:
        return assembly_of(target.triple, target.cpu, target.features, llvm_text)
    except (RuntimeError, ValueError) as error:
        raise _rejected(str(error)) from None


def _rejected(message: str) -> CompilerError:
    return CompilerError(
        "codegen: LLVM rejected generated code", got=message.strip()[:2000], hint="this is a fault of Stratal"
    )


def compile_all(
    jobs: Iterable[tuple[str, str]], target: MachineTarget, *, num_workers: int | None = None
) -> dict[str, bytes]:
    """Return key -> object code for (key, LLVM text) jobs; a key that comes twice is compiled once.

    Jobs are taken as they come: while the caller makes the next text, worker processes compile the ones
    before. They take part where they pay; `num_workers` (default: the setting `compile_workers`) bounds all
    that compile at once, this process included. The code does not depend on who compiled it. Raises:
    CompilerError.
    """
    wanted = settings.compile_workers.value if num_workers is None else num_workers
    return _Compilation(target, wanted - 1).run(jobs)


def expect_jobs(num_nodes: int) -> None:
    """Start a worker for the kernels of a graph of so many nodes, where they are worth one."""
    if settings.compile_workers.value > 1 and num_nodes >= NODES_WORTH_A_WORKER:
        WORKERS.prepare()


def estimated_seconds(text: str) -> float:
    """Return about how long one process needs to compile a module."""
    return SECONDS_PER_KERNEL + SECONDS_PER_BYTE * len(text)


class _Compilation:
    """One batch of modules shared between this thread and one thread per worker process, largest first."""

    def __init__(self, target: MachineTarget, most_helpers: int) -> None:
        self.target = target
        self.most_helpers = most_helpers
        self.texts: dict[str, str] = {}
        self.pending: list[tuple[int, str]] = []  # a heap: (-size, key)
        self.pending_seconds = 0.0
        self.complete = False  # no job will follow
        self.changed = threading.Condition()
        self.done: dict[str, bytes] = {}
        self.rejected: dict[str, str] = {}
        self.helpers: list[tuple[Worker, threading.Thread]] = []

    def run(self, jobs: Iterable[tuple[str, str]]) -> dict[str, bytes]:
        """Compile all jobs, with as many helpers as the backlog keeps busy."""
        try:
            for key, text in jobs:
                if key not in self.texts:
                    self.texts[key] = text
                    self._put(key)
                    self._take_helper()
            self._complete()
            self._take_part()
            for _, thread in self.helpers:
                thread.join()
        except BaseException:
            self._abandon()
            raise
        finally:
            WORKERS.give_back([worker for worker, _ in self.helpers])
        self._take_part()  # what a lost worker left behind
        if self.rejected:
            raise _rejected(self.rejected[min(self.rejected)])
        return {key: self.done[key] for key in self.texts}

    def _put(self, key: str) -> None:
        with self.changed:
            heapq.heappush(self.pending, (-len(self.texts[key]), key))
            self.pending_seconds += estimated_seconds(self.texts[key])
            self.changed.notify()

    def _next(self, *, wait: bool) -> str | None:
        """Take the largest pending job; None where there is none and, waiting, none will come."""
        with self.changed:
            while wait and not self.pending and not self.complete and not self.rejected:
                self.changed.wait()
            if not self.pending or self.rejected:
                return None
            _, key = heapq.heappop(self.pending)
            self.pending_seconds -= estimated_seconds(self.texts[key])
            return key

    def _complete(self) -> None:
        with self.changed:
            self.complete = True
            self.changed.notify_all()

    def _abandon(self) -> None:
        with self.changed:
            self.pending.clear()
        self._complete()
        for worker, _ in self.helpers:  # what they would answer has no reader any more
            worker.kill()
        for _, thread in self.helpers:
            if thread.ident is not None:
                thread.join(timeout=1.0)

    def _take_helper(self) -> None:
        """Start another helper where the backlog outlasts its start by some margin."""
        worth = 1.5 * WORKERS.seconds_to_start() * (len(self.helpers) + 1)
        if len(self.helpers) >= self.most_helpers or self.pending_seconds < worth:
            return
        for worker in WORKERS.take(1):
            thread = threading.Thread(target=self._feed, args=(worker,), daemon=True)
            self.helpers.append((worker, thread))
            thread.start()

    def _take_part(self) -> None:
        while (key := self._next(wait=False)) is not None:
            self.done[key] = assemble(self.texts[key], self.target)

    def _feed(self, worker: Worker) -> None:
        """Give a worker jobs until none is left; a job whose worker died goes back to the queue."""
        target = self.target
        if not worker.wait_until_ready(lambda: bool(self.pending) or not self.complete):
            return
        while (key := self._next(wait=True)) is not None:
            try:
                worked, answer = worker.compile(target.triple, target.cpu, target.features, self.texts[key])
            except WorkerLostError:
                self._put(key)
                return
            if worked:
                self.done[key] = answer
            else:
                self.rejected[key] = answer.decode(errors="replace")


@lru_cache(maxsize=3)
def toolchain_digest(scope: Literal["kernel", "schedule", "program"] = "kernel") -> str:
    """Return a digest of the toolchain and of the sources that decide what a kernel's loops (a kernel and its
    loops, a whole program) become.

    Part of every cache key: an edit of any of them makes old entries unreachable.
    """
    import llvmlite
    import llvmlite.binding as llvm

    digest = hashlib.blake2b(digest_size=16)
    version = ".".join(map(str, llvm.llvm_version_info))
    digest.update(f"llvmlite {llvmlite.__version__} llvm {version}".encode())
    roots = {"kernel": _KERNEL_SOURCES, "schedule": _SCHEDULE_SOURCES, "program": _PROGRAM_SOURCES}[scope]
    for path, content in _source_digests():
        if path.split("/")[0] in roots:
            digest.update(path.encode() + b"\0" + content)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _source_digests() -> list[tuple[str, bytes]]:
    """Return path in the package and digest of every source that decides what programs become, in order."""
    package = str(Path(__file__).parent.parent)
    found = []
    for root in _PROGRAM_SOURCES:
        top = f"{package}/{root}"
        folders = os.walk(top) if os.path.isdir(top) else [(package, [], [root])]
        for folder, _, files in folders:
            found += [f"{folder}/{name}" for name in files if name.endswith(".py")]
    digests = []
    for path in sorted(found):
        with open(path, "rb") as file:
            content = hashlib.blake2b(file.read(), digest_size=16).digest()
        digests.append((path[len(package) + 1 :].replace(os.sep, "/"), content))
    return digests
