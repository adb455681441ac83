"""Storage: the reference-counted memory of one finished tensor value."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from ctypes import addressof, c_char
from typing import Any, Final, final

import numpy as np

from stratal.base.errors import AllocationError
from stratal.base.types import TensorType
from stratal.base.weak import note

ALIGNMENT: Final = 64
LARGE_PAGE: Final = 1 << 21  # bytes: weights that are streamed from memory arrive up to a fifth faster
Array = np.ndarray[Any, Any]
_BYTE: Final = c_char.from_buffer
Layout = tuple[TensorType, tuple[int, ...], bool]  # type, strides in bytes, whether 64-byte aligned

INVALIDATED: Final[list[object]] = [object()]  # replaced whenever a pinned Storage changes
_layouts: Final[dict[Layout, Layout]] = {}
_exported: Final[dict[int, weakref.ref[Export]]] = {}  # the living; empty means no Storage has a view
_stamps: Final[dict[int, weakref.ref[Stamp]]] = {}  # the living; empty means nobody relies on a Storage
_stamped: Final = [0]  # how many there ever were


def aligned_empty(nbytes: int) -> Array:
    """Return uninitialised bytes that start at a multiple of 64; of a large page, where they fill one."""
    raw, start, _ = _allocate(nbytes)
    return raw[start : start + nbytes]


def _allocate(nbytes: int) -> tuple[Array, int, int]:
    """Return bytes, where in them aligned ones start, and the address of these.

    NumPy asks for large pages from 4 MB on; one counts only if it lies within the array as a whole.
    """
    alignment = LARGE_PAGE if nbytes >= LARGE_PAGE else ALIGNMENT
    try:
        raw = np.empty(nbytes + alignment, np.uint8)
    except (MemoryError, ValueError) as error:
        rule = "memory: the values asked for do not fit into it"
        raise AllocationError(rule, got=f"{nbytes} bytes") from error
    first = addressof(_BYTE(raw.data))  # a quarter of what `raw.ctypes` or its interface cost
    start = -first % alignment
    return raw, start, first + start


def layout_of(type_: TensorType, strides_bytes: tuple[int, ...], *, aligned: bool = True) -> Layout:
    """Return the one object that stands for a type with these strides: layouts compare by identity.

    Axes of one element have no stride of their own: they get that of a row-major array.
    """
    if 1 in type_.shape or 0 in type_.shape:
        strides_bytes = _strides_as_stored(type_, strides_bytes)
    layout = (type_, strides_bytes, aligned)
    if len(_layouts) > 4096:
        _layouts.clear()
    return _layouts.setdefault(layout, layout)


def _strides_as_stored(type_: TensorType, strides: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    below = type_.dtype.itemsize
    for n, stride in zip(reversed(type_.ints), reversed(strides), strict=True):
        found.append(below if n <= 1 or not type_.nbytes else stride)
        below = found[-1] * max(n, 1)
    return tuple(reversed(found))


def row_major(type_: TensorType) -> Layout:
    """Return the layout of a type whose elements lie one after another."""
    strides = []
    stride = type_.dtype.itemsize
    for n in reversed(type_.ints):
        strides.append(stride)
        stride *= n
    return layout_of(type_, tuple(strides[::-1]))


def laid_out(layout: Layout) -> tuple[Array, int]:
    """Return an uninitialised array with the strides of a layout, and its address, 64-byte aligned."""
    type_, strides, _ = layout
    shape, dtype = type_.ints, type_.dtype
    last = 0 if 0 in shape else sum([(n - 1) * s for n, s in zip(shape, strides)])  # noqa: B905 (it is hot)
    raw, start, address = _allocate(last + dtype.itemsize)
    return np.ndarray(shape, dtype.np, raw, start, strides), address


def any_exported() -> bool:
    """Whether a NumPy view of any Storage is alive."""
    return bool(_exported)


def any_stamped() -> bool:
    """Whether somebody may rely on a Storage holding what it held before."""
    return bool(_stamps)


def stamps() -> tuple[int, int]:
    """Return what stays equal as long as no stamp is made and none dies, as one does that is taken away."""
    return _stamped[0], len(_stamps)


class Stamp:
    """Stands for what a Storage holds until that is written. The Storage alone holds it for long."""

    __slots__ = ("__weakref__",)


class Export:
    """The owner NumPy sees behind an exported view: alive exactly as long as a view of it is."""

    __slots__ = ("__array_interface__", "__weakref__", "array")

    def __init__(self, array: Array) -> None:
        # ml_dtypes have no interface code of their own: hand over bytes of the same width and view them back.
        plain = array.view(np.dtype(f"u{array.itemsize}")) if array.dtype.kind == "V" else array
        self.__array_interface__ = plain.__array_interface__
        self.array: Final = array
        note(_exported, self)

    def view(self) -> Array:
        """Return another view, which keeps this alive."""
        view = np.asarray(self)
        return view if view.dtype == self.array.dtype else view.view(self.array.dtype)


@final
class Storage:
    """Memory of a tensor of `type`; `array` is a strided view of it for the runtime's own use.

    `address` is where element 0 lies and `layout` the type with the strides in bytes: what a run reads of a
    Storage. Whoever writes to it takes its `stamp` away. A `pinned` one is cached by a replay, which assumes
    that it stays where it is, with the one handle that has it, and without a stamp if it is written.
    Whatever may end that calls `invalidate`. `nodes` and `handles` are weak references, by id, to whom it was
    given as a value; some hold another one now.
    """

    __slots__ = (
        "__weakref__", "_exports", "address", "array", "handles", "layout", "nodes", "pinned", "stamp",
        "type",
    )  # fmt: skip

    def __init__(self, type_: TensorType, array: Array) -> None:
        self.type: Final = type_
        self.stamp: Stamp | None = None
        self._exports: Callable[[], Export | None] | None = None
        self.pinned = False
        self.nodes: dict[int, Any] | None = None
        self.handles: dict[int, Any] | None = None
        self._adopt(array)

    def _adopt(self, array: Array) -> None:
        self.array = array
        self.address = int(array.__array_interface__["data"][0])
        aligned = self.address % ALIGNMENT == 0 or array.size == 0
        self.layout = layout_of(self.type, array.strides, aligned=aligned)

    @classmethod
    def over(cls, array: Array, address: int, layout: Layout) -> Storage:
        """Return storage over an array whose address and layout the caller knows; the quick way."""
        made = cls.__new__(cls)
        made.type = layout[0]  # type: ignore[misc]
        made._exports = made.stamp = made.nodes = made.handles = None
        made.pinned = False
        made.array = array
        made.address = address
        made.layout = layout
        return made

    @classmethod
    def empty(cls, type_: TensorType) -> Storage:
        """Return uninitialised row-major storage, 64-byte aligned."""
        return cls.in_memory(row_major(type_))

    @classmethod
    def in_memory(cls, layout: Layout) -> Storage:
        """Return uninitialised storage whose elements are laid out by a layout, 64-byte aligned."""
        return cls.over(*laid_out(layout), layout)

    @classmethod
    def copy_of(cls, array: Array, type_: TensorType) -> Storage:
        """Return storage holding a copy of an array."""
        made = cls.empty(type_)
        made.array[...] = array
        return made

    @classmethod
    def shared(cls, array: Array, type_: TensorType) -> Storage:
        """Return storage over memory of somebody else, who may write to it at any time; we never do."""
        made = cls(type_, array)
        owner = Export(array)
        made._exports = lambda: owner  # for good: the view outside outlives whatever we see of it
        return made

    @classmethod
    def in_layout(cls, array: Array, layout: Layout) -> Storage:
        """Return storage holding a copy of an array, its elements laid out by the strides of `layout`."""
        made = cls.in_memory(layout)
        made.array[...] = array
        return made

    @classmethod
    def part(cls, owner: Export, array: Array, type_: TensorType) -> Storage:
        """Return storage over a view of an exported array: exported, too, as long as it lives."""
        made = cls(type_, array)
        made._exports = weakref.ref(owner)  # which the array keeps alive
        return made

    def copied(self) -> Storage:
        """Return storage of its own with the same values: laid out alike if elements lie densely."""
        strides = self.array.strides
        span = self.type.dtype.itemsize + sum(
            (n - 1) * s for n, s in zip(self.type.ints, strides, strict=True)
        )
        if min(strides, default=0) >= 0 and span == self.type.nbytes:
            return Storage.in_layout(self.array, self.layout)
        return Storage.copy_of(self.array, self.type)

    def move_to(self, layout: Layout) -> None:
        """Give this storage fresh memory with the same values; whoever looks at the old memory keeps it."""
        self.invalidate()
        self._exports = None
        self._adopt(Storage.in_layout(self.array, layout).array)

    def adopt(self, array: Array) -> None:
        """Lie in an array of the same layout that holds the same values; NumPy must not see this storage."""
        self.invalidate()
        self._exports = None
        self._adopt(array)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, gaps of the strides included."""
        if 0 in self.array.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.array.shape, self.array.strides, strict=True))
        return int(last) + self.type.dtype.itemsize

    def stamped(self) -> Stamp:
        """Return what `stamp` will be as long as nobody writes; it is not, where NumPy may at any time."""
        if self.stamp is not None:
            return self.stamp
        self.invalidate()
        made = Stamp()
        _stamped[0] += 1
        if not self.exported:
            self.stamp = made
            note(_stamps, made)
        return made

    def invalidate(self) -> None:
        """Note that this storage moves, leaves its handle, or comes to be held by somebody else."""
        if self.pinned:
            INVALIDATED[0] = object()

    @property
    def exported(self) -> bool:
        """Whether a NumPy view handed out by `export` (or a view of one) is still alive."""
        return self._exports is not None and self._exports() is not None

    @property
    def owner(self) -> Export | None:
        """What NumPy sees behind the views of this memory that are alive; None where there are none."""
        return None if self._exports is None else self._exports()

    def export(self) -> Array:
        """Return a NumPy view that shares this memory, and remember that somebody looks at it.

        NumPy may write through it.
        """
        self.stamp = None
        self.invalidate()
        owner = self._exports() if self._exports is not None else None
        if owner is None:
            owner = Export(self.array)
            self._exports = weakref.ref(owner)
        return owner.view() if owner.array is self.array else self.array.view()
