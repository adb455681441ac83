"""The search over whole random graphs, at random prices: no value changes, in either arithmetic."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from random_expressions import extended
from search_networks import B, in_dtype, machine, tensor, weight

from stratal.base.dtypes import float64
from stratal.base.errors import StratalError
from stratal.discover.rules_file import read_rules
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Node, graph_input
from stratal.search.search import Limit, search

RULES, _ = read_rules()
ARITHMETICS = pytest.mark.parametrize("real", [True, False], ids=["real", "exact"])


def random_graph(rng: np.random.Generator) -> Graph:
    """Return a graph of some twenty ops: several outputs, a state, weights among its inputs."""
    inputs = [tensor(*shape) for shape in ((2, 3), (3, 2), (2, 3), (3, 4))]
    inputs += [weight(*shape) for shape in ((3, 2), (4, 3), (2, 3))]
    values: list[Node] = list(inputs)

    def draw(n: int) -> int:
        late = n == len(values) and rng.random() < 0.5  # so that graphs grow deep
        return n - 1 - int(rng.integers(min(n, 4))) if late else int(rng.integers(max(n, 1)))

    for _ in range(40):
        made = extended(draw, values)
        if rng.random() < 0.25:
            made = siblings(rng, values) or made
        if made is not None and 0 < np.prod(made.shape) <= 96 and made.aval.ndim <= 3:
            values.append(made)
    made = values[len(inputs) :]
    outputs = {made[-1], *(made[int(rng.integers(len(made)))] for _ in range(3))}
    new = made[int(rng.integers(len(made)))]
    state = graph_input("x", new.aval)
    return Graph([*inputs, state], [B.neg(o) for o in outputs], [(state, new)])


def siblings(rng: np.random.Generator, values: list[Node]) -> Node | None:
    """Return two products of one value, added, subtracted or side by side; None where shapes forbid it."""
    x, y, z = (values[int(rng.integers(len(values)))] for _ in range(3))
    try:
        first, second = (B.contract(x, w, spec="mk,kn->mn") for w in (y, z))
        if rng.random() < 0.4:
            return B.concatenate(first, second, axis=1)
        return B.op("add" if rng.random() < 0.5 else "sub", first, second)
    except StratalError:
        return None


def changed(seeds: Iterable[int], real: bool) -> int:
    """Search the graphs of some seeds, compare values in float64; return how many were rewritten.

    Inputs are small whole numbers, so that sums hardly round.
    """
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        graph = random_graph(rng)
        prices = machine(*(float(10 ** rng.uniform(-12, -4)) for _ in range(3)))
        made = search(graph, RULES, prices, Limit(priced=60), real=real).graph
        if made is graph:
            continue
        count += 1
        arrays = [rng.integers(-2, 3, i.shape).astype(np.float64) for i in graph.inputs]
        for got, want in zip(values_of(made, arrays), values_of(graph, arrays), strict=True):
            within = 1e-9 * max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=within, err_msg=f"seed {seed}")
    return count


def values_of(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return outputs and new states in float64."""
    roots = Graph(graph.inputs, [*graph.outputs, *(value for _, value in graph.updates)])
    return [np.asarray(a) for a in interpret(in_dtype(roots, float64), arrays)[0]]


@pytest.mark.row("C10")
@ARITHMETICS
def test_no_search_changes_a_value_of_a_random_graph(real: bool) -> None:
    assert changed(range(24), real) >= 3


def test_values_that_fit_along_no_axis_are_not_laid_side_by_side() -> None:
    assert not changed([2052], real=False)  # reshapes of f32[3,2] and f32[2,3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.row("C10")
@ARITHMETICS
def test_no_search_changes_a_value_of_five_thousand_random_graphs(real: bool) -> None:
    assert changed(range(1000, 6000), real) >= 500
