"""Blocks of scores that a mask by positions hides are left out, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base import settings
from stratal.compiler import compile_graph
from stratal.graph.graph import verify
from stratal.graph.interpret import interpret
from stratal.loops import index
from stratal.ops.control.blockwise import Tiles, tiles
from stratal.optimize.online import use_online_forms
from stratal.optimize.simplify import simplify
from stratal.runtime.storage import Storage
from stratal.schedule.tactics.hidden_blocks import Bounds, exactly, hidden

INF = float("inf")
ROWS, COLUMNS, WIDTH = 96, 130, 8
Seen = Callable[[Any, Any], Any]

SEEN: dict[str, Seen] = {
    "causal": lambda i, j: j <= i,
    "causal, from the end": lambda i, j: i + (COLUMNS - ROWS) >= j,
    "window": lambda i, j: (j <= i) & (i - j < 20),
    "window on both sides": lambda i, j: st.abs(i - j) < 20,
    "window and first keys": lambda i, j: (j <= i) & ((i - j < 20) | (j < 4)),
    "hidden in front": lambda i, j: ~((j < 40) | (j < i)),
    "every other position": lambda i, j: 2 * j <= i,
}


def chosen(s: Any, seen: Any) -> Any:
    return st.where(seen, s, -INF)


def filled(s: Any, seen: Any) -> Any:
    return s.masked_fill(~seen, -INF)


def added(s: Any, seen: Any) -> Any:
    return s + st.where(seen, 0.0, -INF)


def weighted(s: Any, seen: Any) -> Any:
    """With a soft cap and a bias by distance before the mask."""
    return chosen(3 * st.tanh(s / 3) - 0.1 * st.arange(s.shape[-1]).astype(s.dtype), seen)


def positions() -> tuple[Any, Any]:
    return st.arange(ROWS)[:, None], st.arange(COLUMNS)[None, :]


def captured(score: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(0)
    shapes = (1, 2, ROWS, WIDTH), (1, 2, COLUMNS, WIDTH), (1, 2, COLUMNS, WIDTH)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def loss(q: Any, k: Any, v: Any) -> Any:
        result = st.softmax(score(q @ k.mT), -1) @ v
        return (result * st.cos(result)).sum()

    step = st.compile(lambda *qkv: st.grad(loss, (0, 1, 2))(*qkv))
    with settings.online(None):
        step(*map(st.tensor, arrays))
    return step.graph, arrays


def passes(graph: Any) -> list[Tiles]:
    with settings.online(1):
        rewritten = use_online_forms(simplify(verify(graph)))
    found = [tiles(n.op.attributes["body"]) for n in rewritten.nodes if n.op.name == "blockwise"]
    assert found and all(isinstance(t, Tiles) for t in found)
    return found


def is_hidden(found: Tiles, first: int, start: int, size: int) -> bool:
    heads = [exactly(0)] * (len(found.shape) - 2)
    ends = [Bounds((index.as_expr(n),), (index.as_expr(n + size - 1),)) for n in (first, start)]
    conditions = hidden(found, [*heads, *ends])
    assert all(c.value is True for c in conditions)  # positions are known
    return bool(conditions)


@pytest.mark.parametrize("mask", [chosen, filled, added, weighted])
@pytest.mark.parametrize("name", SEEN)
def test_blocks_are_left_out_where_all_is_hidden(name: str, mask: Callable[[Any, Any], Any]) -> None:
    graph, _ = captured(lambda s: mask(s, SEEN[name](*positions())))
    seen = np.broadcast_to(SEEN[name](*positions()).numpy(), (ROWS, COLUMNS))
    size, count = 16, 0
    for found in passes(graph):
        for first in range(0, ROWS, size):
            for start in range(0, COLUMNS - size, size):
                block = seen[first : first + size, start : start + size]
                assert is_hidden(found, first, start, size) == (not block.any())
                count += not block.any()
    assert count


def lower_triangle(s: Any) -> Any:
    ones = st.ones(s.shape[-2:])
    return st.where(st.tril(ones) == 0, -INF, s)


def upper_triangle(s: Any) -> Any:
    return s + st.triu(st.full(s.shape[-2:], -INF), 1)


@pytest.mark.parametrize("score", [lower_triangle, upper_triangle])
def test_triangles_hide_blocks_too(score: Callable[[Any], Any]) -> None:
    graph, _ = captured(score)
    for found in passes(graph):
        assert is_hidden(found, 0, 64, 16)
        assert not is_hidden(found, 64, 64, 16)
        assert not is_hidden(found, 64, 0, 16)


def large_and_negative(s: Any) -> Any:
    """A row of which all is hidden so has equal weights."""
    i, j = positions()
    return st.where(j <= i, s, -1e9)



@pytest.mark.parametrize("score", [large_and_negative, lambda s: s, lambda s: chosen(3 * s, s > 0)])
def test_blocks_are_computed_where_nothing_proves_them_hidden(score: Callable[[Any], Any]) -> None:
    graph, _ = captured(score)
    assert not any(is_hidden(found, 0, 64, 16) for found in passes(graph))


@pytest.mark.parametrize("score", [lower_triangle, lambda s: weighted(s, SEEN["window"](*positions()))])
def test_results_are_those_of_all_blocks(score: Callable[[Any], Any]) -> None:
    graph, arrays = captured(score)
    want = interpret(graph, arrays)[0]
    with settings.online(1), settings.strict(True):
        program = compile_graph(graph)
        given = [Storage.copy_of(a, n.aval) for a, n in zip(arrays, graph.inputs, strict=True)]
        got = [np.array(s.array) for s in program.run(given)]
    for w, g in zip(want, got, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 * np.abs(w).max())
