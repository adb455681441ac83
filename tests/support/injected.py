"""Failures put into the compiler: every pass, every tactic, code generation, linking and the cache.

A `Fault` is a place of the compiler that raises; `injected(fault, mode)` lets it raise at the first call, at
every call, or whenever it works on one and the same thing: a kernel, an op, a graph.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import stratal.compiler
from stratal.base import fallback
from stratal.codegen import assembly
from stratal.codegen.assemble_workers import WORKERS, Worker
from stratal.plan import caching, generation, partitioning
from stratal.runtime import loader
from stratal.runtime.cache import ObjectCache
from stratal.schedule import program as lowering
from stratal.schedule import select, tactics
from stratal.schedule.result import Candidate

MODES = ("first", "every", "one")


class Fault(NamedTuple):
    """A function of the compiler: where its name is looked up; `subject` is what it works on."""

    kind: str
    name: str
    holder: Any
    attribute: str
    subject: Callable[..., object] = lambda *args, **_: args[:1]
    makes: bool = False  # it is what the function returns that raises
    needed: bool = False  # nothing runs without it: it may fail once, not each time

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def _group(x: Any, *_: object, **__: object) -> object:
    return tuple((m.op.name, str(m.type)) for m in x.group.members)


def _passes() -> Iterator[Fault]:
    for name, found in sorted(fallback.PASSES.items()):
        yield Fault("pass", name, found, "run")


def _tactics() -> Iterator[Fault]:
    for info in pkgutil.iter_modules(tactics.__path__):
        module = import_module(f"{tactics.__name__}.{info.name}")
        if hasattr(module, "KIND"):
            yield Fault("tactic", info.name, module, "candidates", _group)
            yield Fault("schedule", info.name, module, "candidates", _group, makes=True)


def _steps() -> Iterator[Fault]:
    def op(problem: Any, *_: object, **__: object) -> object:
        return tuple(m.op.name for m in problem.group.members)

    yield Fault("step", "fuse", partitioning, "fuse")
    yield Fault("step", "share_memory", stratal.compiler, "share_memory")
    yield Fault("step", "link", stratal.compiler, "link", needed=True)
    yield Fault("step", "lowering", stratal.compiler.ProgramLowering, "program")
    yield Fault("step", "group", select, "schedule_group", op)
    yield Fault("step", "body", select, "schedule_body", lambda found, _: str(found))
    yield Fault("step", "parameters", select, "finish", lambda _, found: found.name)
    yield Fault("step", "index_check", lowering, "index_checks", op)
    yield Fault("step", "row_kernel", lowering, "row_kernel", lambda a, b, **_: str(a.type))
    yield Fault("step", "region", lowering.RegionLowering, "run", lambda r: r.node.op.name)


def _code() -> Iterator[Fault]:
    yield Fault("code", "kernel_text", generation, "kernel_module", lambda kernel, _: kernel.name)
    yield Fault("code", "object", assembly, "assemble", lambda text, _: text)
    yield Fault("code", "workers", type(WORKERS), "take", lambda *_: "take")
    yield Fault("code", "worker", Worker, "give", lambda _, key, *__: key)
    yield Fault("code", "linker", loader, "link", lambda objects, _: len(objects))
    yield Fault("code", "loader", loader, "read_object", lambda code: code)
    yield Fault("code", "load", stratal.compiler, "LoadedProgram", lambda e, *_, **__: e.name, needed=True)
    yield Fault("cache", "read", ObjectCache, "get", lambda _, key: key)
    yield Fault("cache", "read_many", ObjectCache, "get_many", lambda _, keys: tuple(keys))
    yield Fault("cache", "write", ObjectCache, "put", lambda _, key, __: key)
    yield Fault("cache", "pack", caching, "pack", lambda *_: "pack")
    yield Fault("cache", "unpack", caching, "unpack", lambda *_, **__: "unpack")


FAULTS = [*_passes(), *_tactics(), *_steps(), *_code()]
CASES = [(fault, mode) for fault in FAULTS for mode in MODES if mode == "first" or not fault.needed]


class Injected:
    """How often a fault was met, and raised."""

    def __init__(self) -> None:
        self.calls = self.raised = 0


class InjectedError(RuntimeError):
    """Raised in place of a failure of the compiler's own."""

    __module__ = "stratal.injected"  # as one of its modules would


@contextmanager
def injected(fault: Fault, mode: str) -> Iterator[Injected]:
    """Let a place of the compiler fail."""
    plan = Injected()
    original = getattr(fault.holder, fault.attribute)
    seen: dict[object, None] = {}

    def fails(subject: object) -> bool:
        seen.setdefault(subject := repr(subject))
        plan.calls += 1
        one = next(iter(seen)) == subject
        due = {"never": False, "first": plan.calls == 1, "every": True, "one": one}[mode]
        plan.raised += due
        return due

    def broken(*args: Any, **options: Any) -> Any:
        if fails(fault.subject(*args, **options)):
            raise InjectedError(f"injected into {fault}")
        return original(*args, **options)

    def with_broken_results(*args: Any, **options: Any) -> Any:
        return [_broken(candidate, fault.subject(*args)) for candidate in original(*args, **options)]

    def _broken(candidate: Candidate, subject: object) -> Candidate:
        def make(x: Any) -> Any:
            if fails(subject):
                raise InjectedError(f"injected into {fault}")
            return candidate.make(x)

        return candidate._replace(make=make)

    setattr(fault.holder, fault.attribute, with_broken_results if fault.makes else broken)
    try:
        yield plan
    finally:
        setattr(fault.holder, fault.attribute, original)
