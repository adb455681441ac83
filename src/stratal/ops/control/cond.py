"""Cond: one of two regions, chosen by a boolean scalar at run time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import DType, bool_, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, inline
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.control import regions
from stratal.ops.families import with_axis

_FLAG = TensorType(bool_, ())


@record
class Cond(regions.Regional):
    """Run `then` where the first operand is true, else `otherwise`, on the other operands.

        operands: predicate (bool scalar), operand...
        regions:  (operand...) -> (result...), both of the same types
        results:  always a tuple

    Only the chosen region runs. Reverse mode saves what the derivative of the chosen region needs in slots
    both regions share by type (a region fills the slots it does not use with zeros), through a twin as `scan`
    does.
    """

    then: Graph
    otherwise: Graph

    def infer(self, *types: TensorType) -> TupleType:
        if not types or types[0] != _FLAG:
            raise ShapeError("cond: the predicate must be a bool scalar", got=", ".join(map(str, types[:1])))
        regions.check_region("cond", "region `then`", self.then, types[1:])
        regions.check_region("cond", "region `otherwise`", self.otherwise, types[1:])
        rule = "both regions must return the same types"
        regions.check_same("cond", rule, self.otherwise.output_types, self.then.output_types)
        return TupleType(self.then.output_types)

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        return regions.run(self.then if bool(arrays[0]) else self.otherwise, arrays[1:])

    def cost(self, *types: TensorType) -> Cost:
        sides = map(regions.region_cost, (self.then, self.otherwise))
        return max(sides, key=lambda c: c.flops + c.bytes)

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        operands = inputs[1:]
        active = [b.needed(k + 1) and x.dtype.is_inexact for k, x in enumerate(operands)]
        chosen = [k for k, t in enumerate(ct) if t is not None]
        sides = [_Side(b, region, active, chosen) for region in (self.then, self.otherwise)]
        slots = _slots(sides)
        remade = [[x in side.cut.remade for x in side.region.inputs] for side in sides]
        read = [k for k, either in enumerate(zip(*remade, strict=True)) if any(either)]
        saved: list[Node] = []
        if slots:
            twins = [side.twin(b, slots) for side in sides]
            saved = items(make(Cond(*twins), *inputs, where=b.where))[len(self.then.outputs) :]
        back = Cond(*(side.backward(slots, read) for side in sides))
        cotangents = [t for t in ct if t is not None]
        reads = [operands[k] for k in read]
        found = items(make(back, inputs[0], *cotangents, *saved, *reads, where=b.where))
        return [None, *regions.unpick(found, active)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        active = [t is not None for t in tangents[1:]]
        moving = (regions.moving(r, active) for r in (self.then, self.otherwise))
        moved = [any(m) for m in zip(*moving, strict=True)]
        inexact = [t.dtype.is_inexact for t in self.then.output_types]
        count = len(self.then.outputs)
        both = []
        for region in (self.then, self.otherwise):
            graph = b.jvp_graph(region, active)
            parts = regions.unpick(graph.outputs[count:], inexact)
            both.append(Graph(graph.inputs, [*region.outputs, *regions.pick(parts, moved)], name=graph.name))
        node = make(Cond(*both), *inputs, *(t for t in tangents if t is not None), where=b.where)
        return regions.unpick(items(node)[count:], moved)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node] | None:
        """Run both regions where the predicate differs from row to row, and choose; effects forbid that."""
        sides = [b.batch_graph(side, size, mapped[1:]) for side in (self.then, self.otherwise)]
        has_axis = [any(m) for m in zip(*(regions.gained(self.then, s) for s in sides), strict=True)]
        if not mapped[0]:
            sides = [b.batch_graph(side, size, mapped[1:], has_axis) for side in (self.then, self.otherwise)]
            return items(make(Cond(*sides), *inputs, where=b.where))
        if self.effects:
            return None
        then, otherwise = (inline(side, inputs[1:]) for side in sides)
        both = zip(*(regions.gained(self.then, side) for side in sides), strict=True)
        return [
            x if x is y else regions.chosen(b, inputs[0], *with_axis(b, size, flags, (x, y)))
            for x, y, flags in zip(then, otherwise, both, strict=True)
        ]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            row = TensorType(dtype, (3,))
            for flag in (False, True):
                yield Sample(cls(*_pair(dtype)), (_FLAG, row, row), draw=_drawn(dtype, flag))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row, (then, otherwise) = TensorType(float32, (3,)), _pair(float32)
        yield Reject(cls(then, otherwise), (TensorType(bool_, (3,)), row, row), "bool scalar")
        yield Reject(cls(then, otherwise), (_FLAG, row), "takes 2 values")
        yield Reject(cls(then, Graph(then.inputs, then.outputs[:1])), (_FLAG, row, row), "same types")


class _Side:
    """The derivative of one region, cut off from the region's own values."""

    def __init__(self, b: Builder, region: Graph, active: Sequence[bool], chosen: Sequence[int]) -> None:
        self.region = region
        count = len(region.inputs)
        wanted = [region.outputs[k] for k in chosen]
        back = b.vjp_graph(Graph(region.inputs, wanted, name=region.name), active)
        self.cotangents = back.inputs[count:]
        self.cut = regions.cut(back.outputs, self.cotangents, region.inputs)

    def assignment(self, slots: Sequence[TensorType]) -> list[int]:
        """Return the slot of each saved value."""
        free = list(range(len(slots)))
        chosen = []
        for node in self.cut.saved:
            slot = next(k for k in free if slots[k] == node.type)
            free.remove(slot)
            chosen.append(slot)
        return chosen

    def twin(self, b: Builder, slots: Sequence[TensorType]) -> Graph:
        """Return the region with one output more per slot: a saved value, or zeros."""
        values: list[Node | None] = [None] * len(slots)
        for node, slot in zip(self.cut.saved, self.assignment(slots), strict=True):
            values[slot] = node
        filled = (b.full(t, 0) if v is None else v for t, v in zip(slots, values, strict=True))
        return Graph(self.region.inputs, [*self.region.outputs, *filled], name=self.region.name)

    def backward(self, slots: Sequence[TensorType], read: Sequence[int]) -> Graph:
        """Return the region (cotangents..., slots..., operands read...) -> cotangents of marked operands."""
        inputs = [graph_input(f"saved{k}", t) for k, t in enumerate(slots)]
        roots = regions.fed(self.cut, [inputs[k] for k in self.assignment(slots)])
        operands = [self.region.inputs[k] for k in read]
        return Graph([*self.cotangents, *inputs, *operands], roots, name=f"{self.region.name}.vjp")


def _slots(sides: Sequence[_Side]) -> list[TensorType]:
    """Return the fewest slots that hold what either side saves."""
    slots: list[TensorType] = []
    for side in sides:
        free = list(slots)
        for node in side.cut.saved:
            if node.aval in free:
                free.remove(node.aval)
            else:
                slots.append(node.aval)
    return slots


def _pair(dtype: DType) -> tuple[Graph, Graph]:
    b, row = Builder(), TensorType(dtype, (3,))
    x, y, u, v = (graph_input(n, row) for n in "xyuv")
    square = b.mul(x, x)
    then = Graph([x, y], [b.mul(square, b.neg(square)), b.add(x, y)], name="then")
    return then, Graph([u, v], [b.mul(u, b.mul(v, v)), u], name="otherwise")


def _drawn(dtype: DType, flag: bool):  # type: ignore[no-untyped-def]  # a Draw
    def draw(rng: np.random.Generator) -> Sequence[Array]:
        return [np.asarray(flag), *(np.asarray(rng.uniform(-2, 2, 3)).astype(dtype.np) for _ in range(2))]

    return draw
