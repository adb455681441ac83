"""What the marks share: the identity, whose presence in the graph is the message."""

from __future__ import annotations

from collections.abc import Sequence

from stratal.base.dims import Dim
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array
from stratal.loops.compute import pointwise
from stratal.ops.families import Movement, over_rows, refuse_host_only


class Mark(Movement):
    """The identity on values of any type."""

    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        return arrays[0]

    def lower(self, *types: TensorType) -> Lowered:
        refuse_host_only(self, types)
        return pointwise(types, types[0].dtype, lambda x: x)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.op(self.name, ct, **self.attributes)]
