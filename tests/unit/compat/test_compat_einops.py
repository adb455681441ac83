"""einops takes tensors: results, gradients and refusals are those on NumPy arrays and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stratal as st

einops = pytest.importorskip("einops")
import stratal.compat.einops  # noqa: E402  after the check

X = np.random.default_rng(0).standard_normal((4, 6, 2)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "flatten": lambda x, w: einops.rearrange(x, "b h c -> b (h c)"),
    "transpose": lambda x, w: einops.rearrange(x, "b h c -> c h b"),
    "split": lambda x, w: einops.rearrange(x, "b (h k) c -> (b k) h c", k=3),
    "one": lambda x, w: einops.rearrange(x, "b h c -> b 1 h c"),
    "ellipsis": lambda x, w: einops.rearrange(x, "... c -> c ..."),
    "list": lambda x, w: einops.rearrange([x, x], "n b h c -> b (n h) c"),
    "mean": lambda x, w: einops.reduce(x, "b h c -> b c", "mean"),
    "max": lambda x, w: einops.reduce(x, "b (h k) c -> b h c", "max", k=2),
    "min": lambda x, w: einops.reduce(x, "b h c -> ", "min"),
    "sum": lambda x, w: einops.reduce(x, "b h c -> h 1", "sum"),
    "prod": lambda x, w: einops.reduce(x, "b h c -> b", "prod"),
    "repeat": lambda x, w: einops.repeat(x, "b h c -> b (h r) c", r=2),
    "repeat an axis": lambda x, w: einops.repeat(x, "b h c -> n b h c", n=3),
    "einsum": lambda x, w: einops.einsum(x, w, "b h c, c d -> b h d"),
    "pack": lambda x, w: einops.pack([x, x[:, 0]], "b * c")[0],
    "unpack": lambda x, w: einops.unpack(x, [[2], [2, 2]], "b * c")[1],
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_it_does_on_numpy_arrays(name: str, compiled: bool) -> None:
    function = CASES[name]
    found = (st.compile(function) if compiled else function)(st.tensor(X), st.tensor(W))
    assert isinstance(found, st.Tensor)
    np.testing.assert_allclose(found.numpy(), function(X, W), rtol=1e-5, atol=1e-6)


def test_gradients_flow_through_it() -> None:
    x = st.tensor(X, requires_grad=True)
    einops.reduce(einops.rearrange(x, "b (h k) c -> b h (k c)", k=2), "b h c -> b", "mean").sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full(X.shape, 1 / 12), rtol=1e-6)


def test_a_wrong_pattern_is_refused_by_einops() -> None:
    with pytest.raises(einops.EinopsError, match="divide"):
        einops.rearrange(st.tensor(X), "b (h k) c -> b h k c", k=4)
