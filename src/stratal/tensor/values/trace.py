"""Traces: what a capture knows of the tensors its function reads, writes and makes.

Tensors that existed before are never touched while a function is being captured: what they hold inside the
trace stands in cells here. A region (a branch or a loop body) is a trace within another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from stratal.base.errors import CaptureError
from stratal.graph.builder import Builder
from stratal.graph.graph import substitute
from stratal.graph.node import Node
from stratal.tensor.arrays import Array
from stratal.tensor.values import node_values
from stratal.tensor.values.handle import (
    CONSTANT,
    CONSUMED,
    TRACKED,
    AnyHandle,
    Handle,
    Scope,
    give_gradient,
    invalidate,
    set_leaf,
    set_node,
    view_of_itself,
)  # fmt: skip
from stratal.tensor.values.memory import Memory
from stratal.tensor.values.view_writes import Write, rewritten


class Cell:
    """What one earlier tensor holds inside a trace. `placeholder` is the input that stands for its value
    before.
    """

    __slots__ = ("leaf", "node", "placeholder", "tensor", "track")

    def __init__(self, tensor: Handle, placeholder: Node, track: int) -> None:
        self.tensor = tensor
        self.placeholder = placeholder
        self.node = placeholder
        self.track = track
        self.leaf = tensor._leaf

    @property
    def written(self) -> bool:
        return self.node is not self.placeholder


class Trace(Scope):
    """The capture of one call of a function."""

    parent: Trace | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.cells: dict[int, Cell] = {}
        self.symbols: dict[str, tuple[Handle, int]] = {}  # where a symbolic size is found
        self.symbolic: Any = None  # what is known of symbolic sizes: `names`, their axes, and `values` now
        self.numbers: dict[Any, tuple[Node, Any]] = {}  # inputs, and where each call reads them
        self.varying: list[tuple[Any, Any]] = []  # places of floats that vary, and what stood there
        self.asked: list[Any] = []  # of numbers that vary, those that Python needs
        self.grads: dict[int, tuple[Handle, Handle | None]] = {}  # `.grad` attributes set inside
        self.grads_read: dict[int, tuple[Handle, Handle | None]] = {}  # and those read, as they were before
        self.created: list[weakref.ref[Handle]] = []
        self.differentiated = False
        self.losses: list[Node] = []  # of which `backward` was called
        self.closed = False
        self.recapture = False  # the next call finds what this one made, and needs a capture of its own
        self.versions: dict[int, tuple[weakref.ref[Handle], list[Node]]] = {}  # of leaves
        self.tokens: list[
            Node
        ] = []  # values that stand for effects, which must happen though nobody reads them
        self.num_leaves = 0
        self.points: list[dict[Node, Node]] = []  # where derivatives were taken: variables, arguments
        self.regrouped: dict[int, Memory] = {}  # shown by what was given another shape: a view, or a copy
        self.asks_values = False  # whether values would be looked at outside of captures
        self.asks_layouts = False  # whether what it does depends on how tensors from before lie in memory
        self.writes: dict[int, list[Write]] = {}  # to memories that tensors not yet seen inside show, too

    # -- tensors ---------------------------------------------------------------------------------------------
    def inside(self, other: Scope) -> bool:
        """Return whether this trace is `other` or a region within it."""
        trace: Trace | None = self
        while trace is not None:
            if trace is other:
                return True
            trace = trace.parent
        return False

    @property
    def open(self) -> bool:
        """Whether values from outside are there to be read, since no function is being captured."""
        return False

    def resolved(self, nodes: list[Node]) -> list[Node]:
        """Return nodes with arguments for variables of derivatives: what functions wrote depends on them."""
        for variables in reversed(self.points):
            nodes = substitute(nodes, variables)
        return nodes

    def drawn(self, key: AnyHandle) -> AnyHandle:
        """Return the key to draw with, of one that a generator gave."""
        return key

    def draws_once(self) -> None:
        """Note that initial values are drawn, by NumPy's generators."""
        if self.parent is not None:
            self.parent.draws_once()

    def calls_back(self) -> None:
        """Note that a Python function is called by each run."""
        if self.parent is not None:
            self.parent.calls_back()

    def array(self, array: Array) -> Node | None:
        """Return the input that stands for an array of NumPy's; None where its data are a constant."""
        return None

    def add_replayed_call(self, owner: Any, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a method that changes Python's state; each replay of a capture calls it, too."""
        return method(owner, *args, **kwargs)

    def reads_items(self, holder: Any, keys: Iterable[Any]) -> None:
        """Take note that Stratal's own code reads items as what they are now, numbers for instance."""

    def frozen(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns: when the capture is audited, what it returned then."""
        return function()

    def made(self, tensor: Handle) -> None:
        """Take note of a tensor made inside."""
        self.created.append(weakref.ref(tensor))

    def enter(self, tensor: Handle, label: str = "") -> Cell:
        """Return the cell of a tensor from before the capture."""
        cell = self.cells.get(id(tensor))
        if cell is None:
            node = node_values.placeholder(label, tensor.type, self.name)
            track = tensor._track if tensor._track in (TRACKED, CONSUMED) else CONSTANT
            cell = self.cells[id(tensor)] = Cell(tensor, node, track)
            self.replay_writes(cell)
        return cell

    def replay_writes(self, cell: Cell) -> None:
        """Give a tensor that is first seen inside the value that writes through other views have left it."""
        view = cell.tensor._view
        if view is None or not self.writes:
            return
        for write in self.writes.get(id(view.memory), ()):
            old = cell.node, cell.track, cell.leaf
            cell.node, cell.track = rewritten(view, old, [write], write.node.where)

    def seen(self, write: Write, others: list[Handle]) -> list[Handle]:
        """Return the views that this trace knows; those it meets later find the write here."""
        if any(t._trace is None and not self.sees(t) for t in others):
            self.writes.setdefault(id(write.view.memory), []).append(write)
        return [t for t in others if self.sees(t)]

    def sees(self, tensor: Handle) -> bool:
        """Return whether a tensor was made or read inside or around."""
        if tensor._trace is not None:
            return self.inside(tensor._trace)
        return id(tensor) in self.cells

    def ask_layouts(self) -> None:
        trace: Trace | None = self
        while trace is not None:
            trace.asks_layouts = True
            trace = trace.parent

    def decides(self, x: Handle) -> bool:
        """Return whether a tensor lies in memory as one from before does: in another call, otherwise."""
        if x._trace is None:
            return True
        return x._view is not None and any(t._trace is None for t in x._view.memory.alive())

    def regroup(self, x: Handle, made: Handle) -> None:
        """Note a tensor of another shape: how `x` lies in memory decides whether it is a view or a copy."""
        if self.decides(x):
            memory = (made._view or view_of_itself(made)).memory
            self.regrouped[id(memory)] = memory

    def text(self, tensor: Handle, spec: str | None, name: str, gradient: str) -> str | None:
        """Return what stands for the text of a tensor until it has a value, or None; without a `spec`, as
        `repr` shows it.
        """
        return None

    def node_and_track(self, tensor: Handle) -> tuple[Node, int]:
        """Return what a tensor holds inside, and what it is to gradients."""
        if tensor._trace is self:
            assert tensor._node is not None
            return tensor._node, tensor._track
        if tensor._trace is not None:
            refuse(self, tensor, "this op")
        cell = self.cells.get(id(tensor)) or self.enter(tensor)
        return cell.node, cell.track

    def track(self, tensor: Handle) -> int:
        """Return what a tensor is to gradients, without making it an input."""
        if tensor._trace is self:
            return tensor._track
        cell = self.cells.get(id(tensor))
        return cell.track if cell is not None else tensor._track

    def write(self, tensor: Handle, node: Node, track: int) -> None:
        """Give a tensor another value inside. A leaf stays one: no gradient flows further back."""
        if tensor._view is not None and id(tensor._view.memory) in self.regrouped:
            self.ask_layouts()
        if self.is_leaf(tensor):
            self._supersede(tensor)
            node = Builder(node.where).stop_gradient(node)
        if tensor._trace is self:
            set_node(tensor, node, track)
            return
        cell = self.enter(tensor)
        cell.node, cell.track = node, track

    def _supersede(self, leaf: Handle) -> None:
        """Remember what a leaf, about to be changed, stands for: its gradient is the leaf's."""
        self.versions[id(leaf)] = weakref.ref(leaf), [*self.earlier(leaf), self.node_and_track(leaf)[0]]

    def earlier(self, tensor: Handle) -> list[Node]:
        """Return the nodes a leaf stood for inside before it was changed in place."""
        known = self.versions.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else []  # else: its address

    def is_leaf(self, tensor: Handle) -> bool:
        """Return whether a tensor takes gradients itself inside."""
        cell = None if tensor._trace is self else self.cells.get(id(tensor))
        return tensor._leaf if cell is None else cell.leaf

    def own_value(self, tensor: Handle, leaf: bool) -> None:
        """Let a tensor take gradients itself from now on, or no longer."""
        if self.is_leaf(tensor):
            self._supersede(tensor)
        node, _ = self.node_and_track(tensor)
        if leaf:
            b = Builder(node.where)
            self.num_leaves += 1
            node = b.barrier(b.stop_gradient(node), id=self.num_leaves)
        track = 1 if leaf else 0
        if tensor._trace is self:
            set_node(tensor, node, track)
            set_leaf(tensor, leaf)
        else:
            cell = self.enter(tensor)
            cell.node, cell.track, cell.leaf = node, track, leaf

    def gradient_takers(self) -> list[Handle]:
        """Return the tensors that take a gradient inside, in a stable order."""
        found = [c.tensor for c in self.cells.values() if c.leaf]
        made = [t for r in self.created if (t := r()) is not None and (t._leaf or t._retains)]
        return found + made

    def reads(self, tensor: Handle) -> bool:
        """Return whether an earlier tensor is an input of this trace, whose value Python cannot see."""
        return True

    # -- gradients -------------------------------------------------------------------------------------------
    def read_grad(self, tensor: Handle) -> Handle | None:
        """Return `.grad` as it stands inside."""
        if tensor._trace is self:
            return tensor._grad
        found = self.grads.get(id(tensor))
        if found is not None:
            return found[1]
        self.grads_read.setdefault(id(tensor), (tensor, tensor._grad))
        invalidate(tensor._grad)
        return tensor._grad

    def write_grad(self, tensor: Handle, grad: Handle | None) -> None:
        """Set `.grad` inside."""
        if tensor._trace is self:
            give_gradient(tensor, grad)
        else:
            self.grads[id(tensor)] = (tensor, grad)


def refuse(trace: Trace | None, tensor: Handle, asked: str) -> None:
    """Raise the error for Python that needs the value of a traced tensor, or uses it after the capture."""
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
        "load_state_dict": "load it outside; inside, with st.no_grad(): parameter.copy_(value)",
        "int": "keep it a tensor, or compute it from shapes",
    }
    raise CaptureError(
        f"capture: Python asks for a value ({asked}) that does not exist while {trace.name} is captured",
        got=f"{tensor.type}",
        hint=hints.get(asked, "keep it a tensor and return it, or use st.host_call"),
    )
