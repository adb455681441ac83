"""Special functions against SciPy, over grids with edges; gradients against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stratal as st
from stratal import special
from stratal.base.errors import StratalError

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
    **{name: ((REAL[np.abs(REAL) < 1e9],), 20, 20) for name in ("j0", "j1")},
    **dict.fromkeys(("y0", "y1"), ((POSITIVE[POSITIVE < 1000000000.0],), 20, 20)),
    **dict.fromkeys(("k0", "k0e", "k1", "k1e"), ((REAL,), 20, 1)),
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


@pytest.mark.sampled(18)
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


@pytest.mark.quick
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


@pytest.mark.quick
def test_large_parameters_of_the_incomplete_gamma_function():
    a = np.exp(RNG.uniform(7, 14, 100))
    x = a + 4 * RNG.standard_normal(100) * np.sqrt(a)
    for name in ("gammainc", "gammaincc"):
        got, want = run(name, (a, x), np.float64)
        np.testing.assert_allclose(got, want, rtol=1e-5)  # of which all is SciPy's, by integrals in 40 digits


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["gammainc", "gammaincc", "betainc"])
def test_float32_of_an_incomplete_function_is_float64_rounded(name):
    given = [x.astype(np.float32) for x in ((A, B, SHARE) if name == "betainc" else (A, X))]
    want, got = (
        np.asarray(getattr(special, name)(*(st.tensor(x.astype(dtype)) for x in given)))
        for dtype in (np.float64, np.float32)
    )
    normal = want > 1e-36
    error = np.abs(got - want)[normal] / np.spacing(want[normal].astype(np.float32))
    assert error.max() <= 0.6


M, P, Q = RNG.uniform(-2, 2, (2, 3)), RNG.uniform(0.1, 0.9, (2, 3)), RNG.uniform(0.5, 3, (2, 3))
SMOOTH = {
    **{name: (getattr(special, name), M) for name in (
        "erf", "erfc", "erfcx", "ndtr", "log_ndtr", "expit", "log_expit", "i0", "i0e", "i1", "i1e",
        "j0", "j1", "spherical_bessel_j0",
        "sinc")},
    **{name: (getattr(special, name), P) for name in ("erfinv", "erfcinv", "ndtri", "entr", "logit")},
    **{name: (getattr(special, name), Q) for name in (
        "gamma", "gammaln", "digamma", "factorial", "y0", "y1", "k0", "k0e", "k1", "k1e")},
    "polygamma": (lambda x: special.polygamma(2, x), Q),
    "multigammaln": (lambda x: special.multigammaln(x, 2), Q + 1),
    **{name: (getattr(special, name), P, Q)
       for name in ("xlogy", "xlog1py", "rel_entr", "kl_div", "beta", "betaln")},
    "betaln of large numbers": (special.betaln, P, 20 * Q),
    "zeta": (special.zeta, Q[:1] + 1, Q[:1]),
    "gammainc": (special.gammainc, 3 * P[:1], Q[:1]),
    "gammaincc of large numbers": (special.gammaincc, 20 * Q[:1], 20 * P[:1] + 10),
    "betainc": (special.betainc, Q[:1], 2 * P[:1], P[1:]),
    "betainc of large numbers": (special.betainc, 20 + Q[:1], 20 + P[:1], P[1:]),
}  # fmt: skip


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_differences_to_second_order(name):
    function, *values = SMOOTH[name]
    report = st.check_grad(function, [st.tensor(v) for v in values], order=2)
    assert report.ok, report


def test_derivatives_where_a_factor_vanishes():
    x = st.tensor([0.0, 0.0], requires_grad=True)
    special.xlogy(x, st.tensor([0.0, 2.0])).sum().backward()
    assert np.allclose(x.grad, [0, np.log(2)])
    x = st.tensor([0.0], requires_grad=True)
    special.i1(x).sum().backward()
    assert np.asarray(x.grad)[0] == 0.5


# Integrals in 50 digits: a, x, P(a, x), Q(a, x), dP/da; and a, b, x, I_x(a, b), dI/da, dI/db.
GAMMA = (
    (0.001, 0.5, 0.9994399333435292, 0.0005600666564707498, -0.5603594001080031),
    (0.2, 3.0, 0.9962968281587093, 0.0037031718412906837, -0.02449926998135864),
    (0.7, 0.01, 0.04363373907788597, 0.9563662609221141, -0.21019152253747492),
    (2.5, 2.0, 0.4505840486472198, 0.5494159513527802, -0.27455132194588155),
    (9.9, 15.0, 0.9340730896880419, 0.06592691031195812, -0.038458752304810294),
    (10.1, 4.0, 0.007347803889802866, 0.9926521961101972, -0.007484780618009752),
    (200.0, 190.0, 0.2433474271006238, 0.7566525728993762, -0.02235282834155004),
    (200.0, 260.0, 0.999952499875557, 4.750012444300876e-05, -1.3284959110062084e-05),
    (3000.0, 3100.0, 0.9649999863009536, 0.03500001369904636, -0.0014031076087078632),
)
BETA = (
    (0.01, 0.3, 0.2, 0.9576151200546271, -4.100336827093763, 0.11161393279209442),
    (2.0, 3.5, 0.9, 0.9986876547710302, -0.0014534530434786568, 0.0027371815716727413),
    (0.5, 0.5, 0.999, 0.9798649583666225, -0.027906380086556385, 0.15144045259989147),
    (30.0, 12.0, 0.6, 0.05665868730417658, -0.012938897782399216, 0.025204387381653873),
    (150.0, 400.0, 0.3, 0.9225318917743399, -0.009829614927218485, 0.003939048711904874),
    (3.0, 0.001, 0.99, 0.003120845062097136, -0.00038374033007421024, 3.1165727785523587),
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("a", "x", "lower", "upper", "slope"), GAMMA)
def test_the_incomplete_gamma_function_and_its_derivative_by_the_parameter(a, x, lower, upper, slope):
    p, z = st.tensor(np.array(a), requires_grad=True), st.tensor(np.array(x))
    found = special.gammainc(p, z)
    found.backward()
    got = [float(found.detach()), float(special.gammaincc(p.detach(), z))]
    np.testing.assert_allclose(got, [lower, upper], rtol=1e-13)
    np.testing.assert_allclose(float(p.grad), slope, rtol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("a", "b", "x", "lower", "by_a", "by_b"), BETA)
def test_the_incomplete_beta_function_and_its_derivatives_by_both_parameters(a, b, x, lower, by_a, by_b):
    p, q = (st.tensor(np.array(v), requires_grad=True) for v in (a, b))
    found = special.betainc(p, q, st.tensor(np.array(x)))
    found.backward()
    np.testing.assert_allclose(float(found.detach()), lower, rtol=1e-12)
    np.testing.assert_allclose([float(p.grad), float(q.grad)], [by_a, by_b], rtol=1e-10)


@pytest.mark.sampled(4)
def test_incomplete_functions_at_the_ends_of_their_ranges():
    a = st.tensor([0.5, 1.0, 2.0, 0.0, 3.0, 1e300, 1e300, -1.0, math.nan], dtype="float64")
    x = st.tensor([0.0, 0.0, 0.0, 1.0, math.inf, 1.0, 1e301, 1.0, 1.0], dtype="float64", requires_grad=True)
    lower = special.gammainc(a, x)
    np.testing.assert_array_equal(np.asarray(lower.detach()), [0, 0, 0, 1, 1, 0, 1, math.nan, math.nan])
    lower[:3].sum().backward()
    assert np.asarray(x.grad)[:3].tolist() == [math.inf, 1.0, 0.0]
    y = st.tensor([0.0, 1.0], dtype="float64", requires_grad=True)
    special.betainc(1.0, 2.0, y).sum().backward()
    np.testing.assert_allclose(np.asarray(y.grad), [2.0, 0.0], rtol=1e-14)


def test_incomplete_functions_run_as_kernels():
    step = st.compile(lambda x: (special.gammainc(x, x), special.betainc(x, x, x), special.zeta(x + 1, x)))
    step(st.tensor([0.5, 0.7]))
    assert step.plan["calls"]["host"] == 0


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
