"""Regions: the body of a branch or a loop, traced once and closed over nothing.

What the body reads from around it becomes operands; tensors from around it that it changes, the state of the
random generator among them, are threaded through as further values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from stratal.base import tree
from stratal.base.dtypes import int64
from stratal.base.errors import CaptureError
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Node, graph_input, items, topological
from stratal.ops.creation import Iota
from stratal.ops.elementwise.conversion import Cast
from stratal.ops.views.shapes import Broadcast, Reshape
from stratal.tensor.arrays import Array
from stratal.tensor.build import as_tensor, nodes_and_track
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values.binding import is_leaf, node_and_track, rebind_all
from stratal.tensor.values.handle import (
    CONSTANT,
    STOPPED,
    TRACKED,
    AnyHandle,
    Handle,
    give_gradient,
    invalidate,
)
from stratal.tensor.values.state import MODE, no_grad, tracing
from stratal.tensor.values.trace import Cell, Trace

TOKEN = TensorType(int64, ())
Body = Callable[[list[Tensor]], tuple[list[Tensor], Any]]


class RegionTrace(Trace):
    """The trace of a branch or a loop body: reads come from around it, writes of outer tensors stay in it."""

    def __init__(self, name: str, parent: Trace | None) -> None:
        super().__init__(name)
        self.parent = parent
        if parent is not None:
            self.symbols, self.regrouped = parent.symbols, parent.regrouped
        self.arguments: list[Handle] = []  # what the region is given: it may depend on what takes gradients
        self.reads_tracked = False  # whether something around it that does was read

    @property
    def open(self) -> bool:
        return self.parent is None or self.parent.open

    def drawn(self, key: AnyHandle) -> AnyHandle:
        return key if self.parent is None else self.parent.drawn(key)

    def array(self, array: Array) -> Node | None:
        return None if self.parent is None else self.parent.array(array)

    def frozen(self, function: Callable[[], Any]) -> Any:
        return function() if self.parent is None else self.parent.frozen(function)

    def text(self, tensor: Handle, spec: str | None, name: str, gradient: str) -> str | None:
        if self.parent is None or tensor._trace is self or id(tensor) in self.cells:
            return None
        with tracing(self.parent):
            return self.parent.text(tensor, spec, name, gradient)

    def node_and_track(self, tensor: Handle) -> tuple[Node, int]:
        if tensor._trace is self:
            assert tensor._node is not None
            return tensor._node, tensor._track
        cell, view = self.cells.get(id(tensor)), tensor._view
        if cell is None and self.writes and view is not None and id(view.memory) in self.writes:
            cell = self.enter(tensor)
        return self.around(tensor) if cell is None else (cell.node, cell.track)

    def around(self, tensor: Handle) -> tuple[Node, int]:
        """Return what a tensor holds around this region."""
        with tracing(self.parent):
            node, track = node_and_track(tensor)
        self.reads_tracked |= track == 1
        return node, track

    def track(self, tensor: Handle) -> int:
        if tensor._trace is self:
            return tensor._track
        cell = self.cells.get(id(tensor))
        if cell is not None:
            return cell.track
        return tensor._track if self.parent is None else self.parent.track(tensor)

    def enter(self, tensor: Handle, label: str = "") -> Cell:
        cell = self.cells.get(id(tensor))
        if cell is None:
            node, track = self.around(tensor)
            cell = self.cells[id(tensor)] = Cell(tensor, node, track)
            self.replay_writes(cell)
        return cell

    def sees(self, tensor: Handle) -> bool:
        if super().sees(tensor):
            return True
        return tensor._trace is None if self.parent is None else self.parent.sees(tensor)

    def reads(self, tensor: Handle) -> bool:
        return id(tensor) in self.cells or (self.parent is not None and self.parent.reads(tensor))

    def read_grad(self, tensor: Handle) -> Handle | None:
        if tensor._trace is self:
            return tensor._grad
        if self.parent is None:
            invalidate(tensor._grad)
            return tensor._grad
        return self.parent.read_grad(tensor)

    def write_grad(self, tensor: Handle, grad: Handle | None) -> None:
        if tensor._trace is not self:
            raise CaptureError(
                f"{self.name}: a gradient cannot be stored from inside a region", got=str(tensor.type),
                hint="call backward() outside, or use st.grad inside",
            )
        give_gradient(tensor, grad)

    def bind(self, tensor: Handle, node: Node) -> None:
        """Let an outer tensor start this region as `node`, an input of the region."""
        cell = Cell(tensor, node, self.track(tensor))
        self.reads_tracked |= cell.track == 1
        self.cells[id(tensor)] = cell

    def gradient_takers(self) -> list[Handle]:
        inside = super().gradient_takers() + [t for t in self.arguments if t._track == 1]
        return inside if self.parent is None else inside + self.parent.gradient_takers()

    def written(self) -> list[Cell]:
        """Return the outer tensors this region changed."""
        return [c for c in self.cells.values() if c.written]


class Region:
    """One traced body: its inputs, the nodes of its results, and the outer tensors it changes.

    `threaded` lists the outer tensors that enter as `threaded_inputs` and leave as `threaded_results`.
    """

    def __init__(
        self, name: str, types: Sequence[TensorType], body: Body, threaded: Sequence[Handle]
    ) -> None:
        self.name = name
        self.trace = RegionTrace(name, MODE.trace)
        self.threaded = list(threaded)
        self.inputs = [graph_input(f"{name}.{k}", t) for k, t in enumerate(types)]
        self.threaded_inputs = [graph_input(f"{name}.state{k}", t.type) for k, t in enumerate(self.threaded)]
        with tracing(self.trace):
            for tensor, node in zip(self.threaded, self.threaded_inputs, strict=True):
                self.trace.bind(tensor, node)
            fresh = [wrap(n, TRACKED if n.aval.dtype.is_inexact else CONSTANT) for n in self.inputs]
            self.trace.arguments += fresh
            results, self.extra = body(fresh)
            self.result_tensors = results
            inside = [node_and_track(t)[0] for t in (*results, *self.threaded)]
            made = self.trace.resolved(inside + self.trace.tokens)
            ends = len(results), len(inside)
            self.results, self.threaded_results = made[: ends[0]], made[ends[0] : ends[1]]
            self.tokens = made[ends[1] :]
        known = {id(t) for t in self.threaded}
        self.changed = [c.tensor for c in self.trace.written() if id(c.tensor) not in known]
        self.trace.closed = True

    @property
    def all_inputs(self) -> list[Node]:
        return [*self.inputs, *self.threaded_inputs]


def trace_bodies(names: Sequence[str], types: Sequence[TensorType], bodies: Sequence[Body]) -> list[Region]:
    """Trace bodies that take the same values; what any of them changes is threaded through all of them."""
    threaded: list[Handle] = []
    while True:
        regions = [Region(n, types, body, threaded) for n, body in zip(names, bodies, strict=True)]
        more = {id(t): t for region in regions for t in region.changed}
        if not more:
            return regions
        threaded += list(more.values())


def captured(roots: Sequence[Node], inputs: Iterable[Node]) -> list[Node]:
    """Return the values from outside that roots need, besides some inputs: as late as possible, so that they
    are few.
    """
    inside = set(inputs)
    bare: set[Node] = set()  # depends on no input at all: remade inside rather than handed in
    order = topological(roots)
    for node in order:
        if node in inside:
            continue
        if any(i in inside for i in node.inputs):
            inside.add(node)
        elif (
            not isinstance(node.op, Input)
            and not node.op.effects
            and all(i in bare for i in node.inputs)
            and isinstance(node.op, (Const, Broadcast, Iota, Reshape, Cast))
        ):
            bare.add(node)
    found: dict[Node, None] = {}
    for node in order:
        if node in inside:
            found.update((i, None) for i in node.inputs if i not in inside and i not in bare)
    found.update((r, None) for r in roots if r not in inside and r not in bare)
    return list(found)


def closed(
    name: str, inputs: Sequence[Node], outer: Sequence[Node], roots: Sequence[Node], *,
    last: Sequence[Node] = ()
) -> Graph:
    """Return the graph (inputs..., outer values..., last...) -> roots."""
    fresh = [graph_input(f"{name}.outer{k}", n.aval) for k, n in enumerate(outer)]
    made = substitute(roots, dict(zip(outer, fresh, strict=True)))
    return Graph([*inputs, *fresh, *last], made, name=name)


# -- the op on a region --------------------------------------------------------------------------------------
class Operands:
    """Nodes and gradient state of what an op with regions is given."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.track = CONSTANT

    def tensors(self, given: Sequence[Tensor]) -> Operands:
        nodes, track = nodes_and_track(given)
        self.nodes += nodes
        self._join(track)
        return self

    def outer(self, nodes: Sequence[Node], regions: Sequence[Region]) -> Operands:
        """Add captured nodes; results take gradients where an operand does, or what regions read around."""
        self.nodes += nodes
        tracked = self.track == TRACKED or any(region.trace.reads_tracked for region in regions)
        for t in (t for region in regions for t in region.result_tensors if tracked or t._track != TRACKED):
            self._join(t._track if MODE.grad or t._track != TRACKED else STOPPED)
        return self

    def _join(self, track: int) -> None:
        if track == TRACKED or (track == STOPPED and self.track == CONSTANT):
            self.track = track


