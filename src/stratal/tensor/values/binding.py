"""Reading and rebinding tensors: the node of a tensor in this thread's trace, in-place writes, aliases."""

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
from stratal.tensor.values import immediate_values, node_values
from stratal.tensor.values.backlog import HERE
from stratal.tensor.values.deferred import Deferred, DeferredLeaf
from stratal.tensor.values.handle import (
    CONSTANT,
    CONSUMED,
    STOPPED,
    TRACKED,
    Destination,
    Handle,
    LazyValue,
    State,
    enter_trace,
    initialize,
    invalidate,
    leaf_of,
    relocate,
    restore_state,
    retain_gradient,
    retype,
    set_leaf,
    set_node,
    set_state,
    set_states,
    state_of,
)
from stratal.tensor.values.live import (
    LEAVES,
    LIVE,
    SEVERAL,
    earlier_nodes,
    note_earlier_node,
    register_live,
    share,
    take_ownership,
)
from stratal.tensor.values.memory import View
from stratal.tensor.values.state import MODE, note_mutation
from stratal.tensor.values.trace import refuse
from stratal.tensor.values.view_writes import Write, rewritten

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


# -- reading -------------------------------------------------------------------------------------------------
def node_and_track(tensor: Handle) -> tuple[Node, int]:
    """Return the node of a tensor, as this thread's trace sees it, and what it is to gradients."""
    ir, track = lazy_value_of(tensor)
    return ir if ir.__class__ is Node else tensor._node, track  # type: ignore[return-value]


def lazy_value_of(tensor: Handle) -> tuple[Node | Deferred, int]:
    """Return the node of a tensor or, outside of traces, its deferred value, and what it is to gradients."""
    trace = MODE.trace
    if trace is not None:
        return trace.node_and_track(tensor)
    if tensor._trace is not None:
        refuse_traced(tensor, "this op")
    if SEVERAL:
        take_ownership(tensor)
    ir, storage = tensor._ir, tensor._storage
    if storage is not None and storage._exports is not None:
        ir = _node_after_external_writes(tensor)
        HERE.backlog.note_operand(tensor)
    elif ir is None:
        ir = leaf_of(tensor)
        HERE.backlog.note_operand(tensor)
    elif ir.__class__ is DeferredLeaf:
        ir = ir.node()
    return ir, tensor._track  # type: ignore[return-value]


def _node_after_external_writes(tensor: Handle, known: Set[int] = frozenset()) -> Node:
    """Return the node of what stands now in a stored tensor whose memory is, or was, seen outside. Of its
    memory, those whose value is newer are `known`, by id.
    """
    storage, node = tensor._storage, tensor._node
    before = node
    assert storage is not None
    value = None if node is None else node_values.finished(node)
    written = node is not None and value is not storage and (value is None or not _same(value, storage))
    if node is not None and written:
        _overwritten(tensor, node)
        node = None
    if node is None:
        with ATOMIC if written else DEFERRED:
            node = leaf_of(tensor, before)
            if written:
                _update_views_after_external_write(tensor, known)
    elif value is not storage and not storage.exported:
        node_values.finish(node, storage, tensor)
    return node


def _update_views_after_external_write(tensor: Handle, known: Set[int]) -> None:
    """After a write by NumPy, update the aliases that are not views of the array it sees."""
    view = tensor._view
    if view is not None:
        outside = view.memory.outside
        same = [] if outside is None else [t for t in view.memory.alive() if outside.shown_by(t)]
        update_views([tensor], known={id(t) for t in (tensor, *same)} | known)


def _overwritten(tensor: Handle, node: Node) -> None:
    """Note that NumPy wrote another value to a tensor."""
    if tensor._leaf:
        note_earlier_node(tensor, node)
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
    return node_and_track(tensor)[0]


def track_of(tensor: Handle) -> int:
    trace = MODE.trace
    return tensor._track if trace is None else trace.track(tensor)


def takes_gradients(tensor: Handle) -> bool:
    """Return whether gradients go back through what is computed of a tensor now."""
    return MODE.grad and track_of(tensor) == TRACKED


def versions_of(tensor: Handle) -> list[Node]:
    """Return the nodes whose gradients are those of a tensor: a leaf changed in place is one variable."""
    trace = MODE.trace
    before = earlier_nodes(tensor) if trace is None else trace.earlier(tensor)
    return list(dict.fromkeys((node_of(tensor), *before)))


def is_leaf(tensor: Handle) -> bool:
    """Return whether a tensor takes gradients itself, as this thread's trace sees it."""
    trace = MODE.trace
    return tensor._leaf if trace is None else trace.is_leaf(tensor)


def refuse_traced(tensor: Handle, asked: str) -> None:
    """Raise the error for Python that needs the value of a traced tensor, or uses it after the capture."""
    refuse(MODE.trace, tensor, asked)


