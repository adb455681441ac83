"""Calls that PyTorch takes with fewer elements than others have: short indices, axes of 1, vectors, heads."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stratal as st  # noqa: E402

pytestmark = pytest.mark.torch


def draw(*shape):
    return np.random.default_rng(shape).uniform(0.5, 1.5, shape)


def agree(call, *arrays):
    """Compare values and the gradients of floats, lazy and compiled."""
    results = []
    for m, run in ((torch, call), (st, call), (st, st.compile(call))):
        given = [m.tensor(a) for a in arrays]
        moving = [t.requires_grad_() for t in given if t.dtype == m.float64]
        value = run(m, *given)
        (value * value).sum().backward()
        results.append([value.detach().numpy(), *(t.grad.numpy() for t in moving)])
    for got in results[1:]:
        for g, w in zip(got, results[0], strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4), (2, 1), (1, 4), (3, 2), (2, 3)])
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "amax", "number"])
def test_an_index_is_shorter_than_the_tensor(name, shape, dim):
    index = np.arange(shape[0] * shape[1]).reshape(shape) % 3
    index = np.sort(index, axis=dim) if name == "scatter_add" else np.broadcast_to(
        np.arange(shape[dim]).reshape((-1, 1) if dim == 0 else (1, -1)), shape).copy()  # fmt: skip
    calls = {
        "scatter": lambda m, x, i, s: m.scatter(x, dim, i, s),
        "scatter_add": lambda m, x, i, s: m.scatter_add(x, dim, i, s),
        "amax": lambda m, x, i, s: m.scatter_reduce(x, dim, i, s, "amax"),
        "number": lambda m, x, i, s: m.scatter(x, dim, i, 5.0) * s.sum(),
    }
    agree(calls[name], draw(3, 4), index, draw(3, 4)[: shape[0], : shape[1]].copy())


def test_a_longer_index_is_refused():
    with pytest.raises(st.StratalError, match="no longer"):
        st.zeros(3, 2).scatter(1, st.zeros((4, 1), dtype=st.int64), 1.0)


@pytest.mark.parametrize(
    "spec, shapes",
    [("...ij,...jk->...ik", ((2, 1, 2, 2), (3, 2, 1))), ("...i,...i->...", ((1, 3), (4, 3))),
     ("...i,i->...", ((2, 3, 4), (4,))), ("...,...", ((3, 1), (1, 4))), ("b...,b...->...b", ((2, 1), (2, 5))),
     ("ij,jk->ik", ((2, 1), (3, 4))), ("...a,...b,...c->...abc", ((2, 1, 2), (3, 2), (1, 1, 2)))],
)  # fmt: skip
def test_einsum_broadcasts(spec, shapes):
    agree(lambda m, *given: m.einsum(spec, *given), *(draw(*s) for s in shapes))


@pytest.mark.parametrize(
    "a, b",
    [((3, 2, 2), (3, 2)), ((2, 3, 2, 2), (2, 3, 2)), ((2, 2), (2,)), ((3, 3), (3, 2)), ((2, 2, 2), (2, 2)),
     ((4, 2, 2), (2, 3))],
)  # fmt: skip
def test_solve_takes_a_vector_for_each_matrix(a, b):
    agree(lambda m, x, y: m.linalg.solve(x, y), draw(*a) + 3 * np.eye(a[-1]), draw(*b))


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_share_keys_and_values(heads, causal):
    def call(m, q, k, v):
        attend = m.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=causal, enable_gqa=True)

    agree(call, draw(2, 4, 3, 5), draw(2, heads, 3, 5), draw(2, heads, 3, 2))
    with pytest.raises(st.StratalError, match="multiple"):
        call(st, st.ones(1, 4, 2, 2), st.ones(1, 3, 2, 2), st.ones(1, 3, 2, 2))


def test_text_in_batches_and_the_indices_of_a_subset():
    (batch,) = st.data.DataLoader([(1, "a"), (2, "b")], 2)
    (want,) = torch.utils.data.DataLoader([(1, "a"), (2, "b")], 2)
    assert list(batch[0].numpy()) == want[0].tolist() and list(batch[1]) == list(want[1])
    assert list(st.data.Subset(list(range(10)), [3, 4]).indices) == [3, 4]
