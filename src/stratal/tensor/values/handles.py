"""What a handle holds, as this thread's trace sees it: reading it, and giving it another value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import numpy as np

from stratal.base.dims import known_equal
from stratal.base.errors import AttributeValueError, NotDifferentiableError
from stratal.base.interrupts import ATOMIC, DEFERRED
from stratal.base.source import SourceLine, user_line
from stratal.base.weak import note
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.runtime.storage import Array, Storage
from stratal.tensor.values import immediate, values
from stratal.tensor.values.alive import LEAVES, LIVE, SEVERAL, adopt, earlier, enlist, share, supersede
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.handle import (
    CONSTANT,
    STOPPED,
    TRACKED,
    USED_UP,
    Handle,
    Held,
    State,
    become,
    become_all,
    change,
    disturb,
    enter_trace,
    initialize,
    leaf_of,
    relocate,
    retain_gradient,
    retype,
    set_leaf,
    stand_for,
    state_of,
)
from stratal.tensor.values.memory import View
from stratal.tensor.values.promises import Promise, PromisedLeaf
from stratal.tensor.values.rewrites import Write, rewritten
from stratal.tensor.values.state import MODE, note_mutation
from stratal.tensor.values.trace import refuse

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


# -- reading -------------------------------------------------------------------------------------------------
def look(tensor: Handle) -> tuple[Node, int]:
    """Return the node of a tensor, as this thread's trace sees it, and what it is to gradients."""
    held, track = held_of(tensor)
    return held if held.__class__ is Node else tensor._node, track  # type: ignore[return-value]


def held_of(tensor: Handle) -> tuple[Node | Promise, int]:
    """Return the node of a tensor or, outside of traces, the promise of one, and what it is to gradients."""
    trace = MODE.trace
    if trace is not None:
        return trace.look(tensor)
    if tensor._trace is not None:
        refuse_traced(tensor, "this op")
    if SEVERAL:
        adopt(tensor)
    held, storage = tensor._held, tensor._storage
    if storage is not None and storage._exports is not None:
        held = _node_now(tensor)
        HERE.backlog.note_operand(tensor)
    elif held is None:
        held = leaf_of(tensor)
        HERE.backlog.note_operand(tensor)
    elif held.__class__ is PromisedLeaf:
        held = held.node()
    return held, tensor._track  # type: ignore[return-value]


def _node_now(tensor: Handle, known: Set[int] = frozenset()) -> Node:
    """Return the node of what stands now in a stored tensor whose memory is, or was, seen outside. Of its
    memory, those whose value is newer are `known`, by id.
    """
    storage, node = tensor._storage, tensor._node
    before = node
    assert storage is not None
    value = None if node is None else values.finished(node)
    written = node is not None and value is not storage and (value is None or not _same(value, storage))
    if node is not None and written:
        _overwritten(tensor, node)
        node = None
    if node is None:
        with ATOMIC if written else DEFERRED:
            node = leaf_of(tensor, before)
            if written:
                _spread_from_outside(tensor, known)
    elif value is not storage and not storage.exported:
        values.finish(node, storage, tensor)
    return node


def _spread_from_outside(tensor: Handle, known: Set[int]) -> None:
    """Give members of a memory that hold no view of the array outside what somebody wrote there."""
    view = tensor._view
    if view is not None:
        outside = view.memory.outside
        same = [] if outside is None else [t for t in view.memory.alive() if outside.shown_by(t)]
        spread([tensor], known={id(t) for t in (tensor, *same)} | known)


def _overwritten(tensor: Handle, node: Node) -> None:
    """Take note that somebody outside gave a tensor another value."""
    if tensor._leaf:
        supersede(tensor, node)
    elif tensor._track == TRACKED:
        raise NotDifferentiableError(
            "numpy: a tensor with a history was overwritten from outside", got=str(tensor.type),
            hint="write to a copy: x.detach().clone().numpy()",
        )  # fmt: skip


def _same(a: Storage, b: Storage) -> bool:
    """Return whether two storages of one type hold the same bits."""
    x, y = a.array, b.array
    if x.dtype.kind == "c":
        return all(_same_bits(p, q) for p, q in ((x.real, y.real), (x.imag, y.imag)))
    return _same_bits(x, y)


