"""The state of a tensor, and every transition between states.

| state | `_storage` | `_ir` | `_trace` | besides |
|---|---|---|---|---|
| stored | its value | None, or the node of that value | None | |
| pending | None | the node to be computed | None | `_destination` or `_previous`: restored on failure |
| deferred | None | a result of a call whose nodes were not made | None | |
| traced | None | a node of the capture | the capture | |
| consumed | its value | None | None | `_track` is CONSUMED: memory its gradient needs was overwritten |

Only this module writes the slots. `binding` adds what captures and dependents need to be notified of.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import repeat, starmap
from typing import Any, Final, NamedTuple, TypeVar

from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor.values import node_values
from stratal.tensor.values.deferred import Deferred, DeferredLeaf
from stratal.tensor.values.memory import ExportedMemory, Memory, View

LazyValue = Node | Deferred | DeferredLeaf

# What a handle is to gradients.
CONSTANT: Final = 0  # depends on nothing that takes a gradient
TRACKED: Final = 1  # takes a gradient, or depends on what does
STOPPED: Final = 2  # depends on what does, but was made under no_grad or detached
CONSUMED: Final = 3  # was tracked; its history was overwritten, or stayed in a compiled call
WITHOUT_HISTORY: Final = (CONSTANT, CONSUMED, CONSTANT, CONSUMED)  # what a value is, by what it was


class Destination(NamedTuple):
    """The old value of a tensor that in-place operators rebound: where a flush writes the new one."""

    storage: Storage
    node: Node | None  # of the old value, which loses it


class Handle:
    """A rebindable cell: the private half of `Tensor`."""

    __slots__ = (
        "__weakref__",
        "_destination",
        "_grad",
        "_guarded",
        "_ir",
        "_leaf",
        "_previous",
        "_retains",
        "_storage",
        "_trace",
        "_track",
        "_view",
        "type",
    )

    type: TensorType
    _storage: Storage | None
    _ir: LazyValue | None
    _trace: Scope | None  # the capture it was made in
    _track: int
    _destination: Destination | None
    _previous: tuple[LazyValue, int] | None  # what it was before, where it never had a value
    _leaf: bool  # takes gradients itself: derivatives end here
    _retains: bool  # keep the gradient although this is no leaf
    _grad: Handle | None
    _guarded: bool  # a compiled function reads this handle, and is notified of a change of its type
    _view: View | None  # how it shows a memory that another handle shows, too, or did

    @property
    def _node(self) -> Node | None:
        """Its node; that of a deferred value is made now, without a change of the handle."""
        ir = self._ir
        return ir if ir is None or isinstance(ir, Node) else ir.node()


class Scope:
    """The capture a handle is made in: of a function, a region of one, or a graph."""

    name: str

    def refusal(self, tensor: Handle, asked: str) -> Exception | None:
        """Return the error for a tensor made inside that is asked for what it cannot give here; None where
        the usual one will do.
        """
        return None


AnyHandle = TypeVar("AnyHandle", bound=Handle)
State = tuple[Any, ...]  # what `become` takes
_STATE: Final = ("_storage", "_ir", "_track", "_destination", "_previous")


# -- new handles ---------------------------------------------------------------------------------------------
def initialize(
    made: AnyHandle, type_: TensorType, ir: LazyValue | None, track: int = CONSTANT,
    storage: Storage | None = None,
) -> AnyHandle:  # fmt: skip
    """Fill in a new handle and return it."""
    made.type = type_
    made._ir, made._track, made._storage = ir, track, storage
    made._destination = made._previous = made._grad = made._trace = made._view = None
    made._leaf = made._retains = made._guarded = False
    return made


# -- transitions ---------------------------------------------------------------------------------------------
def set_state(
    handle: Handle, storage: Storage | None, ir: LazyValue | None, track: int,
    destination: Destination | None = None, before: tuple[LazyValue, int] | None = None,
) -> None:  # fmt: skip
    """Give a handle all that makes its state, in one call of the interpreter's own kind: no signal handler
    sees half of it.
    """
    restore_state(handle, (storage, ir, track, destination, before))


def restore_state(handle: Handle, state: State) -> None:
    """Give a handle a state, as `become` does."""
    any(map(setattr, repeat(handle), _STATE, state))


def set_states(changes: Iterable[tuple[Handle, State]]) -> None:
    """Give several handles all that makes their states, in one such call."""
    slots = [(handle, *slot) for handle, state in changes for slot in zip(_STATE, state, strict=True)]
    any(starmap(setattr, slots))


def state_of(handle: Handle) -> State:
    """Return what `become` takes to make a handle what it is now."""
    return handle._storage, handle._ir, handle._track, handle._destination, handle._previous


def overwritten_node(handle: Handle) -> Node | None:
    """Return the node of the value that a flush overwrites with the handle's new one, if it had a node."""
    return None if handle._destination is None else handle._destination.node


def store(handle: Handle, storage: Storage) -> None:
    """Stored, in memory that a replay has written; what it is to gradients stays."""
    if handle._storage is not storage:
        invalidate(handle)
    handle._storage, handle._ir, handle._destination = storage, None, None


