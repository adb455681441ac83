"""Regions whose largest values are computed block by block: scores, and all that follows on them.

    s = contract(q[..., L, D], k[..., S, D])     a product of this shape is a tile of rows and columns,
    p = f(s, narrow values)                      element-wise on tiles
    p v, p^T q, sums of p, maxima of p           reductions: what a region returns

A region may hold one maximum that other results are shifted by; the sums then run along with it, rescaled
where it grows (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018):

    m = max(s),  e = exp(s - m),  sum(e f), (e f) v for any f that does not depend on m
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from stratal.base.cost import Cost
from stratal.base.dtypes import float32
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Input, Node, graph_input
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Nest
from stratal.ops.control import regions
from stratal.ops.linear.contract import parse_spec

VIEWS: Final = ("broadcast", "reshape", "permute")  # by which tiles read what is smaller


class Operand(NamedTuple):
    """One side of a product of tiles: each axis is one of the tile, or -1, its own."""

    node: Node
    axes: tuple[int, ...]

    @property
    def width(self) -> int:
        """How long the axis is that it shares with no tile."""
        return self.node.aval.ints[self.axes.index(-1)]


class Product(NamedTuple):
    """A tile that is a product: `rows` has its second last axis, `columns` its last."""

    node: Node
    rows: Operand
    columns: Operand


class Sink(NamedTuple):
    """A result: the reduction of tiles along their columns (`along` is -1) or rows (-2), or over tiles (0).

    `how` is `max` or `sum`; with an operand it is the sum of products with it.
    """

    node: Node
    tile: Node
    how: str
    along: int
    operand: Operand | None


class Tiles(NamedTuple):
    """A region taken apart. `power` is e of a region with a running maximum, and `peak` is that maximum."""

    shape: tuple[int, ...]
    products: list[Product]
    sinks: list[Sink]
    peak: Sink | None
    power: Node | None


def product_of(node: Node) -> Product | None:
    """Return a contraction as a product of tiles, None where it is none."""
    if node.op.name != "contract" or node.aval.ndim < 2:
        return None
    spec = parse_spec(node.op.spec)  # type: ignore[attr-defined]
    row, column = spec.out[-2], spec.out[-1]
    if len(spec.contracted) != 1:
        return None
    sides = [
        Operand(x, tuple(spec.out.find(c) for c in letters))
        for x, letters in zip(node.inputs, spec[:2], strict=True)
    ]
    first = [row in spec.left and column not in spec.left, row in spec.right and column not in spec.right]
    if first == [True, False] and column in spec.right:
        return Product(node, sides[0], sides[1])
    if first == [False, True] and column in spec.left:
        return Product(node, sides[1], sides[0])
    return None


def sink_of(node: Node) -> Sink | None:
    """Return a reduction of a tile as a region may return it, None for other nodes."""
    name = node.op.name
    if name in ("sum", "reduce_max"):
        (x,) = node.inputs
        axes, last = node.op.attributes["axes"], x.aval.ndim - 1
        along = {(last,): -1, (last - 1,): -2}.get(axes, 0)
        if (name == "reduce_max" and along != -1) or (not along and not all(a < last - 1 for a in axes)):
            return None
        return Sink(node, x, "max" if name == "reduce_max" else "sum", along, None)
    if name != "contract":
        return None
    spec = parse_spec(node.op.spec)  # type: ignore[attr-defined]
    if len(spec.left) < 2:
        return None
    batch, row, column = spec.left[:-2], spec.left[-2], spec.left[-1]
    for along, letter, other in ((-1, column, row), (-2, row, column)):
        own = spec.columns
        if spec.contracted == letter and len(own) == 1 and spec.out == batch + other + own:
            where = tuple(spec.left.find(c) for c in spec.right)
            return Sink(node, node.inputs[0], "sum", along, Operand(node.inputs[1], where))
    return None


def shifted(power: Node) -> tuple[Node, Node] | None:
    """Return s and the shift of each row of an exponential exp(s - shift), or None."""
    if power.op.name not in ("exp", "exp_within") or power.inputs[0].op.name != "sub":
        return None
    s, spread = power.inputs[0].inputs
    last = s.aval.ndim - 1
    if spread.op.name != "broadcast" or spread.op.attributes["axes"] != tuple(range(last)):
        return None
    return s, spread.inputs[0]


def tiles(body: Graph) -> Tiles | str:
    """Take a region apart; a sentence where it is none of blocks."""
    products = []
    for node in body.nodes:
        if node.op.name == "contract" and all(isinstance(i.op, Input) for i in node.inputs):
            found = product_of(node)
            if found is None:
                return "a product of operands has no tiles"
            products.append(found)
    if not products or any(p.node.shape != products[0].node.shape for p in products):
        return "its products are not of one shape"
    shape = products[0].node.aval.ints
    sinks = []
    for output in body.outputs:
        sink = sink_of(output)
        if sink is None or sink.tile.shape != shape:
            return f"{output.op.name} is no reduction of a tile"
        if sink.operand is not None and not isinstance(sink.operand.node.op, Input):
            return "a product of tiles reads what is made in the region"
        sinks.append(sink)
    if any(n.dtype is not float32 for n in (*(p.node for p in products), *body.outputs)):
        return "blocks are scheduled for float32 alone"
    if any(isinstance(n.op, Const) and n.shape != () for n in body.nodes):
        return "it holds a constant array"
    if 0 in shape or any(0 in i.shape for i in body.inputs):
        return "a region of nothing"
    over = {s.node.op.attributes["axes"] for s in sinks if not s.along}
    if over and (len(over) > 1 or any(s.along for s in sinks)):
        return "sums over tiles are a pass of their own"
    read = {i for n in body.nodes for i in n.inputs}
    peaks = [s for s in sinks if s.node in read]
    if not peaks:
        return Tiles(shape, products, sinks, None, None)
    powers = [n for n in body.nodes if n.op.name == "exp_within" and shifted(n) is not None]
    if len(peaks) > 1 or peaks[0].how != "max" or len(powers) != 1:
        return "results depend on others than one running maximum"
    return Tiles(shape, products, sinks, peaks[0], powers[0])


def finite_peak(b: Builder, peak: Node) -> Node:
    """Return a maximum to shift by: 0 where all is -inf."""
    return b.op("select", b.eq(peak, b.like(peak, -math.inf)), b.like(peak, 0), peak)


@record
class Blockwise(Op):
    """Run `body`, whose largest values are tiles of scores, block by block: none of them is stored.

    Made by `optimize/online`, after derivatives are taken. Shapes: those of the region.
    """

    body: Graph
    ulp = 256.0
    not_differentiable = "it is made after derivatives are taken"
    not_batched = "it is made after batching"
    foldable = False

    def infer(self, *types: TensorType) -> TupleType:
        regions.check_region(self.name, "body", self.body, types)
        return TupleType(self.body.output_types)

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        return regions.run(self.body, arrays)

    def cost(self, *types: TensorType) -> Cost:
        arithmetic = regions.region_cost(self.body).flops
        return Op.cost(self, *types)._replace(flops=arithmetic)

    def lower(self, *types: TensorType) -> Lowered:
        return Nest("blockwise")

    def host_reason(self, *types: TensorType) -> str:
        found = tiles(self.body)
        return found if isinstance(found, str) else ""

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for shape in ((2, 5, 6, 4, 3), (1, 40, 70, 17, 9)):
            for body in (_softmax(shape), _weighted(shape), _summed(shape)):
                yield Sample(cls(body), body.input_types, domain=(0.1, 0.5))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        body = _weighted((2, 5, 6, 4, 3))
        yield Reject(cls(body), body.input_types[:2], "takes 3 values")


def _operands(shape: tuple[int, ...]) -> tuple[Node, Node, Node]:
    n, rows, columns, d, e = shape
    q, k = (graph_input(c, TensorType(float32, (n, m, d))) for c, m in (("q", rows), ("k", columns)))
    return q, k, graph_input("v", TensorType(float32, (n, columns, e)))


def _softmax(shape: tuple[int, ...]) -> Graph:
    """m = max(s), l = sum(e), e v"""
    b = Builder()
    q, k, v = _operands(shape)
    s = b.contract(q, k, spec="bld,bsd->bls")
    m = b.op("reduce_max", s, axes=(2,))
    spread = b.broadcast(finite_peak(b, m), shape=s.shape, axes=(0, 1))
    e = b.op("exp_within", b.sub(s, spread), high=65.0)
    return Graph([q, k, v], [m, b.sum(e, axes=(2,)), b.contract(e, v, spec="bls,bse->ble")], name="softmax")


def _weighted(shape: tuple[int, ...]) -> Graph:
    """tanh(s) v, tanh(s)^T q, the sums of rows and columns"""
    b = Builder()
    q, k, v = _operands(shape)
    t = b.tanh(b.contract(q, k, spec="bld,bsd->bls"))
    sums = [b.sum(t, axes=(axis,)) for axis in (1, 2)]
    products = [b.contract(t, v, spec="bls,bse->ble"), b.contract(t, q, spec="bls,bld->bsd")]
    return Graph([q, k, v], [*products, *sums], name="weighted")


def _summed(shape: tuple[int, ...]) -> Graph:
    """The sum of tanh(s) over heads"""
    b = Builder()
    q, k, _ = _operands(shape)
    t = b.tanh(b.contract(q, k, spec="bld,bsd->bls"))
    return Graph([q, k], [b.sum(t, axes=(0,))], name="summed")
