"""Writes to parts of a tensor, done at once: a loop that fills a tensor place by place is no chain of ops.

A write is an op over the whole tensor, and a chain of them at other places another program. A tensor that was
written at a few places is thus computed; from then on, values are written where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from stratal.base.interrupts import ATOMIC
from stratal.base.session import SESSION
from stratal.base.weak import Note, note
from stratal.graph.node import Node
from stratal.graph.op import Op
from stratal.runtime.storage import Array, Storage
from stratal.tensor.lazy.execution import store_result
from stratal.tensor.lazy.flushing import value_of
from stratal.tensor.values.backlog import Backlog
from stratal.tensor.values.deferred import Deferred
from stratal.tensor.values.handle import (
    CONSTANT,
    CONSUMED,
    TRACKED,
    Handle,
    export_of,
    forget_node,
    initialize,
    invalidate,
    set_state,
)
from stratal.tensor.values.live import is_observable, register_live
from stratal.tensor.values.state import LOCK, MODE

_FEW: Final = 4  # places that are written in one program

_PLACES = SESSION.cache(dict[int, Note[Handle]]())  # where a tensor was written


def write_part(whole: Handle, ops: Sequence[Op], value: Handle) -> bool:
    """Write a value to what some ops of views take of a tensor; return whether it was done, by now."""
    if not _writes_in_place(whole, ops) or not _is_plain(value, value._track):
        return False
    with LOCK, suppress(Exception):  # it is raised where that value is read
        _write(whole, ops, value_of(value, "a write").array)
        return True
    return False


def _write_view(view: Handle, ir: Node | Deferred, track: int) -> bool:
    """Give a view another value, and what it is a view of."""
    shown = view._view
    assert shown is not None
    alive = shown.memory.alive()
    others = [t for t in alive if t is not view]
    base = others[0] if others else view
    if base._view is None or base._view.ops or view._track or view._trace is not None:
        return False
    if shown.is_of_stretched:  # what refuses it says so
        return False
    first, last = shown.span
    if any(t._view.span[0] <= last and first <= t._view.span[1] for t in others[1:]):
        return False
    if not _writes_in_place(base, shown.ops, beside=len(others)) or not _is_plain(view, track):
        return False
    with LOCK, suppress(Exception):
        value = initialize(Handle(), view.type, ir, track)
        register_live(value)
        array = value_of(value, "a write").array
        with ATOMIC:
            window = _write(base, shown.ops, array)
            invalidate(view)
            store_result(view, Storage.copy_of(window, view.type), {})
        return True
    return False


Backlog.write_view = staticmethod(_write_view)


def _writes_in_place(whole: Handle, ops: Sequence[Op], beside: int = 0) -> bool:
    """Return whether a tensor is written where it stands: at many places, and no other reader is affected."""
    places = (_PLACES.get(id(whole)) or note(_PLACES, whole, set())).fact
    if len(places) <= _FEW:
        places.add(tuple(ops))
        return False
    if (
        MODE.trace is not None
        or MODE.step is not None
        or MODE.eager is not None
        or whole._track == TRACKED
        or not _is_plain(whole, whole._track)
    ):
        return False
    view = whole._view
    if view is None:
        return True
    return not view.ops and len(view.memory.alive()) <= 1 + beside and export_of(view.memory) is None


def _is_plain(tensor: Handle, track: int) -> bool:
    """Return whether a tensor takes part in no gradient."""
    return (
        tensor._trace is None
        and not tensor._leaf
        and track != CONSUMED
        and (track != TRACKED or not MODE.grad)
    )


def _write(whole: Handle, ops: Sequence[Op], value: Array) -> Array:
    """Write to a part of a tensor, which moves if somebody sees its old value; return the part."""
    storage = value_of(whole, "a write")
    forget_node(whole)
    if is_observable(storage, whole) or not storage.array.flags.writeable:
        invalidate(whole)
        storage = storage.copied()
        set_state(whole, storage, None, CONSTANT)
    window = storage.array
    for op in ops:
        window = np.asarray(op.ref(window))
    if not np.may_share_memory(window, storage.array):
        raise ValueError("a part that is a copy")
    window[...] = value
    storage.stamp = None
    return window
