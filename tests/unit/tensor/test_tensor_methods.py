"""Methods people know from PyTorch and NumPy: one table of calls, each made with both libraries."""

from __future__ import annotations

import numpy as np
import pytest

import stratal as st

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 5))
N, M = RNG.integers(1, 9, (4, 5)), RNG.integers(1, 9, (4, 5))
Z = X + 1j * Y
HOLES = np.array([np.nan, np.inf, -np.inf, 2.0])

CALLS = {
    "angle": (lambda x: x.angle(), Z),
    "conj": (lambda x: x.conj().resolve_conj() if hasattr(x, "resolve_conj") else x.conj(), Z),
    "copysign": (lambda x, y: x.copysign(y), X, Y),
    "diff": (lambda x: x.diff(), X),
    "adjoint": (lambda x: x.adjoint() * 1, Z),
    "mH": (lambda x: x.mH * 1, Z),
    "nan_to_num": (lambda x: x.nan_to_num(0.5), HOLES),
    "nextafter": (lambda x, y: x.nextafter(y), X, Y),
    "parts": (lambda x: x.real + 2 * x.imag, Z),
    "reshape_as": (lambda x, y: x.reshape_as(y), X, Y.reshape(2, 10)),
    "signbit": (lambda x: x.signbit(), X),
    "split_with_sizes": (lambda x: x.split_with_sizes([2, 3], 1)[1], X),
    "take": (lambda x, n: x.take(n), X, N),
    "take_along_dim": (lambda x, n: x.take_along_dim(n % 4, 0), X, N),
    "tril": (lambda x: x.tril(-1), X),
    "triu": (lambda x: x.triu(1), X),
    "unique": (lambda x: x.unique(), N),
    "where": (lambda x, y: x.where(x > 0, y), X, Y),
    "tril_": (lambda x: x.clone().tril_(), X),
    "atan2_": (lambda x, y: x.clone().atan2_(y), X, Y),
    "cumsum_": (lambda x: x.clone().cumsum_(1), X),
    "eq_": (lambda x, y: x.clone().eq_(y), N, M),
    "floor_divide_": (lambda x, y: x.clone().floor_divide_(y), N, M),
    "fmod_": (lambda x, y: x.clone().fmod_(y), N, M),
    "ge_": (lambda x, y: x.clone().ge_(y), X, Y),
    "hypot_": (lambda x, y: x.clone().hypot_(y), X, Y),
    "logical_and_": (lambda x, y: x.clone().logical_and_(y), N % 2, M % 2),
    "multiply_": (lambda x, y: x.clone().multiply_(y), X, Y),
    "remainder_": (lambda x, y: x.clone().remainder_(y), X, Y),
    "tan_": (lambda x: x.clone().tan_(), X),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", CALLS)
def test_methods_are_pytorchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    call, *arrays = CALLS[name]
    got, want = call(*map(st.tensor, arrays)), call(*map(torch.tensor, arrays))
    assert np.asarray(got).dtype == want.numpy().dtype
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


def test_methods_are_numpys() -> None:
    x = st.tensor(X)
    y = x.copy()
    y += 1.0
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(st.tensor(Z).conjugate(), Z.conjugate())
    np.testing.assert_array_equal(x.take(st.tensor([0, 7])), X.take([0, 7]))
    rows = np.sort(X[0])
    np.testing.assert_array_equal(st.tensor(rows).searchsorted(Y[0]), rows.searchsorted(Y[0]))


def test_tensors_are_given_random_numbers_in_place() -> None:
    st.manual_seed(1)
    x = st.zeros(20_000)
    assert abs(x.uniform_(-1, 3).mean().item() - 1) < 0.05
    assert -1 <= x.min().item() < -0.99
    assert 2.99 < x.max().item() < 3
    assert abs(x.normal_(2.0, 0.5).std().item() - 0.5) < 0.02
    assert abs(x.mean().item() - 2) < 0.02
    assert abs(x.bernoulli_(0.25).mean().item() - 0.25) < 0.02
    assert abs(st.full((20_000,), 0.25).bernoulli().mean().item() - 0.25) < 0.02
    assert set(st.tensor([0.0, 1.0, 1.0]).multinomial(50, replacement=True).tolist()) == {1, 2}
    step = st.compile(lambda: x.uniform_())
    assert (step() != step().clone()).sum().item() == 0  # both are x
    first = x.copy()
    step()
    assert (first != x).float().mean().item() > 0.99


def test_integers_hold_no_uniform_numbers() -> None:
    with pytest.raises(st.StratalError, match="gives floats"):
        st.ones(3, dtype=st.int32).uniform_(0.5, 1.0)


@pytest.mark.parametrize(
    ("home", "name"), [("nn.functional", "conv2d"), ("nn.functional", "pdist"), ("linalg", "det")]
)
def test_pytorch_finds_functions_of_layers_and_matrices_at_the_top_too(home: str, name: str) -> None:
    place = st
    for part in home.split("."):
        place = getattr(place, part)
    x = st.randn(1, 1, 4, 4) if name == "conv2d" else st.randn(4, 4)
    given = (x, x[:, :, :2, :2]) if name == "conv2d" else (x,)
    np.testing.assert_array_equal(getattr(st, name)(*given), getattr(place, name)(*given))
    assert st.is_floating_point(st.clone(x))
    assert not st.is_complex(x)
