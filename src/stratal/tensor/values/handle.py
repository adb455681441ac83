"""Handles: what a tensor holds, in which state it is, and every transition between states.

| state | `_storage` | `_held` | `_trace` | besides |
|---|---|---|---|---|
| stored | its value | None, or the node of that value | None | |
| pending | None | the node to be computed | None | `_home` or `_before`: what to go back to if that fails |
| promised | None | a promise of a node | None | |
| traced | None | a node of the capture | the capture | |
| spent | its value | None | None | `_track` is USED_UP: its history was overwritten, or left behind |

This module alone writes the slots; all others call its functions. What must happen besides, in captures or
for those who wait for a value, `handles` adds.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import repeat, starmap
from typing import Any, Final, TypeVar

from stratal.base.types import TensorType
from stratal.graph.node import Node
from stratal.runtime.storage import Storage
from stratal.tensor.values import values
from stratal.tensor.values.memory import Memory, Outside, View
from stratal.tensor.values.promises import Promise, PromisedLeaf

Held = Node | Promise | PromisedLeaf

# What a handle is to gradients.
CONSTANT: Final = 0  # depends on nothing that takes a gradient
TRACKED: Final = 1  # takes a gradient, or depends on what does
STOPPED: Final = 2  # depends on what does, but was made under no_grad or detached
USED_UP: Final = 3  # was tracked; its history was overwritten, or stayed in a compiled call
WITHOUT_HISTORY: Final = (CONSTANT, USED_UP, CONSTANT, USED_UP)  # what a value is, by what it was


class Handle:
    """A rebindable cell: the private half of `Tensor`."""

    __slots__ = (
        "__weakref__",
        "_before",
        "_grad",
        "_guarded",
        "_held",
        "_home",
        "_leaf",
        "_retains",
        "_storage",
        "_trace",
        "_track",
        "_view",
        "type",
    )

    type: TensorType
    _storage: Storage | None
    _held: Held | None
    _trace: Scope | None  # the capture it was made in
    _track: int
    # Where the value stood before in-place operators rebound this handle.
    _home: tuple[Storage, Node | None] | None
    _before: tuple[Held, int] | None  # what it was before, where it never had a value
    _leaf: bool  # takes gradients itself: derivatives end here
    _retains: bool  # keep the gradient although this is no leaf
    _grad: Handle | None
    _guarded: bool  # a compiled function reads this handle, and must hear of a change of its type
    _view: View | None  # how it shows a memory that another handle shows, too, or did

    @property
    def _node(self) -> Node | None:
        """The node it holds: of a promise, made now. That changes no handle: it may be another thread's."""
        held = self._held
        return held if held is None or isinstance(held, Node) else held.node()


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
_STATE: Final = ("_storage", "_held", "_track", "_home", "_before")


# -- new handles ---------------------------------------------------------------------------------------------
def initialize(
    made: AnyHandle, type_: TensorType, held: Held | None, track: int = CONSTANT,
    storage: Storage | None = None,
) -> AnyHandle:  # fmt: skip
    """Fill in a new handle and return it."""
    made.type = type_
    made._held, made._track, made._storage = held, track, storage
    made._home = made._before = made._grad = made._trace = made._view = None
    made._leaf = made._retains = made._guarded = False
    return made


# -- transitions ---------------------------------------------------------------------------------------------
def become(
    handle: Handle, storage: Storage | None, held: Held | None, track: int,
    home: tuple[Storage, Node | None] | None = None, before: tuple[Held, int] | None = None,
) -> None:  # fmt: skip
    """Give a handle all that makes its state, in one call of the interpreter's own kind: no signal handler
    sees half of it.
    """
    change(handle, (storage, held, track, home, before))


def change(handle: Handle, state: State) -> None:
    """Give a handle a state, as `become` does."""
    any(map(setattr, repeat(handle), _STATE, state))


def become_all(changes: Iterable[tuple[Handle, State]]) -> None:
    """Give several handles all that makes their states, in one such call."""
    slots = [(handle, *slot) for handle, state in changes for slot in zip(_STATE, state, strict=True)]
    any(starmap(setattr, slots))


def state_of(handle: Handle) -> State:
    """Return what `become` takes to make a handle what it is now."""
    return handle._storage, handle._held, handle._track, handle._home, handle._before


def store(handle: Handle, storage: Storage) -> None:
    """Stored, in memory that a replay has written; what it is to gradients stays."""
    if handle._storage is not storage:
        disturb(handle)
    handle._storage, handle._held, handle._home = storage, None, None


