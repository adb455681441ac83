"""Distributions: PyTorch's densities, entropies, moments and divergences; draws by their moments."""

import numpy as np
import pytest

import stratal as st
from stratal import distributions as D
from stratal.base.errors import StratalError

A, B = np.array([0.3, 1.2, 2.0]), np.array([0.7, 0.4, 1.5])  # parameters, positive
P, Q = np.array([0.2, 0.5, 0.9]), np.array([0.6, 0.3, 0.8])  # probabilities
W, V = np.array([[0.2, 0.5, 0.3], [1.0, 2.0, 5.0]]), np.array([[0.4, 0.4, 0.2], [1.0, 1.0, 1.0]])
CASES = {  # two sets of arguments, and values to ask about
    "Normal": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "LogNormal": ((A, B), (B, A), [0.1, 1.0, 3.0]),
    "Laplace": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "Cauchy": ((A, B), None, [-1.0, 0.2, 3.0]),
    "Gumbel": ((A, B), None, [-1.0, 0.2, 3.0]),
    "HalfNormal": ((A,), (B,), [0.1, 1.0, 3.0]),
    "Exponential": ((A,), (B,), [0.0, 1.0, 3.0]),
    "Uniform": ((A, A + B), (A - 1, A + 2), [0.5, 1.3, 2.1]),
    "Bernoulli": ((P,), (Q,), [0.0, 1.0, 1.0]),
    "Geometric": ((P,), (Q,), [0.0, 1.0, 5.0]),
    "Categorical": ((W,), (V,), [2.0, 0.0]),
}


def _ours(name, args):
    return getattr(D, name)(*(st.tensor(a) for a in args))


def _theirs(torch, name, args):
    return getattr(torch.distributions, name)(*(torch.from_numpy(np.asarray(a)) for a in args))


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_densities_entropies_and_moments_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    args, _, values = CASES[name]
    ours, theirs = _ours(name, args), _theirs(torch, name, args)
    x = np.array(values)
    want = {"log_prob": theirs.log_prob(torch.from_numpy(x)), "entropy": theirs.entropy()}
    got = {"log_prob": ours.log_prob(st.tensor(x)), "entropy": ours.entropy()}
    for key in ("mean", "variance", "mode", "stddev"):
        want[key], got[key] = getattr(theirs, key), getattr(ours, key)
    if name not in ("Bernoulli", "Geometric", "Categorical"):
        half = np.array([0.2, 0.5, 0.9])
        want["cdf"], got["cdf"] = theirs.cdf(torch.from_numpy(x)), ours.cdf(st.tensor(x))
        want["icdf"], got["icdf"] = theirs.icdf(torch.from_numpy(half)), ours.icdf(st.tensor(half))
    for key, value in want.items():
        np.testing.assert_allclose(np.array(got[key]), value.numpy(), rtol=2e-7, atol=1e-9, err_msg=key)


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name, (_, other, _) in CASES.items() if other is not None])
def test_divergences_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    first, second, _ = CASES[name]
    want = torch.distributions.kl_divergence(_theirs(torch, name, first), _theirs(torch, name, second))
    got = D.kl_divergence(_ours(name, first), _ours(name, second))
    np.testing.assert_allclose(np.array(got), want.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("Cauchy", "Categorical")])
def test_draws_have_the_stated_mean_and_variance_and_repeat(name):
    count = 40_000
    d = _ours(name, CASES[name][0])
    st.manual_seed(3)
    drawn = np.array(d.sample((count,)))
    mean, variance = np.array(d.mean), np.array(d.variance)
    assert drawn.shape == (count, 3)
    assert np.all(np.abs(drawn.mean(0) - mean) < 6 * np.sqrt(variance / count))
    tolerance = 0.35 if name == "LogNormal" else 0.1  # the fourth moment of a lognormal is large
    np.testing.assert_allclose(drawn.var(0), variance, rtol=tolerance)
    st.manual_seed(3)
    np.testing.assert_array_equal(np.array(d.sample((count,))), drawn)


