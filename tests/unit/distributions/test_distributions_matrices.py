"""Wishart, LKJCholesky and normal vectors of low rank: forms, draws, derivatives, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import distributions as D
from stratal.base.errors import StratalError

L = np.array([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [-0.5, 0.2, 1.4]])
S = L @ L.T
COUNT = 20_000


@pytest.mark.torch
@pytest.mark.parametrize("form", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_a_wishart_matrix_by_each_form_of_its_covariance(form: str) -> None:
    torch = pytest.importorskip("torch")
    given = {"covariance_matrix": S, "precision_matrix": np.linalg.inv(S), "scale_tril": L}[form]
    df, x = np.array([4.0, 9.5]), np.array([S + np.eye(3), 2 * S])
    ours = D.Wishart(st.tensor(df), **{form: st.tensor(given)})
    theirs = torch.distributions.Wishart(torch.tensor(df), **{form: torch.tensor(given)})
    wanted = theirs.log_prob(torch.tensor(x)).numpy()
    np.testing.assert_allclose(np.asarray(ours.log_prob(st.tensor(x))), wanted, rtol=1e-10)
    for name in ("covariance_matrix", "precision_matrix", "scale_tril"):
        np.testing.assert_allclose(
            np.asarray(getattr(ours, name)), getattr(theirs, name).numpy(), atol=1e-12, err_msg=name
        )
    wide = ours.expand((5, 2))
    assert wide.sample((3,)).shape == (3, 5, 2, 3, 3)
    np.testing.assert_allclose(np.asarray(wide.log_prob(st.tensor(x)))[0], wanted, rtol=1e-10)


@pytest.mark.torch
def test_a_normal_vector_of_low_rank_is_the_one_of_its_covariance() -> None:
    torch = pytest.importorskip("torch")
    loc, factor, diagonal = np.ones((2, 3)), L[:, :1], np.array([0.5, 1.0, 2.0])
    ours = D.LowRankMultivariateNormal(st.tensor(loc), st.tensor(factor), st.tensor(diagonal))
    theirs = torch.distributions.LowRankMultivariateNormal(*map(torch.tensor, (loc, factor, diagonal)))
    for name in ("covariance_matrix", "precision_matrix", "scale_tril"):
        np.testing.assert_allclose(
            np.asarray(getattr(ours, name)), getattr(theirs, name).numpy(), atol=1e-12, err_msg=name
        )
    full = D.MultivariateNormal(st.tensor(loc), ours.covariance_matrix)
    x = st.tensor(np.array([0.1, -2.0, 3.0]))
    np.testing.assert_allclose(np.asarray(ours.log_prob(x)), np.asarray(full.log_prob(x)), rtol=1e-10)
    assert ours.expand((4, 2)).rsample((3,)).shape == (3, 4, 2, 3)
    st.manual_seed(0)
    drawn = np.asarray(ours.sample((COUNT,)))[:, 0]
    np.testing.assert_allclose(np.cov(drawn.T), np.asarray(full.covariance_matrix)[0], atol=0.08)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("concentration", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("dim", [2, 4])
def test_correlations_are_drawn_with_the_moments_of_their_beta_variables(
    dim: int, concentration: float
) -> None:
    """(1 + r) / 2 of each correlation r is a beta variable of concentration + dim / 2 - 1, twice."""
    st.manual_seed(0)
    d = D.LKJCholesky(dim, concentration)
    factors = np.asarray(d.sample((COUNT,)), np.float64)
    assert np.isfinite(np.asarray(d.log_prob(st.tensor(factors[:100].astype(np.float32))))).all()
    r = (factors @ factors.swapaxes(-1, -2))[:, *np.tril_indices(dim, -1)]
    np.testing.assert_allclose(
        np.diagonal(factors @ factors.swapaxes(-1, -2), axis1=1, axis2=2), 1, atol=1e-5
    )
    spread = 1 / (2 * concentration + dim - 1)
    np.testing.assert_allclose(r.mean(axis=0), 0, atol=5 * np.sqrt(spread / COUNT))
    np.testing.assert_allclose(r.var(axis=0), spread, rtol=0.06)


def test_densities_are_differentiable_by_their_parameters() -> None:
    x = st.tensor(S + np.eye(3))

    def wishart(df: Any, factor: Any) -> Any:
        d = D.Wishart(df, scale_tril=factor, validate_args=False)
        return d.log_prob(x) + d.entropy() + d.mean.sum()

    def low_rank(loc: Any, factor: Any, diagonal: Any) -> Any:
        d = D.LowRankMultivariateNormal(loc, factor, diagonal, validate_args=False)
        return d.log_prob(x[0]) + d.entropy()

    def correlation(concentration: Any) -> Any:
        return D.LKJCholesky(2, concentration, validate_args=False).log_prob(st.eye(2, dtype="float64") * 0.9)

    st.check_grad(lambda df, f: wishart(df, st.tril(f)), (np.array(5.5), L), order=2)
    st.check_grad(low_rank, (np.zeros(3), L[:, :2], np.array([0.5, 1.0, 2.0])), order=2)
    st.check_grad(correlation, (np.array([0.7, 2.0]),), order=2)


@pytest.mark.sampled(4)
def test_draws_of_covariances_move_with_the_parameters() -> None:
    """The mean of draws is df times the covariance: so are their derivatives."""
    df = st.tensor(np.array(6.0), requires_grad=True)
    factor = st.tensor(L, requires_grad=True)
    st.manual_seed(0)
    drawn = D.Wishart(df, scale_tril=factor).rsample((COUNT,))
    (drawn.sum() / COUNT).backward()
    np.testing.assert_allclose(float(df.grad), S.sum(), rtol=0.05)
    wanted = 2 * 6.0 * L.sum(axis=0) * np.ones((3, 1))
    np.testing.assert_allclose(np.tril(np.asarray(factor.grad)), np.tril(wanted), atol=0.6)


def test_checks_are_switched_for_all_distributions() -> None:
    assert D.Normal(0.0, 1.0).validate_args
    D.Distribution.set_default_validate_args(False)
    try:
        assert not D.Normal(0.0, -1.0).validate_args
        with pytest.raises(StratalError, match="scale must be positive"):
            D.Normal(0.0, -1.0, validate_args=True)
    finally:
        D.Distribution.set_default_validate_args(True)
    with pytest.raises(StratalError, match="scale must be positive"):
        D.Normal(0.0, -1.0)
    with pytest.raises(StratalError, match="takes a bool"):
        D.Distribution.set_default_validate_args(1)  # type: ignore[arg-type]


REFUSED = {
    "one form": (lambda: D.Wishart(4.0), "takes one of"),
    "square": (lambda: D.Wishart(4.0, st.ones((2, 3))), "square matrices"),
    "degrees": (lambda: D.Wishart(2.0, st.eye(3)), "df must be greater than 2"),
    "symmetric": (lambda: D.Wishart(4.0, st.tensor(L)), "covariance_matrix must be symmetric"),
    "definite": (lambda: D.Wishart(4.0, st.eye(2)).log_prob(-st.eye(2)), "positive definite"),
    "dim": (lambda: D.LKJCholesky(1), "at least 2"),
    "concentration": (lambda: D.LKJCholesky(2, -1.0), "concentration must be positive"),
    "factor": (lambda: D.LKJCholesky(2).log_prob(st.ones((2, 2))), "rows of length 1"),
    "moments": (lambda: D.LKJCholesky(2).mean, "has no mean"),
    "vector": (lambda: D.LowRankMultivariateNormal(1.0, st.ones((1, 1)), st.ones(1)), "at least 1 axes"),
    "sizes": (lambda: D.LowRankMultivariateNormal(st.ones(3), st.ones((2, 1)), st.ones(3)), "have one size"),
    "positive": (
        lambda: D.LowRankMultivariateNormal(st.ones(2), st.ones((2, 1)), -st.ones(2)),
        "cov_diag must be positive",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_distribution_is_refused(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(StratalError, match=says):
        make()


@pytest.mark.torch
def test_the_divergence_of_wishart_matrices_is_pytorchs_of_one_at_a_time() -> None:
    """PyTorch's of a batch adds up terms of different rows."""
    torch = pytest.importorskip("torch")
    scale = np.diag([0.5, 1.0, 2.0])
    p, q = np.array([3.5, 6.0]), np.array([4.0, 5.0])
    ours = D.kl_divergence(D.Wishart(st.tensor(p), st.tensor(S)), D.Wishart(st.tensor(q), st.tensor(scale)))
    for k in range(2):
        first = torch.distributions.Wishart(torch.tensor(p[k]), torch.tensor(S))
        second = torch.distributions.Wishart(torch.tensor(q[k]), torch.tensor(scale))
        wanted = torch.distributions.kl_divergence(first, second)
        np.testing.assert_allclose(float(ours[k]), float(wanted.detach()), rtol=1e-8)
