"""Arrays in files, mapped into memory: read where they are indexed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, FormatError
from stratal.data.sources.opening import opening
from stratal.data.sources.unchanged import ChangedSourceError


def memory_map(
    path: str | os.PathLike[str], dtype: Any = None, shape: Sequence[int] | None = None, *, offset: int = 0
) -> np.ndarray[Any, Any]:
    """Return a read-only array over a .npy file, or, with `dtype` and `shape`, over the bytes of any file.

    `TensorDataset(memory_map(path))` reads the rows that are asked for; it refuses to where the file was cut
    short. It must not be while rows are read: the system ends a process that reads what is no longer there.
    Raises: MissingSourceError; FormatError for a file that is none, is too short, or holds Python objects.
    """
    name = os.fspath(path)
    if (dtype is None) != (shape is None):
        raise AttributeValueError("memory_map: raw files need both, dtype and shape", got="one of them")
    with opening(name, "memory_map", Exception):  # a damaged header raises what Python's tokenizer does
        if dtype is None:
            found = np.load(name, mmap_mode="r", allow_pickle=False)
        else:
            found = np.memmap(name, np.dtype(dtype), "r", offset, tuple(shape or ()))
    if not isinstance(found, np.memmap):
        raise FormatError(f"memory_map: {name} is no .npy file", got=f"a {type(found).__name__}")
    return found


def check_mapped(array: np.ndarray[Any, Any]) -> None:
    """Check that a file under an array is as long as it was. Raises: ChangedSourceError."""
    base: Any = array
    while isinstance(base, np.ndarray):
        mapped = getattr(base, "_mmap", None)
        if isinstance(base, np.memmap) and isinstance(mapped, mmap.mmap):
            wanted = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY + len(mapped)
            if (size := mapped.size()) < wanted:
                raise ChangedSourceError(f"memory_map: {base.filename} stays as it is while it is read",
                                         got=f"{size:,} bytes, {wanted:,} are mapped")  # fmt: skip
            return
        base = base.base
