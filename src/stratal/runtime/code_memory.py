"""Pages for code: written first, then protected; given back to the system when their owner dies."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal

from stratal.base.errors import CompilerError

PAGE: Final = mmap.PAGESIZE
MOST_BYTES: Final = 1 << 30  # of one mapping: code reaches 2 GB to either side

Protection = Literal["read", "read and execute", "read and write"]
_READ, _WRITE, _EXECUTE = 1, 2, 4  # PROT_*, the same on every POSIX system
_PROTECTIONS: Final[dict[Protection, int]] = {
    "read": _READ,
    "read and execute": _READ | _EXECUTE,
    "read and write": _READ | _WRITE,
}


class CodeMemory:
    """Whole pages, zeroed and writable until `protect` says otherwise; never writable and executable at once.

    Raises: CompilerError where the system has none.
    """

    __slots__ = ("_unmap", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        if not 0 < nbytes <= MOST_BYTES:
            raise CompilerError("linker: no memory for object code", got=f"{nbytes} bytes")
        system = _system()
        self.nbytes: Final = -(-nbytes // PAGE) * PAGE
        self._unmap: Final = system.munmap
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = system.mmap(None, self.nbytes, _READ | _WRITE, flags, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise _refused("no memory for object code")
        self.address: Final[int] = address

    def writable(self) -> memoryview:
        """Return the bytes, for use before they are protected and while this object lives."""
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.address)).cast("B")

    def protect(self, start: int, end: int, protection: Protection) -> None:
        """Say what may be done with the pages from `start` to `end`. Raises: CompilerError."""
        if end > start and _system().mprotect(self.address + start, end - start, _PROTECTIONS[protection]):
            raise _refused(f"pages may not be protected for {protection}")

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "address") and not ending():  # a thread may still be in the code; all goes at once
            self._unmap(self.address, self.nbytes)


def _refused(what: str) -> CompilerError:
    return CompilerError(f"linker: {what}", got=os.strerror(ctypes.get_errno()))


@lru_cache(maxsize=1)
def _system() -> Any:
    """Return the C library with the types of its functions for pages."""
    system = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    system.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_int64]
    system.mmap.restype = pointer
    system.mprotect.argtypes = [pointer, size, number]
    system.munmap.argtypes = [pointer, size]
    return system