def test_classes_are_drawn_as_often_as_they_should():
    d = D.Categorical(st.tensor(W))
    st.manual_seed(0)
    drawn = np.array(d.sample((20_000,)))
    for k in range(2):
        shares = np.bincount(drawn[:, k], minlength=3) / len(drawn)
        np.testing.assert_allclose(shares, W[k] / W[k].sum(), atol=0.02)


def test_quantiles_of_cauchys_draws():
    st.manual_seed(0)
    drawn = np.array(D.Cauchy(1.0, 2.0).sample((20_000,)))
    np.testing.assert_allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [-1, 1, 3], atol=0.15)


def test_draws_are_differentiable_by_the_parameters():
    loc = st.tensor(np.array([0.5, 1.0])).requires_grad_()
    scale = st.tensor(np.array([2.0, 3.0])).requires_grad_()
    for make in (D.Normal, D.Laplace, D.Gumbel):
        loc.grad = scale.grad = None
        drawn = make(loc, scale).rsample((4,))
        drawn.sum().backward()
        np.testing.assert_allclose(np.array(loc.grad), 4)
        standard = (np.array(drawn.detach()) - np.array(loc.detach())) / np.array(scale.detach())
        np.testing.assert_allclose(np.array(scale.grad), standard.sum(0), rtol=1e-6)
    assert not D.Normal(loc, scale).sample().requires_grad


def test_batches_expand_and_shapes_add_up():
    d = D.Normal(st.tensor(A), 1.0).expand((2, 3))
    assert d.batch_shape == (2, 3) and d.sample((5,)).shape == (5, 2, 3)
    c = D.Categorical(logits=st.tensor(W)).expand((4, 2))
    assert c.sample((5,)).shape == (5, 4, 2) and c.log_prob(st.tensor([0, 1])).shape == (4, 2)


@pytest.mark.torch
def test_axes_of_a_batch_become_axes_of_an_event_as_in_pytorch():
    torch = pytest.importorskip("torch")
    loc, x = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    ours = D.Independent(D.Normal(st.tensor(loc), st.tensor(B)), 1)
    theirs = torch.distributions.Independent(
        torch.distributions.Normal(torch.from_numpy(loc), torch.from_numpy(B)), 1
    )
    assert (ours.batch_shape, ours.event_shape) == ((2,), (3,)) and ours.rsample((4,)).shape == (4, 2, 3)
    np.testing.assert_allclose(np.array(ours.log_prob(st.tensor(x))), theirs.log_prob(torch.from_numpy(x)))
    np.testing.assert_allclose(np.array(ours.entropy()), theirs.entropy())
    other = D.Independent(D.Normal(st.tensor(x), 1.0), 1)
    same = torch.distributions.Independent(torch.distributions.Normal(torch.from_numpy(x), 1.0), 1)
    want = torch.distributions.kl_divergence(theirs, same)
    np.testing.assert_allclose(np.array(D.kl_divergence(ours, other)), want)
    assert ours.expand((5, 2)).sample().shape == (5, 2, 3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: D.Normal(0.0, -1.0), "scale must be positive"),
        (lambda: D.Normal(float("nan"), 1.0), "loc must be real"),
        (lambda: D.Uniform(1.0, 1.0), "low must be below high"),
        (lambda: D.Bernoulli(1.5), "probs must be in"),
        (lambda: D.Bernoulli(), "probs or logits"),
        (lambda: D.Bernoulli(0.5).log_prob(0.5), "value must be 0 or 1"),
        (lambda: D.Bernoulli(0.5).rsample(), "has no rsample"),
        (lambda: D.Exponential(1.0).log_prob(-1.0), "value must be at least 0"),
        (lambda: D.Categorical(st.tensor(W)).log_prob(3), "below 3"),
        (lambda: D.Categorical(0.5), "axis of classes"),
        (lambda: D.Independent(D.Normal(0.0, 1.0), 1), "at most as many axes"),
        (lambda: D.kl_divergence(D.Normal(0.0, 1.0), D.Cauchy(0.0, 1.0)), "no closed form"),
    ],
)
def test_a_wrong_distribution_is_refused_with_the_users_line(make, says):
    with pytest.raises(StratalError, match=says) as info:
        make()
    assert "test_distributions.py" in str(info.value)
