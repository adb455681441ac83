"""Axes that ops run along: results side by side become one op, and a slice is computed from slices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from search_networks import B, assert_same_values, batch_norm, conv, machine, ops, tensor, weight

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.dtypes import DType, bfloat16, float16, float32, float64
from stratal.base.types import TensorType
from stratal.discover.rules_file import read_rules
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input, take_item
from stratal.search.axes import Axes
from stratal.search.found import Found, Rewrite, piece_of, rewritten
from stratal.search.search import search

pytestmark = pytest.mark.quick
RULES, _ = read_rules()
GEMM = machine(launch=0.0, multiply=1e-9)
WIDE = machine(launch=1e-4, multiply=1e-13)
Price = Callable[[Graph], float]


def bytes_of_weights(graph: Graph) -> float:
    """Return the price on a machine where reading weights is all that costs."""
    return float(sum(n.inputs[1].aval.nbytes for n in graph.nodes if n.op.name in ("contract", "conv")))


def found(inputs: Sequence[Node], outputs: Sequence[Node], price: Price) -> Found:
    graph = Graph(inputs, outputs)
    made = search(graph, RULES, price)
    assert_same_values(graph, made.graph)
    return made


def linear(x: Node, w: Node) -> Node:
    return B.contract(x, w, spec="ak,nk->an")


def relu(x: Node) -> Node:
    zero = B.broadcast(B.const(0.0, float32), shape=x.shape, axes=())
    return B.select(B.le(x, zero), zero, x)


def cut(x: Node, axis: int, start: int, stop: int) -> Node:
    starts, stops = [0] * x.aval.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return B.slice(x, start=tuple(starts), stop=tuple(stops), step=(1,) * x.aval.ndim)


# -- axes ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("node", "axis", "running"),
    [
        (linear(tensor(1, 5), tensor(7, 5)), 0, (0, None)),
        (linear(tensor(1, 5), tensor(7, 5)), 1, (None, 0)),
        (B.contract(tensor(2, 3, 5), tensor(2, 5, 4), spec="bmk,bkn->bmn"), 0, (0, 0)),
        (B.add(tensor(3, 4), tensor(3, 4)), 1, (1, 1)),
        (conv(tensor(2, 4, 9, 9), tensor(5, 4, 3, 3), 1), 1, (None, 0)),
        (conv(tensor(2, 4, 9, 9), tensor(5, 4, 3, 3), 1), 2, None),
        (B.broadcast(tensor(5), shape=(2, 5, 3), axes=(1,)), 1, (0,)),
        (B.broadcast(tensor(5), shape=(2, 5, 3), axes=(1,)), 2, (None,)),
        (B.permute(tensor(3, 4), perm=(1, 0)), 0, (1,)),
        (B.reshape(tensor(2, 3, 4), shape=(2, 12)), 0, (0,)),
        (B.reshape(tensor(2, 3, 4), shape=(2, 12)), 1, None),
        (B.sum(tensor(2, 3, 4), axes=(2,)), 1, (1,)),
    ],
)
def test_axes_are_read_off_tensor_expressions(
    node: Node, axis: int, running: tuple[int | None, ...] | None
) -> None:
    axes = Axes(real=True)
    assert axes.running(node, axis) == running
    if running is not None:
        assert axes.law(node, {axis: (0, 1, 1)}) is not None


def test_filters_of_groups_are_no_parts_of_one_another() -> None:
    groups = B.conv(tensor(1, 4, 9, 9), tensor(6, 2, 3, 3), strides=(1, 1), padding=((0, 0),) * 2,
                    lhs_dilation=(1, 1), rhs_dilation=(1, 1), groups=2)  # fmt: skip
    assert Axes(real=True).law(groups, {1: (0, 3, 1)}) is None


def test_sums_are_parts_in_real_arithmetic_alone() -> None:
    y = linear(tensor(4, 5), tensor(7, 5))
    assert Axes(real=False).law(y, {0: (0, 2, 1)}) is None
    assert Axes(real=False).law(B.exp(y), {0: (0, 2, 1)}) is not None


# -- side by side --------------------------------------------------------------------------------------------
def test_products_with_a_bias_and_what_follows_are_one() -> None:
    x, weights, biases = tensor(3, 8), [weight(n, 8) for n in (4, 6, 5)], [weight(n) for n in (4, 6, 5)]
    each = []
    for w, b in zip(weights, biases, strict=True):
        y = linear(x, w)
        each.append(B.exp(relu(B.add(y, B.broadcast(b, shape=y.shape, axes=(1,))))))
    made = found([x, *weights, *biases], each, lambda graph: float(len(ops(graph))))
    assert ops(made.graph).count("contract") == 1 and ops(made.graph).count("exp") == 1
    assert ops(made.graph).count("slice") == 3


def test_rows_of_one_weight_are_one_product() -> None:
    x, w = tensor(5, 1, 8), weight(6, 8)
    rows = [B.reshape(cut(x, 0, k, k + 1), shape=(1, 8)) for k in (3, 0, 4, 1, 2)]
    made = found([x, w], [B.tanh(linear(row, w)) for row in rows], bytes_of_weights)
    assert ops(made.graph).count("contract") == 1 and "concatenate" not in ops(made.graph)


def test_steps_of_a_recurrent_cell_share_the_products_of_their_inputs() -> None:
    x, state = tensor(4, 8), tensor(1, 8)
    ws, us = [weight(8, 8) for _ in range(3)], [weight(8, 8) for _ in range(3)]
    inputs = [x, state, *ws, *us]
    for k in range(4):
        row = cut(x, 0, k, k + 1)
        gates = [B.tanh(B.add(linear(row, w), linear(state, u))) for w, u in zip(ws, us, strict=True)]
        state = B.mul(B.add(gates[0], gates[1]), gates[2])
    made = found(inputs, [state], WIDE)
    assert ops(made.graph).count("contract") == 1 + 4


def test_convolutions_in_groups_stay_apart() -> None:
    x, weights = tensor(1, 4, 9, 9), [weight(6, 2, 3, 3) for _ in range(2)]
    each = [B.tanh(B.conv(x, w, strides=(1, 1), padding=((0, 0),) * 2, lhs_dilation=(1, 1),
                          rhs_dilation=(1, 1), groups=2)) for w in weights]  # fmt: skip
    assert ops(found([x, *weights], each, WIDE).graph).count("conv") == 2


def test_joins_that_need_each_other_are_not_both_applied() -> None:
    x, y, weights = tensor(4, 4), tensor(4, 4), [weight(4, 4) for _ in range(4)]
    first, second = linear(x, weights[0]), linear(y, weights[1])
    third, fourth = linear(second, weights[2]), linear(first, weights[3])
    graph = Graph([x, y, *weights], [B.add(third, fourth)])

    def rewrite(*pairs: tuple[Node, Node]) -> Rewrite:
        both = B.exp(B.concatenate(*(operand for operand, _ in pairs), axis=0))
        replaced = {linear(*p): cut(both, 0, 4 * k, 4 * k + 4) for k, p in enumerate(pairs)}
        return Rewrite(replaced, (), 1.0, 0.5, (), piece_of([], set(), {}))

    one = rewrite((x, weights[0]), (second, weights[2]))
    other = rewrite((y, weights[1]), (first, weights[3]))
    assert rewritten(graph, [one])[1] == [one] and rewritten(graph, [other])[1] == [other]
    assert rewritten(graph, [one, other])[1] == [one]


# -- scales --------------------------------------------------------------------------------------------------
def test_a_scale_goes_into_a_product_whatever_its_spec() -> None:
    x, w, s = tensor(3, 2, 8), weight(5, 8), weight(5)
    y = B.contract(x, w, spec="abk,nk->abn")
    made = found([x, w, s], [B.tanh(B.mul(B.broadcast(s, shape=y.shape, axes=(2,)), y))], GEMM)
    assert ops(made.graph) == ["contract", "tanh"]
    assert [step.rule for step in made.applied[0].steps] == ["scale of contract"]


def test_batch_norm_goes_into_a_convolution_in_groups() -> None:
    x, w, parts = tensor(1, 4, 9, 9), weight(6, 2, 3, 3), [weight(6) for _ in range(4)]
    y = B.conv(x, w, strides=(2, 2), padding=((1, 1),) * 2, lhs_dilation=(1, 1), rhs_dilation=(1, 1),
               groups=2)  # fmt: skip
    assert "mul" not in ops(found([x, w, *parts], [B.tanh(batch_norm(y, *parts))], GEMM).graph)


def test_a_scale_does_not_go_into_a_maximum() -> None:
    x, s = tensor(4, 6), weight(4)
    y = B.reduce_max(x, axes=(1,))
    graph = Graph([x, s], [B.mul(y, B.broadcast(s, shape=y.shape, axes=(0,)))])
    assert not search(graph, RULES, GEMM).applied


@pytest.mark.parametrize(("dtype", "convs"), [(float64, 1), (bfloat16, 1), (float16, 2)])
def test_rules_hold_for_dtypes_of_floats_whose_range_is_wide(dtype: DType, convs: int) -> None:
    x = graph_input("x", TensorType(dtype, (1, 3, 9, 9)))
    w, v = (graph_input("w", TensorType(dtype, (4, 3, 3, 3)), frozen=True) for _ in range(2))
    made = search(Graph([x, w, v], [B.add(conv(x, w, 1), conv(x, v, 1))]), RULES, GEMM)
    assert ops(made.graph).count("conv") == convs


# -- slices --------------------------------------------------------------------------------------------------
def layers(x: Node, weights: Sequence[Node]) -> Node:
    for w in weights:
        y = linear(x, w)
        mean = B.div(B.sum(y, axes=(1,)), B.broadcast(B.const(8.0, float32), shape=(6,), axes=()))
        x = B.add(x, B.tanh(B.sub(y, B.broadcast(mean, shape=y.shape, axes=(0,)))))
    return x


def test_only_what_a_slice_reads_is_computed() -> None:
    x, weights = tensor(6, 8), [weight(8, 8) for _ in range(3)]
    made = found([x, *weights], [cut(layers(x, weights), 0, 5, 6)], GEMM)
    assert {n.shape for n in made.graph.nodes if n.op.name == "contract"} == {(1, 8)}
    assert "parts of contract" in str(made.applied[0])


def test_what_is_read_as_a_whole_elsewhere_is_computed_once() -> None:
    x, weights = tensor(6, 8), [weight(8, 8) for _ in range(2)]
    whole = layers(x, weights[:1])
    total = B.sum(whole, axes=(0,))
    made = found([x, *weights], [cut(layers(whole, weights[1:]), 0, 5, 6), total], GEMM)
    assert sorted(n.shape for n in made.graph.nodes if n.op.name == "contract") == [(1, 8), (6, 8)]


def test_a_value_that_is_an_output_is_not_cut() -> None:
    x, w = tensor(6, 8), weight(8, 8)
    y = linear(x, w)
    assert not found([x, w], [cut(y, 0, 5, 6), y], GEMM).applied


# -- equal expressions ---------------------------------------------------------------------------------------
def test_equal_blocks_are_searched_and_priced_once() -> None:
    def blocks(count: int) -> Found:
        x = y = tensor(1, 4, 6, 6)
        inputs = [x]
        for _ in range(count):
            w, parts = weight(4, 4, 3, 3), [weight(4) for _ in range(4)]
            inputs += [w, *parts]
            y = relu(batch_norm(conv(y, w, 1), *parts))
        return found(inputs, [y], GEMM)

    few, many = blocks(3), blocks(7)
    assert len(many.applied) == 7 and ops(many.graph).count("mul") == 0
    assert many.priced == few.priced


def test_equal_expressions_over_views_of_different_values_keep_their_values() -> None:
    x, weights = tensor(5, 5), [weight(5, 5) for _ in range(2)]
    turned = [B.permute(w, perm=(1, 0)) for w in weights]  # each read twice: a view that stays
    each = [B.contract(B.exp(x), t, spec="mk,kn->mn") for t in turned]
    more = [B.contract(B.neg(x), t, spec="mk,kn->mn") for t in turned]
    outs = [B.tanh(B.add(a, b)) for a, b in zip(each, more, strict=True)]
    found([x, *weights], outs, GEMM)


def test_a_graph_with_several_results_of_one_op_is_searched() -> None:
    q, k, v = (tensor(1, 2, 4, 8) for _ in range(3))
    y = take_item(B.attention(q, k, v, causal=False, scale=0.5), 0)
    w, parts = weight(3, 2, 1, 1), [weight(3) for _ in range(4)]
    graph = Graph([q, k, v, w, *parts], [batch_norm(conv(y, w), *parts)])
    assert search(graph, RULES, lambda g: float(len(ops(g)))).applied


def drawn(seed: int) -> tuple[list[Node], list[Node]]:
    """Return inputs and outputs of a random graph of products, sums, views and slices."""
    rng = np.random.default_rng(seed)
    inputs = [tensor(4, 4), *(weight(4, 4) for _ in range(3))]
    values = list(inputs)
    for _ in range(12):
        a, b = (values[int(rng.integers(len(values)))] for _ in range(2))
        kind = int(rng.integers(6))
        if kind < 2:
            made = B.contract(a, b, spec=("ak,nk->an", "mk,kn->mn")[kind])
        elif kind == 2:
            made = B.add(a, b)
        elif kind == 3:
            made = B.permute(a, perm=(1, 0))
        elif kind == 4:
            made = B.concatenate(cut(a, 0, 0, 1), cut(b, 0, 1, 4), axis=0)
        else:
            made = B.tanh(a)
        values.append(made)
    return inputs, [values[-1], cut(values[-2], 1, 2, 3)]


@pytest.mark.parametrize(("seed", "price"), list(itertools.product(range(20), [GEMM, WIDE])))
def test_random_graphs_keep_their_values(seed: int, price: Price) -> None:
    graph = Graph(*drawn(seed))
    assert_same_values(graph, search(graph, RULES, price).graph)