def _same_bits(x: Array, y: Array) -> bool:
    bits = _BITS[x.itemsize]
    return bool(np.array_equal(x.view(bits), y.view(bits)))


def node_of(tensor: Handle) -> Node:
    return look(tensor)[0]


def track_of(tensor: Handle) -> int:
    trace = MODE.trace
    return tensor._track if trace is None else trace.track(tensor)


def takes_gradients(tensor: Handle) -> bool:
    """Return whether gradients go back through what is computed of a tensor now."""
    return MODE.grad and track_of(tensor) == TRACKED


def versions_of(tensor: Handle) -> list[Node]:
    """Return the nodes whose gradients are those of a tensor: a leaf changed in place is one variable."""
    trace = MODE.trace
    before = earlier(tensor) if trace is None else trace.earlier(tensor)
    return list(dict.fromkeys((node_of(tensor), *before)))


def is_leaf(tensor: Handle) -> bool:
    """Return whether a tensor takes gradients itself, as this thread's trace sees it."""
    trace = MODE.trace
    return tensor._leaf if trace is None else trace.is_leaf(tensor)


def refuse_traced(tensor: Handle, asked: str) -> None:
    """Raise the error for Python that needs the value of a traced tensor, or uses it after the capture."""
    refuse(MODE.trace, tensor, asked)


# -- writing -------------------------------------------------------------------------------------------------
def place(made: Handle) -> None:
    """Tell whoever must know of a handle that holds a node."""
    trace = MODE.trace
    if trace is not None:
        enter_trace(made, trace)
        trace.made(made)
        return
    node = made._node
    assert node is not None
    known = values.finished(node)
    if known is not None:
        if made._track == TRACKED:
            become(made, known, node, TRACKED)
            enlist(made)
        else:  # a leaf of its own: writing one spares the other
            become(made, known, None, track_of_value(made, made._track))
        share(made, *_holder(node, known))
        return
    if MODE.eager is not None:
        enlist(made)
        MODE.eager(made)
        return
    found = immediate.value_of(node) if HERE.at_once and made._track in (CONSTANT, STOPPED) else None
    if found is not None:
        become(made, found, None, made._track)
        return
    enlist(made)
    HERE.backlog.note_result(made, 1, (node.op.name, *node.where))


def _holder(node: Node, storage: Storage) -> list[Handle]:
    """Return the handle that a storage is shared with by whoever takes it from a node."""
    found = values.holder(node)
    return [found] if found is not None and found._storage is storage else []


def rebind(tensor: Handle, held: Node | Promise, track: int) -> None:
    """Give this handle a new value of the same type, and views of the same memory theirs."""
    view = tensor._view
    if view is None or (not view.ops and len(view.memory.alive()) < 2):
        give(tensor, *_with_history(tensor, held, track))
    elif not view.ops or MODE.trace is not None or not HERE.backlog.write_view(tensor, held, track):
        rebind_all([(tensor, held, track)])


def rebind_all(changes: Sequence[tuple[Handle, Node | Promise, int]]) -> None:
    """Give some handles new values, those that show one memory consistent ones: all of them, or none."""
    new = Changes()
    for tensor, _, _ in changes:
        if tensor._view is not None:
            _check(tensor, tensor._view)
            if MODE.trace is None:
                _hear(tensor._view.memory.alive())
    for tensor, held, track in changes:
        new.add(tensor, *_with_history(tensor, held, track))
    spread([tensor for tensor, _, _ in changes], new)


def _check(tensor: Handle, view: View) -> None:
    """Refuse a write through a stretched view, or a part of one, and one that changes a leaf while gradients
    are recorded.
    """
    if view.is_of_stretched:
        raise AttributeValueError(
            "in-place: several elements of a stretched tensor are one element of memory",
            got=str(tensor.type), hint="write to a copy: clone()",
        )  # fmt: skip
    for t in view.memory.alive() if MODE.grad else ():
        if t is not tensor and t._view.group is view.group and is_leaf(t) and t._view.covers(view):
            raise NotDifferentiableError(
                "in-place: a view of a leaf that takes gradients cannot be changed in place",
                got=f"{tensor.type} of {t.type}", hint="do it under st.no_grad(), or on a copy",
            )  # fmt: skip


