"""Which values of a graph can be computed part by part along the batch, proved from index maps.

    x[B, K] @ w[K, N]  ->  y[B, N]        a part of x gives the same part of y: split along axis 0
    sum over B of y    ->  s[N]           parts give terms of it: combined over parts
    w' = w - rate * s                     needs all parts: after them
    scale = 1 / sum(mask)                 needed by parts, computed from the whole batch: before them

A value is split along an axis if every element of it reads, of each split operand, the elements of the same
part alone: the loop variable of that axis stands by itself at the split axis of each operand, and nowhere
else. That is read off the tensor expression a record lowers to; `rule`s add what has none (reshapes by their
factors, attention by its leading axes, scatters that add). What takes statistics of the batch in the middle
of the program is found: it would be needed before the parts that make it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stratal.base.errors import StratalError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType, Type
from stratal.graph.graph import Graph
from stratal.graph.node import Input, Item, Node
from stratal.graph.op import Op
from stratal.loops.compute import Compute
from stratal.loops.expr import Load, Var, walk
from stratal.ops.views.boxes import Slice

Axes = Sequence["int | None"]  # along which each operand is split; None where it is whole
COMBINED: Final = {
    "sum": "add", "dot": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"
}  # by an op for each combiner  # fmt: skip


class Part(NamedTuple):
    """How a node computes its result from parts.

    axis:     along which the result is split; None where parts give terms that are combined
    combiner: of a tensor expression, or "scatter" where each part scatters into what those before left
    cuts:     axes of whole operands of which each part takes its rows only
    """

    axis: int | None
    combiner: str = ""
    cuts: Mapping[int, int] = {}


class NotSplit(Exception):
    """The batch cannot be split; says why, and at which node."""

    def __init__(self, why: str, node: Node) -> None:
        super().__init__(why + (f" ({node.where[0]})" if node.where else ""))
        self.why: Final = why
        self.node: Final = node


Rule = Callable[[Node, Axes, int], "Part | None"]
RULES: Final[dict[str, Rule]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register how ops without an index map, or with one that divides, compute from parts."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class BatchParts:
    """The analysis of a graph whose inputs `batch` are split along their first axis in `count` equal parts.

    axis:     of each split node (of all its results) the split axis
    parts:    how each split or combined node computes
    combined: nodes that parts give terms of
    before:   nodes that can be computed from whole values, before any part
    Raises: NotSplit.
    """

    def __init__(
        self, graph: Graph, batch: Iterable[Node], count: int, lower_of: Callable[[Node], Lowered | None]
    ) -> None:
        self.graph: Final = graph
        self.batch: Final = frozenset(batch)
        self.count: Final = count
        self._lower_of: Final = lower_of
        self._most = max(node.aval.nbytes for node in self.batch)  # of a value made from the whole batch
        self._fed = _fed_by(graph, self.batch)
        self._trained = _fed_by(graph, {state for state, _ in graph.updates})
        self._found: dict[tuple[Node, tuple[int | None, ...]], Part | None] = {}
        self._forced: set[Node] = set()
        self.axis: dict[Node, int] = {}
        self.parts: dict[Node, Part] = {}
        self.combined: set[Node] = set()
        self.before: set[Node] = set()
        self._after: set[Node] = set()
        while self._conflict():
            pass

    # -- one pass over the graph -----------------------------------------------------------------------------
    def _conflict(self) -> bool:
        """Sort all nodes anew; return whether more of them are found to be needed from the whole batch."""
        for found in (self.axis, self.parts, self.combined, self.before, self._after):
            found.clear()
        for node in self.graph.nodes:
            if isinstance(node.op, Input):
                self.before.add(node)
                if node in self.batch:
                    self.axis[node] = 0
            elif self._sorted(node):
                return True
        return False

    def _sorted(self, node: Node) -> bool:
        """Find when and how a node is computed; return whether that needs another value in whole."""
        whole = all(i in self.before for i in node.inputs)
        if whole and (node in self._forced or not any(i in self.axis for i in node.inputs)):
            self.before.add(node)
        if any(i in self._after or i in self.combined for i in node.inputs):
            if whole or all(i in self.before or i not in self.axis for i in node.inputs):
                self._after.add(node)
                return False
            late = next(i for i in node.inputs if i in self._after or i in self.combined)
            return self._force(*self._sources(late))
        if not any(i in self.axis for i in node.inputs):
            return False
        part = self._part(node)
        if part is None:
            return node not in self.before and self._force(node)
        if part.axis is not None:
            self.axis[node] = part.axis
        elif node not in self.before:
            self.combined.add(node)
        self.parts[node] = part
        return False

    def _sources(self, late: Node) -> list[Node]:
        """Return the combined nodes that a value depends on."""
        found, stack, seen = [], [late], {late}
        while stack:
            node = stack.pop()
            if node in self.combined:
                found.append(node)
                continue
            for i in node.inputs:
                if i not in seen and (i in self._after or i in self.combined):
                    seen.add(i)
                    stack.append(i)
        return found

    def _force(self, *nodes: Node) -> bool:
        """Compute some nodes, and what they need, from the whole batch.

        Raises: NotSplit where that is much, or takes statistics of what parameters make of the batch.
        """
        before = len(self._forced)
        for start in nodes:
            stack = [start]
            while stack:
                node = stack.pop()
                if node in self._forced or node in self.batch or node not in self._fed:
                    continue
                if nbytes(node.type) > self._most or node in self._trained:
                    raise NotSplit(f"{start.op.name} takes the whole batch", start)
                self._forced.add(node)
                stack += node.inputs
        if len(self._forced) == before:
            raise NotSplit(f"{nodes[0].op.name} takes the whole batch", nodes[0])
        return True

    # -- one node --------------------------------------------------------------------------------------------
    def _part(self, node: Node) -> Part | None:
        """Return how a node computes from parts of its operands; None where it does not."""
        axes = tuple(self.axis.get(i) for i in node.inputs)
        if (node, axes) not in self._found:
            self._found[node, axes] = self._derived(node, axes)
        return self._found[node, axes]

    def _derived(self, node: Node, axes: Axes) -> Part | None:
        if isinstance(node.op, Item):
            return Part(axes[0])
        if node.op.effects:
            return None
        rule = RULES.get(node.op.name)
        if rule is not None:
            ruled = rule(node, axes, self.count)
            return ruled if ruled and on_part(node, axes, ruled, self.count) else None
        lowered = self._lower_of(node)
        if not isinstance(lowered, Compute):
            return None
        part = from_index_maps(lowered, axes)
        if part is None or not self._same_expression(node, axes, part, lowered):
            return None
        return part

    def _same_expression(self, node: Node, axes: Axes, part: Part, lowered: Compute) -> bool:
        """Return whether the op on a part is the same expression but for the size of one axis."""
        made = on_part(node, axes, part, self.count)
        if made is None:
            return False
        op, types = made
        small = op.lower(*types)
        v = _split_variable(lowered, axes)
        assert v is not None  # or there would be no part
        whole = str(lowered).replace(f"{v}<{v.extent}", f"{v}<{v.extent // self.count}")
        return isinstance(small, Compute) and str(small) == whole


def _fed_by(graph: Graph, inputs: Iterable[Node]) -> set[Node]:
    """Return some inputs and the nodes that depend on them."""
    found = set(inputs)
    for node in graph.nodes:
        if any(i in found for i in node.inputs):
            found.add(node)
    return found


def nbytes(type_: Type) -> int:
    """Return the bytes of a value, or of several."""
    return sum(map(nbytes, type_.elements)) if isinstance(type_, TupleType) else type_.nbytes


# -- index maps ----------------------------------------------------------------------------------------------
def from_index_maps(lowered: Compute, axes: Axes) -> Part | None:
    """Return how a tensor expression computes from parts of some of its operands."""
    v = _split_variable(lowered, axes)
    uses = None if v is None else uses_of(lowered, v)
    if v is None or uses is None:
        return None
    if any(axes[k] is not None and axes[k] != d for k, d in uses.items()):
        return None
    cuts = {k: d for k, d in uses.items() if axes[k] is None}
    if v in lowered.axes:
        return Part(lowered.axes.index(v), cuts=cuts)
    if lowered.combiner is not None and lowered.combiner.name in COMBINED and not lowered.result:
        return Part(None, lowered.combiner.name, cuts)
    return None


def _split_variable(lowered: Compute, axes: Axes) -> Var | None:
    """Return the variable that stands at the split axis of every split operand wherever it is read."""
    found: Var | None = None
    for load in lowered.loads:
        axis = axes[lowered.args.index(load.buffer)] if load.buffer in lowered.args else None
        if axis is None:
            continue
        index = load.indices[axis]
        if not isinstance(index, Var) or found not in (None, index):
            return None
        found = index
    read = {load.buffer for load in lowered.loads}
    if any(axis is not None and arg not in read for axis, arg in zip(axes, lowered.args, strict=True)):
        return None
    return found


def uses_of(lowered: Compute, v: Var) -> dict[int, int] | None:
    """Return the axis of each operand at which a variable stands; None where it stands anywhere else."""
    found: dict[int, set[int | None]] = {}
    for e in walk(lowered.terms):
        if isinstance(e, Load):
            if e.buffer not in lowered.args:
                return None
            at = [d for d, index in enumerate(e.indices) if index is v]
            found.setdefault(lowered.args.index(e.buffer), set()).update(at or [None])
        elif e is not v and any(part is v for part in e.parts):
            return None
    if any(len(at) > 1 for at in found.values()) or any(term is v for term in lowered.terms):
        return None
    return {k: d for k, at in found.items() for d in at if d is not None}


# -- ops on parts --------------------------------------------------------------------------------------------
def on_part(node: Node, axes: Axes, part: Part, count: int) -> tuple[Op, list[TensorType]] | None:
    """Return the op that computes one part, and the types of its operands; None where no op does."""
    taken = [part.cuts.get(k) if axis is None else axis for k, axis in enumerate(axes)]
    types = [shrunk(i.aval, axis, count) for i, axis in zip(node.inputs, taken, strict=True)]
    wanted = _each(node.type, lambda t: shrunk(t, part.axis, count))
    if any(t is None for t in types) or wanted is None:
        return None
    for op in _sized(node.op, wanted):
        try:
            if op.infer(*types) == wanted:  # type: ignore[arg-type]
                return op, types  # type: ignore[return-value]
        except StratalError:
            continue
    return None


def _sized(op: Op, wanted: Type) -> Iterable[Op]:
    """Yield an op, and the same with the sizes of another result."""
    yield op
    if "shape" in op.dim_attributes and isinstance(wanted, TensorType):
        yield dataclasses.replace(op, shape=wanted.shape)  # type: ignore[type-var]
    if isinstance(op, Slice) and isinstance(wanted, TensorType):
        whole = zip(op.start, op.stop, op.step, wanted.shape, strict=True)
        stop = tuple(n if (start, step) == (0, 1) else old for start, old, step, n in whole)
        yield dataclasses.replace(op, stop=stop)


def _each(type_: Type, of: Callable[[TensorType], TensorType | None]) -> Type | None:
    if not isinstance(type_, TupleType):
        return of(type_)
    found = [of(t) for t in type_.elements]
    return None if any(t is None for t in found) else TupleType(found)  # type: ignore[arg-type]


def shrunk(type_: TensorType, axis: int | None, count: int) -> TensorType | None:
    """Return the type of one of `count` equal parts along an axis; None where there are none."""
    if axis is None:
        return type_
    size = type_.ints[axis]
    if size % count or not size:
        return None
    return type_.with_shape((*type_.shape[:axis], size // count, *type_.shape[axis + 1 :]))


# -- rules ---------------------------------------------------------------------------------------------------
@rule("reshape")
def _reshape(node: Node, axes: Axes, count: int) -> Part | None:
    """Equal parts of an axis are equal parts of the outermost of the axes it is merged into, or cut into."""
    axis = axes[0]
    assert axis is not None  # its only operand
    (x,) = node.inputs
    outer, group = math.prod(x.aval.ints[:axis]), x.aval.ints[axis]
    for k, size in enumerate(node.aval.ints):
        if math.prod(node.aval.ints[:k]) == outer and size > 1 and not size % count and not group % count:
            return Part(k)
    return None


@rule("attention", "attention_grad")
def _attention(node: Node, axes: Axes, count: int) -> Part | None:
    """Each leading index has an attention of its own."""
    axis = next(a for a in axes if a is not None)
    leading = node.inputs[0].aval.ndim - 2
    if axis >= leading or any(a not in (None, axis) for a in axes):
        return None
    return Part(axis, cuts={k: axis for k, a in enumerate(axes) if a is None})


@rule(
    "cummax", "cummin", "cumprod", "cumsum", "gather_along", "irfft", "linear_recurrence", "rfft",
    "scatter_along", "sort", "sort_values", "top",
)  # fmt: skip
def _along_one_axis(node: Node, axes: Axes, count: int) -> Part | None:
    """What goes along one axis does so at each index of the others by itself."""
    axis = next(a for a in axes if a is not None)
    if axis == node.op.axis or any(a not in (None, axis) for a in axes):  # type: ignore[attr-defined]
        return None
    return Part(axis, cuts={k: axis for k, a in enumerate(axes) if a is None})


@rule("scatter")
def _scatter(node: Node, axes: Axes, count: int) -> Part | None:
    """Updates are added in order: each part adds its own to what those before it left."""
    x, index, updates = axes
    first: int = node.op.axis  # type: ignore[attr-defined]
    if x is not None or node.op.kind != "add":  # type: ignore[attr-defined]
        return None
    if updates is None:
        return Part(None, "scatter", {2: first + (index or 0)})
    if index is None:
        index = updates - first
        return Part(None, "scatter", {1: index}) if 0 <= index < node.inputs[1].aval.ndim else None
    return Part(None, "scatter") if updates == first + index else None
