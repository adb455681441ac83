"""Long programs: made without recursion over their length, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks.scale import chain

import stratal as st


@pytest.mark.sampled(5)
def test_a_chain_of_two_thousand_ops_and_its_gradient_compile_and_are_right() -> None:
    x = np.random.default_rng(0).uniform(0.2, 0.9, (8, 8))
    value, gradient = st.compile(st.value_and_grad(lambda x: chain(x, 2000)))(st.tensor(x))
    expected, slope = by_hand(x, 2000)
    np.testing.assert_allclose(float(value), expected.sum(), rtol=1e-10)
    np.testing.assert_allclose(np.asarray(gradient), slope, rtol=1e-8, atol=1e-12)


def by_hand(x: Any, length: int) -> tuple[Any, Any]:
    """Return the last value of the chain and its derivative, carried forward."""
    v, d = x, np.ones_like(x)
    for k in range(length):
        if k % 3 == 0:
            v, d = np.sin(v), np.cos(v) * d
        elif k % 3 == 1:
            v, d = v * x, d * x + v
        else:
            v, d = np.tanh(v), (1 - np.tanh(v) ** 2) * d
    return v, d
