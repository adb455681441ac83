"""What a handle holds, as this thread's trace sees it: reading it, and giving it another value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratal.base.errors import CaptureError, NotDifferentiableError
from stratal.base.interrupts import InterruptsHeld
from stratal.base.types import TensorType
from stratal.base.weak import note
from stratal.graph.node import Node
from stratal.tensor import values
from stratal.tensor.alive import LEAVES, LIVE, enlist, share
from stratal.tensor.state import MODE, note_mutation

if TYPE_CHECKING:
    from stratal.tensor.tensor import Tensor

# What a handle is to gradients.
CONSTANT = 0  # depends on nothing that takes a gradient
TRACKED = 1  # takes a gradient, or depends on what does
STOPPED = 2  # depends on what does, but was made under no_grad or detached
USED_UP = 3  # was tracked; an update has overwritten what its history needs


# -- reading -------------------------------------------------------------------------------------------------
def look(tensor: Tensor) -> tuple[Node, int]:
    """Return the node of a tensor, as this thread's trace sees it, and what it is to gradients."""
    trace = MODE.trace
    if trace is not None:
        return trace.look(tensor)
    if tensor._trace is not None:
        refuse_traced(tensor, "this op")
    node = tensor._node
    if node is None:
        assert tensor._storage is not None
        node = tensor._node = values.leaf(tensor._storage)
    return node, tensor._track


def node_of(tensor: Tensor) -> Node:
    return look(tensor)[0]


def track_of(tensor: Tensor) -> int:
    trace = MODE.trace
    return tensor._track if trace is None else trace.track(tensor)


def is_leaf(tensor: Tensor) -> bool:
    """Return whether a tensor takes gradients itself, as this thread's trace sees it."""
    trace = MODE.trace
    return tensor._leaf if trace is None else trace.is_leaf(tensor)


def refuse_traced(tensor: Tensor, asked: str) -> None:
    """Raise the error for Python that needs the value of a traced tensor, or uses it after the capture."""
    trace = MODE.trace
    node = tensor._node
    refusal = None if tensor._trace is None else tensor._trace.refusal(tensor, asked)
    if refusal is not None:
        raise refusal
    if trace is None or (tensor._trace is not None and not trace.inside(tensor._trace)):
        name = tensor._trace.name if tensor._trace is not None else "?"
        raise CaptureError(
            f"capture: a value made while {name} was being captured is used after it",
            got=f"{tensor.type}" + (f" from {node.where[0]}" if node is not None and node.where else ""),
            hint="return it from the compiled function",
        )
    if tensor._trace is None and not trace.reads(tensor):
        return
    hints = {
        "bool": "if: st.where or st.cond; while: st.while_loop",
        "index": "indexing by a tensor: x[i] gathers without a Python int; a loop over it: st.fori_loop",
        "int": "keep it a tensor, or compute it from shapes",
    }
    raise CaptureError(
        f"capture: Python asks for a value ({asked}) that does not exist while {trace.name} is captured",
        got=f"{tensor.type}",
        hint=hints.get(asked, "keep it a tensor and return it, or use st.host_call"),
    )


# -- writing -------------------------------------------------------------------------------------------------
def disturb(tensor: Tensor | None) -> None:
    """Note that a handle is about to hold something else, or to be held by somebody else."""
    if tensor is not None and tensor._storage is not None:
        tensor._storage.disturb()


def give_gradient(owner: Tensor, gradient: Tensor | None) -> None:
    """Set the gradient of a tensor outside any trace."""
    if owner._grad is not gradient:
        disturb(owner._grad)
        owner._grad = gradient


def blank(made: Tensor, type_: TensorType) -> Tensor:
    """Fill in a new handle that holds nothing yet."""
    made.type = type_
    made._held = made._storage = made._home = made._before = made._grad = made._trace = None
    made._track = CONSTANT
    made._leaf = made._retains = made._guarded = False
    made._view, made._writes = None, 0
    return made


def place(made: Tensor) -> None:
    """Tell whoever must know of a handle that holds a node."""
    trace = MODE.trace
    if trace is not None:
        made._trace = trace
        trace.made(made)
        return
    node = made._node
    assert node is not None
    known = values.finished(node)
    if known is not None:
        made._storage, made._home = known, None
        share(made)
        if made._track == TRACKED:
            enlist(made)
        else:
            made._node, made._track = None, CONSTANT  # a leaf of its own: writing one spares the other
        return
    enlist(made)
    if MODE.eager is not None:
        MODE.eager(made)


def rebind(tensor: Tensor, node: Node, track: int) -> None:
    """Give this handle, and no other, a new value of the same type."""
    if is_leaf(tensor):
        if MODE.grad:
            raise NotDifferentiableError(
                "in-place: a leaf that takes gradients cannot be changed in place", got=str(tensor.type),
                hint="do it under st.no_grad(), or on a copy",
            )  # fmt: skip
        track = TRACKED
    tensor._writes += 1
    trace = MODE.trace
    if trace is not None:
        trace.write(tensor, node, track)
        return
    if tensor._trace is not None:
        refuse_traced(tensor, "an in-place operator")
    disturb(tensor)
    with InterruptsHeld():  # a cell without a value is among those that wait for one
        _give_node(tensor, node, track)


def _give_node(tensor: Tensor, node: Node, track: int) -> None:
    """Let a cell stand for a node, whose value a flush will write to where its old value lies."""
    known = values.finished(node)
    if known is not None and (tensor._leaf or track != TRACKED):
        tensor._storage, tensor._node, tensor._home = known, None, None
        tensor._track = TRACKED if tensor._leaf else CONSTANT
        share(tensor)
        LIVE.pop(id(tensor), None)
        return
    if tensor._storage is not None:
        if tensor._home is None and (tensor._track != TRACKED or tensor._leaf):
            tensor._home = (tensor._storage, tensor._node)
        tensor._storage = None
    elif tensor._home is None and tensor._before is None and tensor._node is not None:
        tensor._before = (tensor._node, tensor._track)
    tensor._node = values.pending_leaf(node) if tensor._leaf else node
    tensor._track = track
    tensor._retains = False
    LIVE.pop(id(tensor), None)
    place(tensor)


def take_value(made: Tensor, source: Tensor, leaf: bool = False) -> None:
    """Make `made`, new or not, hold the value of another tensor."""
    node, track = (
        look(source) if source._storage is None or MODE.trace is not None else (source._node, source._track)
    )
    if not hasattr(made, "_held"):
        blank(made, source.type)
    else:
        disturb(made)
        made._writes += 1
        made.type, made._home, made._before, made._storage = source.type, None, None, None
        if made._guarded:
            note_mutation()
    made._node, made._track = node, track
    if node is None:
        made._storage = source._storage
        share(made, source)
    else:
        place(made)
    if leaf:
        made._track = CONSTANT
        own_value(made, leaf=True)


def own_value(made: Tensor, leaf: bool) -> None:
    """Give a tensor an input node of its own, shared with no other value; derivatives end there."""
    trace = MODE.trace
    if trace is not None:
        trace.own_value(made, leaf)
        return
    made._leaf = leaf
    made._track = TRACKED if leaf else CONSTANT
    if made._guarded:
        note_mutation()
    if made._storage is not None:
        made._node = None
    elif made._node is not None and values.pending(made._node) is None:
        made._node = values.pending_leaf(made._node)
    if leaf:
        note(LEAVES, made)
