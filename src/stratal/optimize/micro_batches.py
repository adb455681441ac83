"""Micro-batches: a graph whose batch is computed part by part in a loop, with the sums over all parts.

    before     what parts need of the whole batch: the number of valid targets
    scan       over parts of the inputs: forward and backward of one part, its terms added to the carries
    after      updates with the sums

Only a part's activations are there at a time. Sums over the batch are those of the graph in another order,
so that results agree to rounding, not to the bit; random numbers are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from stratal.base.dtypes import int64
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Input, Item, Node, graph_input, is_frozen, items, make, take_item
from stratal.loops.compute import COMBINERS
from stratal.ops.control.scan import INDEX, Scan
from stratal.ops.creation import Iota, RandomBits
from stratal.ops.elementwise.conversion import Cast, Select
from stratal.ops.families import Elementwise, cast_to, moved_axis
from stratal.ops.views.shapes import Broadcast
from stratal.optimize.batch_parts import (
    COMBINED,
    BatchParts,
    NotSplit,
    on_part,
    shrunk,
)

GROWTH: Final = 1.5
LowerOf = Callable[[Node], "Lowered | None"]


def batch_inputs(graph: Graph) -> list[Node]:
    """Return the inputs that hold the batch: of those no update replaces, all with the first one's size."""
    states = {state for state, _ in graph.updates}
    fed = [i for i in graph.inputs if i not in states and not is_frozen(i) and i.aval.ndim]
    return [i for i in fed if i.aval.ints[0] == fed[0].aval.ints[0]]


def counts(graph: Graph) -> list[int]:
    """Return numbers of equal parts that the batch of a graph has, from 2 on, each half as large again."""
    batch = batch_inputs(graph)
    size = batch[0].aval.ints[0] if batch else 0
    found = [1]
    for n in range(2, size + 1):
        if not size % n and n >= GROWTH * found[-1]:
            found.append(n)
    return found[1:]


def micro_batched(graph: Graph, count: int, lower_of: LowerOf) -> Graph:
    """Return a graph that computes its batch in `count` equal parts, one after another.

    Raises: NotSplit where something in the middle of it needs the whole batch.
    """
    batch = batch_inputs(graph)
    if not batch:
        raise NotSplit("no argument has a batch axis", graph.roots[0])
    parts = BatchParts(graph, batch, count, lower_of)
    if not parts.combined:
        raise NotSplit("nothing is summed over the batch", graph.roots[0])
    return in_parts(parts)


def in_parts(parts: BatchParts) -> Graph:
    """Return the graph of an analysis that computes its parts in a loop. Raises: NotSplit."""
    return _Body(parts).graph()


