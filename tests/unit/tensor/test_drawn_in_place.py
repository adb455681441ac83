"""Tensors that are filled with draws in place, as PyTorch's methods of the same names do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import stratal as st

DRAWN: dict[str, tuple[tuple[Any, ...], Any]] = {
    "exponential_": ((2.0,), scipy.stats.expon(scale=0.5)),
    "cauchy_": ((1.0, 0.5), scipy.stats.cauchy(1.0, 0.5)),
    "log_normal_": ((0.5, 0.25), scipy.stats.lognorm(0.25, scale=math.exp(0.5))),
    "normal_": ((1.0, 3.0), scipy.stats.norm(1.0, 3.0)),
    "uniform_": ((-1.0, 2.0), scipy.stats.uniform(-1.0, 3.0)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_follow_scipys_distribution(name: str) -> None:
    st.manual_seed(3)
    arguments, law = DRAWN[name]
    x = st.zeros(4000)
    assert getattr(x, name)(*arguments) is x and np.isfinite(x.numpy()).all()
    assert scipy.stats.kstest(x.numpy(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_geometric_draws_count_tries(dtype: str) -> None:
    st.manual_seed(3)
    x = st.zeros(4000, dtype=dtype).geometric_(0.3).numpy()
    counts = [int((x == k).sum()) for k in range(1, 8)] + [int((x > 7).sum())]
    law = scipy.stats.geom(0.3)
    want = [4000 * law.pmf(k) for k in range(1, 8)] + [4000 * law.sf(7)]
    assert x.min() == 1 and scipy.stats.chisquare(counts, want).pvalue > 1e-3


@pytest.mark.parametrize(
    ("dtype", "bounds", "low", "high"),
    [("float32", (), 0, 2**24), ("bfloat16", (), 0, 2**8), ("int8", (), 0, 2**7 - 1), ("int64", (5,), 0, 5),
     ("float64", (-3, 4), -3, 4), ("bool", (), 0, 2), ("uint64", (), 0, 2**63)],
)  # fmt: skip
def test_whole_numbers_lie_between_their_bounds(dtype: str, bounds: Any, low: int, high: int) -> None:
    st.manual_seed(3)
    x = [int(v) for v in st.zeros(2000, dtype=dtype).random_(*bounds).tolist()]
    assert low <= min(x) and max(x) < high and len(set(x)) >= min(high - low, 90)
    assert abs(sum(x) / 2000 - (low + high - 1) / 2) < (high - low) / 30


@pytest.mark.parametrize(
    "call",
    [
        "exponential_(0)",
        "cauchy_(0,-1)",
        "log_normal_(0,0)",
        "geometric_(0)",
        "geometric_(2)",
        "random_(3,3)",
    ],
)
def test_bounds_that_no_distribution_has_are_refused(call: str) -> None:
    x = st.ones(3)
    with pytest.raises(st.StratalError, match=call.partition("(")[0]):
        eval(f"x.{call}", {"x": x})  # noqa: S307
    assert x.tolist() == [1, 1, 1]


def test_a_diagonal_is_filled_in_place() -> None:
    x, cube = st.zeros(2, 3), st.zeros(2, 2, 2)
    assert x.fill_diagonal_(3).tolist() == [[3, 0, 0], [0, 3, 0]] == x.tolist()
    assert cube.fill_diagonal_(1).tolist() == [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]
    for wrong in (lambda: st.zeros(3).fill_diagonal_(1), lambda: st.zeros(4, 2).fill_diagonal_(1, wrap=True)):
        with pytest.raises(st.StratalError, match="does not wrap"):
            wrong()


def test_a_mask_has_no_negative() -> None:
    mask, x = st.tensor([True, False]), st.tensor([1, 2])
    negative = st.compile(st.negative)
    for wrong in (lambda: -mask, lambda: mask - mask, lambda: True - mask, lambda: negative(mask)):
        with pytest.raises(st.StratalError, match="takes numbers, not bools"):
            wrong()
    assert (1 - mask).tolist() == [0, 1] and (mask - x).tolist() == [0, -2] and (x - mask).tolist() == [0, 2]
