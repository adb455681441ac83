"""While: a loop whose number of steps is known only when it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
from stratal.ops.families import or_zeros, repeated


@record
class While(regions.Regional):
    """Replace the carries by `body(carries, constants)` as long as `condition(carries, constants)` is true.

    operands:  carry..., constant...
    condition: (carry..., constant...) -> bool scalar
    body:      (carry..., constant...) -> (carry...)
    results:   final carry..., always a tuple
    """

    condition: Graph
    body: Graph
    num_carries: int
    not_differentiable = (
        "reverse mode must keep every step's values and the number of steps has no bound; "
        "use scan with a static bound and a runtime length, or give while_loop max_steps"
    )

    def infer(self, *types: TensorType) -> TupleType:
        regions.check_region("while", "condition", self.condition, types)
        regions.check_region("while", "body", self.body, types)
        carries = types[: self.num_carries]
        rule = "the body must return carries of their own types"
        regions.check_same("while", rule, self.body.output_types, carries)
        if self.condition.output_types != (TensorType(bool_, ()),):
            got = ", ".join(map(str, self.condition.output_types))
            raise ShapeError("while: the condition must return one bool scalar", got=got)
        return TupleType(carries)

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        state, consts = tuple(a.copy() for a in arrays[: self.num_carries]), arrays[self.num_carries :]
        while bool(regions.run(self.condition, [*state, *consts])[0]):
            state = regions.run(self.body, [*state, *consts])
        return state

    def cost(self, *types: TensorType) -> Cost:
        """Estimate one step: how many there will be is not known."""
        return regions.region_cost(self.body) + regions.region_cost(self.condition)

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        c = self.num_carries
        active = regions.moving_carries(self.body, [t is not None for t in tangents], c)
        graph = b.jvp_graph(self.body, active)
        own = self.body.inputs
        t_in = regions.unpick(graph.inputs[len(own) :], active)
        inexact = [t.dtype.is_inexact for t in self.body.output_types]
        t_out = regions.unpick(graph.outputs[c:], inexact)
        order = [*own[:c], *filter(None, t_in[:c]), *own[c:], *filter(None, t_in[c:])]
        body = Graph(order, [*self.body.outputs, *regions.pick(t_out, active[:c])], name=graph.name)
        starts = or_zeros(b, tangents[:c], inputs[:c])
        num_moved = sum(active[:c])
        operands = [*inputs[:c], *regions.pick(starts, active[:c]), *inputs[c:], *filter(None, tangents[c:])]
        op = While(self.widened(num_moved, [t.aval for t in filter(None, t_in)]), body, c + num_moved)
        return regions.unpick(items(make(op, *operands, where=b.where))[c:], active[:c])

    def widened(self, num_moved: int, tangents: Sequence[TensorType]) -> Graph:
        """Return the condition with inputs for tangents, which it does not read."""
        unread = [graph_input(f"t{k}", t) for k, t in enumerate(tangents)]
        c, own = self.num_carries, self.condition.inputs
        inputs = [*own[:c], *unread[:num_moved], *own[c:], *unread[num_moved:]]
        return Graph(inputs, self.condition.outputs, name=self.condition.name)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node] | None:
        """Go on while the condition holds for any row; a row for which it no longer does keeps its values."""
        c = self.num_carries
        body, active = regions.batched_step(b, self.body, size, mapped, c)
        condition = b.batch_graph(self.condition, size, active)
        if any(regions.gained(self.condition, condition)):
            if self.effects:
                return None
            active = [*[True] * c, *mapped[c:]]
            body, active = regions.batched_step(b, self.body, size, active, c)
            condition = b.batch_graph(self.condition, size, active)
            (going,) = inline(condition, body.inputs)
            pairs = zip(body.outputs, body.inputs[:c], strict=True)
            kept = [regions.chosen(b, going, new, old) for new, old in pairs]
            body = Graph(body.inputs, kept, name=body.name)
            condition = Graph(condition.inputs, [b.any(condition.outputs[0], axes=(0,))], name=condition.name)
        starts = [
            x if has or not is_active else repeated(b, size, x)
            for x, has, is_active in zip(inputs, mapped, active, strict=True)
        ]
        return items(make(While(condition, body, c), *starts, where=b.where))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            scalar = TensorType(dtype, ())
            yield Sample(cls(*_doubling(dtype), 1), (scalar, scalar), (0.5, 0.9), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        scalar, (condition, body) = TensorType(float32, ()), _doubling(float32)
        yield Reject(cls(body, body, 1), (scalar, scalar), "bool scalar")
        yield Reject(cls(condition, condition, 1), (scalar, scalar), "own types")
        yield Reject(cls(condition, body, 1), (scalar,), "takes 2 values")


def _doubling(dtype: DType) -> tuple[Graph, Graph]:
    """while x < 10: x = x + x + k"""
    b, scalar = Builder(), TensorType(dtype, ())
    x, k, u, v = (graph_input(n, scalar) for n in "xkuv")
    condition = Graph([x, k], [b.lt(x, b.const(10, dtype))], name="below")
    return condition, Graph([u, v], [b.add(b.add(u, u), v)], name="double")
