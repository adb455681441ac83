"""Arrays in files, mapped into memory: read where they are indexed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, FormatError
from stratal.data.sources.opening import opening


def memory_map(
    path: str | os.PathLike[str], dtype: Any = None, shape: Sequence[int] | None = None, *, offset: int = 0
) -> np.ndarray[Any, Any]:
    """Return a read-only array over a .npy file, or, with `dtype` and `shape`, over the bytes of any file.

    `TensorDataset(memory_map(path))` reads the rows that are asked for. The file must not be cut short while
    the array is used: the system ends a process that reads what is no longer there.
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
