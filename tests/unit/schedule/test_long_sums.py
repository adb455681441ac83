"""Sums of many elements: their error does not grow with the length, however the operand lies in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st

N = 1 << 20
ODD = N + 37  # no number of lanes or blocks divides it
WITHIN = 1e-6
EQUAL = 5e-6  # of equal elements, which are all rounded the same way within a block
HUGE = 1 << 25  # one running sum of ones in float32 stands still at 2^24


def positives(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def pairs_of_layouts() -> dict[str, Callable[[int], tuple[Any, np.ndarray[Any, Any], int]]]:
    """Return operands with a long axis: the tensor, the same array in NumPy, and the axis."""

    def rows(n: int) -> Any:
        a = positives(3, n)
        return st.tensor(a), a, 1

    def columns(n: int) -> Any:
        a = positives(n, 2)
        return st.tensor(a), a, 0

    def transposed(n: int) -> Any:
        a = positives(n, 2)
        return st.tensor(a).T, a.T, 1

    def wide_columns(n: int) -> Any:
        a = positives(n, 9)
        return st.tensor(a), a, 0

    def sliced(n: int) -> Any:
        a = positives(2, n, 3)
        return st.tensor(a)[:, :, 1], a[:, :, 1], 1

    def strided(n: int) -> Any:
        a = positives(2 * n)
        return st.tensor(a)[::2], a[::2], 0

    def expanded(n: int) -> Any:
        a = positives(2, 1)
        return st.tensor(a).expand(2, n), np.broadcast_to(a, (2, n)), 1

    def one_row(n: int) -> Any:
        a = positives(1, n)
        return st.tensor(a), a, 1

    def alone(n: int) -> Any:
        a = positives(n)
        return st.tensor(a), a, 0

    def in_the_middle(n: int) -> Any:
        a = positives(2, n, 4)
        return st.tensor(a), a, 1

    return {f.__name__: f for f in (
        rows, columns, transposed, wide_columns, sliced, strided, expanded, one_row, alone, in_the_middle,
    )}  # fmt: skip


LAYOUTS = pairs_of_layouts()
REDUCTIONS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    "sum": (lambda x, k: x.sum(k), lambda a, k: a.sum(k)),
    "mean": (lambda x, k: x.mean(k), lambda a, k: a.mean(k)),
    "var": (lambda x, k: x.var(k, correction=0), lambda a, k: a.var(k)),
    "norm": (lambda x, k: st.linalg.vector_norm(x, dim=k), lambda a, k: np.sqrt((a * a).sum(k))),
    "logsumexp": (lambda x, k: st.logsumexp(x, k), lambda a, k: np.log(np.exp(a).sum(k))),
    "cumsum": (lambda x, k: x.cumsum(k), lambda a, k: a.cumsum(k)),
}


def error(got: Any, exact: np.ndarray[Any, Any]) -> float:
    found = abs(got.numpy().astype(np.float64) - exact) / np.maximum(abs(exact), 1e-30)
    return float(found.max())


@pytest.mark.sampled(13)
@pytest.mark.parametrize("n", [N, ODD])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_error_of_a_long_reduction_is_of_a_few_roundings(reduction: str, layout: str, n: int) -> None:
    ours, exact = REDUCTIONS[reduction]
    x, a, axis = LAYOUTS[layout](n)
    if reduction == "var" and layout == "expanded":
        assert float(ours(x, axis).max().item()) < 1e-12
        return
    within = EQUAL if layout == "expanded" else WITHIN
    assert error(ours(x, axis), exact(a.astype(np.float64), axis)) < within


@pytest.mark.parametrize("n", [1023, 2049, 4096, 4097, 16 * 512 + 1, 32 * 2049 + 5, 70_000])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_every_element_counts_once(layout: str, n: int, value: float) -> None:
    x, a, axis = LAYOUTS[layout](n)
    whole = st.tensor(np.ascontiguousarray(np.round(a * 8)))  # sums of which are exact
    np.testing.assert_array_equal(whole.sum(axis).numpy(), np.round(a * 8).sum(axis, dtype=np.float64))
    if not np.isnan(value):
        assert error(x.sum(axis), a.astype(np.float64).sum(axis)) < EQUAL
    else:
        assert np.isnan((x * st.tensor(value)).sum(axis).numpy()).all()


@pytest.mark.parametrize(("dtype", "within"), [("float16", 1e-3), ("bfloat16", 4e-3), ("float64", 1e-14)])
def test_sums_of_other_floats_are_rounded_once(dtype: str, within: float) -> None:
    a = st.tensor(positives(ODD, 2)).astype(dtype)
    exact = np.array([math.fsum(column) for column in a.astype("float64").numpy().T]) / ODD
    assert error(a.mean(0).astype("float64"), exact) < within


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(N,), (N, 3), (2, N), (5, N // 4, 7)])
def test_a_running_sum_is_as_good_at_its_end(shape: tuple[int, ...], reverse: bool) -> None:
    a = positives(*shape)
    axis = max(range(a.ndim), key=lambda k: a.shape[k])
    x = st.tensor(a)
    if reverse:
        got = x.flip((axis,)).cumsum(axis).flip((axis,))
        exact = np.flip(np.flip(a.astype(np.float64), axis).cumsum(axis), axis)
    else:
        got, exact = x.cumsum(axis), a.astype(np.float64).cumsum(axis)
    assert error(got, exact) < WITHIN


@pytest.mark.slow
def test_more_ones_than_float32_can_count_are_all_counted() -> None:
    ones = st.ones(HUGE, 2)
    assert ones.T.sum(1).numpy().tolist() == [HUGE, HUGE]
    assert ones.T.mean(1).numpy().tolist() == [1, 1]
    assert (st.arange(HUGE).reshape(1, HUGE) * 0 + 1.0).sum(1).item() == HUGE
    assert ones[:, 0].cumsum(0)[-1].item() == HUGE
    assert ones.cumsum(0)[-1].numpy().tolist() == [HUGE, HUGE]


@pytest.mark.slow
def test_elements_that_are_not_in_memory_are_all_counted() -> None:
    assert st.ones(1).expand(1, HUGE).sum(1).item() == HUGE
    assert st.ones(1).expand(1 << 30).mean().item() == 1
