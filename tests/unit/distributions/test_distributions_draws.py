"""Draws of distributions: their moments, their distance from SciPy's functions, their derivatives."""

import numpy as np
import pytest
from test_distributions import CASES, A, B, P, W
from test_distributions import _ours as made

import stratal as st
from stratal import distributions as D

COUNT = 20_000
# SciPy's distribution of the same variable, from the arguments of ours.
SCIPY = {
    "Normal": lambda s, a, b: s.norm(a, b), "LogNormal": lambda s, a, b: s.lognorm(b, scale=np.exp(a)),
    "Laplace": lambda s, a, b: s.laplace(a, b), "Cauchy": lambda s, a, b: s.cauchy(a, b),
    "Gumbel": lambda s, a, b: s.gumbel_r(a, b), "HalfCauchy": lambda s, a: s.halfcauchy(0, a),
    "Pareto": lambda s, a, b: s.pareto(b, scale=a), "Weibull": lambda s, a, b: s.weibull_min(b, scale=a),
    "Gamma": lambda s, a, b: s.gamma(a, scale=1 / b), "Chi2": lambda s, a: s.chi2(a),
    "InverseGamma": lambda s, a, b: s.invgamma(a, scale=b), "Beta": lambda s, a, b: s.beta(a, b),
    "StudentT": lambda s, n, a, b: s.t(n, a, b), "FisherSnedecor": lambda s, a, b: s.f(a, b),
    "VonMises": lambda s, a, b: s.vonmises(b),
}  # fmt: skip


NO_MEAN = {"Categorical", "RelaxedBernoulli", "RelaxedOneHotCategorical", "LogisticNormal", "LKJCholesky"}
TRIED_BELOW = {"Beta above 1", "Poisson", "Binomial", "NegativeBinomial", "Geometric"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(set(CASES) - NO_MEAN - TRIED_BELOW - set(SCIPY)))
def test_draws_have_the_stated_mean_and_variance_and_repeat(name):
    d = made(name, CASES[name][0])
    st.manual_seed(3)
    drawn = np.array(d.sample((COUNT,)))
    mean, variance = np.array(d.mean), np.array(d.variance)
    assert drawn.shape == (COUNT, *d.batch_shape, *d.event_shape) and drawn.dtype == np.float64
    assert np.all(np.abs(drawn.mean(0) - mean) <= 5 * np.sqrt(variance / COUNT) + 1e-9)
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.12, atol=1e-9)
    st.manual_seed(3)
    np.testing.assert_array_equal(np.array(d.sample((COUNT,))), drawn)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", SCIPY)
def test_draws_are_distributed_as_scipys(name):
    """Kolmogorov and Smirnov: the largest distance, times the root of the count, exceeds 2 once in 1500."""
    stats = pytest.importorskip("scipy.stats")
    args, _, values = CASES[name]
    args = (0 * A, B) if name == "VonMises" else args
    d, theirs = made(name, args), SCIPY[name](stats, *args)
    st.manual_seed(7)
    drawn = np.sort(np.array(d.sample((COUNT,))), axis=0)
    places = theirs.cdf(drawn)
    steps = np.arange(COUNT + 1)[:, None] / COUNT
    distance = np.maximum(np.abs(places - steps[1:]), np.abs(places - steps[:-1])).max(axis=0)
    assert np.all(distance * np.sqrt(COUNT) < 2)
    if name != "VonMises":  # without a cdf
        np.testing.assert_allclose(
            np.array(d.cdf(st.tensor(np.array(values)))), theirs.cdf(values), rtol=1e-7
        )