# -- writing -------------------------------------------------------------------------------------------------
def register(made: Handle) -> None:
    """Register a new tensor that has a node: with its trace, or as live, unless its value is known."""
    trace = MODE.trace
    if trace is not None:
        enter_trace(made, trace)
        trace.made(made)
        return
    node = made._node
    assert node is not None
    known = node_values.finished(node)
    if known is not None:
        if made._track == TRACKED:
            set_state(made, known, node, TRACKED)
            register_live(made)
        else:  # a leaf of its own: writing one spares the other
            set_state(made, known, None, track_of_value(made, made._track))
        share(made, *_holder(node, known))
        return
    if MODE.eager is not None:
        register_live(made)
        MODE.eager(made)
        return
    found = immediate_values.value_of(node) if HERE.at_once and made._track in (CONSTANT, STOPPED) else None
    if found is not None:
        set_state(made, found, None, made._track)
        return
    register_live(made)
    HERE.backlog.note_result(made, 1, (node.op.name, *node.where))


def _holder(node: Node, storage: Storage) -> list[Handle]:
    """Return the handle that a storage is shared with by whoever takes it from a node."""
    found = node_values.holder(node)
    return [found] if found is not None and found._storage is storage else []


def rebind(tensor: Handle, ir: Node | Deferred, track: int) -> None:
    """Give this handle a new value of the same type, and views of the same memory theirs."""
    view = tensor._view
    if view is None or (not view.ops and len(view.memory.alive()) < 2):
        assign_value(tensor, *_with_history(tensor, ir, track))
    elif not view.ops or MODE.trace is not None or not HERE.backlog.write_view(tensor, ir, track):
        rebind_all([(tensor, ir, track)])


