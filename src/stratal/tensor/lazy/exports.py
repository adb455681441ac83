"""Memory that others may write to at any time: what NumPy or another library was given of a tensor.

A node stands for one value for good, so no node has its value in such memory. What was built before it is
handed out keeps a copy; what is built later reads a copy of what stands there then, the same one as long as
nobody writes. A tensor and what was detached from it are one memory to those outside.
"""

from __future__ import annotations

import weakref

from stratal.runtime.storage import Array, Storage
from stratal.tensor.lazy.lazy import value_of
from stratal.tensor.values import values
from stratal.tensor.values.alive import LIVE, holders, share
from stratal.tensor.values.handle import CONSTANT, Handle, become, forget_node, relocate, stand_for
from stratal.tensor.values.state import LOCK


def hand_out(tensor: Handle, asked: str) -> Array:
    """Return a NumPy view of a tensor's memory, through which anybody may write."""
    base = _base(tensor)
    if base is not tensor and tensor._storage is None and not tensor._leaf:
        shared = value_of(base, asked)  # instead of a value of its own
        share(base, tensor)
        become(tensor, shared, None, CONSTANT)
        LIVE.pop(id(tensor), None)
    with LOCK:
        storage = value_of(tensor, asked)
        with values.NAMING:  # nobody gives the value a node in between
            if not storage.exported:
                _set_free(tensor, storage)
            return storage.export()


def _set_free(tensor: Handle, storage: Storage) -> None:
    """Give nodes, and tensors that are others to the user, a copy of a storage that is about to be seen."""
    same = [tensor, *(t for t in holders(storage) if t is not tensor and _base(t) is _base(tensor))]
    for t in same:
        _drop_unused_node(t)
    others = [t for t in holders(storage) if not any(t is s for s in same)]
    nodes = values.nodes_of(storage)
    if not others and not nodes:
        return
    copy = Storage.in_layout(storage.array, storage.layout)
    copy._exports = storage._exports  # who wrote through a view that is gone shows when a handle is read next
    for node in nodes:
        values.finish(node, copy)
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
    held = weakref.ref(node)
    forget_node(tensor)
    node = None
    if tensor._leaf:
        stand_for(tensor, held(), tensor._track)
