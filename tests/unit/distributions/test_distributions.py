"""Distributions: PyTorch's densities, entropies, moments and divergences; draws by their moments."""

import contextlib

import numpy as np
import pytest

import stratal as st
from stratal import distributions as D
from stratal.base.errors import StratalError

A, B = np.array([0.3, 1.2, 2.0]), np.array([0.7, 0.4, 1.5])  # parameters, positive
P, Q = np.array([0.2, 0.5, 0.9]), np.array([0.6, 0.3, 0.8])  # probabilities
W, V = np.array([[0.2, 0.5, 0.3], [1.0, 2.0, 5.0]]), np.array([[0.4, 0.4, 0.2], [1.0, 1.0, 1.0]])
# Lower triangles, and the covariances and precisions they are factors of.
L = np.array([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [-0.5, 0.2, 1.4]])
M = np.array([[0.6, 0.0, 0.0], [-0.2, 1.7, 0.0], [0.1, 0.2, 0.9]])
S = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])  # shares of a whole
FACTOR = M / np.linalg.norm(M, axis=-1, keepdims=True)  # of correlations
CASES = {  # two sets of arguments, and values to ask about
    "Normal": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "LogNormal": ((A, B), (B, A), [0.1, 1.0, 3.0]),
    "Laplace": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "Cauchy": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "Gumbel": ((A, B), (B, A), [-1.0, 0.2, 3.0]),
    "HalfNormal": ((A,), (B,), [0.0, 1.0, 3.0]),
    "HalfCauchy": ((A,), None, [0.0, 1.0, 3.0]),
    "Exponential": ((A,), (B,), [0.0, 1.0, 3.0]),
    "Uniform": ((A, A + B), (A - 1, A + 2), [0.5, 1.3, 2.1]),
    "Pareto": ((A, 3 * B), (A / 2, B), [0.5, 1.3, 2.1]),
    "Weibull": ((A, 3 * B), None, [0.5, 1.3, 2.1]),
    "Kumaraswamy": ((3 * A, 3 * B), None, [0.5, 0.3, 0.1]),
    "Gamma": ((A, B), (B, A), [0.1, 1.0, 3.0]),
    "InverseGamma": ((3 * A, B), None, [0.1, 1.0, 3.0]),
    "Chi2": ((3 * A,), (3 * B,), [0.1, 1.0, 3.0]),
    "Beta": ((A, B + 0.5), (B, A), [0.1, 0.5, 0.9]),
    "Beta above 1": ((A + 1, B + 2), (B, A), [0.1, 0.5, 0.9]),
    "StudentT": ((2 * A, B, A), None, [-1.0, 0.2, 3.0]),
    "FisherSnedecor": ((3 * A, 5 * B), None, [0.1, 1.0, 3.0]),
    "VonMises": ((A, B), None, [-1.0, 0.2, 3.0]),
    "Dirichlet": ((3 * W,), (V,), S),
    "Bernoulli": ((P,), (Q,), [0.0, 1.0, 1.0]),
    "Geometric": ((P,), (Q,), [0.0, 1.0, 5.0]),
    "Poisson": ((A,), (B,), [0.0, 1.0, 5.0]),
    "Binomial": ((7.0, P), (7.0, Q), [0.0, 3.0, 7.0]),
    "NegativeBinomial": ((A, P), None, [0.0, 1.0, 5.0]),
    "Categorical": ((W,), (V,), [2.0, 0.0]),
    "OneHotCategorical": ((W,), (V,), [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    "Multinomial": ((4, W), None, [[1.0, 2.0, 1.0], [0.0, 0.0, 4.0]]),
    "RelaxedBernoulli": ((0.7, P), None, [0.1, 0.5, 0.9]),
    "RelaxedOneHotCategorical": ((0.7, W), None, S),
    "LogisticNormal": ((A, B), None, [0.1, 0.2, 0.3, 0.4]),
    "MultivariateNormal": ((A, L @ L.T), (B, M @ M.T), [0.1, 0.2, 0.3]),
    "LowRankMultivariateNormal": ((A, L[:, :2], B), (B, M[:, 1:], A), [0.1, 0.2, 0.3]),
    "LowRankMultivariateNormal of higher rank": ((A, np.hstack([L, M]), B), None, [[0.1, 0.2, 0.3], B]),
    "Wishart": ((np.array([3.5, 6.0]), L @ L.T), None, M @ M.T),
    "LKJCholesky": ((3, np.array([0.6, 1.0, 3.0])), None, FACTOR),
}
WITHOUT_MOMENTS = ("Cauchy", "HalfCauchy", "Categorical", "LKJCholesky")


def _ours(name, args):
    wrapped = (a if isinstance(a, int) else st.tensor(np.asarray(a, float)) for a in args)
    return getattr(D, name.split()[0])(*wrapped)


def _theirs(torch, name, args):
    wrapped = (a if isinstance(a, int) else torch.tensor(np.asarray(a, float)) for a in args)
    return getattr(torch.distributions, name.split()[0])(*wrapped)


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_densities_entropies_and_moments_are_pytorchs(name):
    """Whatever PyTorch's distribution has, this one has, too."""
    torch = pytest.importorskip("torch")
    args, _, values = CASES[name]
    ours, theirs = _ours(name, args), _theirs(torch, name, args)
    assert (ours.batch_shape, ours.event_shape) == (tuple(theirs.batch_shape), tuple(theirs.event_shape))
    x, half = np.array(values), np.array([0.2, 0.5, 0.9])
    asked = {
        "log_prob": lambda d, wrap: d.log_prob(wrap(x)), "cdf": lambda d, wrap: d.cdf(wrap(x)),
        "icdf": lambda d, wrap: d.icdf(wrap(half)), "entropy": lambda d, _: d.entropy(),
        "perplexity": lambda d, _: d.perplexity(), "mean": lambda d, _: d.mean,
        "variance": lambda d, _: d.variance, "mode": lambda d, _: d.mode, "stddev": lambda d, _: d.stddev,
        "enumerate_support": lambda d, _: d.enumerate_support(),
    }  # fmt: skip
    wanted = {}
    for key, ask in asked.items():
        if (name, key) == ("Kumaraswamy", "mode"):
            continue  # PyTorch's is a logarithm of negative numbers
        with contextlib.suppress(NotImplementedError):
            wanted[key] = ask(theirs, torch.from_numpy).numpy()
    got = {
        key: asked[key](ours, st.tensor) for key in wanted
    }  # computed together when the first is looked at
    for key, want in wanted.items():
        assert got[key].shape == want.shape, key
        np.testing.assert_allclose(np.array(got[key]), want, rtol=3e-7, atol=1e-9, err_msg=key)


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name, (_, other, _) in CASES.items() if other is not None])
def test_divergences_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    first, second, _ = CASES[name]
    want = torch.distributions.kl_divergence(_theirs(torch, name, first), _theirs(torch, name, second))
    got = D.kl_divergence(_ours(name, first), _ours(name, second))
    np.testing.assert_allclose(np.array(got), want.numpy(), rtol=1e-6, atol=1e-9)