def relocate(handle: Handle, old: Storage, new: Storage) -> None:
    """Let a handle that holds a storage, or waits to be written there, use another one of the same value."""
    if handle._storage is old:
        handle._storage = new
    elif handle._home is not None:
        handle._home = (new, handle._home[1])


def spend(handle: Handle) -> None:
    """Spent: its history goes through memory that was overwritten."""
    handle._held, handle._track = None, USED_UP


def enter_trace(handle: Handle, trace: Scope) -> None:
    """Traced."""
    handle._trace = trace


def leave_trace(handle: Handle, storage: Storage | None = None, node: Node | None = None) -> None:
    """Stored or pending, of a handle that outlives the capture it was made in."""
    handle._trace, handle._held, handle._storage = None, node, storage
    if storage is not None:
        handle._track = TRACKED if handle._leaf else WITHOUT_HISTORY[handle._track]
        if handle._view is not None and handle._view.memory.outside is not None:
            expose(handle)


def retype(handle: Handle, type_: TensorType) -> None:
    """Let a handle hold nothing, in order to take a value of any type."""
    disturb(handle)
    handle.type, handle._home, handle._before, handle._storage = type_, None, None, None


# -- the node of a value -------------------------------------------------------------------------------------
def leaf_of(handle: Handle, old: Node | None = None) -> Node:
    """Return a new leaf for what a stored handle holds; it becomes its node in place of the `old` one."""
    with values.NAMING:
        assert handle._storage is not None
        if handle._held is old:
            handle._held = values.leaf(handle._storage, holder=handle)
        assert isinstance(handle._held, Node)
        return handle._held


def stand_for(handle: Handle, node: Node | None, track: int) -> None:
    """Let a handle hold a node, and be something to gradients."""
    handle._held, handle._track = node, track


def forget_node(handle: Handle) -> None:
    """Let go of the node of a stored handle; another one is made when it is asked for."""
    handle._held = None


# -- gradients, views, guards --------------------------------------------------------------------------------
def disturb(handle: Handle | None) -> None:
    """Note that a handle is about to hold something else, or to be held by somebody else."""
    if handle is not None and handle._storage is not None:
        handle._storage.disturb()


def give_gradient(owner: Handle, gradient: Handle | None) -> None:
    """Set the gradient of a tensor."""
    if owner._grad is not gradient:
        disturb(owner._grad)
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
        expose(handle)
    return handle


def begin(handle: Handle) -> View:
    """Let a handle that is no view be the origin of some, and return how it shows its own memory."""
    if handle._view is None:
        attach(handle, View(None, None, (), handle.type))
        note_outside(handle)
    assert handle._view is not None
    return handle._view


def note_outside(handle: Handle) -> None:
    """Note that NumPy sees the memory a handle shows, if it sees what the handle holds."""
    view, owner = handle._view, None if handle._storage is None else handle._storage.owner
    if view is not None and owner is not None and handle._trace is None:
        view.memory.outside = Outside(weakref.ref(owner), view.ops)


def is_seen(memory: Memory, besides: Handle | None = None) -> bool:
    """Return whether NumPy sees a memory: some member, another than that given, holds what NumPy sees."""
    outside = memory.outside
    if outside is None:
        return False
    found = (known() for known in memory.members) if outside.owner() is not None else ()
    for t in found:
        shows = t is not None and t is not besides and t._view is not None and t._view.memory is memory
        if shows and outside.shown_by(t):
            return True
    memory.outside = None
    return False


def expose(handle: Handle) -> None:
    """Let a handle that shows a memory hold its part of what NumPy sees of that."""
    if handle._view is not None and handle._trace is None and is_seen(handle._view.memory, handle):
        hold_part(handle)


def hold_part(handle: Handle) -> None:
    """Let a handle hold a view of the array outside, where NumPy has it. Its value, which may still wait, is
    what stands there.
    """
    view = handle._view
    assert view is not None
    outside = view.memory.outside
    assert outside is not None
    part = None if outside.shown_by(handle) else outside.part(view)
    if part is None:
        return
    node = handle._node if handle._track == TRACKED else None
    if node is not None and values.finished(node) is None:
        values.finish(node, part.copied())
    disturb(handle)
    become(handle, part, node, handle._track if handle._track == TRACKED else WITHOUT_HISTORY[handle._track])


def leave(handle: Handle) -> None:
    """Let a handle show no memory with others any more."""
    handle._view = None


def set_guarded(handle: Handle) -> None:
    """Note that a compiled function must hear of a change of a handle's type."""
    handle._guarded = True
