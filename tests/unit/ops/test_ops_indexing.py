"""Gather, scatter, dynamic slices, sort: repeated indices, order, bad indices, derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from ops_calls import agrees_with_torch, evaluated, gradients, normal

from stratal.base.dtypes import bfloat16, float32, int64
from stratal.base.errors import IndexOutOfRangeError
from stratal.base.types import TensorType
from stratal.graph.op import REGISTRY


def test_gather_is_take_and_its_gradient_sums_repeats() -> None:
    x, index = normal(5, 3), np.array([[1, 4], [1, 1]])
    gather = lambda b, x, i: b.gather(x, i, axis=0)  # noqa: E731
    np.testing.assert_array_equal(evaluated(gather, x, index), x[index])
    (got,) = gradients(gather, np.ones((2, 2, 3)), x, index)
    np.testing.assert_array_equal(got[:, 0], [0, 3, 0, 0, 1])


@pytest.mark.parametrize("index", [-1, 5])
@pytest.mark.parametrize("name", ["gather", "gather_along", "scatter"])
def test_an_index_out_of_range_is_an_error_that_names_it(name: str, index: int) -> None:
    x, at = normal(5), np.array([0, index])
    operands = [x, at, normal(2)] if name == "scatter" else [x, at]
    attributes = {"kind": "set", "axis": 0} if name == "scatter" else {"axis": 0}
    with pytest.raises(IndexOutOfRangeError, match="out of range") as caught:
        evaluated(lambda b, *xs: b.op(name, *xs, **attributes), *operands)
    assert f"{index} for an axis of 5" in str(caught.value)


def test_lowered_indexing_checks_before_it_writes() -> None:
    """The check is data beside the body, so that programs can test it before the first state write."""
    x, index = TensorType(float32, (5, 2)), TensorType(int64, (3,))
    for op, types in (
        (REGISTRY["gather"](0), (x, index)),
        (REGISTRY["scatter"]("add", 0), (x, index, x.with_shape((3, 2)))),
    ):
        (check,) = op.lower(*types).checks  # type: ignore[attr-defined]
        assert (check.arg, check.bound) == (1, 5)


def test_the_last_of_repeated_writers_wins_and_alone_gets_the_cotangent() -> None:
    x, index, updates = np.zeros(4), np.array([2, 0, 2]), np.array([1.0, 2.0, 3.0])
    scatter = lambda b, x, i, u: b.scatter(x, i, u, kind="set", axis=0)  # noqa: E731
    np.testing.assert_array_equal(evaluated(scatter, x, index, updates), [2, 0, 3, 0])
    dx, du = gradients(scatter, np.array([1.0, 2, 3, 4]), x, index, updates)
    np.testing.assert_array_equal(dx, [0, 2, 0, 4])
    np.testing.assert_array_equal(du, [0, 1, 3])


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_scattered_extremes_split_ties_like_torch(kind: str) -> None:
    pytest.importorskip("torch")
    import torch

    index = np.array([0, 1, 0, 1, 1])
    agrees_with_torch(
        lambda b, x, u: b.scatter(x, b.const(index), u, kind=kind[1:], axis=0),
        lambda x, u: x.scatter_reduce(0, torch.tensor(index), u, kind),
        np.array([1.0, 2.0, 5.0]), np.array([1.0, 3.0, 1.0, 2.0, 3.0]),
    )  # fmt: skip


def test_picking_one_element_per_row_has_a_gradient_without_a_scatter() -> None:
    from ops_calls import traced

    from stratal.autodiff.vjp import vjp_graph

    x, index = normal(4, 6), np.array([[1], [5], [0], [0]])
    pick = lambda b, x, i: b.gather_along(x, i, axis=1)  # noqa: E731
    names = {n.op.name for n in vjp_graph(traced(pick, x, index), [True, False]).nodes}
    assert "scatter_along" not in names
    (got,) = gradients(pick, np.ones((4, 1)), x, index)
    np.testing.assert_array_equal(got, np.eye(6)[index[:, 0]])


def test_the_gradient_of_a_bfloat16_embedding_is_summed_in_float32() -> None:
    x, index = np.zeros((2, 1), bfloat16.np), np.zeros(1000, np.int64)
    ct = np.ones((1000, 1), bfloat16.np)
    from ops_calls import traced

    from stratal.autodiff.vjp import vjp_graph
    from stratal.graph.interpret import interpret

    graph = vjp_graph(traced(lambda b, x, i: b.gather(x, i, axis=0), x, index), [True, False])
    (got,) = interpret(graph, [x, index, ct])[0]
    assert float(got[0, 0]) == 1000  # one by one in bfloat16 the sum stops at 256


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_and_counts_nan_as_the_greatest(descending: bool) -> None:
    x = np.array([2.0, np.nan, 1.0, 2.0, -0.0, 0.0, np.inf])
    order = evaluated(lambda b, x: b.item(b.sort(x, axis=0, descending=descending), 1), x)
    want = [1, 6, 0, 3, 2, 4, 5] if descending else [4, 5, 2, 0, 3, 6, 1]
    np.testing.assert_array_equal(order, want)


def test_sort_of_the_least_integer_descends_too() -> None:
    x = np.array([0, -128, 127, -1], np.int8)
    got = evaluated(lambda b, x: b.item(b.sort(x, axis=0, descending=True), 0), x)
    np.testing.assert_array_equal(got, [127, 0, -1, -128])
