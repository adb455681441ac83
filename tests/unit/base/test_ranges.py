"""What is known of values: exponentials of small numbers are shorter, known maxima vanish, bits stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from differential import native

from stratal.autodiff import trace
from stratal.base.dtypes import DType, bfloat16, float32, float64
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node
from stratal.optimize.ranges import use_ranges
from stratal.optimize.simplify import simplify

ANY, BELOW, NEAR = "exp", "exp_within(low=-inf, high=65.0)", "exp_within(low=-87.0, high=88.0)"


def ranged(
    make: Callable[[Any, Node], Node], shape: tuple[int, ...] = (6, 40), dtype: DType = float32
) -> Graph:
    return use_ranges(simplify(trace(lambda b, x: [make(b, x)], [TensorType(dtype, shape)])))


def exponentials(graph: Graph) -> list[str]:
    return [str(n.op) for n in graph.nodes if n.op.name.startswith("exp")]


def maxima(graph: Graph) -> int:
    return sum(n.op.name == "reduce_max" for n in graph.nodes)


def extreme(b: Any, x: Node, name: str) -> Node:
    """Return the largest or smallest element of each column, repeated."""
    found: Node = b.broadcast(b.op(name, x, axes=(0,)), shape=(6, 40), axes=(1,))
    return found


def chain(b: Any, x: Node, count: int, axis: int = -1) -> Node:
    for _ in range(count):
        x = b.softmax(x, axis=axis)
    return x


@pytest.mark.parametrize("axis", [0, -1])
def test_every_softmax_of_probabilities_knows_its_range_and_its_maximum(axis: int) -> None:
    graph = ranged(lambda b, x: chain(b, x, 5, axis))
    assert exponentials(graph) == [BELOW, *[NEAR] * 4]
    assert maxima(graph) == 1


def test_a_softmax_along_another_axis_looks_for_its_maximum() -> None:
    graph = ranged(lambda b, x: b.softmax(b.softmax(x, axis=0), axis=1))
    assert exponentials(graph) == [BELOW, NEAR]
    assert maxima(graph) == 2


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda b, x: b.exp(x), ANY),
        (lambda b, x: b.exp(b.neg(b.abs(x))), BELOW),
        (lambda b, x: b.exp(b.neg(b.mul(x, x))), BELOW),
        (lambda b, x: b.exp(b.mul(x, b.neg(x))), ANY),
        (lambda b, x: b.exp(b.tanh(x)), NEAR),
        (lambda b, x: b.exp(b.mul(b.like(x, 90), b.tanh(x))), ANY),
        (lambda b, x: b.exp(b.sub(b.logistic(x), b.like(x, 100))), BELOW),
        (lambda b, x: b.exp(b.max(b.min(x, b.like(x, 80)), b.like(x, -80))), NEAR),
        (lambda b, x: b.exp(b.select(b.gt(x, b.like(x, 0)), b.like(x, 0), b.neg(b.abs(x)))), BELOW),
        (lambda b, x: b.exp(b.sub(x, extreme(b, x, "reduce_max"))), BELOW),
        (lambda b, x: b.exp(b.sub(x, extreme(b, x, "reduce_min"))), ANY),
        (lambda b, x: b.exp(b.add(x, extreme(b, x, "reduce_max"))), ANY),
        (lambda b, x: b.exp(b.div(b.abs(x), b.add(b.abs(x), b.like(x, 0.5)))), ANY),
        (lambda b, x: b.exp(b.div(b.logistic(x), b.add(b.abs(x), b.like(x, 0.5)))), NEAR),
        (lambda b, x: b.exp(b.mul(b.like(x, 3e38), b.like(x, 3e38))), ANY),
    ],
)  # fmt: skip
def test_a_range_is_used_where_it_is_certain(make: Callable[[Any, Node], Node], kind: str) -> None:
    found = exponentials(ranged(make))
    assert found in ([kind], []) if kind is ANY else found == [kind]


def test_a_maximum_that_is_no_largest_power_stays() -> None:
    def probabilities(b: Any, x: Node, scale: float) -> Node:
        top = b.broadcast(b.reduce_max(x, axes=(1,)), shape=(6, 40), axes=(0,))
        powers = b.exp(b.sub(x, top))
        share = b.mul(b.like(x, scale), b.broadcast(b.div(b.full(TensorType(float32, (6,)), 1.0),
                      b.sum(powers, axes=(1,))), shape=(6, 40), axes=(0,)))  # fmt: skip
        return b.exp(b.sub(b.mul(powers, share), b.like(x, 1)))

    def largest(b: Any, x: Node) -> Node:
        return b.exp(b.reduce_max(probabilities(b, x, -1.0), axes=(1,)))

    assert maxima(ranged(largest)) == 2


def test_a_scale_that_is_repeated_along_more_than_the_row_is_no_result_of_the_maximum() -> None:
    def largest(b: Any, x: Node, s: Node) -> list[Node]:
        top = b.broadcast(b.reduce_max(x, axes=(1,)), shape=(6, 40), axes=(0,))
        scale = b.broadcast(b.logistic(s), shape=(6, 40), axes=(0,))
        return [b.exp(b.reduce_max(b.mul(b.exp(b.sub(x, top)), scale), axes=(1,)))]

    graph = trace(largest, [TensorType(float32, (6, 40)), TensorType(float32, (1,))])
    found = use_ranges(simplify(graph))
    assert maxima(found) == 2 and found.outputs[0].shape == (6,)


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_the_same_bits_come_out_with_and_without_ranges(dtype: DType, special: bool) -> None:
    rng = np.random.default_rng(0)
    x = (30 * rng.standard_normal((6, 40))).astype(dtype.np)
    if special:
        x[0], x[1, 3], x[2, 5], x[3, 7] = -np.inf, np.inf, -np.inf, np.nan
        x[4], x[5] = 0, -np.linspace(0, 3e4, 40)
    plain = trace(lambda b, y: [chain(b, y, 3), b.log_softmax(y), b.exp(b.neg(b.abs(y)))],
                  [TensorType(dtype, x.shape)])  # fmt: skip
    with np.errstate(all="ignore"):
        want, got = (interpret(g, [x])[0] for g in (plain, use_ranges(simplify(plain))))
    for a, b, c in zip(want, got, native(compile_graph(plain), plain, [x]), strict=True):
        np.testing.assert_array_equal(np.asarray(b, np.float64), np.asarray(a, np.float64))
        tolerance = {"rtol": 2e-2 if dtype is bfloat16 else 1e-4, "atol": 1e-37}
        np.testing.assert_allclose(c.astype(np.float64), np.asarray(a, np.float64), **tolerance)
