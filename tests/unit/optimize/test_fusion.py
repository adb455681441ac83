"""Which ops share a kernel, by the kernels that compiled graphs launch; results against the reference."""

from __future__ import annotations

import re
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
from stratal.graph.text import parse_graph
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


@pytest.mark.quick
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


@pytest.mark.slow  # its kernel is interpreted
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


@pytest.mark.quick
def test_a_scalar_is_computed_in_the_kernel_of_one_row_that_reads_it() -> None:
    def scaled(b: Any, x: Node, t: Node) -> list[Node]:
        count = b.add(t, b.like(t, 1.0))
        decay = b.op("pow", count, b.like(t, -0.8))
        total = b.op("sum", b.mul(x, x), axes=(1, 2))
        return [b.mul(total, b.op("broadcast", decay, shape=(1,), axes=())), b.op("sqrt", count), count]

    kernels(trace(scaled, [TensorType(float32, (1, 10, 12)), TensorType(float32, ())]))


# relu of a softsign, in front of a product, and its gradient: the mask is read by one kernel of the gradient,
# and where that computes it again, it reads the quotient that another one would have computed again
GATED = """
graph "gated"(%0: T[4,33] = "x", %1: T[R,3,11] = "x", %2: T[R,33] = "x", %3: T[R,33] = "x",
  %4: bool[R,33] = "x", %5: T[R,4] = "x", %6: T[R,4] = "x", %7: T[R,33] = "x", %8: T[R,3,11] = "x",
  %9: bool[R,33] = "x", %10: T[R,33] = "x", %11: bool[R,33] = "x", %12: T[R,4] = "x",
  %13: T[R,3,11] = "x", %14: T[R,3,11] = "x", %15: T[R,4] = "x") {
  %16 = const() value=T[]{0.0} : T[]
  %17 = broadcast(%16) shape=(R, 33) axes=() : T[R,33]
  %18 = sub(%13, %14) : T[R,3,11]
  %19 = reshape(%18) shape=(R, 33) : T[R,33]
  %20 = abs(%19) : T[R,33]
  %21 = add(%2, %20) : T[R,33]
  %22 = div(%19, %21) : T[R,33]
  %23 = le(%22, %17) : bool[R,33]
  %24 = select(%23, %17, %22) : T[R,33]
  %25 = contract(%24, %0) spec="ak,nk->an" dtype=none : T[R,4]
  %26 = add(%25, %5) : T[R,4]
  %27 = sub(%6, %26) : T[R,4]
  %28 = mul(%12, %27) : T[R,4]
  %29 = add(%28, %28) : T[R,4]
  %30 = contract(%29, %0) spec="an,nk->ak" dtype=none : T[R,33]
  %31 = select(%4, %17, %30) : T[R,33]
  %32 = div(%31, %3) : T[R,33]
  %33 = sub(%1, %8) : T[R,3,11]
  %34 = reshape(%33) shape=(R, 33) : T[R,33]
  %35 = lt(%34, %17) : bool[R,33]
  %36 = select(%35, %10, %17) : T[R,33]
  %37 = select(%9, %2, %36) : T[R,33]
  %38 = mul(%7, %37) : T[R,33]
  %39 = add(%32, %38) : T[R,33]
  %40 = contract(%15, %0) spec="an,nk->ak" dtype=none : T[R,33]
  %41 = select(%23, %17, %40) : T[R,33]
  %42 = div(%41, %21) : T[R,33]
  %43 = mul(%42, %22) : T[R,33]
  %44 = neg(%43) : T[R,33]
  %45 = lt(%19, %17) : bool[R,33]
  %46 = select(%45, %10, %17) : T[R,33]
  %47 = select(%11, %2, %46) : T[R,33]
  %48 = mul(%44, %47) : T[R,33]
  return %39, %42, %48
}
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_what_a_kernel_reads_to_compute_a_result_again_keeps_its_buffer(dtype: str, rows: int) -> None:
    text = re.sub(r"\bT\b", dtype, re.sub(r"\bR\b", str(rows), GATED))
    assert kernels(parse_graph(text))


def test_what_is_sent_of_a_transposed_gradient_is_copied_by_tiles() -> None:
    def sent(b: Any, x: Node, w: Node) -> list[Node]:
        made = b.op("conv", x, w, strides=(1, 1), padding=((0, 0), (0, 0)), lhs_dilation=(1, 1),
                    rhs_dilation=(1, 1), groups=1)  # fmt: skip
        flat = b.reshape(b.permute(made, perm=(1, 0, 2, 3)), shape=(32 * 32 * 9,))
        return [b.op("all_reduce", flat, mesh_axis="data", ranks=1, op="sum", algorithm="")]

    graph = trace(sent, [TensorType(float32, (32, 16, 4, 4)), TensorType(float32, (32, 16, 2, 2))])
    assert not kernels(graph)[0].startswith("reshape")
    copies = [k for k in compile_graph(graph).plan.kernels if "permute" in k["ops"]]
    assert [k["tactic"] for k in copies] == ["transpose"], "a reshape would copy it element by element"
