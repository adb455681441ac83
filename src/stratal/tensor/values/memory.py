"""Memories: what an origin and its views have in common, and how each of these shows it.

memory := origin and its views; a view is a chain of ops from the origin
group  := views through which gradients flow to each other; `detach` begins another one, and so does a view of
          what takes gradients under `no_grad`
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dims import Dim, known_equal
from stratal.base.types import TensorType
from stratal.graph.op import Op
from stratal.ops.families import Movement
from stratal.ops.views.in_memory import Layout, retypes, row_major
from stratal.runtime.storage import Array, Export, Storage
from stratal.tensor.values.view_ops import layout_through

Ops = tuple[Op, ...] | Callable[[], tuple[Op, ...]]
_FEW: Final = 8
_EVERYWHERE: Final = (0, 1 << 62)


class ExportedMemory(NamedTuple):
    """An array that NumPy sees, and the ops that take it of the origin."""

    owner: weakref.ref[Export]
    ops: tuple[Op, ...]

    def shown_by(self, handle: Any) -> bool:
        """Return whether the value of a handle stands in the array."""
        storage, owner = handle._storage, self.owner()
        return storage is not None and owner is not None and storage.owner is owner

    def part(self, view: View) -> Storage | None:
        """Return what a view shows, as a view of the array; None where it needs a copy."""
        owner = self.owner()
        if owner is None or view.ops[: len(self.ops)] != self.ops:
            return None
        array = owner.view()
        whole = array
        for op in view.ops[len(self.ops) :]:
            array = np.asarray(op.ref(array))
        if not np.may_share_memory(array, owner.array):  # NumPy copies where strides would do: a diagonal
            found = _strided(whole, view) if not self.ops else None
            if found is None:
                return None
            array = found
        return Storage.part(owner, array, view.type)


def _strided(whole: Array, view: View) -> Array | None:
    """Return what a view shows of a row-major array, by its strides; None where they are unknown."""
    layout = view.known_layout
    if layout is None or whole.dtype != view.type.dtype.np or not whole.flags.c_contiguous or not whole.size:
        return None
    if any(not isinstance(op, Movement) for op in view.ops):  # a conjugate lies where its operand does
        return None
    strides = [n * whole.itemsize for n in layout.strides]
    return np.lib.stride_tricks.as_strided(whole.reshape(-1)[layout.offset :], view.type.ints, strides)


class Memory:
    """What an origin and its views have in common; `guarded` where a compiled function writes it.

    Once exported to NumPy (`outside`), the values of its members are views of one array.
    """

    __slots__ = ("_room", "guarded", "members", "outside", "type")

    def __init__(self, type_: TensorType) -> None:
        self.type: Final = type_
        self.members: list[weakref.ref[Any]] = []
        self.guarded = False
        self.outside: ExportedMemory | None = None
        self._room = _FEW

    def add(self, handle: Any) -> None:
        members = self.members
        if len(members) >= self._room:
            members = self.members = [m for m in members if m() is not None]
            self._room = max(2 * len(members), _FEW)
        members.append(weakref.ref(handle))

    def alive(self) -> list[Any]:
        """Return the living handles that show this memory, the origin first."""
        found = [t for made in self.members if (t := made()) is not None]
        return [t for t in found if t._view is not None and t._view.memory is self]


class View:
    """How a handle shows a memory: the ops that take it of the origin, and its group."""

    __slots__ = ("_layout", "_ops", "_own", "_span", "group", "memory", "parent", "type")

    def __init__(
        self, memory: Memory | None, parent: View | None, ops: Ops, type_: TensorType,
        group: object = None, layout: Layout | None = None,
    ) -> None:  # fmt: skip
        """Of a parent, or of a memory itself; without a group of its own it is in that of the parent. A
        layout is that in the parent, which lies anywhere itself. Ops that are seldom asked for may be said
        by a function.
        """
        self.parent, self.type, self._own = parent, type_, ops
        self._ops: tuple[Op, ...] | None = None
        if parent is None:
            self.memory: Memory = memory or Memory(type_)
            self.group = group or self.memory
        else:
            self.memory = parent.memory
            self.group = group or parent.group
            if layout is not None:
                layout = Layout(layout.offset + _offset_in(type_, parent), layout.strides)
        self._layout = layout
        self._span: tuple[int, int] | None = None

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops that take it of the origin."""
        found = self._ops
        if found is None:
            found = self._ops = self.own_ops if self.parent is None else self.parent.ops + self.own_ops
        return found

    @property
    def own_ops(self) -> tuple[Op, ...]:
        """The ops that take it of its parent."""
        own = self._own
        if not isinstance(own, tuple):
            own = self._own = own()
        return own

    @property
    def layout(self) -> Layout:
        """Where it lies in memory; row-major where that is not known."""
        return self.known_layout or row_major(self.type.shape)

    @property
    def known_layout(self) -> Layout | None:
        """Where it lies in memory; None where its ops need a copy."""
        found = self._layout
        if found is None:
            parent = self.parent
            if parent is None:
                found = None if self.own_ops else row_major(self.type.shape)
            elif parent.known_layout is not None:
                found = layout_of(parent, self.own_ops)
            self._layout = found
        return found

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie one after another."""
        if self._layout is None and not self.ops:
            return True
        return self.layout.is_contiguous(self.type.shape)

    @property
    def is_stretched(self) -> bool:
        """Whether several elements stand for one of the memory."""
        if not any(op.repeats for op in self.ops):
            return False
        pairs = zip(self.type.shape, self.layout.strides, strict=True)
        return any(known_equal(s, 0) and not known_equal(n, 1) for n, s in pairs)

    @property
    def is_of_stretched(self) -> bool:
        """Whether it is stretched, or a part of what is."""
        if not any(op.repeats for op in self.ops):
            return False
        type_: Any = self.memory.type
        for op in self.ops:
            before, type_ = type_, op.infer(type_)
            if op.repeats and not known_equal(before.size, type_.size):
                return True
        return False

    @property
    def repeats(self) -> bool:
        """Whether its ops alone say where it lies: they do not for a diagonal of a transpose."""
        view: View = self
        while view.parent is not None:
            if layout_of(view.parent, view.own_ops) != view.layout:
                return False
            view = view.parent
        return True

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last element of memory it may touch: all of them where that is not known."""
        if self._span is None:
            known = not any(map(retypes, self.ops))
            self._span = (self.layout.span(self.type.shape) if known else None) or _EVERYWHERE
        return self._span

    def layout_in(self, base: View) -> Layout | None:
        """Return the layout in what it is a view of, where ops alone do not say it."""
        if self.repeats:
            return None
        return Layout(self.layout.offset - _offset_in(self.type, base), self.layout.strides)

    def covers(self, other: View) -> bool:
        """Return whether the other is this one, or a view of it."""
        return other.ops[: len(self.ops)] == self.ops


def _offset_in(type_: TensorType, base: View) -> Dim:
    """Return where a view begins, in elements of another type."""
    offset, size, of = base.layout.offset, base.type.dtype.itemsize, type_.dtype.itemsize
    return offset if size == of else offset * size // of


def layout_of(view: View, ops: Sequence[Op]) -> Layout | None:
    """Return the layout of what some ops take of a view; None where one of them needs a copy."""
    return layout_through(view.type, view.layout, tuple(ops))


def layouts_of(handles: Sequence[Any]) -> list[Any]:
    """Return how tensors lie in memory; None for contiguous ones, and for what is no tensor."""
    views = [t._view if hasattr(type(t), "_view") else None for t in handles]  # objects answer to anything
    return [None if v is None or v.is_contiguous else v.layout.strides for v in views]
