"""What is kept on disk between processes: kernels by their loops, whole programs by their graph.

    kernel   its loops (by the digest in its name), the target and its function attributes, the code generator
    program  the graph, labels of its inputs, which of its nodes share source lines, the target, the threads,
             fused or not, Winograd's algorithm and real arithmetic allowed or not, the memory budget, tuning
             records, the compiler

A program names its source lines by number in the order the graph meets them: moved within a file, or computed
in another one, the same graph finds the same program, and errors name the lines of whoever runs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Final

from stratal.base import settings, tuning
from stratal.base.artifact import (
    Branch,
    Copy,
    Executable,
    Host,
    KernelObject,
    Launch,
    Loop,
    Once,
    Value,
    While,
)
from stratal.base.errors import FormatError
from stratal.base.fallback import incidental
from stratal.base.source import SourceLine
from stratal.base.target import Target
from stratal.codegen.assemble import toolchain_digest
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.plan.stages import in_force
from stratal.runtime.cache import object_cache
from stratal.runtime.pack import pack, unpack


class CachedKernels:
    """The kernels of one target in the cache."""

    def __init__(self, target: Target) -> None:
        self._generator: Final = f"{target.digest} {toolchain_digest('kernel')}"

    def key(self, symbol: str) -> str:
        """Return the key of a kernel: its symbol names its loops."""
        return f"kernel {symbol} {self._generator}"

    def code(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return code that the code generator's sources and the target decide, made where it is not kept."""
        found = _get(self.key(name))
        if found is None:
            found = make()
            _put(self.key(name), found)
        return found

    def find(self, symbols: Iterable[str]) -> dict[str, KernelObject]:
        """Return those of some kernels that are kept, by symbol."""
        if settings.dump.value is not None:  # what is dumped is generated before one's eyes
            return {}
        keys = {symbol: self.key(symbol) for symbol in symbols}
        codes = incidental("cache read", lambda: object_cache().get_many(keys.values()), dict[str, bytes])
        return {s: KernelObject(s, codes[key], key) for s, key in keys.items() if key in codes}

    def keep(self, codes: Mapping[str, bytes]) -> dict[str, KernelObject]:
        """Keep code by symbol and return it as kernels."""
        made = {symbol: KernelObject(symbol, code, self.key(symbol)) for symbol, code in codes.items()}
        for kernel in made.values():
            _put(kernel.key, kernel.code)
        return made


class CachedProgram:
    """The place of one graph's program in the cache."""

    def __init__(self, graph: Graph, target: Target, *, fused: bool) -> None:
        self._graph: Final = graph
        self._usable: Final = (
            object_cache().directory is not None and not in_force() and not settings.verify.value
        )
        self._lines: list[SourceLine] = []
        self._key = ""
        if self._usable:
            self._lines, shared = _lines_of(graph)
            labels = hashlib.sha256(repr([str(getattr(i.op, "label", "")) for i in graph.inputs]).encode())
            chosen = {k: v for k, v in settings.shaping().items() if k not in _IN_RECORDS}
            search = toolchain_digest("search") if settings.math.value != "exact" else ""
            self._key = " ".join((
                "program", graph.digest, shared, labels.hexdigest()[:32], target.digest, str(fused),
                str(chosen), tuning.in_force().digest, search, toolchain_digest("program"),
            ))  # fmt: skip

    def find(self) -> Executable | None:
        """Return the program, or None. One that does not read as it should counts as missing."""
        found = _get(self._key) if self._usable else None
        if found is None:
            return None
        try:
            executable = incidental("cache read", lambda: unpack(found, lines=self._lines), _nothing)
        except FormatError:
            return None
        if executable is not None:
            executable.name = self._graph.name
        return executable

    def drop(self, executable: Executable) -> None:
        """Remove a program and its kernels, which do not link, from the cache."""
        for key in (self._key, *(kernel.key for kernel in executable.kernels.values())):
            object_cache().drop(key)

    def keep(self, executable: Executable) -> None:
        """Keep a program, unless it calls Python: functions live in one process."""
        if self._usable and not executable.calls:
            incidental("cache write", lambda: _put(self._key, pack(executable, self._lines)), _nothing)


def digest_of(executable: Executable) -> str:
    """Return a digest of what decides the results of a program, to the bit, without deciding anything again.

    Kernels by their keys (loops, target, code generator), commands, types and homes of values, constants.
    Names, source lines, offsets and threads are left out. Host calls count by their labels alone.
    """
    kernels = executable.kernels

    def plain(found: object) -> object:
        if isinstance(found, Value | Launch | Copy | Host | Loop | While | Branch | Once):
            names = [f.name for f in fields(found) if f.name not in _NO_RESULT]
            names += ["label"] if isinstance(found, Host) else []
            return [type(found).__name__, *(plain(getattr(found, name)) for name in names)]
        if isinstance(found, tuple):
            return [plain(part) for part in found]
        if isinstance(found, str) and found in kernels:
            return kernels[found].key
        return found if isinstance(found, int | str | None) else str(found)

    parts = [
        [plain(value) for value in executable.values], plain(executable.commands), executable.inputs,
        executable.outputs, executable.states, executable.frozen,
        [hashlib.sha256(constant).hexdigest() for constant in executable.constants],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]


_IN_RECORDS: Final = ("tuning", "objective")  # they decide through the records alone, which have a digest
_NO_RESULT: Final = ("where", "group", "offset", "may_fail", "label")


def _get(key: str) -> bytes | None:
    """Return what the cache holds; what it fails to read counts as missing."""
    return incidental("cache read", lambda: object_cache().get(key), _nothing)


def _put(key: str, payload: bytes) -> None:
    """Keep something in the cache; what it fails to write is made again the next time."""
    incidental("cache write", lambda: object_cache().put(key, payload), lambda: False)


def _nothing() -> None:
    """Go on as where the cache holds nothing."""


def _lines_of(graph: Graph) -> tuple[list[SourceLine], str]:
    """Return a graph's source lines, each once, and a digest of which nodes come from which of them."""
    number: dict[SourceLine, int] = {}
    rows = [[number.setdefault(line, len(number)) for line in node.where] for node in _all_nodes(graph)]
    return list(number), hashlib.sha256(repr(rows).encode()).hexdigest()[:32]


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of the graphs its control flow holds."""
    yield from graph.inputs
    for node in graph.nodes:
        yield node
        for value in node.op.attributes.values():
            for region in value if isinstance(value, tuple) else (value,):
                if isinstance(region, Graph):
                    yield from _all_nodes(region)
