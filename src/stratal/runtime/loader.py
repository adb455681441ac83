"""Object code into this process: one library per batch of objects, shared between programs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Final

from stratal.base.artifact import KernelObject
from stratal.base.errors import CompilerError
from stratal.base.target import host_arch
from stratal.base.weak import WeakTable
from stratal.runtime import vendor
from stratal.runtime.elf import read_object
from stratal.runtime.link import Linked, link
from stratal.runtime.llvm_linker import LlvmLinked

_lock = threading.RLock()  # re-entrant: a signal's handler may compile, too
_loaded: Final[WeakTable[Library]] = WeakTable()  # by code and symbol


class Library:
    """Objects linked together; their addresses hold as long as this object lives."""

    __slots__ = ("__weakref__", "_linked", "addresses")

    def __init__(self, codes: Iterable[bytes], symbols: Iterable[str]) -> None:
        codes = list(codes)
        self._linked: Final = _linked(codes, symbols := tuple(symbols))
        missing = [symbol for symbol in symbols if symbol not in self._linked.addresses]
        if missing:
            raise CompilerError("linker: object code lacks what it is named for", got=", ".join(missing))
        self.addresses: Final = {symbol: self._linked.addresses[symbol] for symbol in symbols}


def _linked(codes: list[bytes], symbols: tuple[str, ...]) -> Linked | LlvmLinked:
    """Link with the small linker where it knows the machine, else with LLVM's.

    The machine decides, not the object: LLVM ends the process on objects that are corrupt enough.
    """
    given = vendor.addresses(codes)
    if sys.platform == "linux" and host_arch() == "x86_64":
        return link([read_object(code) for code in codes], given)
    return LlvmLinked(codes, symbols, given)


def load_kernels(kernels: Iterable[KernelObject]) -> tuple[dict[str, int], tuple[Library, ...]]:
    """Return symbol -> address, and the libraries to keep alive as long as the addresses are used.

    Kernels whose very code another living program has loaded are shared; the others are linked at once.
    Raises: CompilerError for two kernels of one symbol, or object code that does not link.
    """
    wanted = list(kernels)
    if len({k.symbol for k in wanted}) != len(wanted):
        raise CompilerError("loader: two kernels of one program have the same symbol")
    with _lock:
        libraries: dict[int, Library] = {}
        addresses: dict[str, int] = {}
        fresh = []
        for kernel in wanted:
            library = _loaded.get((kernel.code, kernel.symbol))
            if library is None:
                fresh.append(kernel)
            else:
                libraries[id(library)] = library
                addresses[kernel.symbol] = library.addresses[kernel.symbol]
        if fresh:
            library = Library((k.code for k in fresh), (k.symbol for k in fresh))
            libraries[id(library)] = library
            addresses |= library.addresses
            for kernel in fresh:
                _loaded.add((kernel.code, kernel.symbol), library)
    return addresses, tuple(libraries.values())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
