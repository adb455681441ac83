"""LLVM's linker, for objects that `runtime.link` does not know: of other machines and systems.

Importing LLVM takes 50 MB and 50 ms of a process that may need it for nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from stratal.base.errors import CompilerError
from stratal.base.weak import Note

_open: Final[set[Note[LlvmLinked]]] = set()  # with what is to be closed when they are dead
_dead: Final[deque[Note[LlvmLinked]]] = deque()


class LlvmLinked:
    """Objects linked by JITLink, and the addresses of the symbols asked for, valid as long as this lives.

    `given` are addresses of functions that the process does not export.
    Each has a linker of its own (below 1 ms): a shared one would keep 9 kB of every library it ever linked.
    """

    __slots__ = ("__weakref__", "addresses")

    def __init__(self, codes: Iterable[bytes], symbols: Iterable[str], given: Mapping[str, int]) -> None:
        import llvmlite.binding as llvm

        _close_dead()
        builder = llvm.JITLibraryBuilder().add_current_process()  # libc and libm
        for code in codes:
            builder.add_object_img(code)
        for name, address in given.items():
            builder.import_symbol(name, address)
        symbols = tuple(symbols)
        for symbol in symbols:
            builder.export_symbol(symbol)
        # JITLink puts an object's sections side by side; LLVM's older linker aborts the process when code and
        # constants land more than 2 GB apart, as they do between large arrays.
        jit = llvm.create_lljit_compiler(_host_machine(), use_jit_link=True)
        try:
            tracker = builder.link(jit, "stratal")
        except (RuntimeError, UnicodeDecodeError) as error:  # a message may quote the object
            jit.close()
            raise CompilerError("linker: object code does not link", got=str(error).strip()[:500]) from None
        self.addresses: Final[dict[str, int]] = {s: int(tracker[s]) for s in symbols}
        made = Note(self, _dead.append)
        made.fact = tracker, jit
        _open.add(made)


def _close_dead() -> None:
    """Close what nobody holds any more: the code first, its linker after it."""
    while _dead:
        gone = _dead.popleft()
        tracker, jit = gone.fact
        tracker.close()
        jit.close()
        _open.discard(gone)


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
