"""Object code into this process: one JIT library per batch of objects, shared between programs."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from stratal.base.artifact import KernelObject
from stratal.base.errors import CompilerError
from stratal.runtime import vendor

_lock = threading.Lock()
_loaded: Final[weakref.WeakValueDictionary[tuple[bytes, str], Library]] = weakref.WeakValueDictionary()


class Library:
    """Objects linked together; their addresses hold as long as this object lives.

    Each has a linker of its own (below 1 ms): a shared one would keep 9 kB of every library it ever linked.
    """

    __slots__ = ("__weakref__", "_jit", "_tracker", "addresses")

    def __init__(self, codes: Iterable[bytes], symbols: Iterable[str]) -> None:
        import llvmlite.binding as llvm

        codes = list(codes)
        builder = llvm.JITLibraryBuilder().add_current_process()  # libc and libm
        for code in codes:
            builder.add_object_img(code)
        for name, address in vendor.addresses(codes).items():
            builder.import_symbol(name, address)
        symbols = tuple(symbols)
        for symbol in symbols:
            builder.export_symbol(symbol)
        # JITLink puts an object's sections side by side; LLVM's older linker aborts the process when code and
        # constants land more than 2 GB apart, as they do between large arrays.
        self._jit: Any = llvm.create_lljit_compiler(_host_machine(), use_jit_link=True)
        try:
            self._tracker: Any = builder.link(self._jit, "stratal")
        except RuntimeError as error:
            self._jit.close()
            raise CompilerError("loader: object code does not link", got=str(error).strip()[:500]) from None
        self.addresses: Final[dict[str, int]] = {s: int(self._tracker[s]) for s in symbols}

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():  # llvmlite may be gone already, and the process takes everything with it
            return
        if hasattr(self, "_tracker"):  # linked: the code goes first, its linker after it
            self._tracker.close()
            self._jit.close()


def _host_machine() -> Any:
    """Return a new target machine for this process; a linker takes it over."""
    import llvmlite.binding as llvm

    triple, cpu, features = _host()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu, features, opt=2, reloc="pic", codemodel="default", jit=True)


@lru_cache(maxsize=1)
def _host() -> tuple[str, str, str]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


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
            _loaded.update({(k.code, k.symbol): library for k in fresh})
    return addresses, tuple(libraries.values())


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
