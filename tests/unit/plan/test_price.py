"""Prices of graphs: the kernels a compilation makes, without making them."""

from __future__ import annotations

import pytest
from layout import IMPORTED
from plan_programs import DENSE, LOOP

from stratal.base import tuning
from stratal.base.dtypes import float32
from stratal.base.target import TARGETS
from stratal.base.types import TensorType
from stratal.compiler import decided, prepare
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import Node, graph_input
from stratal.graph.text import parse_graph
from stratal.plan.price import Pricer, price
from stratal.schedule.select import watched_problems

pytestmark = pytest.mark.quick
assert IMPORTED

TARGET = TARGETS["avx512"]


def vector(*shape: int, frozen: bool = False) -> Node:
    return graph_input("x", TensorType(float32, shape), frozen=frozen)


def layers(count: int, size: int = 64) -> Graph:
    """Return a graph of equal layers: tanh(x w + b)."""
    b, x, inputs = Builder(), vector(size, size), []
    inputs.append(x)
    for _ in range(count):
        w, bias = vector(size, size), vector(size)
        inputs += [w, bias]
        rows = b.broadcast(bias, shape=(size, size), axes=(1,))
        x = b.tanh(b.add(b.contract(x, w, spec="mk,kn->mn"), rows))
    return Graph(inputs, [x])


def test_a_price_has_the_kernels_and_tactics_of_a_compilation() -> None:
    graph = prepare(parse_graph(DENSE), TARGET)
    with watched_problems() as compiled:
        draft = decided(graph, TARGET).draft
    found = price(graph, TARGET)
    assert [k.tactic for k in found.why] == [str(candidate) for _, candidate in compiled]
    assert len(found.why) == len(draft.kernels)
    assert found.seconds == pytest.approx(sum(k.seconds for k in found.why))


def test_bytes_are_those_of_values_in_memory_each_once() -> None:
    b = Builder()
    x, w = vector(1000, 100), vector(100)
    graph = Graph([x, w], [b.add(b.mul(x, x), b.broadcast(w, shape=(1000, 100), axes=(1,)))])
    assert price(graph, TARGET).bytes == 4 * (2 * 100_000 + 100)


def test_kernels_of_equal_structure_are_priced_once() -> None:
    pricer = Pricer(TARGET)
    found = pricer(layers(5))
    before = len(pricer._kernels)
    again = pricer(layers(9))
    assert (len(found.why), len(again.why)) == (5, 9)
    assert before == len(pricer._kernels) == 1


def test_a_tuning_record_takes_the_place_of_the_estimate() -> None:
    graph = layers(1)
    with watched_problems() as compiled:
        decided(graph, TARGET)
    ((problem, candidate),) = compiled
    record = tuning.Record(
        problem.digest, TARGET.digest, "", "time", candidate.algorithm, candidate.parameters, 0.125, 0,
        "", 1.0, 0, 1, 1, "2026-01-01T00:00:00", "",
    )  # fmt: skip
    with tuning.using(tuning.Records([record])):
        (kernel,) = price(graph, TARGET).why
    assert (kernel.seconds, kernel.basis) == (0.125, "measured")


def test_a_loop_costs_its_body_as_often_as_it_turns() -> None:
    found = price(parse_graph(LOOP), TARGET)
    assert max(k.calls for k in found.why) > 1
    assert found.seconds > sum(k.seconds for k in found.why)


def test_what_frozen_inputs_decide_alone_costs_nothing() -> None:
    b = Builder()
    x, w = vector(64, 64), vector(64, 64, frozen=True)
    plain, of_exponentials = (b.contract(x, y, spec="mk,kn->mn") for y in (w, b.exp(w)))
    prices = [price(Graph([x, w], [product]), TARGET).seconds for product in (plain, of_exponentials)]
    assert prices[0] == prices[1]


def test_a_comparison_prices_the_kernels_around_what_is_replaced_and_no_others() -> None:
    graph = layers(8)
    pricer, b = Pricer(TARGET), Builder()
    (last,) = graph.outputs
    middle = [n for n in graph.nodes if n.op.name == "contract"][4]
    found = pricer.compare(graph, {middle: b.neg(b.neg(middle))})
    assert 1 <= len(found.before.why) <= 3
    assert 0 < found.after.seconds - found.before.seconds < 0.05 * found.before.seconds  # they join
    total = b.sum(last, axes=(0, 1))
    wide = Graph(graph.inputs, [total])
    dearer = b.reduce_max(b.exp(b.exp(last)), axes=(0, 1))
    assert pricer.compare(wide, {total: dearer}).saved_seconds < 0


def test_a_comparison_agrees_with_the_prices_of_the_whole_graphs() -> None:
    b = Builder()
    x, y, z = vector(512, 16), vector(16, 512), vector(512, 16)

    def product(p: Node, q: Node) -> Node:
        return b.contract(p, q, spec="mk,kn->mn")

    left, right = product(product(x, y), z), product(x, product(y, z))
    before, after = (Graph([x, y, z], [b.tanh(r)]) for r in (left, right))
    pricer = Pricer(TARGET)
    saved = pricer(before).seconds - pricer(after).seconds
    assert saved > 0
    assert pricer.compare(before, {left: right}).saved_seconds == pytest.approx(saved)


def test_a_price_prints_a_row_for_equal_kernels() -> None:
    text = str(price(layers(3), TARGET))
    assert "3 kernels" in text.splitlines()[0]
    assert len(text.splitlines()) == 3
    assert "contract+add+tanh" in text


def test_elements_read_apart_from_their_neighbours_cost_more_than_a_copy_of_them() -> None:
    b, x, y = Builder(), vector(512, 512), vector(512, 512)
    straight = price(Graph([x, y], [b.add(b.exp(x), y)]), TARGET)
    turned = price(Graph([x, y], [b.add(b.permute(b.exp(x), perm=(1, 0)), y)]), TARGET)
    assert straight.bytes == turned.bytes
    assert turned.seconds > 1.2 * straight.seconds


def test_products_are_priced_at_the_rate_of_the_target() -> None:
    x, y = vector(512, 512), vector(512, 512)
    graph = Graph([x, y], [Builder().contract(x, y, spec="mk,kn->mn")])
    found = Pricer(TARGET, threads=1)(graph).seconds
    assert 1 < found / (2 * 512**3 / TARGET.peak_flops()) < 1.5


def test_kernels_of_a_program_that_caches_hold_are_cheaper() -> None:
    b, x, large = Builder(), vector(1000), vector(5000, 1000)
    small = b.exp(x)
    pricer = Pricer(TARGET)
    (alone,) = pricer(Graph([x], [small])).why
    beside = min(pricer(Graph([x, large], [small, b.exp(large)])).why, key=lambda kernel: kernel.bytes)
    assert alone.bytes == beside.bytes
    assert alone.seconds < beside.seconds


def test_a_comparison_knows_which_operands_are_frozen() -> None:
    b = Builder()
    x, w, v = vector(64, 64), vector(64, 64, frozen=True), vector(64, 64, frozen=True)
    left = b.add(b.contract(x, w, spec="mk,kn->mn"), b.contract(x, v, spec="mk,kn->mn"))
    right = b.contract(x, b.add(w, v), spec="mk,kn->mn")
    graph = Graph([x, w, v], [left])
    pricer = Pricer(TARGET)
    found = pricer.compare(graph, {left: right})
    assert found.after.seconds == pytest.approx(pricer(Graph(graph.inputs, [right])).seconds)
    assert found.before.seconds == pytest.approx(pricer(graph).seconds)
    assert len(found.after.why) == 1  # the sum of both weights is computed once, before all runs
