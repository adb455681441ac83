"""Vectors whose lanes lie apart in memory: read and written with their neighbours, turned in registers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from layout import SUPPORT

import stratal as st
from stratal.base import settings
from stratal.base.dtypes import bfloat16, float16, float32, float64, int8, int32, int64
from stratal.base.types import TensorType
from stratal.codegen.module import kernel_module
from stratal.compiler import compile_graph
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.interpret import interpret
from stratal.graph.node import graph_input
from stratal.plan.host import current_target
from stratal.runtime.storage import Storage

SHAPES = [(16, 16), (64, 48), (33, 70), (5, 19), (130, 3), (3, 130), (1, 40)]

READ_ACROSS = ("permute", "pad", "conv", "contract")


def turned(shape: tuple[int, ...], dtype: Any) -> Graph:
    """Return y = transpose(x), of which an element-wise kernel reads one side across its lines."""
    x, z = graph_input("x", TensorType(dtype, shape)), graph_input("z", TensorType(dtype, shape[::-1]))
    b = Builder(())
    y = b.permute(x, perm=(1, 0))
    return Graph([x, z], [b.max(y, z)], name="turned")


def padded(shape: tuple[int, ...]) -> Graph:
    """Return images with channels last and zeros around: rows at the edge have fewer neighbours."""
    x = graph_input("x", TensorType(float32, shape))
    w = graph_input("w", TensorType(float32, (5, shape[1], 2, 3)))
    plain = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "groups": 1}
    return Graph([x, w], [Builder(()).conv(x, w, padding=((1, 0), (1, 2)), **plain)], name="padded")


def faults(graph: Graph, *, exact: bool) -> str:
    rng = np.random.default_rng(0)
    values = [(rng.standard_normal(n.shape) * 50).astype(n.dtype.np) for n in graph.inputs]
    (want,), _ = interpret(graph, values)
    program = compile_graph(graph)
    given = [Storage.copy_of(a, n.aval) for a, n in zip(values, graph.inputs, strict=True)]
    (got,) = (np.array(s.array) for s in program.run(given))
    if not exact and want.dtype.itemsize < 4:
        got, want = got.astype(np.float32), want.astype(np.float32)
        same = bool(np.all(np.abs(got - want) <= 0.01 * np.abs(want).max()))
    else:
        same = np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-4, atol=2e-2)
    return "" if same else f"{graph.name} {graph.inputs[0].type}"


@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", [float32, float64, int32, int64, float16], ids=str)
def test_a_transpose_moves_every_element(dtype: Any, target: str) -> None:
    with settings.target(target), settings.cache_dir(None):
        found = [faults(turned(shape, dtype), exact=True) for shape in SHAPES]
    assert not any(found), found


@pytest.mark.parametrize("target", ["host", "haswell"])
def test_edges_are_zero_and_nothing_beyond_them_is_needed(target: str) -> None:
    with settings.target(target), settings.cache_dir(None):
        found = [faults(padded(x), exact=False) for x in ((2, 16, 7, 9), (1, 35, 5, 18), (3, 64, 3, 2))]
    assert not any(found), found


def test_no_gather_is_left_in_a_transpose() -> None:
    with settings.cache_dir(None):
        program = compile_graph(turned((64, 48), float32))
    (scheduled,) = program.draft.kernels.values()
    assert "gather" not in kernel_module(scheduled.kernel, current_target())


def product(spec: str, dtype: Any, **sizes: int) -> Graph:
    left, right = spec.partition("->")[0].split(",")
    x, w = (
        graph_input(name, TensorType(dtype, tuple(sizes[c] for c in letters)))
        for name, letters in (("x", left), ("w", right))
    )
    return Graph([x, w], [Builder(()).contract(x, w, spec=spec)], name=f"product {spec}")


@pytest.mark.sampled(13)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, int8], ids=str)
def test_panels_across_lines_hold_what_they_should(dtype: Any, target: str) -> None:
    """Sizes that fill neither vectors nor panels nor words: lanes beyond the end are left out."""
    graphs = [
        product(spec, dtype, m=m, k=k, n=n)
        for spec in ("mk,nk->mn", "km,nk->mn", "mk,kn->nm", "km,kn->nm")
        for m, k, n in ((37, 41, 20), (70, 64, 53), (21, 19, 5), (64, 130, 33))
    ]
    with settings.target(target), settings.cache_dir(None):
        found = [faults(graph, exact=dtype is int8) for graph in graphs]
    assert not any(found), found


def test_rows_of_which_the_first_come_from_elsewhere_are_read_where_they_are() -> None:
    x, y = (graph_input(name, TensorType(float32, (n, 5))) for name, n in (("x", 1), ("y", 17)))
    b = Builder(())
    joined = b.concatenate(x, y, x, axis=0)
    graph = Graph([x, y], [b.permute(b.add(joined, joined), perm=(1, 0))], name="joined")
    with settings.cache_dir(None):
        assert not faults(graph, exact=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sizes", [(332, 91, 20), (103, 159, 47), (199, 39, 11)], ids=str)
def test_no_gather_is_left_where_lanes_are_known(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    for spec in ("mk,nk->mn", "mk,kn->nm"):
        with settings.cache_dir(None):
            program = compile_graph(product(spec, float32, m=m, k=k, n=n))
        text = [kernel_module(s.kernel, current_target()) for s in program.draft.kernels.values()]
        assert not any("gather" in t or "scatter" in t for t in text), spec


@pytest.mark.sampled(5)
def test_no_byte_beyond_a_buffer_is_touched() -> None:
    """The kernels of these records read and write across lines; every buffer ends at a page of its own."""
    command = [sys.executable, str(SUPPORT / "guard_worker.py"), "records", *READ_ACROSS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def windows(shape: tuple[int, ...], window: int, stride: int, padding: int, dtype: Any, kind: str) -> Graph:
    """Return pooling along the last axis, or for images along the last two."""
    x = graph_input("x", TensorType(dtype, shape))
    kept = len(shape) - 1 if len(shape) < 4 else 2
    around = {
        "window": (*(1,) * kept, *(window,) * (len(shape) - kept)),
        "strides": (*(1,) * kept, *(stride,) * (len(shape) - kept)),
        "padding": (*((0, 0),) * kept, *((padding, padding),) * (len(shape) - kept)),
        "dilation": (1,) * len(shape),
    }
    b = Builder(())
    y = b.window_argmax(x, **around) if kind == "argmax" else b.window_reduce(x, kind=kind, **around)
    return Graph([x], [y], name=f"{kind} of {window} at {stride}")


@pytest.mark.sampled(20)
@pytest.mark.parametrize("target", ["host", "haswell"])
@pytest.mark.parametrize("dtype", [float32, float64, int32, bfloat16, int8], ids=str)
def test_windows_next_to_each_other_are_read_in_vectors(dtype: Any, target: str) -> None:
    cases = [
        (shape, window, stride, padding, kind)
        for shape in ((3, 67), (2, 2, 9, 71), (1, 130))
        for window, stride, padding in (
            (2, 2, 0),
            (3, 2, 0),
            (3, 2, 1),
            (2, 3, 0),
            (5, 4, 2),
            (4, 1, 0),
            (7, 7, 0),
        )
        for kind in (("max", "sum", "argmax") if dtype is float32 else ("max",))
    ]
    with settings.target(target), settings.cache_dir(None):
        found = [faults(windows(*c[:4], dtype, c[4]), exact=c[4] != "sum") for c in cases]
    assert not any(found), found


@pytest.mark.parametrize("target", ["host", "haswell"])
def test_every_second_to_fifth_element_is_read_in_vectors(target: str) -> None:
    values = np.arange(3 * 203, dtype=np.float32).reshape(3, 203)
    with settings.target(target), settings.cache_dir(None):
        for step in (2, 3, 4, 5):
            for first in (0, 1, 3):
                found = st.compile(lambda x, a=first, s=step: x[:, a::s] + x[:, a::s] * 2)(st.tensor(values))
                np.testing.assert_array_equal(found.numpy(), 3 * values[:, first::step])


def test_no_gather_is_left_in_pooling() -> None:
    with settings.cache_dir(None):
        program = compile_graph(windows((4, 256), 2, 2, 0, float32, "max"))
    (scheduled,) = program.draft.kernels.values()
    assert "gather" not in kernel_module(scheduled.kernel, current_target())
