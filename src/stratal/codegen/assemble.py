"""LLVM text to object code, here or in worker processes, and the digest of all that shapes that code."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from stratal.base import settings
from stratal.base.errors import CompilerError
from stratal.codegen.assemble_worker import assembly_of, emit_object
from stratal.codegen.assemble_workers import WORKERS, Worker, WorkerLostError

WORKER_START_S: Final = 0.35  # a Python process that imports llvmlite
SECONDS_PER_BYTE: Final = 7.0e-7  # of LLVM text, measured on explicit-vector kernels of 2 to 25 kB
SECONDS_PER_KERNEL: Final = 2.0e-3
_KERNEL_SOURCES: Final = ("base", "loops", "codegen")
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

    Worker processes take part where they pay; `num_workers` (default: the setting `compile_workers`) bounds
    all that compile at once, this process included. The code does not depend on who compiled it. Raises:
    CompilerError.
    """
    texts = dict(jobs)
    wanted = settings.compile_workers.value if num_workers is None else num_workers
    helpers = min(wanted - 1, len(texts) - 1)
    if helpers < 1 or not _workers_pay(list(texts.values())):
        return {key: assemble(text, target) for key, text in texts.items()}
    taken = WORKERS.take(helpers)
    try:
        return _Compilation(texts, target).run(taken)
    finally:
        WORKERS.give_back(taken)


def estimated_seconds(texts: list[str]) -> float:
    """Return about how long one process needs to compile these modules."""
    return sum(SECONDS_PER_KERNEL + SECONDS_PER_BYTE * len(text) for text in texts)


def _workers_pay(texts: list[str]) -> bool:
    """Whether helping processes finish early enough: the work must outlast their start by some margin."""
    start = 0.01 if WORKERS.any_ready() else WORKER_START_S
    return estimated_seconds(texts) > 1.5 * start


class _Compilation:
    """One batch of modules shared between this thread and one thread per worker process, largest first."""

    def __init__(self, texts: dict[str, str], target: MachineTarget) -> None:
        self.texts = texts
        self.target = target
        self.pending = deque(sorted(texts, key=lambda key: (-len(texts[key]), key)))
        self.done: dict[str, bytes] = {}
        self.rejected: dict[str, str] = {}

    def run(self, helpers: list[Worker]) -> dict[str, bytes]:
        threads = [threading.Thread(target=self._feed, args=(h,), daemon=True) for h in helpers]
        try:
            for thread in threads:
                thread.start()
            self._take_part()
            for thread in threads:
                thread.join()
        except BaseException:
            self.pending.clear()
            for helper in helpers:  # what they would answer has no reader any more
                helper.kill()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(timeout=1.0)
            raise
        self._take_part()  # what a lost worker left behind
        if self.rejected:
            raise _rejected(self.rejected[min(self.rejected)])
        return {key: self.done[key] for key in self.texts}

    def _take_part(self) -> None:
        while self.pending and not self.rejected:
            try:
                key = self.pending.popleft()
            except IndexError:
                return
            self.done[key] = assemble(self.texts[key], self.target)

    def _feed(self, worker: Worker) -> None:
        """Give a worker jobs until none is left; a job whose worker died goes back to the queue."""
        target = self.target
        if not worker.wait_until_ready(lambda: bool(self.pending)):
            return
        while not self.rejected:
            try:
                key = self.pending.popleft()
            except IndexError:
                return
            try:
                worked, answer = worker.compile(target.triple, target.cpu, target.features, self.texts[key])
            except WorkerLostError:
                self.pending.append(key)
                return
            if worked:
                self.done[key] = answer
            else:
                self.rejected[key] = answer.decode(errors="replace")


@lru_cache(maxsize=2)
def toolchain_digest(scope: Literal["kernel", "program"] = "kernel") -> str:
    """Return a digest of the toolchain and of the sources that decide what a kernel (or a whole program)
    becomes.

    Part of every cache key: an edit of any of them makes old entries unreachable.
    """
    import llvmlite
    import llvmlite.binding as llvm

    digest = hashlib.blake2b(digest_size=16)
    version = ".".join(map(str, llvm.llvm_version_info))
    digest.update(f"llvmlite {llvmlite.__version__} llvm {version}".encode())
    package = Path(__file__).parent.parent
    roots = [package / name for name in (_KERNEL_SOURCES if scope == "kernel" else _PROGRAM_SOURCES)]
    for path in sorted(p for root in roots for p in (root.rglob("*.py") if root.is_dir() else [root])):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.blake2b(path.read_bytes(), digest_size=16).digest())
    return digest.hexdigest()
