"""Pages for code: written first, then protected; given back to the system when their owner dies, by
an object of C: a finalizer in Python could swallow what a signal handler raises.
"""

from __future__ import annotations

import ctypes
import mmap
import os
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

    __slots__ = ("_pages", "address")

    def __init__(self, nbytes: int) -> None:
        if not 0 < nbytes <= MOST_BYTES:
            raise CompilerError("linker: no memory for object code", got=f"{nbytes} bytes")
        try:
            self._pages: Final = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _refused("no memory for object code", error.errno) from None
        self.address: Final = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._pages))

    def writable(self) -> memoryview:
        """Return the bytes, for use before they are protected."""
        return memoryview(self._pages)

    def protect(self, start: int, end: int, protection: Protection) -> None:
        """Say what may be done with the pages from `start` to `end`. Raises: CompilerError."""
        if end > start and _protect()(self.address + start, end - start, _PROTECTIONS[protection]):
            raise _refused(f"pages may not be protected for {protection}", ctypes.get_errno())


def _refused(what: str, number: int | None) -> CompilerError:
    return CompilerError(f"linker: {what}", got=os.strerror(number or 0))


@lru_cache(maxsize=1)
def _protect() -> Any:
    """Return the C library's `mprotect`."""
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
