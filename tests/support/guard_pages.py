"""Guard pages: arrays that end, or start, where the next byte cannot be touched. For tests of kernels.

An access beyond such an array ends the process with a segmentation fault at the very instruction, reads
included.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Final, Literal

import numpy as np

from stratal.base.errors import StratalError
from stratal.runtime.storage import Array

PAGE: Final = mmap.PAGESIZE
_PROT_NONE: Final = 0


Edge = Literal["start", "end"]


def guarded_array(shape: tuple[int, ...], dtype: np.dtype[Any], *, flush: Edge = "end") -> Array:
    """Return a zeroed array between two pages without access, flush with the one at its end or its start.

    Raises: StratalError where the system cannot protect pages.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    inner = max(-(-nbytes // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, inner + 2 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = getattr(ctypes.CDLL(None, use_errno=True), "mprotect", None)
    if protect is None:
        raise StratalError("guard pages: this system cannot protect pages")
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for page in (base, base + PAGE + inner):
        if protect(page, PAGE, _PROT_NONE):
            got = f"errno {ctypes.get_errno()}"
            raise StratalError("guard pages: a page could not be protected", got=got)
    offset = PAGE if flush == "start" else PAGE + inner - nbytes
    return np.ndarray(shape, dtype, memory, offset)
