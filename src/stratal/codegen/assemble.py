"""LLVM text to object code in this process, and the digest of all that shapes that code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from importlib.abc import Traversable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar, Union

from stratal.base import settings
from stratal.base.errors import CompilerError
from stratal.base.faults import is_fault
from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.base.target import Target
from stratal.codegen.assemble_worker import assembly_of, describe_host, emit_object
from stratal.codegen.assemble_workers import WORKERS, WorkerLostError

_KERNEL_SOURCES: Final = ("base", "loops", "codegen")
_SCHEDULE_SOURCES: Final = (*_KERNEL_SOURCES, "schedule")
_PROGRAM_SOURCES: Final = (*_KERNEL_SOURCES, "graph", "ops", "optimize", "schedule", "memory",
                           "plan", "compiler.py")  # fmt: skip
_SOURCES: Final = (".py", ".json")
_SEARCH_SOURCES: Final = ("discover", "search")


class Machine(NamedTuple):
    """A target machine in LLVM's words."""

    triple: str
    cpu: str
    features: str


MachineTarget = Union[Machine, Target]  # what code generation must know to emit objects
Made = TypeVar("Made")


@lru_cache(maxsize=1)
def host_machine() -> Machine:
    """Return this machine as LLVM describes it, in a worker process where those compile."""
    taken = WORKERS.take(1 if settings.compile_workers.value else 0)
    try:
        for worker in taken:
            with suppress(WorkerLostError):
                worker.wait_until_ready(settings.compile_timeout.value)
                return Machine(*worker.host)
    finally:
        WORKERS.give_back(taken)
    return Machine(*describe_host())


def assemble(llvm_text: str, target: MachineTarget) -> bytes:
    """Return the object code of one LLVM module. Raises: CompilerError with the reason LLVM gave."""
    return _asked(emit_object, llvm_text, target)


def emit_assembly(llvm_text: str, target: MachineTarget) -> str:
    """Return the assembly of one LLVM module, for people to read. Raises: CompilerError."""
    return _asked(assembly_of, llvm_text, target)


def _asked(ask: Callable[[str, str, str, str], Made], llvm_text: str, target: MachineTarget) -> Made:
    """Return what LLVM makes of a module."""
    try:
        with UNINTERRUPTIBLE:  # what LLVM has half made must not be left to the order of finalizers
            return ask(target.triple, target.cpu, target.features, llvm_text)
    except (RuntimeError, ValueError) as error:
        if not is_fault(error):
            raise
        raise rejected(str(error)) from None


def rejected(message: str) -> CompilerError:
    """Return the error for text that LLVM does not take, with the reason it gave."""
    return CompilerError(
        "codegen: LLVM rejected generated code", got=message.strip()[:2000], hint="this is a fault of Stratal"
    )


@lru_cache(maxsize=4)
def toolchain_digest(scope: Literal["kernel", "schedule", "program", "search"] = "kernel") -> str:
    """Return a digest of the toolchain and of the sources that decide what a kernel's loops (a kernel and its
    loops, a whole program) become, or of the sources and rules that decide what a search finds.

    Part of every cache key: an edit of any of them makes old entries unreachable.
    """
    digest = hashlib.blake2b(llvm_version().encode(), digest_size=16)
    roots = {
        "kernel": _KERNEL_SOURCES, "schedule": _SCHEDULE_SOURCES, "program": _PROGRAM_SOURCES,
        "search": _SEARCH_SOURCES,
    }[scope]  # fmt: skip
    for path, content in _source_digests(_SEARCH_SOURCES if scope == "search" else _PROGRAM_SOURCES):
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


@lru_cache(maxsize=2)
def _source_digests(roots: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return path in the package and digest of every source that decides what programs become, in order."""
    return sorted((path, hashlib.blake2b(data, digest_size=16).digest()) for path, data in _sources(roots))


def _sources(roots: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield path in the package and content of those sources, from a folder or the zip file it is in."""
    package = str(Path(__file__).parent.parent)
    if not os.path.isdir(package):
        top = resources.files(__package__.partition(".")[0])
        for root in roots:
            yield from _sources_below(top / root, root)
        return
    for root in roots:
        top_folder = f"{package}/{root}"
        folders = os.walk(top_folder) if os.path.isdir(top_folder) else [(package, [], [root])]
        for folder, _, files in folders:
            for name in files:
                if name.endswith(_SOURCES):
                    with open(f"{folder}/{name}", "rb") as file:
                        yield f"{folder}/{name}"[len(package) + 1 :].replace(os.sep, "/"), file.read()


def _sources_below(item: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    if item.is_dir():
        for part in item.iterdir():
            yield from _sources_below(part, f"{path}/{part.name}")
    elif path.endswith(_SOURCES):
        yield path, item.read_bytes()
