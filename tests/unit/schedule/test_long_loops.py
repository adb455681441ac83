"""Long loops in chunks: what a row is scaled by is read once, and no index is divided step by step."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st
from stratal import nn

F = nn.functional
SHAPES = [
    (2, 8, 250, 250),
    (3, 5, 7, 1001),
    (1, 3, 300, 233),
    (64, 3, 31, 33),
    (700, 2, 3, 67),
    (1, 1, 1, 90001),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_images_are_scaled_and_shifted_by_channel(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, scale, shift = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape[1], shape[:2]))
    step = st.compile(lambda x, a, b: x * a[:, None, None] + b[..., None, None])
    found = step(*map(st.tensor, (x, scale, shift)))
    np.testing.assert_array_equal(found.numpy(), x * scale[:, None, None] + shift[..., None, None])
    assert "gather" not in str(step.explain(kernel=1, assembly=True))


def test_rows_are_scaled_where_they_stand() -> None:
    x = st.tensor(np.ones((3, 90_001), np.float32))
    factors = np.arange(3, dtype=np.float32)

    @st.compile
    def step() -> None:
        x.mul_(st.tensor(factors)[:, None])

    for _ in range(3):
        step()
    np.testing.assert_array_equal(x.numpy(), np.repeat(factors[:, None] ** 3, 90_001, axis=1))


def test_one_value_is_written_to_several_axes_in_order() -> None:
    step = st.compile(lambda x: st.broadcast_to(x, (2, 8, 62_500)))
    np.testing.assert_array_equal(step(st.tensor(3.0)).numpy(), np.full((2, 8, 62_500), 3.0, np.float32))
    assert "scatter" not in str(step.explain(kernel=1, assembly=True))


def test_a_sum_of_reshaped_rows_runs_along_rows() -> None:
    x = np.random.default_rng(0).standard_normal((6, 50, 50)).astype(np.float32)
    step = st.compile(lambda x: x.reshape(3, 5000).sum(dim=1))
    np.testing.assert_allclose(step(st.tensor(x)).numpy(), x.reshape(3, -1).sum(1), rtol=1e-4, atol=1e-4)
    assert "rows" in str(step.explain(kernel=1))


@pytest.mark.torch
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_large_images_are_normalised(groups: int) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 4, 121, 77)).astype(np.float32)
    found = st.compile(lambda x: F.group_norm(x, groups))(st.tensor(x))
    want = torch.nn.functional.group_norm(torch.tensor(x), groups)
    np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=2e-5, atol=2e-6)


def test_an_index_that_is_repeated_is_looked_at_once_and_still_refused() -> None:
    def picked(x: st.Tensor, k: st.Tensor) -> st.Tensor:
        return st.take_along_dim(x, st.broadcast_to(k, (64, 1000)), dim=1)

    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    good = np.random.default_rng(1).integers(0, 1000, (1, 1000))
    step = st.compile(picked)
    np.testing.assert_array_equal(step(st.tensor(x), st.tensor(good)).numpy(), x[:, good[0]])
    for place in (0, 999):
        bad = good.copy()
        bad[0, place] = 1000
        with pytest.raises(st.StratalError, match="index"):
            step(st.tensor(x), st.tensor(bad)).numpy()
