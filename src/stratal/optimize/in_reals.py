"""Complex numbers as pairs of real ones: after this pass, kernels compute with real numbers only.

    mul(x, y)                        ->  complex(re(x) re(y) - im(x) im(y), re(x) im(y) + im(x) re(y))
    real(complex(a, b))              ->  a
    real(x)                          ->  view_as_real(x)[..., 0]
    complex(p[..., 0], p[..., 1])    ->  view_as_complex(p)

Only `complex` is left, which stores pairs. What a record says of itself in `in_reals` is written here; what
it does not say runs on the host, and reads and writes the same bytes.
"""

from __future__ import annotations

from stratal.base.fallback import skippable, unchanged
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Const, Node
from stratal.ops.elementwise.complex_numbers import Complex, ViewAsComplex, ViewAsReal
from stratal.ops.views.boxes import Slice
from stratal.ops.views.shapes import Reshape
from stratal.optimize.rewrite import rewrite_graph

PLACE = {"real": 0, "imag": 1}  # of a part in a pair


@skippable(unchanged)
def use_reals(graph: Graph) -> Graph:
    """Return a graph in which no op that has a form in real numbers takes or gives complex ones."""
    if not any(map(_is_complex, graph.nodes)):
        return graph
    return rewrite_graph(rewrite_graph(graph, _in_reals), _same_pairs)


def _is_complex(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.dtype.is_complex


def _in_reals(node: Node) -> tuple[str, Node] | None:
    if not isinstance(node.type, TensorType) or not any(map(_is_complex, (node, *node.inputs))):
        return None
    b, name = Builder(node.where), node.op.name
    if name == "complex" or not node.inputs:
        return None
    first = node.inputs[0]
    if name in PLACE:
        return _part(b, first, PLACE[name])
    if name == "view_as_complex":
        return ("same-pairs", first.inputs[0]) if isinstance(first.op, ViewAsReal) else None
    if name == "view_as_real":
        return ("same-pairs", first.inputs[0]) if isinstance(first.op, ViewAsComplex) else None
    found = node.op.in_reals(b, *node.inputs)
    return None if found is None else ("in-reals", found)


def _part(b: Builder, x: Node, place: int) -> tuple[str, Node]:
    """Return the real or the imaginary part of a value whose operands are in real numbers."""
    if isinstance(x.op, Complex):
        return "part-of-complex", x.inputs[place]
    if isinstance(x.op, Const):
        array = x.op.value.array
        return "part-of-constant", b.const(array.imag if place else array.real)
    return "part-of-pairs", pick(b, b.view_as_real(x), place)


def pick(b: Builder, pairs: Node, place: int) -> Node:
    """Return the first or the second of each pair along the last axis."""
    *shape, _ = pairs.shape
    start, stop = (0,) * len(shape), tuple(shape)
    cut = b.slice(pairs, start=(*start, place), stop=(*stop, place + 1), step=(1,) * (len(shape) + 1))
    picked: Node = b.reshape(cut, shape=stop)
    return picked


def _same_pairs(node: Node) -> tuple[str, Node] | None:
    """Use the pairs a complex number's parts were picked from, if they are the same."""
    if not isinstance(node.op, Complex):
        return None
    b = Builder(node.where)
    part = node.inputs[0]
    cut = part.inputs[0] if isinstance(part.op, Reshape) else part
    pairs = cut.inputs[0] if isinstance(cut.op, Slice) else None
    if pairs is None or pairs.shape != (*node.shape, 2):
        return None
    if any(pick(b, pairs, k) is not part for k, part in enumerate(node.inputs)):
        return None
    return "same-pairs", b.view_as_complex(pairs)