class Changes:
    """New values of several handles, given in one step: no signal handler sees half of it, and no error that
    comes before it has changed anything. A trace takes each at once: nobody sees one that was cut short.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[Handle, State]] = {}

    def add(self, tensor: Handle, held: Node | Promise, track: int) -> None:
        if MODE.trace is not None:
            give(tensor, held, track)
        else:
            self._states[id(tensor)] = tensor, _state_with(tensor, held, track)

    def look(self, tensor: Handle) -> tuple[Node, int]:
        """Return the node of a tensor, and what it is to gradients, once the changes are made."""
        if id(tensor) not in self._states:
            return look(tensor)
        storage, held, track, *home = self._states[id(tensor)][1]
        if held is None:
            held = values.leaf(storage, holder=tensor)
            self._states[id(tensor)] = tensor, (storage, held, track, *home)
        return held if isinstance(held, Node) else held.node(), track

    def make(self) -> None:
        """Give every handle its value."""
        changes = list(self._states.values())
        before = [(tensor, state_of(tensor)) for tensor, _ in changes]
        for tensor, _ in changes:
            disturb(tensor)
        become_all(changes)
        try:
            for tensor, _ in changes:
                _given(tensor)
        except BaseException:  # of the interpreter of eager mode
            for tensor, state in before:
                if state[0] is None:
                    enlist(tensor)
            become_all(before)
            raise


def _hear(tensors: Iterable[Handle], known: Set[int] = frozenset()) -> None:
    """Take note of what somebody outside wrote to the memory of these tensors; the values of those that are
    `known`, by id, are newer.
    """
    for t in tensors:
        if t._trace is None and t._storage is not None and t._storage._exports is not None:
            _node_now(t, known)


def spread(written: Sequence[Handle], new: Changes | None = None, known: Set[int] | None = None) -> None:
    """Give the other views of what was written, with values that agree, the values they have now; those that
    are `new` together with what is written. Those that are `known`, by id, have theirs.
    """
    trace = MODE.trace
    new = new or Changes()
    outside = known is not None
    for tensor in written:
        view = tensor._view
        if view is None or view.is_stretched or known_equal(tensor.type.size, 0):
            continue  # what is stretched was rewritten itself, for what it is a view of
        known = known or set(map(id, written))
        others = [t for t in view.memory.alive() if id(t) not in known]
        if trace is None:
            others = [t for t in others if t._trace is None]
            _hear(others, known)
        else:
            others = trace.seen(Write(view, *look(tensor), MODE.grad), others) if others else []
        if others:
            line = user_line()
            done = [Write(view, *new.look(tensor), MODE.grad)]
            for t in sorted(others, key=lambda t: len(t._view.ops)):
                _rewrite(t, t._view, done, () if line is None else (line,), new)
    new.make()
    if trace is None and not outside:
        for tensor in written:
            _leave_outside(tensor)


def _leave_outside(tensor: Handle) -> None:
    """Part from the array outside, which a write here does not reach: all members of the memory together."""
    view = tensor._view
    if view is None or view.memory.outside is None:
        return
    outside, view.memory.outside = view.memory.outside, None
    for t in view.memory.alive():
        if outside.shown_by(t):
            disturb(t)
            relocate(t, t._storage, t._storage.copied())


def _rewrite(
    tensor: Handle, view: View, done: list[Write], where: tuple[SourceLine, ...], new: Changes
) -> None:
    """Give a view its value after a write, the first of those that are known to be `done`."""
    first, last = done[0].view.span
    if view.span[0] <= last and first <= view.span[1]:  # else they share no element
        new.add(tensor, *rewritten(view, (*new.look(tensor), is_leaf(tensor)), done, where))
        done.append(Write(view, *new.look(tensor), MODE.grad))


def _with_history(tensor: Handle, held: Node | Promise, track: int) -> tuple[Node | Promise, int]:
    """Return a new value of a handle, and what it is to gradients: a write they do not see leaves history."""
    if is_leaf(tensor):
        if MODE.grad:
            raise NotDifferentiableError(
                "in-place: a leaf that takes gradients cannot be changed in place", got=str(tensor.type),
                hint="do it under st.no_grad(), or on a copy",
            )  # fmt: skip
        return held, TRACKED
    if MODE.grad:
        return held, track
    before = track_of(tensor)
    if before == USED_UP:
        return held, USED_UP
    if before == TRACKED:
        node = held if isinstance(held, Node) else held.node()
        return Builder(node.where).straight_through(node, node_of(tensor)), TRACKED
    return held, STOPPED if track == TRACKED else track


def give(tensor: Handle, held: Node | Promise, track: int) -> None:
    """Give this handle, and no other, a new value of the same type."""
    trace = MODE.trace
    if trace is not None:
        assert isinstance(held, Node)
        trace.write(tensor, held, track)
        return
    state = _state_with(tensor, held, track)
    disturb(tensor)
    change(tensor, state)
    _given(tensor)


def _state_with(tensor: Handle, value: Node | Promise, track: int) -> State:
    """Return the state of a cell that stands for a node, whose value a flush will write to where its old
    value lies. Whoever must know of it hears of it before, so that nobody overwrites what it needs.
    """
    if tensor._trace is not None:
        refuse_traced(tensor, "an in-place operator")
    if MODE.step is not None:
        MODE.step.setdefault(id(tensor), (tensor, state_of(tensor)))
    leaf = tensor._leaf
    if leaf and tensor._node is not None:
        supersede(tensor, tensor._node)
    held: Held = value
    known = values.finished(value) if isinstance(value, Node) else None
    if isinstance(value, Node) and known is not None:
        share(tensor, *_holder(value, known), storage=known)
        if leaf or track != TRACKED:
            return known, None, track_of_value(tensor, track), None, None
    home, before = tensor._home, tensor._before
    if tensor._storage is not None:
        if tensor._track != TRACKED or leaf:
            home, before = (tensor._storage, tensor._node), None
        elif tensor._node is not None:
            home, before = None, (tensor._node, tensor._track)
    elif home is None and before is None and tensor._held is not None:
        before = (tensor._held, tensor._track)
    if leaf:
        held = values.pending_leaf(value) if isinstance(value, Node) else PromisedLeaf(value)
    enlist(tensor)
    if known is not None:
        return known, held, track, None, None
    return None, held, track, home, before


def _given(tensor: Handle) -> None:
    """Complete a change, which has happened."""
    if tensor._storage is not None and (tensor._leaf or tensor._track != TRACKED):
        LIVE.pop(id(tensor), None)
        return
    if tensor._retains:
        retain_gradient(tensor, False)
    if tensor._storage is None and MODE.eager is not None:
        MODE.eager(tensor)


def track_of_value(tensor: Handle, track: int) -> int:
    """Return what a tensor whose value is there, and which holds no node, is to gradients."""
    return TRACKED if tensor._leaf else USED_UP if track == USED_UP else CONSTANT


def take_value(made: Handle, source: Handle, leaf: bool = False) -> None:
    """Make `made`, new or not, hold the value of another tensor."""
    storage = source._storage
    node, track = source._node, source._track
    if storage is None or storage.exported or MODE.trace is not None:
        node, track = look(source)
    if not hasattr(made, "_held"):
        initialize(made, source.type, node, track)
    else:
        retype(made, source.type)
        stand_for(made, node, track)
        if made._guarded:
            note_mutation()
    if node is None:
        become(made, storage, None, track)
        share(made, source)
    else:
        place(made)
    if leaf:
        stand_for(made, made._node, CONSTANT)
        own_value(made, leaf=True)


def become_leaf(made: Handle) -> None:
    """Let a tensor take gradients itself, also of what was computed from the node it holds."""
    set_leaf(made, True)
    stand_for(made, made._node, TRACKED)
    note(LEAVES, made)


def own_value(made: Handle, leaf: bool) -> None:
    """Give a tensor an input node of its own, shared with no other value; derivatives end there."""
    trace = MODE.trace
    if trace is not None:
        trace.own_value(made, leaf)
        return
    node = made._node
    if made._leaf and node is not None:
        supersede(made, node)  # what was computed from it before is still its own
    set_leaf(made, leaf)
    if made._storage is not None:
        node = None
    elif node is not None:  # a leaf that waits may be another handle's, too
        node = values.pending_leaf(values.pending(node) or node)
    stand_for(made, node, TRACKED if leaf else CONSTANT)
    if made._guarded:
        note_mutation()
    if leaf:
        note(LEAVES, made)