PAIRS = [
    ("Beta", "Normal"), ("Beta", "Exponential"), ("Exponential", "Normal"), ("Exponential", "Gamma"),
    ("Gamma", "Normal"), ("Gamma", "Exponential"), ("Gumbel", "Normal"), ("Laplace", "Normal"),
    ("Uniform", "Normal"), ("Normal", "Laplace"), ("Normal", "Uniform"), ("Laplace", "Gamma"),
    ("Gamma", "Uniform"), ("Normal", "Beta"), ("LowRankMultivariateNormal", "MultivariateNormal"),
    ("MultivariateNormal", "LowRankMultivariateNormal"),
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_divergences_between_families_are_pytorchs(first, second):
    torch = pytest.importorskip("torch")
    p, q = CASES[first][0], CASES[second][0]
    if (first, second) == (
        "Normal",
        "Laplace",
    ):  # PyTorch's is another number; the integral says which is right
        x = np.linspace(-12.0, 15.0, 200_001)[:, None]
        a, b = _ours(first, p), _ours(second, (B, A))
        log_p, log_q = (np.array(d.log_prob(st.tensor(x))) for d in (a, b))
        want = np.trapezoid(np.exp(log_p) * (log_p - log_q), x, axis=0)
        np.testing.assert_allclose(np.array(D.kl_divergence(a, b)), want, rtol=1e-7)
        return
    want = torch.distributions.kl_divergence(_theirs(torch, first, p), _theirs(torch, second, q))
    got = D.kl_divergence(_ours(first, p), _ours(second, q))
    np.testing.assert_allclose(np.array(got), want.numpy(), rtol=1e-6, atol=1e-9)


def test_the_divergence_of_a_uniform_from_a_beta_variable_is_its_integral():
    p, q = D.Uniform(np.array(0.2), np.array(0.7)), D.Beta(np.array(2.5), np.array(0.6))
    x = np.linspace(0.2, 0.7, 200_001)[1:-1]
    log_p, log_q = (np.array(d.log_prob(st.tensor(x))) for d in (p, q))
    want = np.trapezoid(np.exp(log_p) * (log_p - log_q), x)
    np.testing.assert_allclose(np.array(D.kl_divergence(p, q)), want, rtol=1e-4)


def test_a_divergence_of_ones_own_is_found_by_the_classes_and_their_bases():
    class Mine(D.Normal):
        pass

    d = Mine(st.tensor(A), st.tensor(B))
    assert np.array(D.kl_divergence(d, d)).tolist() == [0.0, 0.0, 0.0]
    D.register_kl(Mine, Mine)(lambda p, q: p.loc - q.loc + 1)
    assert np.array(D.kl_divergence(d, d)).tolist() == [1.0, 1.0, 1.0]


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


@pytest.mark.parametrize("form", ["precision_matrix", "scale_tril"])
def test_a_normal_vector_by_its_precision_or_its_factor(form):
    covariance = np.stack([L @ L.T, M @ M.T])
    given = {"precision_matrix": np.linalg.inv(covariance), "scale_tril": np.stack([L, M])}[form]
    d = D.MultivariateNormal(st.tensor(A), **{form: st.tensor(given)})
    assert (d.batch_shape, d.event_shape) == ((2,), (3,)) and d.sample((5,)).shape == (5, 2, 3)
    np.testing.assert_allclose(np.array(d.scale_tril), np.stack([L, M]), atol=1e-12)
    np.testing.assert_allclose(np.array(d.covariance_matrix), covariance, atol=1e-12)
    np.testing.assert_allclose(np.array(d.precision_matrix), np.linalg.inv(covariance), rtol=1e-9)
    assert d.expand((4, 2)).log_prob(st.tensor(B)).shape == (4, 2)


@pytest.mark.torch
@pytest.mark.parametrize("vector", [False, True])
def test_mixtures_are_pytorchs(vector):
    torch = pytest.importorskip("torch")
    T = torch.distributions
    loc = np.arange(12.0).reshape(2, 3, 2) if vector else np.arange(6.0).reshape(2, 3)

    def made(lib, wrap):
        part = lib.Normal(wrap(loc), wrap(np.full(loc.shape, 1.5)))
        part = lib.Independent(part, 1) if vector else part
        return lib.MixtureSameFamily(lib.Categorical(wrap(W)), part)

    ours, theirs = made(D, st.tensor), made(T, torch.from_numpy)
    x = np.array([1.0, 2.0])
    assert (ours.batch_shape, ours.event_shape) == (theirs.batch_shape, theirs.event_shape)
    for ask in ("mean", "variance"):
        np.testing.assert_allclose(np.array(getattr(ours, ask)), getattr(theirs, ask).numpy())
    np.testing.assert_allclose(np.array(ours.log_prob(st.tensor(x))), theirs.log_prob(torch.from_numpy(x)))
    if not vector:
        np.testing.assert_allclose(np.array(ours.cdf(st.tensor(x))), theirs.cdf(torch.from_numpy(x)))
    st.manual_seed(0)
    drawn = np.array(ours.sample((20_000,)))
    np.testing.assert_allclose(drawn.mean(0), np.array(ours.mean), atol=0.15)
    np.testing.assert_allclose(drawn.var(0), np.array(ours.variance), rtol=0.05)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: D.Normal(0.0, -1.0), "scale must be positive"),
        (lambda: D.Normal(float("nan"), 1.0), "loc must be real"),
        (lambda: D.Uniform(1.0, 1.0), "high must be above low"),
        (lambda: D.Bernoulli(1.5), "probs must be in"),
        (lambda: D.Bernoulli(), "probs or logits"),
        (lambda: D.Bernoulli(0.5).log_prob(0.5), "value must be 0 or 1"),
        (lambda: D.Bernoulli(0.5).rsample(), "has no rsample"),
        (lambda: D.Exponential(1.0).log_prob(-1.0), "value must be at least 0"),
        (lambda: D.Categorical(st.tensor(W)).log_prob(3), "below 3"),
        (lambda: D.Categorical(0.5), "at least 1 axes"),
        (lambda: D.Independent(D.Normal(0.0, 1.0), 1), "at most as many axes"),
        (lambda: D.Gamma(0.0, 1.0), "concentration must be positive"),
        (lambda: D.Gamma(st.tensor(np.array(1j)), 1.0), "real numbers"),
        (lambda: D.Gamma(2.0, 1.0).sample((2.5,)), "sequence of sizes"),
        (lambda: D.Gamma(2.0, 1.0).sample((-2,)), "negative"),
        (lambda: D.Chi2(-1.0), "df must be positive"),
        (lambda: D.Dirichlet(st.tensor(W)).log_prob(st.tensor(W)), "sum 1 along"),
        (lambda: D.Dirichlet(1.0), "at least 1 axes"),
        (lambda: D.Binomial(3.5, 0.5), "total_count must be a whole number"),
        (lambda: D.Binomial(3.0, 0.5).log_prob(4.0), "at most total_count"),
        (lambda: D.Binomial(st.tensor([3.0, 4.0]), 0.5).entropy(), "different counts"),
        (lambda: D.Multinomial(2.5, st.tensor(W)), "number of draws"),
        (lambda: D.Multinomial(3, st.tensor(W)).log_prob(st.tensor([1.0, 1.0, 0.0])), "sum total_count"),
        (lambda: D.OneHotCategorical(st.tensor(W)).log_prob(st.tensor([1.0, 1.0, 0.0])), "one 1"),
        (lambda: D.Pareto(2.0, 1.0).log_prob(1.0), "at least scale"),
        (lambda: D.MultivariateNormal(st.tensor(A)), "takes one of"),
        (lambda: D.MultivariateNormal(st.tensor(A), st.ones(2, 2)), "square matrices of the size"),
        (lambda: D.MultivariateNormal(st.tensor(A), scale_tril=st.ones(3, 3)), "lower triangular"),
        (lambda: D.MultivariateNormal(st.tensor(A), -st.eye(3)).rsample().numpy(), "positive definite"),
        (lambda: D.MixtureSameFamily(D.Categorical(st.tensor(W)), D.Normal(st.ones(2), 1.0)), "count the cl"),
        (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), D.StickBreakingTransform()), "fewer axes"),
        (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), [abs]), "transforms are maps"),
        (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), D.AbsTransform()).cdf(1.0), "not monotone"),
        (lambda: D.SoftmaxTransform().log_abs_det_jacobian(st.ones(2), st.ones(2)), "keeps no volume"),
        (lambda: D.kl_divergence(D.Normal(0.0, 1.0), D.Cauchy(0.0, 1.0)), "no closed form"),
    ],
)
def test_a_wrong_distribution_is_refused_with_the_users_line(make, says):
    with pytest.raises(StratalError, match=says) as info:
        make()
    assert "test_distributions.py" in str(info.value)


