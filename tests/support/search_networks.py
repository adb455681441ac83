"""Small graphs with what a search should find in them, and made-up machines to price them for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stratal.base.dtypes import DType, float32, float64
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Const, Input, Node, constant, graph_input, is_frozen, rebuild
from stratal.optimize.prologue import decided_alone

B = Builder()


def tensor(*shape: int) -> Node:
    return graph_input("x", TensorType(float32, shape))


def weight(*shape: int) -> Node:
    return graph_input("w", TensorType(float32, shape), frozen=True)


def conv(x: Node, w: Node, pad: int = 0, stride: int = 1, dilation: int = 1) -> Node:
    return B.conv(x, w, strides=(stride,) * 2, padding=((pad, pad),) * 2, lhs_dilation=(1, 1),
                  rhs_dilation=(dilation,) * 2, groups=1)  # fmt: skip


def channels(v: Node, like: Node) -> Node:
    return B.broadcast(v, shape=like.shape, axes=(1,))


def batch_norm(y: Node, mean: Node, variance: Node, gamma: Node, beta: Node) -> Node:
    """Return batch normalisation with frozen statistics, as the layer builds it."""
    scale = B.rsqrt(B.add(variance, B.broadcast(B.const(1e-5, float32), shape=variance.shape, axes=())))
    centred = B.sub(y, channels(mean, y))
    return B.add(B.mul(B.mul(centred, channels(scale, y)), channels(gamma, y)), channels(beta, y))


def product(x: Node, y: Node) -> Node:
    return B.contract(x, y, spec="mk,kn->mn")


def transposed(x: Node) -> Node:
    return B.permute(x, perm=(1, 0))


def ops(graph: Graph) -> list[str]:
    """Return the ops of a graph that every run computes."""
    frozen = decided_alone(graph)
    return [n.op.name for n in graph.nodes if n not in frozen and not isinstance(n.op, (Input, Const))]


# -- machines ------------------------------------------------------------------------------------------
def machine(
    launch: float = 1e-6, multiply: float = 1e-10, byte: float = 1e-11
) -> Callable[[Graph], float]:
    """Return the price of a graph: launches, products and bytes of what is not decided by frozen inputs.

    Element-wise ops and views fuse into what makes their operands.
    """

    def price(graph: Graph) -> float:
        frozen = decided_alone(graph)
        total = 0.0
        for node in graph.nodes:
            if node in frozen or isinstance(node.op, (Input, Const)) or isinstance(node.type, TupleType):
                continue
            heavy = node.op.name in ("conv", "contract", "permute", "concatenate")
            total += (launch + byte * node.aval.nbytes) * heavy + 1e-11 * node.aval.size
            if node.op.name == "conv":
                total += multiply * node.aval.size * node.inputs[1].aval.size / node.inputs[1].shape[0]
            if node.op.name == "contract":
                total += multiply * _products(node)
        return total

    return price


def _products(node: Node) -> float:
    sizes: dict[str, int] = {}
    operands, _ = node.op.attributes["spec"].split("->")
    for operand, letters in zip(node.inputs, operands.split(","), strict=True):
        sizes.update(zip(letters, operand.shape, strict=True))
    return float(np.prod(list(sizes.values()), dtype=float))


# -- values --------------------------------------------------------------------------------------------
def in_dtype(graph: Graph, dtype: DType) -> Graph:
    """Return a graph of another dtype of floats."""
    made: dict[Node, Node] = {}
    for node in graph.inputs:
        made[node] = graph_input("x", TensorType(dtype, node.shape), frozen=is_frozen(node))
    for node in graph.nodes:
        if isinstance(node.op, Const):
            made[node] = constant(node.op.value.array.astype(dtype.np))
        elif node not in made:
            made[node] = rebuild(node, [made[i] for i in node.inputs])
    return Graph([made[i] for i in graph.inputs], [made[o] for o in graph.outputs])


def values(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Return inputs in float64; what is frozen is positive, as variances are."""
    rng = np.random.default_rng(seed)
    drawn = [(i, rng.standard_normal(i.shape)) for i in graph.inputs]
    return [np.abs(a) + 0.1 if is_frozen(i) and i.aval.ndim == 1 else a for i, a in drawn]


def outputs(graph: Graph, arrays: Sequence[np.ndarray], dtype: DType = float64) -> list[np.ndarray]:
    """Return what the interpreter computes in a dtype."""
    found, _ = interpret(in_dtype(graph, dtype), [a.astype(dtype.np) for a in arrays])
    return [np.asarray(a, np.float64) for a in found]


def assert_same_values(before: Graph, after: Graph) -> None:
    """Assert that two graphs agree in float64, and in float32 up to three times the error of the first."""
    arrays = values(before)
    exact = outputs(before, arrays)
    for want, got in zip(exact, outputs(after, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    errors = [
        max(float(np.abs(a - e).max() / np.abs(e).max()) for a, e in zip(found, exact, strict=True))
        for found in (outputs(before, arrays, float32), outputs(after, arrays, float32))
    ]
    assert errors[1] <= 3 * max(errors[0], 2e-7), errors
