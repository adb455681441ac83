"""A search finds the rewrites of the lectures by their prices, and leaves what it must not touch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from search_networks import (
    B,
    assert_same_values,
    batch_norm,
    conv,
    machine,
    ops,
    product,
    tensor,
    transposed,
    weight,
)

import stratal.ops  # noqa: F401  fills the registry
from stratal.base.target import TARGETS
from stratal.discover.rules_file import read_rules
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node
from stratal.plan.price import Pricer
from stratal.search.found import Found
from stratal.search.search import Limit, search

pytestmark = pytest.mark.quick
RULES, _ = read_rules()
GEMM = machine(launch=0.0, multiply=1e-9)  # where arithmetic is what costs
WIDE = machine(launch=1e-4, multiply=1e-13)  # where a launch is what costs


def found(
    inputs: Sequence[Node], outputs: Sequence[Node], price: Callable[[Graph], float] = GEMM, **options: object
) -> Found:
    """Return what a search finds; its result has the values of the graph."""
    graph = Graph(inputs, outputs)
    made = search(graph, RULES, price, **options)  # type: ignore[arg-type]
    assert_same_values(graph, made.graph)
    assert price(made.graph) <= price(graph)
    return made


@pytest.mark.row("C2")
@pytest.mark.parametrize(("pad", "stride"), [(0, 1), (1, 1), (1, 2)])
def test_batch_norm_with_frozen_statistics_is_folded_into_the_convolution(pad: int, stride: int) -> None:
    x, w, parts = tensor(2, 3, 9, 9), weight(6, 3, 3, 3), [weight(6) for _ in range(4)]
    made = found([x, w, *parts], [B.tanh(batch_norm(conv(x, w, pad, stride), *parts))])
    assert sorted(ops(made.graph)) == ["add", "broadcast", "conv", "tanh"]
    (rewrite,) = made.applied
    assert not rewrite.exact and "conv-scale" in str(rewrite)
    assert [s.proof for s in rewrite.steps] == ["real arithmetic"] * 4


@pytest.mark.row("C3")
def test_sums_of_convolutions_are_one_only_where_stride_padding_and_dilation_agree() -> None:
    x, w, v = tensor(1, 3, 11, 11), weight(4, 3, 3, 3), weight(4, 3, 3, 3)
    made = found([x, w, v], [B.add(conv(x, w, 1), conv(x, v, 1))])
    assert ops(made.graph) == ["conv"]
    others = [(conv(x, w, 0), conv(x, v, 1, dilation=2)), (conv(x, w, 1, 2), conv(x, v, 2, 2, dilation=2))]
    for first, second in others:
        if first.shape != second.shape:
            second = conv(x, v, 1, dilation=2)
        if first.shape == second.shape:
            assert ops(found([x, w, v], [B.add(first, second)]).graph) == ["conv", "conv", "add"]


@pytest.mark.row("C4")
def test_a_convolution_1x1_is_enlarged_for_a_branch_3x3_on_one_machine_and_not_on_another() -> None:
    x, w, v = tensor(1, 4, 10, 10), weight(8, 4, 3, 3), weight(8, 4, 1, 1)
    branches = [B.tanh(conv(x, w, 1)), B.exp(conv(x, v))]
    wide = found([x, w, v], branches, WIDE)
    assert ops(wide.graph).count("conv") == 1
    assert [s.rule for s in wide.applied[-1].steps] == ["conv-enlarge", "side by side", "parts of conv"]
    gemm = found([x, w, v], branches, GEMM)
    assert ops(gemm.graph).count("conv") == 2
    (refused,) = (r for r in gemm.rejected if len(r.replaced) == 2)
    assert refused.seconds > refused.before_seconds and refused.refused == "it is not cheaper"


@pytest.mark.row("C4")
def test_a_sum_of_3x3_and_1x1_becomes_one_3x3() -> None:
    x, w, v = tensor(1, 4, 10, 10), weight(8, 4, 3, 3), weight(8, 4, 1, 1)
    assert ops(found([x, w, v], [B.add(conv(x, w, 1), conv(x, v))]).graph) == ["conv"]


def test_three_projections_of_one_input_are_one_product_where_launches_cost() -> None:
    x, weights = tensor(2, 5, 8), [weight(n, 8) for n in (8, 8, 4)]
    each = [B.tanh(B.contract(x, w, spec="abk,nk->abn")) for w in weights]
    made = found([x, *weights], each, WIDE)
    assert ops(made.graph).count("contract") == 1
    assert len(made.applied) == 1 and len(made.applied[0].replaced) == 3


def test_parallel_branches_of_an_image_are_one_convolution() -> None:
    x, weights = tensor(1, 6, 7, 7), [weight(n, 6, 1, 1) for n in (4, 6, 2)]
    made = found([x, *weights], [B.tanh(conv(x, w)) for w in weights], WIDE)
    assert ops(made.graph).count("conv") == 1


@pytest.mark.parametrize(("sizes", "leftmost"), [((40, 3, 40, 3), False), ((3, 40, 3, 40), True)])
def test_a_product_of_three_matrices_is_taken_in_the_order_its_sizes_make_cheap(
    sizes: tuple[int, ...], leftmost: bool
) -> None:
    x, y, z = (tensor(m, n) for m, n in itertools.pairwise(sizes))
    for given in (product(product(x, y), z), product(x, product(y, z))):
        made = found([x, y, z], [given])
        (result,) = made.graph.outputs
        assert (result.inputs[0].op.name == "contract") == leftmost
        assert bool(made.applied) == (made.graph.outputs[0] is not given)


def test_transposes_that_cancel_do_so_in_exact_arithmetic() -> None:
    x = tensor(30, 20)
    made = found([x], [transposed(B.exp(B.neg(transposed(x))))], real=False)
    assert ops(made.graph) == ["neg", "exp"]
    assert made.applied[0].exact
    array = np.linspace(-3, 3, 600, dtype=np.float32).reshape(30, 20)
    before = Graph([x], [transposed(B.exp(B.neg(transposed(x))))])
    assert interpret(before, [array])[0][0].tobytes() == interpret(made.graph, [array])[0][0].tobytes()


def test_rules_of_real_arithmetic_are_not_applied_where_bits_count() -> None:
    x, w, v = tensor(1, 3, 9, 9), weight(4, 3, 3, 3), weight(4, 3, 3, 3)
    graph = Graph([x, w, v], [B.add(conv(x, w), conv(x, v))])
    made = search(graph, RULES, GEMM, real=False)
    assert made.graph is graph and not made.applied


# -- what must stay ------------------------------------------------------------------------------------------
def sum_of_convolutions() -> tuple[list[Node], Node, Node]:
    x, w, v = tensor(1, 3, 9, 9), weight(4, 3, 3, 3), weight(4, 3, 3, 3)
    first = conv(x, w, 1)
    return [x, w, v], first, B.add(first, conv(x, v, 1))


@pytest.mark.row("C6")
def test_a_rewrite_is_refused_where_an_interior_value_is_an_output() -> None:
    inputs, first, total = sum_of_convolutions()
    graph = Graph(inputs, [total, first])
    assert search(graph, RULES, GEMM).graph is graph


@pytest.mark.row("C6")
def test_a_rewrite_is_refused_where_an_interior_value_is_read_elsewhere() -> None:
    inputs, first, total = sum_of_convolutions()
    made = search(Graph(inputs, [B.tanh(total), B.exp(first)]), RULES, GEMM)
    assert ops(made.graph).count("add") == 1 and not any("conv-conv-add" in str(r) for r in made.applied)


@pytest.mark.row("C6")
def test_a_rewrite_is_refused_where_an_interior_value_becomes_a_state() -> None:
    inputs, first, total = sum_of_convolutions()
    state = tensor(*first.shape)
    graph = Graph([*inputs, state], [total], [(state, first)])
    assert search(graph, RULES, GEMM).graph is graph


@pytest.mark.row("C6")
def test_batch_norm_stays_where_its_convolution_is_an_output_too() -> None:
    x, w, parts = tensor(2, 3, 9, 9), weight(6, 3, 3, 3), [weight(6) for _ in range(4)]
    y = conv(x, w, 1)
    made = found([x, w, *parts], [batch_norm(y, *parts), y])
    assert ops(made.graph).count("conv") == 1 and y in made.graph.nodes


def test_what_depends_on_each_other_is_not_joined() -> None:
    x, w = tensor(6, 6), tensor(6, 6)
    first = product(x, w)
    second = product(x, first)
    made = found([x, w], [B.tanh(first), second], WIDE)
    assert ops(made.graph).count("contract") == 2


def test_what_reads_one_of_several_results_is_rewritten_and_they_are_left_alone() -> None:
    q, k, v = (tensor(1, 2, 6, 8) for _ in range(3))
    result, _ = B.items(B.op("attention", q, k, v, scale=0.5, causal=False))
    rows, w, u = B.reshape(result, shape=(12, 8)), weight(8, 8), weight(8, 8)
    made = found([q, k, v, w, u], [B.tanh(B.add(product(rows, w), product(rows, u)))])
    assert ops(made.graph).count("attention") == ops(made.graph).count("contract") == 1


# -- how it ends ---------------------------------------------------------------------------------------------
def test_a_search_is_deterministic_and_ends_at_its_limit() -> None:
    x, weights = tensor(1, 6, 7, 7), [weight(n, 6, 1, 1) for n in (4, 6, 2)]
    graph = Graph([x, *weights], [B.tanh(conv(x, w)) for w in weights])
    first, second = (search(graph, RULES, WIDE) for _ in range(2))
    assert first.graph.digest == second.graph.digest and first.complete
    assert [str(r) for r in first.rejected] == [str(r) for r in second.rejected]
    cut = search(graph, RULES, WIDE, Limit(priced=2))
    assert cut.priced <= 2 and not cut.complete
    assert search(graph, RULES, WIDE, Limit(seconds=0.0)).graph is graph


def test_the_prices_of_tactics_fold_batch_norms_and_join_projections() -> None:
    pricer = Pricer(TARGETS["avx512"])

    def compare(graph: Graph, replaced: object) -> tuple[float, float]:
        made = pricer.compare(graph, replaced)  # type: ignore[arg-type]
        return made.before.seconds, made.after.seconds

    def price(graph: Graph) -> float:
        return pricer(graph).seconds

    x, w, parts = tensor(1, 16, 28, 28), weight(32, 16, 3, 3), [weight(32) for _ in range(4)]
    made = found([x, w, *parts], [B.tanh(batch_norm(conv(x, w, 1), *parts))], price, compare=compare)
    assert sorted(ops(made.graph)) == ["add", "broadcast", "conv", "tanh"]
    x, weights = tensor(2, 64, 64), [weight(64, 64) for _ in range(3)]
    each = [B.tanh(B.contract(x, w, spec="abk,nk->abn")) for w in weights]
    made = found([x, *weights], each, price, compare=compare)
    assert ops(made.graph).count("contract") == 1