NONE_OF_THEIRS = {  # draws and densities with arguments no distribution of theirs has
    "Bernoulli": lambda a: st.distributions.Bernoulli(a).sample(),
    "Categorical": lambda a: st.distributions.Categorical(a).sample(),
    "Uniform": lambda a: st.distributions.Uniform(a * 0, a * 0).sample(),
    "Normal": lambda a: st.distributions.Normal(a * 0, a * 0).log_prob(a),
    "LogNormal": lambda a: st.distributions.LogNormal(a, -a - 9).sample(),
    "Gamma": lambda a: st.distributions.Gamma(a, a).sample(),
    "Dirichlet": lambda a: st.distributions.Dirichlet(a).sample(),
    "Poisson": lambda a: st.distributions.Poisson(a).sample(),
    "Multinomial": lambda a: st.distributions.Multinomial(3, a).sample(),
    "class of Categorical": lambda a: st.distributions.Categorical(st.ones(2)).log_prob(a.long()),
    "count of Binomial": lambda a: st.distributions.Binomial(2, st.tensor(0.5)).log_prob(a.abs()),
    "sum of Multinomial": lambda a: st.distributions.Multinomial(3, st.ones(3)).log_prob(a.abs()),
    "value of Pareto": lambda a: st.distributions.Pareto(a.abs() + 9, a.abs()).log_prob(a.abs()),
    "df of Wishart": lambda a: st.distributions.Wishart(a.abs().min(), st.eye(3)).sample(),
    "multinomial": lambda a: st.multinomial(a, 2),
    "quantile": lambda a: st.quantile(a, a.max()),
}


@pytest.mark.parametrize("name", NONE_OF_THEIRS)
def test_arguments_that_are_wrong_are_an_error_in_compiled_functions_too(name: str) -> None:
    wrong, function = st.tensor([-1.0, 2.0, 5.0]), NONE_OF_THEIRS[name]
    with pytest.raises(st.StratalError):
        function(wrong).tolist()
    with pytest.raises(st.StratalError):
        st.compile(function)(wrong).tolist()


def test_arguments_that_are_right_are_taken_in_compiled_functions() -> None:
    right = st.tensor([0.25, 0.5, 0.25])
    step = st.compile(lambda a: st.distributions.Multinomial(4, a).log_prob(st.tensor([1.0, 2.0, 1.0])))
    want = st.distributions.Multinomial(4, right).log_prob(st.tensor([1.0, 2.0, 1.0]))
    assert step(right).item() == pytest.approx(want.item(), rel=1e-5)
    assert set(st.compile(lambda a: st.multinomial(a, 2))(right).tolist()) < {0, 1, 2}
