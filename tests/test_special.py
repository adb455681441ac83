"""Special functions against SciPy, over grids with edges; gradients against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stratal as st
from stratal import special
from stratal.base.errors import NotDifferentiableError, StratalError

scipy_special = pytest.importorskip("scipy.special")

RNG = np.random.default_rng(0)
EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, -2.5, 3.0, math.inf, math.nan, 1e-300, 1e300, 170.0, -170.5]
)
REAL = np.concatenate([EDGES, -EDGES, np.linspace(-30, 30, 301), np.exp(RNG.uniform(-600, 6, 200))])
POSITIVE = np.abs(REAL)
UNIT = np.concatenate(
    [[0.0, 1.0, 0.5, -0.1, 1.1, math.nan], np.linspace(1e-3, 0.999, 200), np.exp(RNG.uniform(-700, 0, 100))]
)
SIGNED = np.concatenate([2 * UNIT - 1, UNIT])
COUNTS = np.arange(-2.0, 60.0)
A = np.exp(RNG.uniform(-5, 7, 300))
B = np.exp(RNG.uniform(-5, 5, 300))
X = A * np.exp(RNG.normal(size=300))
SHARE = RNG.uniform(0, 1, 300)
FEW = np.array([0.0, 0.3, 1.0, 2.0, -1.0, math.inf, math.nan])
FEW_A, FEW_B = (g.ravel() for g in np.meshgrid(FEW, FEW))

# name: operands, and how many units of the dtype's precision, relative and absolute, results may be apart.
# Where it is hundreds, the error is SciPy's, by evaluations in 40 digits.
CASES = {
    "erf": ((REAL,), 3, 0), "erfc": ((np.clip(REAL, -30, 25),), 500, 0),
    "erfcx": ((REAL[REAL < 1e200],), 500, 0),
    "erfinv": ((SIGNED,), 9, 0), "erfcinv": ((2 * UNIT,), 9, 0), "ndtri": ((UNIT,), 7, 0),
    "ndtr": ((np.clip(REAL, -8, 40),), 200, 0), "log_ndtr": ((np.clip(REAL, -1e8, 40),), 300, 1),
    "gamma": ((REAL,), 30, 0), "gammaln": ((REAL[REAL > -1e5],), 8, 8),
    "digamma": ((REAL,), 8, 8), "psi": ((POSITIVE,), 8, 1), "loggamma": ((POSITIVE[POSITIVE > 0],), 8, 8),
    "i0": ((REAL,), 16, 0), "i0e": ((REAL,), 16, 0), "i1": ((REAL,), 16, 1), "i1e": ((REAL,), 16, 1),
    "entr": ((REAL,), 4, 0), "expit": ((REAL,), 4, 0), "log_expit": ((REAL,), 4, 0), "logit": ((UNIT,), 8, 4),
    "exp2": ((np.clip(REAL, -1000, 1000),), 2, 0), "expm1": ((np.clip(REAL, -700, 700),), 3, 0),
    "log1p": ((REAL,), 3, 0), "factorial": ((COUNTS,), 20, 0),
    "xlogy": ((FEW_A, FEW_B), 4, 0), "xlog1py": ((FEW_A, FEW_B), 4, 0),
    "rel_entr": ((FEW_A, FEW_B), 4, 0), "kl_div": ((FEW_A, FEW_B), 8, 4),
    "beta": ((A, B), 10000, 0), "betaln": ((A, B), 20, 10000),
    "binom": ((A + B, B), 20000, 0), "comb": ((COUNTS, COUNTS[::-1] // 3), 50, 0),
    "perm": ((COUNTS[:20], COUNTS[:20] // 2), 50, 0),
    "zeta": ((1 + A, B), 20, 0), "gammainc": ((A, X), 3000, 0), "gammaincc": ((A, X), 3000, 0),
    "betainc": ((A, B, SHARE), 30000, 0),
}  # fmt: skip


def run(name, arrays, dtype):
    with np.errstate(all="ignore"):
        given = [a.astype(dtype) for a in arrays]
        want = getattr(scipy_special, name)(*(a.astype(np.float64) for a in given))
    got = getattr(special, name)(*map(st.tensor, given))
    return np.asarray(got), want


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_a_function_agrees_with_scipy(name, dtype):
    arrays, relative, absolute = CASES[name]
    got, want = run(name, arrays, dtype)
    eps = np.finfo(dtype).eps
    assert got.dtype == dtype
    with np.errstate(over="ignore"):
        want = want.astype(dtype)
    if name in ("i0", "i1"):  # SciPy's are NaN at infinity
        ends = np.isinf(arrays[0].astype(dtype))
        got, want = got[~ends], want[~ends]
    tiny = np.finfo(dtype).tiny
    rtol = (relative if dtype is np.float64 else min(relative, 64)) * eps
    np.testing.assert_allclose(got, want, rtol=rtol, atol=absolute * eps + tiny)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8, 12])
def test_derivatives_of_digamma_agree_with_scipy(n):
    x = np.concatenate([np.linspace(0.05, 20, 200), [100.0, 1e6, math.inf, math.nan]])
    np.testing.assert_allclose(special.polygamma(n, st.tensor(x)), scipy_special.polygamma(n, x), rtol=1e-13)


def test_derivatives_of_digamma_below_zero_follow_their_recurrence():
    x = np.concatenate([-RNG.uniform(0, 30, 100), [-0.5, -170.5]])
    for n in (1, 2, 3):
        here, next_ = (np.asarray(special.polygamma(n, st.tensor(v))) for v in (x, x + 1))
        step = (-1) ** n * math.factorial(n) / x ** (n + 1)
        np.testing.assert_allclose(next_ - here, step, rtol=1e-9, atol=1e-12 * np.abs(here).max())
    assert np.asarray(special.polygamma(1, st.tensor([0.0, -1.0]))).tolist() == [math.inf, math.inf]


def test_other_names_and_dimensions():
    x = np.linspace(2.1, 9, 20)
    want = [float(scipy_special.multigammaln(v, 3)) for v in x]
    np.testing.assert_allclose(special.multigammaln(st.tensor(x), 3), want)
    np.testing.assert_allclose(
        special.spherical_bessel_j0(st.tensor(x - 2.1)), scipy_special.spherical_jn(0, x - 2.1)
    )
    assert special.lgamma(st.tensor(3)).dtype is st.float32
    assert special.gamma(st.tensor([4], dtype="float16")).dtype is st.float16


def test_large_parameters_of_the_incomplete_gamma_function():
    a = np.exp(RNG.uniform(7, 14, 100))
    x = a + 4 * RNG.standard_normal(100) * np.sqrt(a)
    for name in ("gammainc", "gammaincc"):
        got, want = run(name, (a, x), np.float64)
        np.testing.assert_allclose(got, want, rtol=1e-5)  # of which all is SciPy's, by integrals in 40 digits


M, P, Q = RNG.uniform(-2, 2, (2, 3)), RNG.uniform(0.1, 0.9, (2, 3)), RNG.uniform(0.5, 3, (2, 3))
SMOOTH = {
    **{name: (getattr(special, name), M) for name in (
        "erf", "erfc", "erfcx", "ndtr", "log_ndtr", "expit", "log_expit", "i0", "i0e", "i1", "i1e",
        "spherical_bessel_j0",
        "sinc")},
    **{name: (getattr(special, name), P) for name in ("erfinv", "erfcinv", "ndtri", "entr", "logit")},
    **{name: (getattr(special, name), Q) for name in ("gamma", "gammaln", "digamma", "factorial")},
    "polygamma": (lambda x: special.polygamma(2, x), Q),
    "multigammaln": (lambda x: special.multigammaln(x, 2), Q + 1),
    **{name: (getattr(special, name), P, Q)
       for name in ("xlogy", "xlog1py", "rel_entr", "kl_div", "beta", "betaln")},
    "betaln of large numbers": (special.betaln, P, 20 * Q),
    "zeta": (lambda q: special.zeta(2.5, q), Q),
    "gammainc": (lambda x: special.gammainc(1.7, x), Q),
    "gammaincc": (lambda x: special.gammaincc(1.7, x), Q),
    "betainc": (lambda x: special.betainc(1.7, 0.8, x), P),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_differences_to_second_order(name):
    function, *values = SMOOTH[name]
    report = st.check_grad(function, [st.tensor(v) for v in values], order=2)
    assert report.ok, report


def test_derivatives_where_a_factor_vanishes():
    x = st.tensor([0.0, 0.0], requires_grad=True)
    special.xlogy(x, st.tensor([0.0, 2.0])).sum().backward()
    assert np.asarray(x.grad)[1] == 0 and not np.isnan(np.asarray(x.grad)).any()
    x = st.tensor([0.0], requires_grad=True)
    special.i1(x).sum().backward()
    assert np.asarray(x.grad)[0] == 0.5


def test_a_derivative_by_a_parameter_is_refused():
    a = st.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(NotDifferentiableError, match="last operand"):
        special.gammainc(a, st.tensor([1.0, 2.0])).sum().backward()


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: special.polygamma(-1, st.ones(2)), "derivatives"),
        (lambda: special.multigammaln(st.ones(2), 0), "positive"),
        (lambda: special.erf(st.complex(st.ones(1), st.ones(1))), "float"),
        (lambda: special.beta(st.ones(2), st.ones(3)), "broadcast"),
    ],
)
def test_what_has_no_value_is_refused(call, word):
    with pytest.raises(StratalError, match=word):
        call()
