"""The random graphs of the differential tests, and what they say of rewriting and autodiff."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from graphs import count_nodes, disagreements, random_graph

from stratal.autodiff import jvp_graph, vjp_graph
from stratal.base.dtypes import float64
from stratal.base.errors import NotDifferentiableError
from stratal.graph.graph import Graph, verify
from stratal.graph.interpret import interpret
from stratal.graph.text import parse_graph
from stratal.optimize.simplify import simplify

pytestmark = pytest.mark.quick

SEEDS = range(300)


def results(graph: Graph, inputs: list[Any]) -> list[Any]:
    outputs, states = interpret(graph, inputs)
    return outputs + states


def op_names(graph: Graph) -> Counter[str]:
    names = Counter(n.op.name for n in graph.nodes)
    for node in graph.nodes:
        for value in node.op.attributes.values():
            if isinstance(value, Graph):
                names += op_names(value)
    return names


def test_a_seed_gives_the_same_graph_and_inputs() -> None:
    for seed in range(0, 300, 30):
        (a, xs), (b, ys) = random_graph(seed), random_graph(seed)
        assert a == b and all(np.array_equal(x, y) for x, y in zip(xs, ys, strict=True))


@pytest.mark.sampled(4)
def test_the_graphs_are_varied() -> None:
    seen, dtypes, shared, updated = Counter[str](), set(), 0, 0
    sizes = []
    for seed in SEEDS:
        graph, _ = random_graph(seed)
        seen += Counter(dict.fromkeys(op_names(graph), 1))
        dtypes |= {n.dtype.name for n in graph.inputs}
        read = {i for n in graph.nodes for i in n.inputs}
        shared += any(o in read for o in graph.outputs)
        updated += bool(graph.updates)
        sizes.append(count_nodes(graph))
    for name in ("cond", "scan", "random_bits", "contract", "sum", "reduce_max", "pad", "permute", "reshape",
                 "slice", "broadcast", "concatenate", "gather", "scatter",
                 "select", "cast", "flip"):  # fmt: skip
        assert seen[name] >= 12, f"{name}: in {seen[name]} of {len(SEEDS)} graphs"
    assert dtypes >= {"float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "bool"}
    assert shared > 60 and updated > 20 and np.median(sizes) > 12


@pytest.mark.sampled(8)
@pytest.mark.row("C1")
@pytest.mark.parametrize("start", range(0, len(SEEDS), 60))
def test_simplified_graphs_give_what_the_originals_give(start: int) -> None:
    fewer = 0
    for seed in SEEDS[start : start + 60]:
        graph, inputs = random_graph(seed)
        small = verify(simplify(verify(graph)))
        bad = disagreements(graph, inputs, results(small, inputs), results(graph, inputs))
        assert not bad, f"seed {seed}, results {bad}\n{graph}\n{small}"
        assert count_nodes(small) <= count_nodes(graph) + 2, f"seed {seed}"
        assert simplify(small) == small, f"seed {seed}: simplifying twice changes more"
        fewer += count_nodes(small) < count_nodes(graph)
    assert fewer > 20


def test_random_graphs_survive_their_text_form() -> None:
    for seed in SEEDS[::10]:
        graph, _ = random_graph(seed)
        assert parse_graph(str(graph)) == graph, f"seed {seed}"


@pytest.mark.sampled(7)
@pytest.mark.row("A4")
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_forward_and_reverse_mode_are_transposes_of_each_other(start: int) -> None:
    """<ct, J t> = <J' ct, t>: no step size, no truncation, so the whole graph is checked to rounding."""
    checked = 0
    for seed in range(start, start + 50):
        graph, inputs = random_graph(seed, (float64,))
        graph = Graph(graph.inputs, [o for o in graph.outputs if o.dtype.is_float], name=graph.name)
        marks = [i.dtype.is_float for i in graph.inputs]
        try:
            forward, reverse = jvp_graph(graph, marks), vjp_graph(graph, marks)
        except NotDifferentiableError:
            continue
        rng = np.random.default_rng(seed)
        tangents = [rng.uniform(-1, 1, i.shape) for i, mark in zip(graph.inputs, marks, strict=True) if mark]
        cotangents = [rng.uniform(-1, 1, o.shape) for o in graph.outputs]
        moved = interpret(forward, [*inputs, *tangents])[0][len(graph.outputs) :]
        pulled = interpret(verify(reverse), [*inputs, *cotangents])[0]
        left = [np.sum(c * t) for c, t in zip(cotangents, moved, strict=True)]
        right = [np.sum(c * t) for c, t in zip(pulled, tangents, strict=True)]
        scale = sum(
            np.sum(np.abs(c * t)) for c, t in zip([*cotangents, *pulled], [*moved, *tangents], strict=True)
        )
        assert abs(sum(left) - sum(right)) <= 1e-11 * max(scale, 1), f"seed {seed}: {sum(left)}, {sum(right)}"
        checked += scale > 0
    assert checked > 35
