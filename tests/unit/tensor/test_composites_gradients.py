"""Gradients of functions made of others against finite differences, to second order where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stratal as st

RNG = np.random.default_rng(3)
A, B = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
V = RNG.standard_normal(5)
HOLES = st.tensor(np.where(np.eye(3, 4) > 0, np.nan, 0.0))
ROWS = st.tensor([[0, 2, 1, 0], [1, 1, 0, 1]])

SMOOTH = {
    "ldexp": (lambda x: st.ldexp(x * x, st.tensor([3, -2, 0, 5])), A),
    "frexp": (lambda x: st.frexp(x * x)[0], 0.8 + 0.01 * A),
    "fmod": (lambda x, y: st.fmod(x * x, y), 3 + 0.01 * A, 2.0 + B * 0.01),
    "cbrt": (st.cbrt, A),
    "logaddexp2": (st.logaddexp2, A, B),
    "float_power": (lambda x, y: st.float_power(x * x + 0.5, y), A, B),
    "fmax": (lambda x, y: st.fmax(x, y) ** 2, A, B),
    "softplus": (st.softplus, A),
    "addcdiv": (lambda x, y: st.addcdiv(x, x, y, value=2), A, 2 + np.abs(B)),
    "nanvar": (lambda x: st.nanvar(x + HOLES, axis=1), A),
    "nanmean": (lambda x: st.nanmean(x**2 + HOLES, axis=1), A),
    "nanprod": (lambda x: st.nanprod(x + HOLES, axis=1), A),
    "logcumsumexp": (lambda x: st.logcumsumexp(x, 1), 5 * A),
    "quantile": (lambda x: st.quantile(x**2, [0.2, 0.7], axis=1), A),
    "nanquantile": (lambda x: st.nanquantile(x**2 + HOLES, 0.4), A),
    "kthvalue": (lambda x: st.kthvalue(x**3, 2).values, A),
    "cummax": (lambda x: st.cummax(x**2, 0).values, A),
    "var_mean": (lambda x: st.var_mean(x, 1), A),
    "cov": (st.cov, A),
    "corrcoef": (st.corrcoef, A),
    "average": (lambda x, w: st.average(x, 1, w), A, 2 + B),
    "cdist": (st.cdist, A, B),
    "cdist 3": (lambda x, y: st.cdist(x, y, 3.0), A, B),
    "renorm": (lambda x: st.renorm(x, 2, 0, 1.0), A),
    "diag": (lambda x: st.diag(x * x, 1), V),
    "diagonal_scatter": (lambda x, y: st.diagonal_scatter(x, y, -1) ** 2, A, V[:2]),
    "kron": (st.kron, A, V),
    "vander": (st.vander, V),
    "polyval": (st.polyval, V, A),
    "cross": (lambda x, y: st.cross(x, y, 0), A, B),
    "interp": (lambda x, y: st.interp(x, st.tensor(np.linspace(-3, 3, 5)), y), A, V),
    "convolve": (lambda x, y: st.convolve(x, y, "same"), V, A[0]),
    "pad": (lambda x: st.pad(x * x, 3, "reflect"), A),
    "scatter_reduce mean": (lambda x, y: st.scatter_reduce(x, 0, ROWS, y, "mean") ** 2, A, B[:2]),
    "scatter_reduce prod": (lambda x, y: st.scatter_reduce(x, 0, ROWS, y, "prod"), A, B[:2]),
    "index_put": (lambda x, y: st.index_put(x, (ROWS[0],), y, accumulate=True) ** 2, A,
        np.abs(B[0]) * np.ones((4, 4))),
    "masked_scatter": (lambda x, y: st.masked_scatter(x, st.tensor(A > 0), y) ** 2, A, np.tile(B, (2, 1))),
    "histogram of weights": (lambda w: st.histogram(st.tensor(V), 3, weights=w).hist ** 2, V),
    "bincount of weights": (lambda w: st.bincount(st.tensor([0, 2, 2, 1, 0]), w, 3) ** 2, V),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_differences(name):
    function, *values = SMOOTH[name]
    report = st.check_grad(function, [st.tensor(v) for v in values], order=2)
    assert report.ok, report


@pytest.mark.parametrize("zeros", [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)])
def test_products_that_are_scattered_have_derivatives_at_zeros(zeros):
    """Of x and of what meets it, so many are 0: exact to second order."""
    x, y = np.abs(V[:2]) + 0.5, np.abs(V) + 0.5
    x[: zeros[0]], y[: zeros[1]] = 0.0, 0.0
    places = st.tensor([0, 0, 0, 1, 1])
    report = st.check_grad(
        lambda x, y: st.scatter_reduce(x, 0, places, y, "prod"), [st.tensor(x), st.tensor(y)], order=2
    )
    assert report.ok, report


def test_distances_of_equal_rows_have_the_gradient_zero():
    x = st.tensor(A, requires_grad=True)
    for p in (1.5, 2.0, 3.0):
        x.grad = None
        st.cdist(x, x, p).sum().backward()
        assert np.isfinite(np.asarray(x.grad)).all()


def test_running_sums_of_exponentials_pass_gradients_through_infinite_elements():
    x = st.tensor([-math.inf, 1.0, -math.inf, 2.0], requires_grad=True)
    st.logcumsumexp(x, 0)[3].backward()
    np.testing.assert_allclose(np.asarray(x.grad), [0, *(np.array([1, 0, math.e]) / (1 + math.e))], rtol=1e-6)


def test_functions_whose_shape_is_fixed_can_be_captured():
    @st.compile
    def several(x):
        counts = st.bincount(st.digitize(x, [-1.0, 0.0, 1.0]), minlength=4)
        spread, middle = st.var_mean(x)
        return (
            counts,
            st.quantile(x, [0.25, 0.75]),
            st.histogram(x, 4),
            spread,
            middle,
            st.cov(st.stack([x, x * x])),
        )

    x = np.random.default_rng(0).standard_normal(50)
    counts, quartiles, histogram, spread, _, covariances = several(st.tensor(x))
    np.testing.assert_array_equal(counts, np.bincount(np.digitize(x, [-1.0, 0.0, 1.0]), minlength=4))
    np.testing.assert_allclose(quartiles, np.quantile(x, [0.25, 0.75]))
    np.testing.assert_array_equal(histogram.hist, np.histogram(x, 4)[0])
    np.testing.assert_allclose(float(spread), x.var(ddof=1))
    np.testing.assert_allclose(covariances, np.cov(np.stack([x, x * x])))
