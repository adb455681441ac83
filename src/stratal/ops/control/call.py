"""Calls: a function kept as a region for the sake of its derivative; a program has its body in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import DType, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, inline
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Region
from stratal.ops.annotations import AGAIN
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


# -- computed again in reverse mode --------------------------------------------------------------------------
@record
class Checkpoint(Call):
    """Run `body`; reverse mode runs it again rather than keep what its derivative reads.

    The first `num_hidden` operands are read the second time behind a `barrier`, so that no rewrite merges the
    two runs. Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """

    body: Graph
    num_hidden: int

    def infer(self, *types: TensorType) -> TupleType:
        if not 0 <= self.num_hidden <= len(types):
            raise ShapeError("checkpoint: hides operands it does not have", got=str(self.num_hidden))
        return super().infer(*types)

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        active = [b.needed(k) and x.dtype.is_inexact for k, x in enumerate(inputs)]
        read = [o for o, t in zip(self.body.outputs, ct, strict=True) if t is not None]
        back = b.vjp_graph(Graph(self.body.inputs, read, name=self.body.name), active)
        again = [b.barrier(x, id=AGAIN) for x in inputs[: self.num_hidden]]
        found = inline(back, [*again, *inputs[self.num_hidden :], *(t for t in ct if t is not None)])
        return regions.unpick(found, active)

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        active = [t is not None for t in tangents]
        graph = b.jvp_graph(self.body, active)
        operands = [*inputs, *(t for t in tangents if t is not None)]
        made = items(make(Checkpoint(graph, self.num_hidden), *operands, where=b.where))
        return regions.unpick(made[len(items(out)) :], (o.dtype.is_inexact for o in self.body.outputs))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node]:
        body = b.batch_graph(self.body, size, mapped)
        return items(make(Checkpoint(body, self.num_hidden), *inputs, where=b.where))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            for hidden in (0, 1, 2):
                yield Sample(cls(_scaled_sine(dtype), hidden), (TensorType(dtype, (3,)),) * 2)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row = TensorType(float32, (3,))
        yield Reject(cls(_scaled_sine(float32), 1), (row,), "takes 2 values")
        yield Reject(cls(_scaled_sine(float32), 3), (row, row), "hides")


def _scaled_sine(dtype: DType) -> Graph:
    """y = sin(x * x) * w"""
    b = Builder()
    x, w = (graph_input(n, TensorType(dtype, (3,))) for n in "xw")
    return Graph([x, w], [b.mul(b.sin(b.mul(x, x)), w)], name="scaled_sine")