def relocate(handle: Handle, old: Storage, new: Storage) -> None:
    """Let a handle that holds a storage, or waits to be written there, use another one of the same value."""
    if handle._storage is old:
        handle._storage = new
    elif handle._destination is not None:
        handle._destination = Destination(new, handle._destination.node)


def drop_history(handle: Handle) -> None:
    """Consumed: its history goes through memory that was overwritten."""
    handle._ir, handle._track = None, CONSUMED


def enter_trace(handle: Handle, trace: Scope) -> None:
    """Traced."""
    handle._trace = trace


def leave_trace(handle: Handle, storage: Storage | None = None, node: Node | None = None) -> None:
    """Stored or pending, of a handle that outlives the capture it was made in."""
    handle._trace, handle._ir, handle._storage = None, node, storage
    if storage is not None:
        handle._track = TRACKED if handle._leaf else WITHOUT_HISTORY[handle._track]
        if handle._view is not None and handle._view.memory.outside is not None:
            bind_if_exported(handle)


def retype(handle: Handle, type_: TensorType) -> None:
    """Let a handle hold nothing, in order to take a value of any type."""
    invalidate(handle)
    handle.type, handle._destination, handle._previous, handle._storage = type_, None, None, None


# -- the node of a value -------------------------------------------------------------------------------------
def leaf_of(handle: Handle, old: Node | None = None) -> Node:
    """Return a new leaf for what a stored handle holds; it becomes its node in place of the `old` one."""
    with node_values.NAMING:
        assert handle._storage is not None
        if handle._ir is old:
            handle._ir = node_values.leaf(handle._storage, holder=handle)
        assert isinstance(handle._ir, Node)
        return handle._ir


def set_node(handle: Handle, node: Node | None, track: int) -> None:
    """Let a handle hold a node, and be something to gradients."""
    handle._ir, handle._track = node, track


def forget_node(handle: Handle) -> None:
    """Let go of the node of a stored handle; another one is made when it is asked for."""
    handle._ir = None


# -- gradients, views, guards --------------------------------------------------------------------------------
def invalidate(handle: Handle | None) -> None:
    """Notify cached fast paths that a handle is about to get other memory, or to share what it has."""
    if handle is not None and handle._storage is not None:
        handle._storage.invalidate()


def give_gradient(owner: Handle, gradient: Handle | None) -> None:
    """Set the gradient of a tensor."""
    if owner._grad is not gradient:
        invalidate(owner._grad)
        owner._grad = gradient


def set_leaf(handle: Handle, leaf: bool) -> None:
    """Let a handle take gradients itself, or no longer."""
    handle._leaf = leaf


def retain_gradient(handle: Handle, retains: bool) -> None:
    """Keep the gradient of a handle that is no leaf, or no longer."""
    handle._retains = retains


def attach(handle: AnyHandle, view: View) -> AnyHandle:
    """Let a handle show a memory; return it."""
    handle._view = view
    view.memory.add(handle)
    if view.memory.outside is not None:
        bind_if_exported(handle)
    return handle


def view_of_itself(handle: Handle) -> View:
    """Let a handle that is no view be the origin of some, and return how it shows its own memory."""
    if handle._view is None:
        attach(handle, View(None, None, (), handle.type))
        note_export(handle)
    assert handle._view is not None
    return handle._view


def note_export(handle: Handle) -> ExportedMemory | None:
    """Note that NumPy sees the memory a handle shows, if it sees the handle's value; return what it sees."""
    view, owner = handle._view, None if handle._storage is None else handle._storage.owner
    if view is None or owner is None or handle._trace is not None:
        return None
    found = view.memory.outside = ExportedMemory(weakref.ref(owner), view.ops)
    return found


def export_of(memory: Memory, besides: Handle | None = None) -> ExportedMemory | None:
    """Return what NumPy sees of a memory; None where no member, another than that given, holds it."""
    outside = memory.outside
    if outside is None:
        return None
    found = (known() for known in memory.members) if outside.owner() is not None else ()
    for t in found:
        shows = t is not None and t is not besides and t._view is not None and t._view.memory is memory
        if shows and outside.shown_by(t):
            return outside
    if memory.outside is outside:  # else another thread noted a new one
        memory.outside = None
    return None


def bind_if_exported(handle: Handle) -> None:
    """Let a handle that shows a memory hold its part of what NumPy sees of that."""
    if handle._view is not None and handle._trace is None:
        outside = export_of(handle._view.memory, handle)
        if outside is not None:
            bind_to_export(handle, outside)


def bind_to_export(handle: Handle, outside: ExportedMemory) -> None:
    """Let a handle hold a view of the array outside, where NumPy has it. Its value, which may still wait, is
    what stands there.
    """
    view = handle._view
    assert view is not None
    part = None if outside.shown_by(handle) else outside.part(view)
    if part is None:
        return
    node = handle._node if handle._track == TRACKED else None
    if node is not None and node_values.finished(node) is None:
        node_values.finish(node, part.copied())
    invalidate(handle)
    track = handle._track if handle._track == TRACKED else WITHOUT_HISTORY[handle._track]
    set_state(handle, part, node, track)


def detach_from_memory(handle: Handle) -> None:
    """Let a handle show no memory with others any more."""
    handle._view = None


def set_guarded(handle: Handle) -> None:
    """Mark that a compiled function is to be notified of a change of a handle's type."""
    handle._guarded = True
