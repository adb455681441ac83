"""Memory that others may write to at any time: what NumPy or another library was given of a tensor.

A node stands for one value for good, so no node has its value in such memory. What was built before it is
handed out keeps a copy; what is built later reads a copy of what stands there then, the same one as long as
nobody writes. A tensor, its views and what was detached from it are one memory to those outside: while NumPy
sees it, all of them hold views of one array (`Memory.outside`), until one is changed in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from stratal.base.errors import StratalError
from stratal.runtime.storage import Array, Storage
from stratal.tensor.lazy.flushing import value_of
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import (
    CONSTANT,
    Handle,
    bind_if_exported,
    bind_to_export,
    export_of,
    forget_node,
    note_export,
    relocate,
    set_node,
    set_state,
)
from stratal.tensor.values.live import LIVE, holders, share
from stratal.tensor.values.memory import ExportedMemory, Memory
from stratal.tensor.values.state import LOCK


def hand_out(tensor: Handle, asked: str) -> Array:
    """Return a NumPy view of a tensor's memory, through which anybody may write."""
    with LOCK:
        base = _base(tensor)
        if base is not tensor and tensor._storage is None and not tensor._leaf:
            shared = value_of(base, asked)  # instead of a value of its own
            share(base, tensor)
            set_state(tensor, shared, None, CONSTANT)
            LIVE.pop(id(tensor), None)
        value_of(tensor, asked)
        if tensor._view is not None:
            _expose_members(tensor, tensor._view.memory)
        array = _export(tensor)
        if tensor._view is None or export_of(tensor._view.memory) is None:
            note_export(tensor)
        return array


def _export(tensor: Handle) -> Array:
    """Return a view of the storage a tensor holds."""
    storage = tensor._storage
    assert storage is not None
    with node_values.NAMING:  # nobody gives the value a node in between
        if not storage.exported:
            _set_free(tensor, storage)
        return storage.export()


def _expose_members(tensor: Handle, memory: Memory) -> None:
    """Let all members of a memory hold views of one array, unless they hold one storage anyway."""
    members = [t for t in memory.alive() if t._trace is None]
    if all(t._storage is tensor._storage for t in members):
        return
    if export_of(memory) is None:
        for t in members:
            with suppress(StratalError):  # it is the error of whoever asks for that one
                value_of(t, "numpy()")
        members = [t for t in members if t._storage is not None]
        base = next((t for t in members if all(t._view.covers(m._view) for m in members)), None)
        array, outside = _joined(memory, members) if base is None else _whole(base)
        for t in members:
            bind_to_export(t, outside)
        del array
    else:
        for t in members:
            bind_if_exported(t)


def _whole(base: Handle) -> tuple[Array, ExportedMemory]:
    """Return an array of what all members are views of, and how it shows their memory."""
    storage = base._storage
    assert storage is not None
    if not storage.exported and not storage.array.flags.c_contiguous:
        relocate(base, storage, Storage.copy_of(storage.array, storage.type))
    array = _export(base)
    outside = note_export(base)
    assert outside is not None
    return array, outside


def _joined(memory: Memory, members: Sequence[Handle]) -> tuple[Array, ExportedMemory]:
    """Return an array of a memory whose origin is gone, with the elements that members show, and how it shows
    the memory.
    """
    whole = Storage.copy_of(np.zeros((), memory.type.dtype.np), memory.type)
    array = whole.export()
    assert whole.owner is not None
    outside = memory.outside = ExportedMemory(weakref.ref(whole.owner), ())
    for t in members:
        view, storage = t._view, t._storage
        assert view is not None
        assert storage is not None
        part = outside.part(view)
        if part is not None:
            to = part.array
            if not to.flags.writeable:  # of a stretched view, all whose copies are equal
                offset = part.address - whole.address
                to = np.ndarray(to.shape, to.dtype, array.reshape(-1).view(np.uint8), offset, to.strides)
            to[...] = storage.array
    return array, outside


def _set_free(tensor: Handle, storage: Storage) -> None:
    """Give nodes, and tensors that are others to the user, a copy of a storage that is about to be seen."""
    same = [tensor, *(t for t in holders(storage) if t is not tensor and _base(t) is _base(tensor))]
    for t in same:
        _drop_unused_node(t)
    others = [t for t in holders(storage) if not any(t is s for s in same)]
    nodes = node_values.nodes_of(storage)
    if not others and not nodes:
        return
    copy = Storage.in_layout(storage.array, storage.layout)
    copy._exports = storage._exports  # who wrote through a view that is gone shows when a handle is read next
    for node in nodes:
        node_values.finish(node, copy)
    for other in others:
        relocate(other, storage, copy)
    if others:
        share(*others, storage=copy)


def _base(tensor: Handle) -> Handle:
    """Return the first living tensor that shows all this one shows: what it was detached from, or itself."""
    view = tensor._view
    if view is None:
        return tensor
    same = (t for t in view.memory.alive() if t._trace is None and t._view.ops == view.ops)
    return next(same, tensor)


def _drop_unused_node(tensor: Handle) -> None:
    """Let go of the node of a tensor without a history; of a leaf, unless something was built on it."""
    node = tensor._node
    if node is None or tensor._storage is None or (tensor._track and not tensor._leaf):
        return
    known = weakref.ref(node)
    forget_node(tensor)
    node = None
    if tensor._leaf:
        set_node(tensor, known(), tensor._track)