def rebind_all(changes: Sequence[tuple[Handle, Node | Deferred, int]]) -> None:
    """Give some handles new values, those that show one memory consistent ones: all of them, or none."""
    new = Changes()
    for tensor, _, _ in changes:
        if tensor._view is not None:
            _check(tensor, tensor._view)
            if MODE.trace is None:
                _note_external_writes(tensor._view.memory.alive())
    for tensor, ir, track in changes:
        new.add(tensor, *_with_history(tensor, ir, track))
    update_views([tensor for tensor, _, _ in changes], new)


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
    """New values of several handles, assigned in one step: no signal handler sees half of it, and no earlier
    error has changed anything. A trace takes each at once: an interrupted one is dropped.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[Handle, State]] = {}

    def add(self, tensor: Handle, ir: Node | Deferred, track: int) -> None:
        if MODE.trace is not None:
            assign_value(tensor, ir, track)
        else:
            self._states[id(tensor)] = tensor, _state_with(tensor, ir, track)

    def node_and_track(self, tensor: Handle) -> tuple[Node, int]:
        """Return the node of a tensor, and what it is to gradients, once the changes are made."""
        if id(tensor) not in self._states:
            return node_and_track(tensor)
        storage, ir, track, *destination = self._states[id(tensor)][1]
        if ir is None:
            ir = node_values.leaf(storage, holder=tensor)
            self._states[id(tensor)] = tensor, (storage, ir, track, *destination)
        return ir if isinstance(ir, Node) else ir.node(), track

    def make(self) -> None:
        """Give every handle its value."""
        changes = list(self._states.values())
        before = [(tensor, state_of(tensor)) for tensor, _ in changes]
        for tensor, _ in changes:
            invalidate(tensor)
        set_states(changes)
        try:
            for tensor, _ in changes:
                _finish_assignment(tensor)
        except BaseException:  # of the interpreter of eager mode
            for tensor, state in before:
                if state[0] is None:
                    register_live(tensor)
            set_states(before)
            raise


def _note_external_writes(tensors: Iterable[Handle], known: Set[int] = frozenset()) -> None:
    """Note what NumPy wrote to the memory of these tensors; the values of those that are `known`, by id, are
    newer.
    """
    for t in tensors:
        if t._trace is None and t._storage is not None and t._storage._exports is not None:
            _node_after_external_writes(t, known)


def update_views(
    written: Sequence[Handle], new: Changes | None = None, known: Set[int] | None = None
) -> None:
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
            _note_external_writes(others, known)
        else:
            others = trace.seen(Write(view, *node_and_track(tensor), MODE.grad), others) if others else []
        if others:
            line = user_line()
            done = [Write(view, *new.node_and_track(tensor), MODE.grad)]
            for t in sorted(others, key=lambda t: len(t._view.ops)):
                _rewrite(t, t._view, done, () if line is None else (line,), new)
    new.make()
    if trace is None and not outside:
        for tensor in written:
            _copy_exported(tensor)


def _copy_exported(tensor: Handle) -> None:
    """Part from the array outside, which a write here does not reach: all members of the memory together."""
    view = tensor._view
    if view is None or view.memory.outside is None:
        return
    outside, view.memory.outside = view.memory.outside, None
    for t in view.memory.alive():
        if outside.shown_by(t):
            invalidate(t)
            relocate(t, t._storage, t._storage.copied())


def _rewrite(
    tensor: Handle, view: View, done: list[Write], where: tuple[SourceLine, ...], new: Changes
) -> None:
    """Give a view its value after a write, the first of those that are known to be `done`."""
    first, last = done[0].view.span
    if view.span[0] <= last and first <= view.span[1]:  # else they share no element
        new.add(tensor, *rewritten(view, (*new.node_and_track(tensor), is_leaf(tensor)), done, where))
        done.append(Write(view, *new.node_and_track(tensor), MODE.grad))


def _with_history(tensor: Handle, ir: Node | Deferred, track: int) -> tuple[Node | Deferred, int]:
    """Return a new value of a handle, and what it is to gradients: a write they do not see leaves history."""
    if is_leaf(tensor):
        if MODE.grad:
            raise NotDifferentiableError(
                "in-place: a leaf that takes gradients cannot be changed in place", got=str(tensor.type),
                hint="do it under st.no_grad(), or on a copy",
            )  # fmt: skip
        return ir, TRACKED
    if MODE.grad:
        return ir, track
    before = track_of(tensor)
    if before == CONSUMED:
        return ir, CONSUMED
    if before == TRACKED:
        node = ir if isinstance(ir, Node) else ir.node()
        return Builder(node.where).straight_through(node, node_of(tensor)), TRACKED
    return ir, STOPPED if track == TRACKED else track


def assign_value(tensor: Handle, ir: Node | Deferred, track: int) -> None:
    """Give this handle, and no other, a new value of the same type."""
    trace = MODE.trace
    if trace is not None:
        assert isinstance(ir, Node)
        trace.write(tensor, ir, track)
        return
    state = _state_with(tensor, ir, track)
    invalidate(tensor)
    restore_state(tensor, state)
    _finish_assignment(tensor)


def _state_with(tensor: Handle, value: Node | Deferred, track: int) -> State:
    """Return the state of a cell that stands for a node, whose value a flush will write to where its old
    value lies. Its users are registered before, so that none of their operands is overwritten.
    """
    if tensor._trace is not None:
        refuse_traced(tensor, "an in-place operator")
    if MODE.step is not None:
        MODE.step.setdefault(id(tensor), (tensor, state_of(tensor)))
    leaf = tensor._leaf
    if leaf and tensor._node is not None:
        note_earlier_node(tensor, tensor._node)
    ir: LazyValue = value
    known = node_values.finished(value) if isinstance(value, Node) else None
    if isinstance(value, Node) and known is not None:
        share(tensor, *_holder(value, known), storage=known)
        if leaf or track != TRACKED:
            return known, None, track_of_value(tensor, track), None, None
    destination, before = tensor._destination, tensor._previous
    if tensor._storage is not None:
        if tensor._track != TRACKED or leaf:
            destination, before = Destination(tensor._storage, tensor._node), None
        elif tensor._node is not None:
            destination, before = None, (tensor._node, tensor._track)
    elif destination is None and before is None and tensor._ir is not None:
        before = (tensor._ir, tensor._track)
    if leaf:
        ir = node_values.pending_leaf(value) if isinstance(value, Node) else DeferredLeaf(value)
    register_live(tensor)
    if known is not None:
        return known, ir, track, None, None
    return None, ir, track, destination, before


def _finish_assignment(tensor: Handle) -> None:
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
    return TRACKED if tensor._leaf else CONSUMED if track == CONSUMED else CONSTANT


def take_value(made: Handle, source: Handle, leaf: bool = False) -> None:
    """Make `made`, new or not, hold the value of another tensor."""
    storage = source._storage
    node, track = source._node, source._track
    if storage is None or storage.exported or MODE.trace is not None:
        node, track = node_and_track(source)
    if not hasattr(made, "_ir"):
        initialize(made, source.type, node, track)
    else:
        retype(made, source.type)
        set_node(made, node, track)
        if made._guarded:
            note_mutation()
    if node is None:
        set_state(made, storage, None, track)
        share(made, source)
    else:
        register(made)
    if leaf:
        set_node(made, made._node, CONSTANT)
        own_value(made, leaf=True)


def become_leaf(made: Handle) -> None:
    """Let a tensor take gradients itself, also of what was computed from the node it holds."""
    set_leaf(made, True)
    set_node(made, made._node, TRACKED)
    note(LEAVES, made)


def own_value(made: Handle, leaf: bool) -> None:
    """Give a tensor an input node of its own, shared with no other value; derivatives end there."""
    trace = MODE.trace
    if trace is not None:
        trace.own_value(made, leaf)
        return
    node = made._node
    if made._leaf and node is not None:
        note_earlier_node(made, node)  # what was computed from it before is still its own
    set_leaf(made, leaf)
    if made._storage is not None:
        node = None
    elif node is not None:  # a leaf that waits may be another handle's, too
        node = node_values.pending_leaf(node_values.pending(node) or node)
    set_node(made, node, TRACKED if leaf else CONSTANT)
    if made._guarded:
        note_mutation()
    if leaf:
        note(LEAVES, made)
