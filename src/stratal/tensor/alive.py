"""Which tensors are alive: those a flush looks through, leaves of gradients, those that share storage."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from stratal.base.weak import note
from stratal.runtime.storage import Storage
from stratal.tensor import values

if TYPE_CHECKING:
    from stratal.tensor.tensor import Tensor

Handles = dict[int, "weakref.ref[Tensor]"]  # by id
LIVE: Handles = {}  # tensors without a value yet, or with a history, in the order they were made
LEAVES: Handles = {}  # tensors that take gradients themselves
_SHARED: dict[int, list[weakref.ref[Tensor]]] = {}  # storages that more than one handle took, by id


def enlist(tensor: Tensor) -> None:
    """Put a tensor on the list a flush looks through."""
    if id(tensor) not in LIVE:
        note(LIVE, tensor)


def share(*tensors: Tensor) -> None:
    """Remember that several handles may hold one storage, which all of the given ones do."""
    storage = tensors[0]._storage
    assert storage is not None
    storage.disturb()
    key, known = id(storage), list(tensors)
    for ref in _SHARED.get(key, ()):
        other = ref()
        if other is not None and other._storage is storage and not any(other is t for t in tensors):
            known.append(other)
    _SHARED[key] = [weakref.ref(t) for t in known]
    if len(_SHARED) > 4096:
        _tidy()


def _tidy() -> None:
    for key, handles in list(_SHARED.items()):
        if not any(
            (t := r()) is not None and t._storage is not None and id(t._storage) == key for r in handles
        ):
            del _SHARED[key]


def shared(storage: Storage, owner: Tensor) -> bool:
    """Return whether a handle other than `owner` holds this very storage."""
    handles = _SHARED.get(id(storage))
    if not handles:
        return False
    holders = [r for r in handles if (t := r()) is not None and t._storage is storage]
    if any(r() is not owner for r in holders):
        return True
    del _SHARED[id(storage)]
    return False


def watched(storage: Storage, owner: Tensor) -> bool:
    """Return whether somebody besides `owner` may look at a storage: NumPy, a handle, a node."""
    return storage.exported or shared(storage, owner) or values.uses(storage) > 0