class _Body:
    """The loop over the parts, built node by node."""

    def __init__(self, parts: BatchParts) -> None:
        self.parts: Final = parts
        self.count: Final = parts.count
        self.index: Final = graph_input("part", INDEX)
        self._new: dict[Node, Node] = {}  # split nodes in the body
        self._rows: dict[tuple[Node, int], Node] = {}  # its inputs: parts of whole values along an axis
        self._whole: dict[Node, Node] = {}  # whole values, by its inputs
        self._made_of: dict[tuple[Node, int], Node | None] = {}  # parts of whole values, made in the body

    def graph(self) -> Graph:
        """Return the graph that loops. Raises: NotSplit."""
        parts, graph = self.parts, self.parts.graph
        combined: dict[Node, tuple[Node, Node, Node]] = {}  # by carry at the start, in the body, and next
        for node in graph.nodes:
            if node in parts.batch:
                self._new[node] = self._row(node)
            elif node in parts.combined:
                combined[node] = self._carried(node)
            elif node in parts.axis:
                self._new[node] = self._made(node, self._operands(node))
        stacked = [r for r in dict.fromkeys(graph.roots) if r in parts.axis and r not in parts.before]
        starts, carries, following = zip(*combined.values(), strict=True) if combined else ((), (), ())
        inputs = [*carries, *self._rows.values(), *self._whole.values(), self.index]
        body = Graph(inputs, [*following, *(self._new[r] for r in stacked)], name=f"{graph.name} part")
        b = Builder()
        xs = [self._stacked(b, x, axis) for x, axis in self._rows]
        scan = make(
            Scan(body, self.count, len(starts), len(xs)), *starts, *xs, *self._whole,
            where=graph.roots[0].where,
        )  # fmt: skip
        results = items(scan)
        made = {n: cast_to(b, r, n.dtype) for n, r in zip(combined, results, strict=False)}
        for node, result in zip(stacked, results[len(starts) :], strict=True):
            made[node] = b.reshape(moved_axis(b, result, 0, parts.axis[node]), shape=node.aval.shape)
        roots = substitute(graph.roots, made)
        outputs = roots[: len(graph.outputs)]
        updates = zip((s for s, _ in graph.updates), roots[len(outputs) :], strict=True)
        return Graph(graph.inputs, outputs, updates, name=graph.name)

    # -- nodes -----------------------------------------------------------------------------------------------
    def _made(self, node: Node, operands: Sequence[Node]) -> Node:
        if isinstance(node.op, Item):
            return take_item(operands[0], node.op.index)
        made = on_part(node, self._axes(node), self.parts.parts[node], self.count)
        assert made is not None  # or it would not be split
        return make(made[0], *operands, where=node.where)

    def _axes(self, node: Node) -> list[int | None]:
        return [self.parts.axis.get(i) for i in node.inputs]

    def _operands(self, node: Node) -> list[Node]:
        """Return the operands of a node in the body: parts, rows of whole values, and whole values."""
        cuts = self.parts.parts[node].cuts
        return [
            self._new[i] if i in self._new else self._rows_of(i, cuts[k]) if k in cuts else self._as_whole(i)
            for k, i in enumerate(node.inputs)
        ]

    def _carried(self, node: Node) -> tuple[Node, Node, Node]:
        """Return the start of a carry, its input of the body, and what the body makes of it."""
        b, part = Builder(node.where), self.parts.parts[node]
        if part.combiner == "scatter":
            start = node.inputs[0]
            carry = graph_input(node.op.name, start.aval)
            return start, carry, self._made(node, [carry, *self._operands(node)[1:]])
        dtype = node.dtype.compute  # 16-bit floats are added up in float32, as sums have it
        (identity,) = COMBINERS[part.combiner].identity([dtype])
        start = b.full(node.aval.with_dtype(dtype), identity.value)
        carry = graph_input(node.op.name, start.aval)
        term = cast_to(b, self._made(node, self._operands(node)), dtype)
        return start, carry, b.op(COMBINED[part.combiner], carry, term)

    # -- whole values ----------------------------------------------------------------------------------------
    def _as_whole(self, node: Node) -> Node:
        """Return a whole value in the body, where constants are written anew."""
        constant = node.inputs[0] if node.op.repeats else node
        if not constant.inputs and not isinstance(constant.op, Input):
            return node
        return self._whole.setdefault(node, graph_input("whole", node.aval))

    def _row(self, node: Node, axis: int = 0) -> Node:
        row = shrunk(node.aval, axis, self.count)
        if row is None:
            raise NotSplit(f"{self.count} parts of {node.aval} are not equal", node)
        return self._rows.setdefault((node, axis), graph_input("row", row))

    def _stacked(self, b: Builder, x: Node, axis: int) -> Node:
        """Return a whole value with its parts along an axis in front."""
        before, size, after = x.shape[:axis], x.aval.ints[axis], x.shape[axis + 1 :]
        parts = b.reshape(x, shape=(*before, self.count, size // self.count, *after))
        return moved_axis(b, parts, axis, 0) if axis else parts

    def _rows_of(self, node: Node, axis: int) -> Node:
        """Return a part of a whole value, made in the body where that takes no memory outside of it."""
        made = self._generated(node, axis)
        return self._row(node, axis) if made is None else made

    def _generated(self, node: Node, axis: int) -> Node | None:
        """Return a part of what is computed element by element of constants, numbers and random bits."""
        if (node, axis) not in self._made_of:
            part = shrunk(node.aval, axis, self.count)
            self._made_of[node, axis] = None if part is None else self._part_of(node, axis, part)
        return self._made_of[node, axis]

    def _part_of(self, node: Node, axis: int, part: TensorType) -> Node | None:
        b = Builder(node.where)
        if isinstance(node.op, Broadcast):
            (x,) = node.inputs
            axes = node.op.axes
            at = axes.index(axis) if axis in axes else None
            stretched = at is None or x.aval.ints[at] == 1
            inner = self._as_whole(x) if stretched else self._rows_of(x, axes.index(axis))
            return b.broadcast(inner, shape=part.shape, axes=axes)
        if isinstance(node.op, Iota):
            made = dataclasses.replace(node.op, shape=part.shape)
            numbers = make(made, where=node.where)
            if made.axis != axis:
                return numbers
            first = cast_to(b, b.mul(self.index, b.const(part.ints[axis], int64)), node.dtype)
            return b.add(numbers, b.broadcast(first, shape=part.shape, axes=()))
        if isinstance(node.op, RandomBits) and node.inputs[0].aval.ndim == axis == 0:
            return self._random_bits(b, node, part) if len(node.inputs) == 1 else None
        if isinstance(node.op, (Elementwise, Select, Cast)):
            operands = [self._generated(i, axis) for i in node.inputs]
            return None if any(o is None for o in operands) else make(node.op, *operands, where=node.where)  # type: ignore[arg-type]
        return None

    def _random_bits(self, b: Builder, node: Node, part: TensorType) -> Node:
        """Return the bits at the places of a part: those the whole draw has there."""
        count = part.size
        own = b.reshape(b.iota(shape=(count,), axis=0, dtype=int64), shape=part.shape)
        first = b.mul(self.index, b.const(count, int64))
        places = b.add(own, b.broadcast(first, shape=part.shape, axes=()))
        return b.random_bits(
            self._as_whole(node.inputs[0]), places, shape=part.shape, dtype=node.op.dtype  # type: ignore[attr-defined]
        )