def finished(
    node: Node, track: int, regions: Sequence[Region], first_state: int, num_tokens: int
) -> list[Tensor]:
    """Return tensors for the results, and write back outer tensors the regions changed."""
    threaded = regions[0].threaded
    parts = items(node)
    kind = track if track != TRACKED or MODE.grad else STOPPED
    states = list(zip(threaded, parts[first_state : first_state + len(threaded)], strict=True))
    with no_grad() if any(map(is_leaf, threaded)) else nullcontext():  # as the region did
        tracks = [_track_of(t, kind, regions) if n.aval.dtype.is_inexact else CONSTANT for t, n in states]
        rebind_all([(*state, track) for state, track in zip(states, tracks, strict=True)])
    results = [wrap(n, track if n.aval.dtype.is_inexact else CONSTANT) for n in parts]
    if num_tokens:  # once the results are there: they are computed by the same run
        keep_effect(parts[first_state + len(threaded)])
    return results


def _track_of(tensor: Handle, kind: int, regions: Sequence[Region]) -> int:
    """Return what a tensor that regions change is to gradients: no more than it is inside."""
    inside = [cell.track for r in regions if (cell := r.trace.cells.get(id(tensor))) is not None]
    return STOPPED if kind == TRACKED and TRACKED not in inside else kind


def keep_effect(token: Node) -> None:
    """Let an effect happen exactly once: now, or in the program being captured."""
    if MODE.trace is not None:
        MODE.trace.tokens.append(token)
    else:
        wrap(token)._value("host_call")

# -- containers of arguments ---------------------------------------------------------------------------------
class Slots:
    """A container whose tensors are taken out; the rest of it, numbers and strings, stays where it is."""

    def __init__(self, value: Any) -> None:
        self.leaves, self.structure = tree.flatten(value)
        self.at = [k for k, x in enumerate(self.leaves) if isinstance(x, (Tensor, np.ndarray))]
        self.tensors = [as_tensor(self.leaves[k]) for k in self.at]
        self.types = [t.type for t in self.tensors]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return the container with other tensors."""
        leaves = list(self.leaves)
        for k, t in zip(self.at, tensors, strict=True):
            leaves[k] = t
        return tree.unflatten(self.structure, leaves)
