"""Rows of the mission that no other file shows whole."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layout import ROOT

import stratal as st
import stratal.distributed.records  # its records count, whichever test runs first
from stratal import nn
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import Const, Input
from stratal.graph.op import REGISTRY
from stratal.ops.annotations import Annotation
from stratal.ops.families import Elementwise
from stratal.tensor.lazy import program_cache
from stratal.tensor.lazy.flushing import lazily

F = nn.functional


@pytest.mark.row("A2")
def test_the_dump_of_a_graph_lists_op_shape_and_dtype_of_every_node() -> None:
    step = st.compile(lambda x, w: st.tanh(x @ w).sum(dim=1))
    step(st.ones((4, 3)), st.ones((3, 5)))
    graph = step.program.graph
    lines = str(graph).splitlines()
    for node in graph.nodes:
        if not isinstance(node.op, Const):
            name = "" if isinstance(node.op, Input) else node.op.name
            assert any(name in line and str(node.aval) in line for line in lines), node
    assert {"contract", "tanh"} <= {n.op.name for n in graph.nodes}


@pytest.mark.row("A2")
def test_numpy_sees_the_memory_of_a_tensor_itself() -> None:
    x = st.tensor(np.arange(6, dtype=np.float32)) + 1.0
    a, b = np.asarray(x), np.asarray(x)
    assert a.ctypes.data == b.ctypes.data == x._storage.address


@pytest.mark.row("A3")
def test_as_many_ops_run_as_the_fetched_value_has_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Graph] = []
    compile_graph = program_cache.compile_graph

    def counted(graph: Graph, **options: Any) -> Any:
        ran.append(graph)
        return compile_graph(graph, **options)

    monkeypatch.setattr(program_cache, "compile_graph", counted)
    rng = np.random.default_rng(0)
    start = st.tensor(rng.standard_normal(7).astype(np.float32))
    made, parents = [start], [set()]
    for k in range(30):
        i, j = rng.integers(0, len(made), 2)
        with lazily():
            made.append(st.maximum(made[i], made[j]) if k % 2 else made[i] * made[j])
        parents.append({int(i), int(j)})
    fetch = made[21]
    ancestors, queue = set(), [21]
    while queue:
        k = queue.pop()
        if k and k not in ancestors:
            ancestors.add(k)
            queue += parents[k]
    different = {made[k]._node for k in ancestors}  # equal expressions are one node
    del made
    gc.collect()
    fetch.numpy()
    (graph,) = ran
    assert sum(not isinstance(n.op, (Input, Const)) for n in graph.nodes) == len(different)


@pytest.mark.row("B4")
def test_compiling_a_model_fuses_relu_and_matmul_and_keeps_the_numbers() -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU())
    compiled = st.compile(model)
    x = st.tensor(np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32))
    assert np.array_equal(np.asarray(compiled(x)), np.asarray(model(x)))
    (kernel,) = [k for k in compiled.plan.kernels if k["tactic"] != "pack"]
    assert {"contract", "select"} <= set(kernel["ops"])  # relu(x) selects x or 0


@pytest.mark.row("C14")
def test_the_primitives_are_few_and_each_says_what_it_is() -> None:
    structural = [op for op in REGISTRY.values() if not issubclass(op, Elementwise | Annotation)]
    assert len(structural) <= 82  # functions of single numbers are many; annotations compute nothing
    for name, op in REGISTRY.items():
        assert op.__doc__, name
    assert {"broadcast", "sum", "conv", "window_reduce"} <= set(REGISTRY)


@pytest.mark.row("C14")
@pytest.mark.parametrize("length", [2, 10, 40])
def test_a_chain_of_element_wise_ops_is_one_kernel(length: int) -> None:
    functions = [st.tanh, lambda x: x * 0.75, st.sqrt, lambda x: 1.5 - x, st.abs, st.square]

    @st.compile
    def chain(x: Any) -> Any:
        for k in range(length):
            x = functions[k % len(functions)](x)
        return x

    x = np.random.default_rng(0).uniform(0.1, 1, (33, 17)).astype(np.float32)
    result = np.asarray(chain(st.tensor(x)))
    assert len(chain.plan.kernels) == 1
    (expected,), _ = interpret(chain.program.graph, [x])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(7)
def test_rows_are_shown_by_workers_of_xdist_too() -> None:
    pytest.importorskip("xdist")
    here = f"{Path(__file__)}::{test_numpy_sees_the_memory_of_a_tensor_itself.__name__}"
    command = [sys.executable, "-m", "pytest", "--rows", "-n", "2", "-p", "no:cacheprovider", here]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert "A2   passed" in done.stdout, done.stdout + done.stderr
