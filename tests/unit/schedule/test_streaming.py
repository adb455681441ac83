"""Arrays that no cache can hold: rows are fetched ahead, results are written past the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from differential import check_graph

from stratal.base import settings, target
from stratal.base.dtypes import bfloat16, bool_, float32, float64
from stratal.base.types import TensorType
from stratal.codegen.assemble import emit_assembly
from stratal.codegen.module import kernel_module
from stratal.compiler import compile_graph, decided
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph
from stratal.graph.node import graph_input
from stratal.plan import host
from stratal.runtime.storage import Storage

LARGE = (64, 256)


def rows(shape: tuple[int, int], dtype: Any = float32) -> Graph:
    """Return x less the mean of each row, over three passes."""
    x, b = graph_input("x", TensorType(dtype, shape)), Builder(())
    centred = b.sub(x, b.broadcast(b.mean(x, axes=(1,)), shape=shape, axes=(0,)))
    return Graph([x], [b.mul(centred, b.exp(x))], name="rows")


def sweep(shape: tuple[int, int], dtype: Any = float32) -> Graph:
    x, b = graph_input("x", TensorType(dtype, shape)), Builder(())
    return Graph([x], [b.eq(x, x) if dtype is bool_ else b.mul(x, x)], name="sweep")


def product(rows: int, columns: int) -> Graph:
    x, w = (graph_input(n, TensorType(float32, s)) for n, s in (("x", (rows, 512)), ("w", (512, columns))))
    return Graph([x, w], [Builder(()).contract(x, w, spec="mk,kn->mn", dtype=float32)], name="product")


def replaced(shape: tuple[int, int]) -> Graph:
    """Return an update of a state, whose new value lies where the old one does."""
    x, b = graph_input("x", TensorType(float32, shape)), Builder(())
    return Graph([x], [], [(x, b.add(b.mul(x, x), x))], name="replaced")


@pytest.fixture(params=["host", "haswell"])
def small_caches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[target.Target]:
    """A machine whose last cache holds less than a page."""
    machine = dataclasses.replace(host.target_named(request.param), l3_bytes=4000)
    monkeypatch.setattr(host, "host_target", lambda: machine)
    with settings.target("host"), settings.cache_dir(None):
        yield machine


def assembly(graph: Graph, machine: target.Target) -> str:
    kernels = decided(graph, machine).draft.kernels.values()
    return "\n".join(emit_assembly(kernel_module(k.kernel, machine), machine) for k in kernels)


@pytest.mark.parametrize("name", ["avx512", "haswell", "generic"])
def test_only_what_no_cache_holds_is_written_past_them(name: str) -> None:
    machine = target.TARGETS[name]
    tiny = dataclasses.replace(machine, l3_bytes=4000)
    for graph in (rows(LARGE), sweep(LARGE)) if name == "avx512" else (rows(LARGE),):  # whole lines a vector
        text = assembly(graph, tiny)
        assert "movntp" in text and text.count("sfence") == 1
        assert "movnt" not in assembly(graph, machine) and "sfence" not in assembly(graph, machine)


def test_only_large_rows_are_fetched_ahead() -> None:
    machine = target.TARGETS["avx512"]
    tiny = dataclasses.replace(machine, l3_bytes=4000)
    assert assembly(rows(LARGE), tiny).count("prefetcht1") == 256 // 64 * 4 // 4  # each line of a vector once
    assert "prefetch" not in assembly(rows(LARGE), machine)


def test_a_product_that_fills_half_of_the_last_cache_passes_it_and_is_not_fetched() -> None:
    machine = target.TARGETS["avx512"]
    graph, nbytes = product(240, 256), 4 * 240 * 256
    assert nbytes > machine.l1d_bytes
    held = assembly(graph, dataclasses.replace(machine, l3_bytes=2 * nbytes))
    assert "prefetch" in held and "movnt" not in held
    full = assembly(graph, dataclasses.replace(machine, l3_bytes=2 * nbytes - 1))
    assert "prefetch" not in full and "movnt" in full


def test_other_machines_write_as_before() -> None:
    neon = dataclasses.replace(target.TARGETS["neon"], l3_bytes=4000)
    assert "stnp" not in assembly(rows(LARGE), neon)


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, bool_], ids=str)
@pytest.mark.parametrize("shape", [LARGE, (63, 65), (5, 4111)])
def test_results_are_the_same(shape: tuple[int, int], dtype: Any, small_caches: target.Target) -> None:
    rng = np.random.default_rng(0)
    made = [sweep(shape, dtype)] if dtype is bool_ else [sweep(shape, dtype), rows(shape, dtype)]
    for graph in made:
        values = rng.standard_normal(shape).astype(dtype.np)
        assert not check_graph(graph, [values])


def test_a_state_is_written_where_it_lies(small_caches: target.Target) -> None:
    values = np.random.default_rng(0).standard_normal(LARGE).astype(np.float32)
    state = Storage.copy_of(values, TensorType(float32, LARGE))
    compile_graph(replaced(LARGE)).run([state])
    np.testing.assert_array_equal(state.array, values * values + values)