COUNTS = {
    "Poisson": ([0.0, 0.3, 9.9, 10.1, 300.0],),
    "Binomial": ([10.0, 30.0, 50.0, 1e6, 5.0, 5.0, 0.0], [0.3, 0.9, 0.35, 0.99, 0.0, 1.0, 0.5]),
    "NegativeBinomial": ([0.4, 7.0], [0.6, 0.9]),
    "Geometric": ([0.2, 0.7],),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_as_frequent_as_their_probabilities_say(name):
    stats = pytest.importorskip("scipy.stats")
    d = made(name, COUNTS[name])
    st.manual_seed(11)
    drawn = d.sample((COUNT,))
    chances = np.exp(np.array(d.log_prob(drawn)))
    for k, column in enumerate(np.array(drawn).T):
        values, places, seen = np.unique(column, return_index=True, return_counts=True)
        expected = COUNT * chances[places, k]
        common = expected > 10
        seen, expected = seen[common], expected[common]
        seen, expected = np.append(seen, COUNT - seen.sum()), np.append(expected, COUNT - expected.sum())
        worst = np.sum((seen - expected) ** 2 / np.maximum(expected, 1))
        assert worst < stats.chi2.ppf(1 - 1e-4, max(len(seen) - 1, 1)), (k, values)


def test_classes_are_drawn_as_often_as_they_should():
    d = D.Categorical(st.tensor(W))
    st.manual_seed(0)
    drawn = np.array(d.sample((COUNT,)))
    for k in range(2):
        shares = np.bincount(drawn[:, k], minlength=3) / len(drawn)
        np.testing.assert_allclose(shares, W[k] / W[k].sum(), atol=0.02)


def test_draws_without_a_distribution_are_not_numbers():
    bad = st.tensor([-1.0, float("nan"), float("inf")])
    for d in (
        D.Gamma(bad, 1.0, validate_args=False),
        D.Poisson(bad, validate_args=False),
        D.Binomial(bad, 0.5, validate_args=False),
        D.VonMises(0.0, bad, validate_args=False),
    ):
        assert np.isnan(np.array(d.sample())).all(), d


# -- derivatives ---------------------------------------------------------------------------------------------
def test_draws_are_differentiable_by_the_parameters():
    loc = st.tensor(np.array([0.5, 1.0])).requires_grad_()
    scale = st.tensor(np.array([2.0, 3.0])).requires_grad_()
    for make in (D.Normal, D.Laplace, D.Gumbel, lambda a, b: D.StudentT(3.0, a, b)):
        loc.grad = scale.grad = None
        drawn = make(loc, scale).rsample((4,))
        drawn.sum().backward()
        np.testing.assert_allclose(np.array(loc.grad), 4)
        standard = (np.array(drawn.detach()) - np.array(loc.detach())) / np.array(scale.detach())
        np.testing.assert_allclose(np.array(scale.grad), standard.sum(0), rtol=1e-6)
    assert not D.Normal(loc, scale).sample().requires_grad


@pytest.mark.sampled(4)
def test_gamma_draws_move_along_their_quantiles():
    scipy = pytest.importorskip("scipy.special")
    a = np.array([0.05, 0.6, 1.0, 3.5, 40.0, 900.0])

    def drawn(shape):
        st.manual_seed(5)
        return D.Gamma(shape, 1.0).rsample()

    x = np.array(drawn(st.tensor(a)))
    level, step = scipy.gammainc(a, x), 1e-5 * a
    want = (scipy.gammaincinv(a + step, level) - scipy.gammaincinv(a - step, level)) / (2 * step)
    shape = st.tensor(a).requires_grad_()
    (slope,) = st.gradients(drawn(shape).sum(), [shape], create_graph=True)
    np.testing.assert_allclose(np.array(slope.detach()), want, rtol=1e-6)
    (bend,) = st.gradients(slope.sum(), [shape])
    near = [scipy.gammaincinv(a + k * step * 100, level) for k in (-1, 0, 1)]
    want = (near[0] - 2 * near[1] + near[2]) / (step * 100) ** 2
    np.testing.assert_allclose(np.array(bend)[:5], want[:5], rtol=2e-3)


MEANS = {  # distributions of parameters whose draws' mean is known, and its derivative summed over draws
    "Beta": (lambda t: D.Beta(t, 2.0), lambda t: t / (t + 2)),
    "Dirichlet": (lambda t: D.Dirichlet(t), lambda t: t[:1] / t.sum()),
    "InverseGamma": (lambda t: D.InverseGamma(t + 4, 1.0), lambda t: 1 / (t + 3)),
    "Chi2": (lambda t: D.Chi2(t), lambda t: t),
    "RelaxedBernoulli": (lambda t: D.RelaxedBernoulli(1.0, logits=0 * t), lambda t: 0 * t + 0.5),
    "MultivariateNormal": (lambda t: D.MultivariateNormal(t, st.eye(3)), lambda t: t),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", MEANS)
def test_derivatives_of_draws_are_on_average_those_of_the_mean(name):
    make, mean = MEANS[name]
    t = st.tensor(np.array([0.7, 1.3, 2.5])).requires_grad_()
    st.manual_seed(2)
    drawn = make(t).rsample((COUNT,))
    found = drawn[..., 0] if name == "Dirichlet" else drawn
    found.sum().backward()
    u = st.tensor(np.array([0.7, 1.3, 2.5])).requires_grad_()
    mean(u).sum().backward()
    np.testing.assert_allclose(np.array(t.grad) / COUNT, np.array(u.grad), atol=0.02)


def test_a_straight_through_class_has_the_derivative_of_its_probabilities():
    weights = st.tensor(W).requires_grad_()
    d = D.OneHotCategoricalStraightThrough(weights)
    drawn = d.rsample((5,))
    assert set(np.unique(np.round(np.array(drawn.detach()), 12))) <= {0.0, 1.0}
    (drawn * st.tensor(B)).sum().backward()
    other = st.tensor(W).requires_grad_()
    (5 * D.Categorical(other).probs * st.tensor(B)).sum().backward()
    np.testing.assert_allclose(np.array(weights.grad), np.array(other.grad))


@pytest.mark.sampled(5)
def test_a_step_with_draws_compiles_and_differs_from_run_to_run():
    @st.compile
    def step(a, p):
        drawn = D.Beta(a, 2.0).rsample((3,)) + D.Binomial(20.0, p).sample((3,)) + D.Poisson(20 * a).sample()
        return drawn.sum()

    st.manual_seed(0)
    a, p = st.tensor(A), st.tensor(P)
    first, second = float(step(a, p)), float(step(a, p))
    st.manual_seed(0)
    assert float(step(a, p)) == first != second
    assert step.plan["calls"]["host"] == 0


def test_draws_and_densities_keep_their_dtype_and_shapes_of_size_0():
    for name in ("Gamma", "StudentT", "Weibull", "Pareto", "Poisson", "VonMises", "LogNormal", "Kumaraswamy"):
        one = st.tensor(np.float16(1.0))
        d = D.StudentT(one) if name == "StudentT" else D.Poisson(one) if name == "Poisson" else None
        d = d or getattr(D, name)(one, one)
        x = d.sample((2,))
        assert x.dtype is st.float16 and d.log_prob(one).dtype is st.float16, name
    empty = st.zeros(0, 3) + 1
    assert D.Dirichlet(empty).sample((2,)).shape == (2, 0, 3) and D.Poisson(empty).sample(4).shape == (
        4,
        0,
        3,
    )
