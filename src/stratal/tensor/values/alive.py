"""Which tensors are alive: those a flush looks through, leaves of gradients, those that share storage.

What waits belongs to a thread: the one that recorded it, or used it last. No other changes what its handles
hold, except by `adopt`, which waits for a run that does.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Final

from stratal.base.weak import Note, note
from stratal.graph.node import Node
from stratal.runtime.pool import LOCK
from stratal.runtime.storage import Storage
from stratal.tensor.values import values
from stratal.tensor.values.handle import Handle

Handles = dict[int, Note[Handle]]  # by id
LIVE: Handles = {}  # tensors without a value yet, or with a history, in the order they were made; whose
FAILED: Handles = {}  # those whose run failed: computed when somebody asks for one, and for no other reason
LEAVES: Handles = {}  # tensors that take gradients themselves
SEVERAL: Final[list[int]] = []  # threads that made tensors, besides the first
_FIRST: Final = get_ident()
_EARLIER: dict[int, Note[Handle]] = {}  # nodes that leaves stood for before they were changed in place


def supersede(leaf: Handle, node: Node) -> None:
    """Remember that a leaf, about to be changed in place, stood for a node: its gradient is the leaf's."""
    note(_EARLIER, leaf, [weakref.ref(n) for n in (*earlier(leaf), node)])


def earlier(leaf: Handle) -> list[Node]:
    """Return the nodes a leaf stood for before, those that something still depends on."""
    known = _EARLIER.get(id(leaf))
    return [] if known is None else [node for made in known.fact if (node := made()) is not None]


def enlist(tensor: Handle) -> None:
    """Put a tensor on the list a flush looks through."""
    known, me = LIVE.get(id(tensor)), get_ident()
    if known is None:
        note(LIVE, tensor, me)
        if me != _FIRST and not SEVERAL:
            SEVERAL.append(me)
    elif known.fact != me:
        adopt(tensor)
    if FAILED:
        FAILED.pop(id(tensor), None)


def adopt(tensor: Handle) -> None:
    """Let a tensor that waits belong to this thread, once no run of another can settle it any more."""
    known, me = LIVE.get(id(tensor)), get_ident()
    if known is not None and known.fact != me:
        with LOCK:
            known.fact = me


def mine(tensor: Handle) -> bool:
    """Return whether no other thread's tensor waits here."""
    known = LIVE.get(id(tensor)) or FAILED.get(id(tensor))
    return known is None or known.fact == get_ident()


def set_apart(tensor: Handle) -> None:
    """Let no run compute a tensor unless somebody asks for it."""
    note(FAILED, tensor, get_ident())
    LIVE.pop(id(tensor), None)


def share(*tensors: Handle, storage: Storage | None = None) -> None:
    """Remember that several handles may hold one storage: all of the given ones do, or soon will."""
    storage = storage or tensors[0]._storage
    assert storage is not None
    storage.disturb()
    if storage.handles is None:
        with values.NAMING:
            storage.handles = storage.handles or {}
    for tensor in tensors:
        note(storage.handles, tensor)


def holders(storage: Storage) -> list[Handle]:
    """Return the handles that hold a storage, or wait to be written there, if there may be several."""
    known = [ref() for ref in list(storage.handles.values())] if storage.handles else []
    return [t for t in known if t is not None and (t._storage is storage or _waits_at(t, storage))]


def _waits_at(tensor: Handle, storage: Storage) -> bool:
    home = tensor._home
    return tensor._storage is None and home is not None and home[0] is storage


def shared(storage: Storage, owner: Handle) -> bool:
    """Return whether a handle other than `owner` holds this very storage."""
    return storage.handles is not None and any(t is not owner for t in holders(storage))


def watched(storage: Storage, owner: Handle) -> bool:
    """Return whether somebody besides `owner` may look at a storage: NumPy, a handle, a node."""
    return storage.exported or shared(storage, owner) or values.uses(storage) > 0
