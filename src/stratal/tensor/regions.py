"""Regions: the body of a branch or a loop, traced once and closed over nothing.

What the body reads from around it becomes operands; tensors from around it that it changes, the state of the
random generator among them, are threaded through as further values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stratal.base.dtypes import int64
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Const, Input, Node, graph_input, items, topological
from stratal.tensor.build import nodes_and_track
from stratal.tensor.handles import CONSTANT, STOPPED, TRACKED, look, rebind
from stratal.tensor.state import MODE, tracing
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.trace import RegionTrace

TOKEN = TensorType(int64, ())
Body = Callable[[list[Tensor]], tuple[list[Tensor], Any]]


class Region:
    """One traced body: its inputs, the nodes of its results, and the outer tensors it changes.

    `threaded` lists the outer tensors that enter as `threaded_inputs` and leave as `threaded_results`.
    """

    def __init__(
        self, name: str, types: Sequence[TensorType], body: Body, threaded: Sequence[Tensor]
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
            self.results = [look(t)[0] for t in results]
            self.threaded_results = [look(t)[0] for t in self.threaded]
            self.tokens = list(self.trace.tokens)
        known = {id(t) for t in self.threaded}
        self.changed = [c.tensor for c in self.trace.written() if id(c.tensor) not in known]
        self.trace.closed = True

    @property
    def all_inputs(self) -> list[Node]:
        return [*self.inputs, *self.threaded_inputs]


def trace_bodies(names: Sequence[str], types: Sequence[TensorType], bodies: Sequence[Body]) -> list[Region]:
    """Trace bodies that take the same values; what any of them changes is threaded through all of them."""
    threaded: list[Tensor] = []
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
            and _cheap(node)
        ):
            bare.add(node)
    found: dict[Node, None] = {}
    for node in order:
        if node in inside:
            found.update((i, None) for i in node.inputs if i not in inside and i not in bare)
    found.update((r, None) for r in roots if r not in inside and r not in bare)
    return list(found)


def _cheap(node: Node) -> bool:
    return isinstance(node.op, Const) or node.op.name in ("broadcast", "iota", "reshape", "cast")


def closed(
    name: str,
    inputs: Sequence[Node],
    outer: Sequence[Node],
    roots: Sequence[Node],
    *,
    last: Sequence[Node] = (),
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
    for k, tensor in enumerate(threaded):
        state = parts[first_state + k]
        inexact = state.aval.dtype.is_inexact
        rebind(tensor, state, (track if track != TRACKED or MODE.grad else STOPPED) if inexact else CONSTANT)
    results = [wrap(n, track if n.aval.dtype.is_inexact else CONSTANT) for n in parts]
    if num_tokens:  # once the results are there: they are computed by the same run
        keep_effect(parts[first_state + len(threaded)])
    return results


def keep_effect(token: Node) -> None:
    """Let an effect happen exactly once: now, or in the program being captured."""
    if MODE.trace is not None:
        MODE.trace.tokens.append(token)
    else:
        wrap(token)._value("host_call")
