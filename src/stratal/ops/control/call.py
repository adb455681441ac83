"""Calls: a function kept as a region for the sake of its derivative; a program has its body in its place."""

from __future__ import annotations

from stratal.base.cost import Cost
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.graph import Graph
from stratal.graph.op import Array, Op
from stratal.loops.compute import Region
from stratal.ops.control import regions


class Call(Op):
    """What calls share: operands are those of the region `body`, results its outputs, always a tuple."""

    body: Graph
    foldable = False

    @property
    def effects(self) -> bool:  # type: ignore[override]
        return regions.has_effects(self.body)

    def infer(self, *types: TensorType) -> TupleType:
        regions.check_region(self.name, "body", self.body, types)
        return TupleType(self.body.output_types)

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        return regions.run(self.body, arrays)

    def lower(self, *types: TensorType) -> Lowered:
        return Region("call")

    def cost(self, *types: TensorType) -> Cost:
        return regions.region_cost(self.body)
