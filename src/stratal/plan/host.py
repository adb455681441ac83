"""This machine as a target. LLVM describes it in a worker process; what it says is kept.

The list of features is part of every key of the cache, so every process needs it first; to have LLVM here for
that would take 55 MB and 50 ms. It is kept under the processor that Linux lists and the id of this boot,
because a cache directory may travel to another machine. Where the system gives neither, each process asks.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from pathlib import Path
from typing import Final

from stratal.base import settings
from stratal.base.byte_sizes import bytes_in
from stratal.base.errors import SettingError
from stratal.base.target import TARGETS, Target, class_of, host_arch
from stratal.codegen.assemble import Machine, host_machine, llvm_version
from stratal.codegen.assemble_workers import WORKERS
from stratal.runtime.cache import object_cache

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PROCESSORS: Final = Path("/proc/cpuinfo")
_FIRST_BYTES: Final = 8192  # the first processor's lines; some systems list hundreds
_VOLATILE: Final = ("cpu MHz", "bogomips", "processor", "apicid", "initial apicid", "core id")


def target_named(name: str) -> Target:
    """Return a target by name; `host` is this machine. Raises: SettingError."""
    if name == "host":
        return host_target()
    if name not in TARGETS:
        raise SettingError(
            "target: there is no such target", got=repr(name), hint="one of host, " + ", ".join(TARGETS)
        )
    found = TARGETS[name]
    if found.arch == host_arch():  # objects must load here, whatever the operating system
        return dataclasses.replace(found, triple=_described().triple)
    return found


def current_target() -> Target:
    """Return the target the settings ask for."""
    return target_named(settings.target.value)


def runnable_target() -> Target:
    """Return the target the settings ask for, whose code is to run here.

    Raises: SettingError where this machine lacks what the target requires: its code would end the process.
    """
    target, machine = current_target(), _described()
    lacks = target.lacking(machine.features) if machine.features else []
    if target.arch != host_arch():
        lacks = [f"a processor of {target.arch}"]
    if lacks:
        raise SettingError(
            f"target: code for {target.name} does not run on this machine",
            got=f"it lacks {', '.join(lacks)}",
            hint=f"{settings.target.variable}=host",
        )
    return target


@lru_cache(maxsize=1)
def host_target() -> Target:
    """Return the target that describes this machine: its class, LLVM's name for it and its cache sizes."""
    machine = _described()
    base = class_of(host_arch(), machine.features)
    sizes = _cache_sizes(Path("/sys/devices/system/cpu/cpu0/cache"))
    return dataclasses.replace(
        base,
        arch=host_arch(),
        triple=machine.triple,
        cpu=machine.cpu,
        features=machine.features,
        l1d_bytes=sizes.get(1, base.l1d_bytes),
        l2_bytes=sizes.get(2, base.l2_bytes),
        l3_bytes=sizes.get(3, base.l3_bytes),
    )


def expect_host() -> None:
    """Start the worker that will be asked what this machine is, where that is not known yet."""
    if settings.compile_workers.value and not _described.cache_info().currsize and _kept() is None:
        WORKERS.prepare()


@lru_cache(maxsize=1)
def _described() -> Machine:
    """Return what LLVM says of this machine, or said before."""
    found = _kept()
    if found is None:
        found, key = host_machine(), _key()
        if key:
            object_cache().put(key, json.dumps(found).encode())
    return found


def _kept() -> Machine | None:
    key = _key()
    payload = object_cache().get(key) if key else None
    try:
        triple, cpu, features = map(str, json.loads(payload or b"[]"))
    except (ValueError, TypeError):
        return None
    return Machine(triple, cpu, features)


@lru_cache(maxsize=1)
def _key() -> str:
    """Return what the description is kept under, or nothing where machines cannot be told apart."""
    try:
        boot = _BOOT.read_text().strip()
        with _PROCESSORS.open() as file:
            processor = file.read(_FIRST_BYTES).split("\n\n")[0]
    except (OSError, ValueError):
        return ""
    lines = [line for line in processor.splitlines() if line.split("\t")[0] not in _VOLATILE]
    return f"host {llvm_version()} {boot} " + "\n".join(lines)


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Return data cache sizes in bytes by level, as Linux lists them; what it does not list is left out."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            size = bytes_in((index / "size").read_text().strip() + "iB")
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size:
            sizes[level] = size
    return sizes
