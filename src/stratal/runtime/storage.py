"""Storage: the reference-counted memory of one finished tensor value."""

from __future__ import annotations

import weakref
from typing import Any, final

import numpy as np

from stratal.base.types import TensorType

ALIGNMENT = 64
Array = np.ndarray[Any, Any]


def aligned_empty(nbytes: int) -> Array:
    """Return uninitialised bytes that start at a multiple of 64."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class _Export:
    """The owner NumPy sees behind an exported view: alive exactly as long as a view of it is."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self._memory = array


@final
class Storage:
    """Memory of a tensor of `type`; `array` is a strided view of it for the runtime's own use."""

    __slots__ = ("__weakref__", "_exports", "array", "type")

    def __init__(self, type_: TensorType, array: Array) -> None:
        self.type = type_
        self.array = array
        self._exports: weakref.ref[_Export] | None = None

    @classmethod
    def empty(cls, type_: TensorType) -> Storage:
        """Return uninitialised row-major storage, 64-byte aligned."""
        memory = aligned_empty(type_.nbytes)
        return cls(type_, memory.view(type_.dtype.np).reshape(type_.ints))

    @classmethod
    def copy_of(cls, array: Array, type_: TensorType) -> Storage:
        """Return storage holding a copy of an array."""
        made = cls.empty(type_)
        made.array[...] = array
        return made

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def exported(self) -> bool:
        """Whether a NumPy view handed out by `export` (or a view of one) is still alive."""
        return self._exports is not None and self._exports() is not None

    def export(self) -> Array:
        """Return a NumPy view that shares this memory, and remember that somebody looks at it."""
        if self.array.dtype.kind == "V" or self.array.dtype.name == "bfloat16":
            return self.array.view()
        owner = self._exports() if self._exports is not None else None
        if owner is None:
            owner = _Export(self.array)
            self._exports = weakref.ref(owner)
        return np.asarray(owner)
