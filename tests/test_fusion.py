"""Which ops share a kernel, by the kernels that compiled graphs launch; results against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import check_graph

from stratal.autodiff import trace
from stratal.base.artifact import Launch, flat
from stratal.base.dtypes import float32
from stratal.base.types import TensorType
from stratal.compiler import compile_graph
from stratal.graph.graph import Graph
from stratal.graph.node import Node
from stratal.loops.interpret import run_kernel

WIDE = TensorType(float32, (6, 80))


def kernels(graph: Graph) -> list[str]:
    """Check a graph against the reference and return the labels of its kernels."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(i.aval.ints).astype(i.dtype.np) for i in graph.inputs]
    faults = check_graph(graph, arrays)
    assert not faults, "\n".join(faults)
    return [c.label for c in flat(compile_graph(graph).executable.commands) if isinstance(c, Launch)]


def piece(b: Any, x: Node, start: int, stop: int) -> Node:
    return b.slice(x, start=(0, start), stop=(x.shape[0], stop), step=(1, 1))


def test_functions_of_slices_of_one_product_share_a_kernel() -> None:
    def gates(b: Any, x: Node, w: Node) -> list[Node]:
        y = b.contract(x, w, spec="ak,kn->an")
        return [b.logistic(piece(b, y, 0, 40)), b.tanh(piece(b, y, 40, 80)), b.exp(piece(b, y, 20, 60))]

    assert len(kernels(trace(gates, [WIDE, TensorType(float32, (80, 80))]))) == 2


def test_functions_that_share_a_scalar_alone_run_where_their_readers_do() -> None:
    def scaled(b: Any, x: Node, y: Node, s: Node) -> list[Node]:
        factor = b.broadcast(b.exp(s), shape=x.shape, axes=())
        return [b.sum(b.mul(x, factor), axes=(1,)), b.sum(b.mul(y, factor), axes=(1,))]

    assert len(kernels(trace(scaled, [WIDE, WIDE, TensorType(float32, ())]))) == 3


def test_independent_functions_of_inputs_that_one_kernel_needs_whole_share_a_kernel() -> None:
    def product(b: Any, x: Node, y: Node) -> list[Node]:
        return [b.contract(b.exp(x), b.tanh(y), spec="ak,bk->ab")]

    assert len(kernels(trace(product, [WIDE, WIDE]))) == 2


def test_a_sum_of_biases_runs_before_the_product_that_it_is_added_to() -> None:
    tall, row = TensorType(float32, (40, 80)), TensorType(float32, (80,))

    def linear(b: Any, x: Node, w: Node, p: Node, q: Node) -> list[Node]:
        y = b.contract(x, w, spec="ak,kn->an")
        return [b.add(y, b.broadcast(b.add(p, q), shape=y.shape, axes=(1,)))]

    made = kernels(trace(linear, [tall, TensorType(float32, (80, 80)), row, row]))
    assert made == ["add", "contract+add"]


@pytest.mark.parametrize("rows", [(5,), (1,), (1, 1), (1, 3, 1)])
def test_a_row_kernel_finds_the_values_of_its_row_whatever_the_number_of_rows(rows: tuple[int, ...]) -> None:
    def norm(b: Any, x: Node, weight: Node) -> list[Node]:
        return [b.softmax(b.layer_norm(x, weight), axis=-1)]

    assert len(kernels(trace(norm, [TensorType(float32, (*rows, 80)), TensorType(float32, (80,))]))) == 1


def test_the_first_columns_of_a_product_are_stored_within_their_rows() -> None:
    def gate(b: Any, x: Node, w: Node) -> list[Node]:
        y = b.contract(x, w, spec="ak,kn->an")
        return [y, b.logistic(piece(b, y, 0, 40))]

    program = compile_graph(trace(gate, [WIDE, TensorType(float32, (80, 80))]))
    (scheduled,) = program.draft.kernels.values()
    kernel, rng = scheduled.kernel, np.random.default_rng(1)
    arrays = {p: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.parameters}
    assert run_kernel(kernel, arrays) == 0  # it raises at the first index outside
    product, gated = (arrays[p] for p in kernel.writes)
    np.testing.assert_allclose(gated, 1 / (1 + np.exp(-product[:, :40])), rtol=1e-6)


@pytest.mark.parametrize("perm", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_a_maximum_of_windows_and_its_place_share_a_kernel(perm: tuple[int, ...]) -> None:
    """Of equal elements the first in the window's order wins, whatever the order in memory."""
    geometry = {"window": (1, 3, 2), "strides": (1, 3, 2), "padding": ((0, 0),) * 3, "dilation": (1, 1, 1)}

    def pooled(b: Any, x: Node) -> list[Node]:
        y = b.permute(x, perm=perm)
        return [b.window_reduce(y, kind="max", **geometry), b.op("window_argmax", y, **geometry)]

    graph = trace(pooled, [TensorType(float32, (36, 36, 36))])
    assert kernels(graph) == ["window_reduce+window_argmax"]
    x = np.random.default_rng(0).choice([1, 2, np.nan, -np.inf], (36, 36, 36), p=(0.3, 0.1, 0.1, 0.5))
    check_graph(graph, [x.astype(np.float32)])
