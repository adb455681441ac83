"""Which tensors are alive: those a flush looks through, leaves of gradients, those that share storage.

A pending tensor belongs to the thread that recorded it, or used it last. Other threads change it only after
`take_ownership`, which waits for a run that writes it.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Final

from stratal.base.weak import Note, note
from stratal.graph.node import Node
from stratal.runtime.pool import LOCK
from stratal.runtime.storage import Storage
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import Handle

Handles = dict[int, Note[Handle]]  # by id
LIVE: Handles = {}  # tensors without a value yet, or with a history, in the order they were made; whose
FAILED: Handles = {}  # those whose run failed: computed only when one is read
LEAVES: Handles = {}  # tensors that take gradients themselves
SEVERAL: Final[list[int]] = []  # threads that made tensors, besides the first
_FIRST: Final = get_ident()
_EARLIER: dict[int, Note[Handle]] = {}  # nodes that leaves stood for before they were changed in place


def note_earlier_node(leaf: Handle, node: Node) -> None:
    """Remember that a leaf, about to be changed in place, stood for a node: its gradient is the leaf's."""
    note(_EARLIER, leaf, [weakref.ref(n) for n in (*earlier_nodes(leaf), node)])


def earlier_nodes(leaf: Handle) -> list[Node]:
    """Return the nodes a leaf stood for before, those that something still depends on."""
    known = _EARLIER.get(id(leaf))
    return [] if known is None else [node for made in known.fact if (node := made()) is not None]


def register_live(tensor: Handle) -> None:
    """Register a tensor as live: a flush considers it."""
    known, me = LIVE.get(id(tensor)), get_ident()
    if known is None:
        note(LIVE, tensor, me)
        if me != _FIRST and not SEVERAL:
            SEVERAL.append(me)
    elif known.fact != me:
        take_ownership(tensor)
    if FAILED:
        FAILED.pop(id(tensor), None)


def take_ownership(tensor: Handle) -> None:
    """Make a pending tensor this thread's, once no run of another thread can write it any more."""
    known, me = LIVE.get(id(tensor)), get_ident()
    if known is not None and known.fact != me:
        with LOCK:
            known.fact = me


def is_own_thread(tensor: Handle) -> bool:
    """Return whether no other thread's tensor waits here."""
    known = LIVE.get(id(tensor)) or FAILED.get(id(tensor))
    return known is None or known.fact == get_ident()


def mark_failed(tensor: Handle) -> None:
    """Exclude a tensor from runs for other tensors: it is computed only when it is read."""
    note(FAILED, tensor, get_ident())
    LIVE.pop(id(tensor), None)


def share(*tensors: Handle, storage: Storage | None = None) -> None:
    """Remember that several handles may hold one storage: all of the given ones do, or soon will."""
    storage = storage or tensors[0]._storage
    assert storage is not None
    storage.invalidate()
    if storage.handles is None:
        with node_values.NAMING:
            storage.handles = storage.handles or {}
    for tensor in tensors:
        note(storage.handles, tensor)


def holders(storage: Storage) -> list[Handle]:
    """Return the handles that hold a storage, or wait to be written there, if there may be several."""
    known = [ref() for ref in list(storage.handles.values())] if storage.handles else []
    return [t for t in known if t is not None and (t._storage is storage or _waits_at(t, storage))]


def _waits_at(tensor: Handle, storage: Storage) -> bool:
    destination = tensor._destination
    return tensor._storage is None and destination is not None and destination.storage is storage


def shared(storage: Storage, owner: Handle) -> bool:
    """Return whether a handle other than `owner` holds this very storage."""
    return storage.handles is not None and any(t is not owner for t in holders(storage))


def is_observable(storage: Storage, owner: Handle) -> bool:
    """Return whether NumPy, another handle than `owner`, or a node may read a storage."""
    return storage.exported or shared(storage, owner) or node_values.uses(storage) > 0
