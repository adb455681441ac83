"""The vendor's library in this process: a copy of our own, with one thread, beside the one NumPy uses.

Kernels call it from the pool's threads, a chunk each, so it must not have threads itself; to take them from
NumPy's instance would slow NumPy down. The linker makes a second instance of a file it has not seen.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Final

from stratal.base.errors import CompilerError
from stratal.base.interrupts import block
from stratal.base.vendor import FUNCTIONS, symbol, vendor

_THREADS: Final = "OPENBLAS_NUM_THREADS"  # read once, when the library is loaded
_lock = threading.RLock()  # re-entrant: a signal's handler may compile, too


def addresses(codes: Iterable[bytes]) -> dict[str, int]:
    """Return the address of every function of the library that some object code names.

    Raises: CompilerError where there is no such library.
    """
    called = [dtype for dtype in FUNCTIONS if any(symbol(dtype).encode() in code for code in codes)]
    if not called:
        return {}
    with _lock:
        library = _loaded()
    found = {symbol(dtype): getattr(library, f"scipy_cblas_{FUNCTIONS[dtype]}64_") for dtype in called}
    return {name: int(ctypes.cast(function, ctypes.c_void_p).value or 0) for name, function in found.items()}


@cache
def _loaded() -> ctypes.CDLL:
    found = vendor()
    hint = "`STRATAL_TUNING=off` compiles without it"
    if found is None:
        raise CompilerError("loader: a kernel calls OpenBLAS, and this NumPy came without", hint=hint)
    try:
        with tempfile.TemporaryDirectory(prefix="stratal-") as folder, _one_thread():
            copy = Path(shutil.copy(found.path, folder))
            return ctypes.CDLL(str(copy), mode=os.RTLD_NOW | getattr(os, "RTLD_DEEPBIND", 0))
    except OSError as error:
        got = f"{found.path.name}: {error}"
        raise CompilerError(
            "loader: the library a kernel calls cannot be loaded", got=got, hint=hint
        ) from None


@block
def _one_thread() -> Generator[None]:
    before = os.environ.get(_THREADS)
    try:
        os.environ[_THREADS] = "1"
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
