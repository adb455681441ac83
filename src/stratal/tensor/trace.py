"""Traces: what a capture knows of the tensors its function reads, writes and makes.

Tensors that existed before are never touched while a function is being captured: what they hold inside the
trace stands in cells here. A region (a branch or a loop body) is a trace within another.
"""

from __future__ import annotations

import weakref

from stratal.base.errors import CaptureError
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.tensor import values
from stratal.tensor.handles import disturb, look, refuse_traced
from stratal.tensor.state import tracing
from stratal.tensor.tensor import Tensor


class Cell:
    """What one earlier tensor holds inside a trace. `placeholder` is the input that stands for its value
    before.
    """

    __slots__ = ("leaf", "node", "placeholder", "tensor", "track")

    def __init__(self, tensor: Tensor, placeholder: Node, track: int) -> None:
        self.tensor = tensor
        self.placeholder = placeholder
        self.node = placeholder
        self.track = track
        self.leaf = tensor._leaf

    @property
    def written(self) -> bool:
        return self.node is not self.placeholder


class Trace:
    """The capture of one call of a function."""

    parent: Trace | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.cells: dict[int, Cell] = {}
        self.symbols: dict[str, tuple[Tensor, int]] = {}  # where a symbolic size is found
        self.grads: dict[int, tuple[Tensor, Tensor | None]] = {}  # `.grad` attributes set inside
        self.grads_read: dict[int, tuple[Tensor, Tensor | None]] = {}  # and those read, as they were before
        self.created: list[weakref.ref[Tensor]] = []
        self.differentiated = False
        self.closed = False
        self.tokens: list[
            Node
        ] = []  # values that stand for effects, which must happen though nobody reads them
        self.num_leaves = 0

    # -- tensors ---------------------------------------------------------------------------------------------
    def inside(self, other: Trace) -> bool:
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

    def drawn(self, key: Tensor) -> Tensor:
        """Return the key to draw with, of one that a generator gave."""
        return key

    def made(self, tensor: Tensor) -> None:
        """Take note of a tensor made inside."""
        self.created.append(weakref.ref(tensor))

    def enter(self, tensor: Tensor, label: str = "") -> Cell:
        """Return the cell of a tensor from before the capture."""
        cell = self.cells.get(id(tensor))
        if cell is None:
            node = values.placeholder(label, tensor.type, self.name)
            track = 1 if tensor._track == 1 else 0
            cell = self.cells[id(tensor)] = Cell(tensor, node, track)
        return cell

    def look(self, tensor: Tensor) -> tuple[Node, int]:
        """Return what a tensor holds inside, and what it is to gradients."""
        if tensor._trace is self:
            assert tensor._node is not None
            return tensor._node, tensor._track
        if tensor._trace is not None:
            refuse_traced(tensor, "this op")
        cell = self.cells.get(id(tensor)) or self.enter(tensor)
        return cell.node, cell.track

    def track(self, tensor: Tensor) -> int:
        """Return what a tensor is to gradients, without making it an input."""
        if tensor._trace is self:
            return tensor._track
        cell = self.cells.get(id(tensor))
        return cell.track if cell is not None else tensor._track

    def write(self, tensor: Tensor, node: Node, track: int) -> None:
        """Give a tensor another value inside. A leaf stays one: no gradient flows further back."""
        if self.is_leaf(tensor):
            node = Builder(node.where).stop_gradient(node)
        if tensor._trace is self:
            tensor._node, tensor._track = node, track
            return
        cell = self.enter(tensor)
        cell.node, cell.track = node, track

    def is_leaf(self, tensor: Tensor) -> bool:
        """Return whether a tensor takes gradients itself inside."""
        cell = None if tensor._trace is self else self.cells.get(id(tensor))
        return tensor._leaf if cell is None else cell.leaf

    def own_value(self, tensor: Tensor, leaf: bool) -> None:
        """Let a tensor take gradients itself from now on, or no longer."""
        node, _ = self.look(tensor)
        if leaf:
            b = Builder(node.where)
            self.num_leaves += 1
            node = b.barrier(b.stop_gradient(node), id=self.num_leaves)
        track = 1 if leaf else 0
        if tensor._trace is self:
            tensor._node, tensor._track, tensor._leaf = node, track, leaf
        else:
            cell = self.enter(tensor)
            cell.node, cell.track, cell.leaf = node, track, leaf

    def gradient_takers(self) -> list[Tensor]:
        """Return the tensors that take a gradient inside, in a stable order."""
        found = [c.tensor for c in self.cells.values() if c.leaf]
        made = [t for r in self.created if (t := r()) is not None and (t._leaf or t._retains)]
        return found + made

    def reads(self, tensor: Tensor) -> bool:
        """Return whether an earlier tensor is an input of this trace, whose value Python cannot see."""
        return True

    def refusal(self, tensor: Tensor, asked: str) -> Exception | None:
        """Return the error for a tensor made inside that is asked for what it cannot give here; None where
        the usual one will do.
        """
        return None

    # -- gradients -------------------------------------------------------------------------------------------
    def read_grad(self, tensor: Tensor) -> Tensor | None:
        """Return `.grad` as it stands inside."""
        if tensor._trace is self:
            return tensor._grad
        found = self.grads.get(id(tensor))
        if found is not None:
            return found[1]
        self.grads_read.setdefault(id(tensor), (tensor, tensor._grad))
        disturb(tensor._grad)
        return tensor._grad

    def write_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        """Set `.grad` inside."""
        if tensor._trace is self:
            tensor._grad = grad
        else:
            self.grads[id(tensor)] = (tensor, grad)


