"""Products over concatenations: pieces are multiplied where they lie if few rows meet them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import check_graph

from stratal.autodiff import trace
from stratal.base.dtypes import DType, bfloat16, float32
from stratal.base.types import TensorType
from stratal.graph.graph import Graph, substitute
from stratal.graph.node import Node, graph_input
from stratal.optimize.pieces import multiply_pieces

CACHE, NEW = (2, 1030, 32), (2, 1, 32)


def product(
    spec: str, other: tuple[int, ...], pieces: list[tuple[int, ...]], axis: int, *, side: int = 1,
    dtype: DType = float32,
) -> Graph:  # fmt: skip
    """Return the product of a tensor and a concatenation, which is operand `side`."""

    def made(b: Any, x: Node, *parts: Node) -> list[Node]:
        both = (x, b.concatenate(*parts, axis=axis))
        return [b.exp(b.contract(*(both if side else both[::-1]), spec=spec))]

    return trace(made, [TensorType(dtype, other), *(TensorType(dtype, p) for p in pieces)])


def joined(graph: Graph) -> list[int]:
    """Return the sizes of all concatenations."""
    return [n.aval.size for n in graph.nodes if n.op.name == "concatenate"]


def right(graph: Graph) -> bool:
    rng = np.random.default_rng(0)
    arrays = [0.1 * rng.standard_normal(i.aval.ints).astype(i.dtype.np) for i in graph.inputs]
    return not check_graph(graph, arrays)


@pytest.mark.parametrize("side", [0, 1])
def test_what_a_kept_axis_puts_together_is_the_small_result(side: int) -> None:
    spec = ("bsd,bld->bls", "bld,bsd->bls")[side]
    graph = product(spec, (2, 3, 32), [CACHE, NEW], 1, side=side)
    assert joined(multiply_pieces(graph)) == [2 * 3 * 1031]
    assert right(graph)


def test_pieces_along_a_summed_axis_are_summed_one_after_the_other() -> None:
    graph = product("bls,bsd->bld", (2, 1, 1034), [CACHE, (2, 0, 32), (2, 4, 32)], 1)
    split = multiply_pieces(graph)
    assert joined(split) == [] and [n.op.name for n in split.nodes].count("contract") == 2
    assert right(graph)


def test_pieces_along_a_batch_meet_their_part_of_the_other_operand() -> None:
    graph = product("bld,bsd->bls", (3, 2, 32), [(2, 1000, 32), (1, 1000, 32)], 0)
    assert joined(multiply_pieces(graph)) == [3 * 2 * 1000]
    assert right(graph)


def test_layers_whose_pieces_depend_on_products_of_pieces_are_all_split() -> None:
    def layers(b: Any, x: Node, first: Node, second: Node) -> list[Node]:
        for cache in (first, second):
            keys = b.concatenate(cache, x, axis=1)
            x = b.contract(b.tanh(b.contract(x, keys, spec="bld,bsd->bls")), keys, spec="bls,bsd->bld")
        return [x]

    graph = trace(layers, [TensorType(float32, s) for s in (NEW, CACHE, CACHE)])
    assert joined(multiply_pieces(graph)) == [2 * 1031] * 2
    assert right(graph)


@pytest.mark.parametrize(
    ("other", "pieces", "dtype", "why"),
    [
        ((2, 9, 1031), [CACHE, NEW], float32, "many rows"),
        ((2, 1, 101), [(2, 100, 32), NEW], float32, "little to copy"),
        ((2, 1, 2061), [(2, 2060, 32), NEW], bfloat16, "a sum that would be rounded twice"),
    ],
)
def test_pieces_are_put_together_where_that_is_as_good(
    other: tuple[int, ...], pieces: list[tuple[int, ...]], dtype: DType, why: str
) -> None:
    graph = product("bls,bsd->bld", other, pieces, 1, dtype=dtype)
    assert multiply_pieces(graph) is graph, why


def test_what_is_wanted_as_a_whole_is_put_together_once() -> None:
    def grown(b: Any, q: Node, cache: Node, new: Node) -> list[Node]:
        keys = b.concatenate(cache, new, axis=1)
        return [b.contract(q, keys, spec="bld,bsd->bls"), keys]

    graph = trace(grown, [TensorType(float32, s) for s in (NEW, CACHE, NEW)])
    assert multiply_pieces(graph) is graph


def test_what_held_inputs_decide_is_put_together_once() -> None:
    graph = product("bld,bsd->bls", NEW, [CACHE, NEW], 1)
    x, *pieces = graph.inputs
    held = [graph_input("held", p.aval, frozen=True) for p in pieces]
    fixed = Graph([x, *held], substitute(graph.roots, dict(zip(pieces, held, strict=True))))
    assert multiply_pieces(fixed) is fixed
