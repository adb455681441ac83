"""Kullback-Leibler divergences at probabilities 0 and 1 and at far logits, against the formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import distributions as D

PROBS = np.float32([0.0, 1e-30, 1e-8, 0.3, 0.5, 0.75, 1.0])
LOGITS = np.float32([-60.0, -40.0, -15.0, -1.0, 0.0, 15.0, 40.0, 60.0])


def _chances(given: str, values: np.ndarray) -> list[np.ndarray]:
    """Return the probabilities of one and of zero and their logarithms, a row each."""
    v = values.astype(np.float64)
    if given == "probs":
        return [v, 1 - v, np.log(v), np.log1p(-v)]
    one, zero = -np.logaddexp(0, -v), -np.logaddexp(0, v)
    return [np.exp(one), np.exp(zero), one, zero]


@np.errstate(all="ignore")
def _expected(first: str, p: np.ndarray, second: str, q: np.ndarray) -> np.ndarray:
    p1, p0, lp1, lp0 = (x[:, None] for x in _chances(first, p))
    _, _, lq1, lq0 = (x[None] for x in _chances(second, q))
    ones = np.where(p1 == 0, 0.0, p1 * (lp1 - lq1))
    return ones + np.where(p0 == 0, 0.0, p0 * (lp0 - lq0))


def _pair(v: Any, given: str) -> st.Tensor:
    return st.stack([v, 1 - v] if given == "probs" else [v, 0 * v], -1)


FAMILIES = {
    "Bernoulli": (lambda v, given: D.Bernoulli(**{given: v}), 1),
    "Binomial": (lambda v, given: D.Binomial(3, **{given: v}), 3),
    "Categorical": (lambda v, given: D.Categorical(**{given: _pair(v, given)}), 1),
    "OneHotCategorical": (lambda v, given: D.OneHotCategorical(**{given: _pair(v, given)}), 1),
    "Geometric": (lambda v, given: D.Geometric(**{given: v}), 0),
}
VALUES = {"probs": PROBS, "logits": LOGITS}


@pytest.mark.parametrize("second", VALUES)
@pytest.mark.parametrize("first", VALUES)
@pytest.mark.parametrize("name", FAMILIES)
def test_divergences_are_infinite_where_they_must_be_and_right_elsewhere(
    name: str, first: str, second: str
) -> None:
    make, times = FAMILIES[name]
    p, q = VALUES[first], VALUES[second]
    if name == "Geometric":
        p, q = p[p != 0], q[(q != 0) | (second == "logits")]
    with np.errstate(all="ignore"):
        per_try = 1 / _chances(first, p)[0][:, None]
        want = _expected(first, p, second, q) * (times or per_try)
    found = D.kl_divergence(make(st.tensor(p)[:, None], first), make(st.tensor(q)[None], second)).numpy()
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-7)


def test_categories_never_drawn_add_nothing_and_no_tries_tell_nothing() -> None:
    p, q = D.Categorical(probs=st.tensor([0.5, 0.5, 0.0])), D.Categorical(probs=st.tensor([1.0, 0.0, 0.0]))
    assert D.kl_divergence(p, q).item() == np.inf
    np.testing.assert_allclose(D.kl_divergence(q, p).item(), np.log(2), rtol=1e-6)
    assert D.kl_divergence(D.Binomial(0, probs=0.5), D.Binomial(0, probs=0.0)).item() == 0.0
    first, second = D.Poisson(st.tensor([0.0, 0.0, 1.0])), D.Poisson(st.tensor([0.0, 3.0, 0.0]))
    assert D.kl_divergence(first, second).tolist() == [0.0, 3.0, np.inf]


@pytest.mark.parametrize("given", VALUES)
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_agree_with_differences_and_are_finite_at_edges(name: str, given: str) -> None:
    make, _ = FAMILIES[name]
    p, q = (st.tensor(x, dtype="float64", requires_grad=True) for x in ([0.25, 0.5, 0.75], [0.5, 0.5, 0.125]))

    def divergence(a: Any, b: Any) -> Any:
        return D.kl_divergence(make(a, given), make(b, given)).sum()

    divergence(p, q).backward()
    a, b = p.detach(), q.detach()
    for x, others in ((p, lambda h: (a + h, b)), (q, lambda h: (a, b + h))):
        for k in range(3):
            h = np.eye(3)[k] * 1e-5
            want = (divergence(*others(st.tensor(h))) - divergence(*others(st.tensor(-h)))).item() / 2e-5
            np.testing.assert_allclose(x.grad[k].item(), want, rtol=1e-5, atol=1e-8)
    if given == "probs":  # what is never drawn under p tells nothing
        edge, inner = (st.tensor([x], requires_grad=True) for x in (1.0, 0.5))
        divergence(edge, inner).backward()
        assert np.isfinite(inner.grad.numpy()).all()
