"""Maps of random variables: PyTorch's values, shapes and determinants; distributions made by them."""

import numpy as np
import pytest

import stratal as st
from stratal import distributions as D

pytestmark = pytest.mark.quick

X = np.array([[-1.2, 0.3, 0.7], [0.1, 2.0, -0.4]])
SQUARE = np.array([[0.3, 9.0, 9.0], [-0.2, 1.1, 9.0], [0.5, 0.7, -0.8]])
MAPS = {  # how it is made of a library's maps and its tensors, and points to ask about
    "exp": (lambda T, t: T.ExpTransform(), X),
    "sigmoid": (lambda T, t: T.SigmoidTransform(), X),
    "tanh": (lambda T, t: T.TanhTransform(), X),
    "softplus": (lambda T, t: T.SoftplusTransform(), X),
    "abs": (lambda T, t: T.AbsTransform(), np.abs(X)),
    "power": (lambda T, t: T.PowerTransform(t([2.0, -0.5, 3.0])), np.abs(X)),
    "affine": (lambda T, t: T.AffineTransform(t([1.0, 2.0, 3.0]), t([2.0, -1.0, 0.5])), X),
    "affine vectors": (lambda T, t: T.AffineTransform(t(1.0), t([2.0, -1.0, 0.5]), event_dim=1), X),
    "softmax": (lambda T, t: T.SoftmaxTransform(), X),
    "sticks": (lambda T, t: T.StickBreakingTransform(), X),
    "cholesky": (lambda T, t: T.LowerCholeskyTransform(), SQUARE),
    "independent": (lambda T, t: T.IndependentTransform(T.ExpTransform(), 1), X),
    "composed": (lambda T, t: T.ComposeTransform([T.AffineTransform(t(0.5), t(-2.0)), T.ExpTransform()]), X),
    "vectors after numbers": (
        lambda T, t: T.ComposeTransform([T.ExpTransform(), T.StickBreakingTransform()]),
        X,
    ),
    "backwards": (
        lambda T, t: T.ComposeTransform([T.ExpTransform(), T.TanhTransform()]).inv,
        np.tanh(np.exp(X)),
    ),
}
NO_DETERMINANT = ("abs", "softmax", "cholesky")


@pytest.mark.torch
@pytest.mark.parametrize("name", MAPS)
def test_maps_and_determinants_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    make, x = MAPS[name]
    ours = make(D, lambda v: st.tensor(np.array(v)))
    theirs = make(torch.distributions.transforms, lambda v: torch.tensor(v, dtype=torch.float64))
    given, other = st.tensor(x), torch.from_numpy(x)
    y, want = ours(given), theirs(other)
    np.testing.assert_allclose(np.array(y), want.numpy(), rtol=1e-12)
    np.testing.assert_allclose(np.array(ours.inv(y)), theirs.inv(want).numpy(), rtol=1e-9, atol=1e-12)
    assert ours.bijective == theirs.bijective
    assert ours.forward_shape(x.shape) == tuple(theirs.forward_shape(x.shape))
    assert ours.inverse_shape(y.shape) == tuple(theirs.inverse_shape(want.shape))
    if name not in NO_DETERMINANT:
        determinant = theirs.log_abs_det_jacobian(other, want).numpy()
        np.testing.assert_allclose(np.array(ours.log_abs_det_jacobian(given, y)), determinant, rtol=1e-10)


@pytest.mark.parametrize(
    "name", ["exp", "sigmoid", "tanh", "softplus", "power", "affine", "composed", "backwards"]
)
def test_determinants_are_those_of_the_derivative(name):
    make, x = MAPS[name]
    t, given = make(D, lambda v: st.tensor(np.array(v))), st.tensor(x).requires_grad_()
    y = t(given)
    y.sum().backward()
    found = np.array(t.log_abs_det_jacobian(given, y).detach())
    np.testing.assert_allclose(found, np.log(np.abs(np.array(given.grad))), rtol=1e-10, atol=1e-10)


@pytest.mark.torch
def test_transformed_distributions_are_pytorchs():
    torch = pytest.importorskip("torch")
    loc, scale = np.array([0.2, -0.4, 1.0]), np.array([1.0, 0.5, 2.0])

    def made(D, T, t):
        base = D.Normal(t(loc), t(scale))
        yield D.TransformedDistribution(base, [T.AffineTransform(t(1.0), t(-2.0)), T.SigmoidTransform()])
        yield D.TransformedDistribution(base, T.StickBreakingTransform())
        yield D.TransformedDistribution(D.Independent(base, 1), T.ExpTransform())
        yield D.TransformedDistribution(D.Uniform(t(0.0), t(1.0)), [T.SigmoidTransform().inv])

    shares = np.array([0.1, 0.2, 0.3, 0.4])
    asked = [np.array([0.2, 0.5, 0.7]), shares, np.array([0.2, 0.5, 3.0]), np.array(1.5)]
    ours = list(made(D, D, lambda v: st.tensor(np.array(v))))
    theirs = list(
        made(torch.distributions, torch.distributions, lambda v: torch.tensor(v, dtype=torch.float64))
    )
    for d, e, x in zip(ours, theirs, asked, strict=True):
        assert (d.batch_shape, d.event_shape) == (tuple(e.batch_shape), tuple(e.event_shape))
        want = e.log_prob(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(np.array(d.log_prob(st.tensor(x))), want, rtol=1e-6)
        wide = (2, *d.batch_shape)
        assert d.expand(wide).rsample((5,)).shape == (5, *wide, *d.event_shape)
    x, level = np.array([0.2, 0.5, 0.7]), np.array([0.1, 0.5, 0.6])
    np.testing.assert_allclose(
        np.array(ours[0].cdf(st.tensor(x))), theirs[0].cdf(torch.from_numpy(x)), rtol=1e-6
    )
    want = theirs[0].icdf(torch.from_numpy(level))
    np.testing.assert_allclose(np.array(ours[0].icdf(st.tensor(level))), want, rtol=1e-6)


def test_one_map_of_two_variables_does_not_change_their_divergence():
    p, q, t = D.Normal(0.0, 1.0), D.Normal(1.0, 2.0), D.ExpTransform()
    made = [D.TransformedDistribution(d, t) for d in (p, q)]
    assert float(D.kl_divergence(*made)) == float(D.kl_divergence(p, q))
    with pytest.raises(NotImplementedError, match="no closed form"):
        D.kl_divergence(made[0], D.TransformedDistribution(q, D.TanhTransform()))


@pytest.mark.sampled(4)
def test_a_transformed_variable_trains():
    """Fit a lognormal variable made by hand: the gradient passes the draws and the density."""
    scale = st.tensor(np.array(0.3)).requires_grad_()
    st.manual_seed(0)
    d = D.TransformedDistribution(D.Normal(0.0, scale), D.ExpTransform())
    drawn = d.rsample((1000,))
    loss = -d.log_prob(drawn.detach()).mean() + 0 * drawn.mean()
    loss.backward()
    z = np.log(np.array(drawn.detach())) / 0.3
    np.testing.assert_allclose(float(scale.grad), np.mean(1 - z * z) / 0.3, rtol=1e-6)