class RegionTrace(Trace):
    """The trace of a branch or a loop body: reads come from around it, writes of outer tensors stay in it."""

    def __init__(self, name: str, parent: Trace | None) -> None:
        super().__init__(name)
        self.parent = parent
        if parent is not None:
            self.symbols = parent.symbols
        self.arguments: list[Tensor] = []  # what the region is given: it may depend on what takes gradients
        self.reads_tracked = False  # whether something around it that does was read

    @property
    def open(self) -> bool:
        return self.parent is None or self.parent.open

    def drawn(self, key: Tensor) -> Tensor:
        return key if self.parent is None else self.parent.drawn(key)

    def look(self, tensor: Tensor) -> tuple[Node, int]:
        if tensor._trace is self:
            assert tensor._node is not None
            return tensor._node, tensor._track
        cell = self.cells.get(id(tensor))
        if cell is not None:
            return cell.node, cell.track
        return self.around(tensor)

    def around(self, tensor: Tensor) -> tuple[Node, int]:
        """Return what a tensor holds around this region."""
        with tracing(self.parent):
            node, track = look(tensor)
        self.reads_tracked |= track == 1
        return node, track

    def track(self, tensor: Tensor) -> int:
        if tensor._trace is self:
            return tensor._track
        cell = self.cells.get(id(tensor))
        if cell is not None:
            return cell.track
        return tensor._track if self.parent is None else self.parent.track(tensor)

    def enter(self, tensor: Tensor, label: str = "") -> Cell:
        cell = self.cells.get(id(tensor))
        if cell is None:
            node, track = self.around(tensor)
            cell = self.cells[id(tensor)] = Cell(tensor, node, track)
        return cell

    def reads(self, tensor: Tensor) -> bool:
        return id(tensor) in self.cells or (self.parent is not None and self.parent.reads(tensor))

    def read_grad(self, tensor: Tensor) -> Tensor | None:
        if tensor._trace is self:
            return tensor._grad
        if self.parent is None:
            disturb(tensor._grad)
            return tensor._grad
        return self.parent.read_grad(tensor)

    def write_grad(self, tensor: Tensor, grad: Tensor | None) -> None:
        if tensor._trace is not self:
            raise CaptureError(
                f"{self.name}: a gradient cannot be stored from inside a region", got=str(tensor.type),
                hint="call backward() outside, or use st.grad inside",
            )
        tensor._grad = grad

    def bind(self, tensor: Tensor, node: Node) -> None:
        """Let an outer tensor start this region as `node`, an input of the region."""
        cell = Cell(tensor, node, self.track(tensor))
        self.reads_tracked |= cell.track == 1
        self.cells[id(tensor)] = cell

    def gradient_takers(self) -> list[Tensor]:
        inside = super().gradient_takers() + [t for t in self.arguments if t._track == 1]
        return inside if self.parent is None else inside + self.parent.gradient_takers()

    def written(self) -> list[Cell]:
        """Return the outer tensors this region changed."""
        return [c for c in self.cells.values() if c.written]
