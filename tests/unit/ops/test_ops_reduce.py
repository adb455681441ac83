"""Reductions and running reductions: NaN, ties, zeros, their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from ops_calls import agrees_with_torch, evaluated, gradients, normal

from stratal.autodiff import check_grad

pytestmark = pytest.mark.quick


def test_the_gradient_of_max_is_split_evenly_among_ties() -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    (got,) = gradients(lambda b, x: b.reduce_max(x, axes=(1,)), np.array([4.0, 6.0]), x)
    np.testing.assert_array_equal(got, [[0, 2, 2], [6, 0, 0]])


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
def test_nan_propagates_through_extremes(name: str) -> None:
    x = np.array([[1.0, np.nan, 3.0], [2.0, 0.0, 1.0]])
    got = evaluated(lambda b, x: b.op(name, x, axes=(1,)), x)
    assert np.isnan(got[0]) and not np.isnan(got[1])


def test_argmax_finds_the_first_of_equals_and_nan_first_of_all() -> None:
    x = np.array([[1.0, 5.0, 5.0], [np.nan, 9.0, np.nan]])
    np.testing.assert_array_equal(evaluated(lambda b, x: b.argmax(x, axis=1), x), [1, 0])
    np.testing.assert_array_equal(evaluated(lambda b, x: b.argmin(x, axis=1), x), [0, 0])


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3)])
def test_gradients_of_products_are_right_at_zeros(zeros: tuple[int, ...]) -> None:
    x = normal(5)
    x[list(zeros)] = 0
    assert check_grad(lambda b, x: b.prod(x, axes=(0,)), [x], order=2).ok
    for reverse in (False, True):
        assert check_grad(lambda b, x, r=reverse: b.cumprod(x, axis=0, reverse=r), [x], order=2).ok


def test_a_linear_recurrence_is_the_loop_it_stands_for() -> None:
    a, u = normal(6, 3), normal(6, 3)
    h, want = np.zeros(3), []
    for k in range(6):
        h = a[k] * h + u[k]
        want.append(h)
    got = evaluated(lambda b, a, u: b.linear_recurrence(a, u, axis=0, reverse=False), a, u)
    np.testing.assert_allclose(got, np.stack(want))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_running_reductions_agree_with_torch_forwards_and_backwards(name: str) -> None:
    torch = pytest.importorskip("torch")

    def theirs(x):  # type: ignore[no-untyped-def]
        result = getattr(torch, name)(x, 1)
        return result if name in ("cumsum", "cumprod") else result.values

    agrees_with_torch(lambda b, x: b.op(name, x, axis=1, reverse=False), theirs, normal(3, 6, 2))
    ties = np.array([[1.0, 1.0, 0.0, 2.0, 2.0]])
    agrees_with_torch(lambda b, x: b.op(name, x, axis=1, reverse=False), theirs, ties)


def test_running_from_the_end_is_running_over_the_flipped_axis() -> None:
    x = normal(4, 5)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        got = evaluated(lambda b, x, n=name: b.op(n, x, axis=1, reverse=True), x)
        want = evaluated(
            lambda b, x, n=name: b.flip(b.op(n, b.flip(x, axes=(1,)), axis=1, reverse=False), axes=(1,)), x
        )
        np.testing.assert_array_equal(got, want)


def test_a_running_sum_of_half_precision_does_not_stall() -> None:
    """Added up in float16 the sum would stop growing at 2048."""
    got = evaluated(lambda b, x: b.cumsum(x, axis=0, reverse=False), np.ones(4096, np.float16))
    assert got[-1] == 4096
