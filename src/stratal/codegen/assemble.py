"""LLVM text to object code in this process, and the digest of all that shapes that code."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from stratal.base import settings
from stratal.base.errors import CompilerError
from stratal.codegen.assemble_worker import assembly_of, describe_host, emit_object
from stratal.codegen.assemble_workers import WORKERS

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
    """Return this machine as LLVM describes it, in a worker process where those compile."""
    taken = WORKERS.take(1 if settings.compile_workers.value else 0)
    try:
        for worker in taken:
            while not worker.ready and worker.alive:
                worker.wait(1.0)
            if worker.ready:
                return Machine(*worker.host)
    finally:
        WORKERS.give_back(taken)
    return Machine(*describe_host())


def assemble(llvm_text: str, target: MachineTarget) -> bytes:
    """Return the object code of one LLVM module. Raises: CompilerError with the reason LLVM gave."""
    try:
        return emit_object(target.triple, target.cpu, target.features, llvm_text)
    except (RuntimeError, ValueError) as error:
        raise rejected(str(error)) from None


def emit_assembly(llvm_text: str, target: MachineTarget) -> str:
    """Return the assembly of one LLVM module, for people to read. Raises: CompilerError."""
    try:
        return assembly_of(target.triple, target.cpu, target.features, llvm_text)
    except (RuntimeError, ValueError) as error:
        raise rejected(str(error)) from None


def rejected(message: str) -> CompilerError:
    """Return the error for text that LLVM does not take, with the reason it gave."""
    return CompilerError(
        "codegen: LLVM rejected generated code", got=message.strip()[:2000], hint="this is a fault of Stratal"
    )


@lru_cache(maxsize=3)
def toolchain_digest(scope: Literal["kernel", "schedule", "program"] = "kernel") -> str:
    """Return a digest of the toolchain and of the sources that decide what a kernel's loops (a kernel and its
    loops, a whole program) become.

    Part of every cache key: an edit of any of them makes old entries unreachable.
    """
    digest = hashlib.blake2b(llvm_version().encode(), digest_size=16)
    roots = {"kernel": _KERNEL_SOURCES, "schedule": _SCHEDULE_SOURCES, "program": _PROGRAM_SOURCES}[scope]
    for path, content in _source_digests():
        if path.split("/")[0] in roots:
            digest.update(path.encode() + b"\0" + content)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def llvm_version() -> str:
    """Return what names the LLVM in use, without loading it: llvmlite's version, the size of its library."""
    import llvmlite

    folder = Path(llvmlite.__file__).parent / "binding"
    files = folder.iterdir() if folder.is_dir() else ()
    libraries = [file for file in files if file.suffix in (".so", ".dylib", ".dll")]
    sizes = sorted(f"{file.name} {file.stat().st_size}" for file in libraries)
    return " ".join(("llvmlite", str(llvmlite.__version__), *sizes))


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
