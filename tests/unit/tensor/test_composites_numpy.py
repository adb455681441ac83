"""Functions made of others against NumPy: one table of calls, each made with both libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import StratalError

RNG = np.random.default_rng(1)
A, B = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 5))
C = RNG.standard_normal((3, 4, 2))
V, W = RNG.standard_normal(6), RNG.standard_normal(4)
N = RNG.integers(-400, 400, (4, 5))
H = np.where(RNG.random((4, 7)) < 0.3, np.nan, RNG.standard_normal((4, 7)))
EDGES = np.array([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 3.0, -7.0, 1e-310, -1e300])
PAIRS = [g.ravel() for g in np.meshgrid(EDGES, EDGES)]
Z = A + 1j * B
XP, FP = np.sort(V), RNG.standard_normal(6)

CALLS = {
    "fmod of edges": (lambda lib, x, y: lib.fmod(x, y), *PAIRS),
    "fmod of integers": (lambda lib, x, y: lib.fmod(x, y), N, N.T.reshape(4, 5)),
    "modf": (lambda lib, x: lib.modf(x), EDGES),
    "divmod": (lambda lib, x, y: lib.divmod(x, y), A, B),
    "ldexp beyond the range of exponents": (
        lambda lib, x, n: lib.ldexp(x, n),
        np.array([2.0**-1074, 2.0**1000, 1.0, 0.0, math.inf]), np.array([2000, -2000, -1070, 5000, -5000])),
    "heaviside of edges": (lambda lib, x, y: lib.heaviside(x, y), *PAIRS),
    "cbrt": (lambda lib, x: lib.cbrt(x), np.concatenate([EDGES, V * 1e100])),
    "array_equal": (lambda lib, x, y: lib.array_equal(x, y, equal_nan=True), H, H),
    "array_equal with NaN": (lambda lib, x, y: lib.array_equal(x, y), H, H),
    "array_equal of other shapes": (lambda lib, x, y: lib.array_equal(x, y), H, A),
    "isclose": (lambda lib, x, y: lib.isclose(x, y, 0.5), *PAIRS),
    "iscomplex": (lambda lib, x: lib.iscomplex(x), Z * (A > 0)),
    "round": (lambda lib, x: lib.round(x, 1), A),
    "round of integers": (lambda lib, x: lib.round(x, -2), N),
    "around": (lambda lib, x: lib.around(x, -1), np.array([25, 35, -25, -35, 250])),
    **{name: (lambda lib, x, name=name: getattr(lib, name)(x, axis=1), H)
       for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanargmax",
        "nanargmin",
                    "nancumsum", "nancumprod")},
    "nanvar with ddof": (lambda lib, x: lib.nanvar(x, axis=0, ddof=1, keepdims=True), H),
    "nansum of integers": (lambda lib, x: lib.nansum(x), N),
    **{f"quantile {how}": (lambda lib, x, how=how: lib.quantile(x, [0.1, 0.5, 0.9], axis=(0, 2),
        method=how), C)
       for how in ("linear", "lower", "higher", "nearest", "midpoint")},
    "percentile": (lambda lib, x: lib.percentile(x, 30, axis=0, keepdims=True), A),
    "nanpercentile": (lambda lib, x: lib.nanpercentile(x, [30, 60], axis=1), H),
    "histogram": (lambda lib, x: tuple(lib.histogram(x)), A),
    "histogram in a range": (lambda lib, x: tuple(lib.histogram(x, 4, (-1, 0.5))), A),
    "histogram between edges": (lambda lib, x: tuple(lib.histogram(x, [-1, -0.5, 0, 2])), A),
    "histogram with weights": (lambda lib, x, w: tuple(lib.histogram(x, 5, weights=w)), A, B),
    "histogram of density": (lambda lib, x: tuple(lib.histogram(x, 5, density=True)), A),
    "histogram of one number": (lambda lib, x: tuple(lib.histogram(x, 3)), np.full(5, 2.0)),
    "histogram_bin_edges": (lambda lib, x: lib.histogram_bin_edges(x, 7), A),
    "digitize": (lambda lib, x, e: lib.digitize(x, e), A, np.array([-1.0, 0.0, 1.0])),
    "digitize right": (lambda lib, x, e: lib.digitize(x, e, right=True), N, np.array([-1, 0, 1])),
    "digitize downwards": (lambda lib, x, e: lib.digitize(x, e), N, np.array([100, 0, -100])),
    "append": (lambda lib, x, y: lib.append(x, y, axis=0), A, B),
    "append of all": (lambda lib, x, y: lib.append(x, y), A, V),
    "array_split": (lambda lib, x: lib.array_split(x, 4), V),
    "rot90": (lambda lib, x: lib.rot90(x, -1), A),
    "ravel_multi_index": (lambda lib, i, j: lib.ravel_multi_index((i, j), (4, 5)), np.array([0, 3]),
        np.array([4, 2])),
    "broadcast_shapes": (lambda lib: lib.broadcast_shapes((3, 1), (1, 4), 4),),
    "tri": (lambda lib: lib.tri(3, 4, 1),),
    "identity": (lambda lib: lib.identity(3),),
    "indices": (lambda lib: lib.indices((2, 3)),),
    "diag": (lambda lib, x: lib.diag(x, k=-1), V),
    "vander": (lambda lib, x: lib.vander(x, N=3), V),
    "kron of unlike ranks": (lambda lib, x, y: lib.kron(x, y), C, A),
    "polyval": (lambda lib, p, x: lib.polyval(p, x), W, A),
    "cross": (lambda lib, x, y: lib.cross(x, y), A[:, :3], B[:, :3]),
    "inner of a number": (lambda lib, x: lib.inner(2.0, x), A),
    "average": (lambda lib, x: lib.average(x, 1, returned=True), A),
    "average with weights": (lambda lib, x, w: lib.average(x, 0, w, returned=True), A, W),
    "ptp": (lambda lib, x: lib.ptp(x, axis=1), A),
    "cov of one variable": (lambda lib, x: lib.cov(x), A[:1]),
    "var of complex": (lambda lib, x: lib.var(x, axis=1), Z),
    "nanvar of infinities": (
        lambda lib, x: lib.nanvar(x, axis=1), np.array([[1.0, math.inf], [math.nan, 2.0]])),
    "nancumsum of all": (lambda lib, x: lib.nancumsum(x), H),
    "cov of columns": (lambda lib, x: lib.cov(x, rowvar=False, ddof=0), A),
    "cov of complex": (lambda lib, x: lib.cov(x), Z),
    "cov of a vector": (lambda lib, x: lib.cov(x), V),
    "corrcoef": (lambda lib, x: lib.corrcoef(x, rowvar=False), A),
    "interp": (lambda lib, x, xp, fp: lib.interp(x, xp, fp), 2 * A, XP, FP),
    "interp with ends": (lambda lib, x, xp, fp: lib.interp(x, xp, fp, left=-5.0, right=7.0), 2 * A, XP, FP),
    "interp at the points": (lambda lib, xp, fp: lib.interp(xp, xp, fp), XP, FP),
    "interp with a period": (lambda lib, x, xp, fp: lib.interp(x, xp, fp, period=1.3), 2 * A, V, FP),
    "interp of one point": (lambda lib, x, xp, fp: lib.interp(x, xp, fp), A, XP[:1], FP[:1]),
    **{f"{name} {mode} {len(x)} {len(y)}": (lambda lib, x, y, name=name, mode=mode: getattr(lib, name)(x,
        y, mode), x, y)
       for name in ("convolve", "correlate") for mode in ("full", "same", "valid")
       for x, y in ((V, W), (W, V), (V[:5], W[:3]), (W[:3], V[:5]), (V, V))},
    "correlate of complex": (lambda lib, x, y: lib.correlate(x, y, "full"), Z[0], Z[1, :3]),
    "convolve of integers": (lambda lib, x, y: lib.convolve(x, y), N[0], N[1]),
    "geomspace": (lambda lib: lib.geomspace(1, 1000, 4),),
    "geomspace between arrays": (lambda lib, x: lib.geomspace(x, [[1.0], [2.5]], 4), A[:1] ** 2 + 1),
    "geomspace of one-element ends": (lambda lib: lib.geomspace([1], [9], 36, endpoint=False),),
    "geomspace of nothing": (lambda lib: lib.geomspace([1, 2], 9, 0),),
    "linspace between arrays": (lambda lib, x, y: lib.linspace(x, y, 5), A, A[0]),
    "linspace of one": (lambda lib: lib.linspace([1, 2], 9, 1),),
    "logspace between arrays": (lambda lib, x: lib.logspace(0, x, 3, base=2.0), A),
    "logspace": (lambda lib: lib.logspace(0, 2, 5, base=2.0),),
    **{f"pad {mode}": (lambda lib, x, mode=mode: lib.pad(x, ((2, 3), (1, 7)), mode), A)
       for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "maximum", "mean", "minimum")},
    "pad with a value": (lambda lib, x: lib.pad(x, 2, constant_values=7), N),
    "pad one": (lambda lib, x: lib.pad(x, (0, 3), "reflect"), np.array([4.0])),
    "flatnonzero": (lambda lib, x: lib.flatnonzero(x > 0), A),
    "argwhere": (lambda lib, x: lib.argwhere(x > 0), A),
    "logaddexp2 of edges": (lambda lib, x, y: lib.logaddexp2(x, y), *(p[PAIRS[0] > -1e299] for p in PAIRS)),
    "float_power": (lambda lib, x: lib.float_power(x, 2), N),
    "unravel_index": (lambda lib, i: lib.unravel_index(i, (4, 5)), np.array([3, 19])),
    "gcd": (lambda lib, x, y: lib.gcd(x, y), N, N[::-1].copy()),
    "lcm": (lambda lib, x, y: lib.lcm(x, y), N, N[::-1].copy()),
}  # fmt: skip


def as_arrays(result):
    if isinstance(result, (tuple, list)):
        return [a for part in result for a in as_arrays(part)]
    return [np.asarray(result)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_function_agrees_with_numpy(name):
    function, *arrays = CALLS[name]
    with np.errstate(all="ignore"):
        want = as_arrays(function(np, *arrays))
    got = as_arrays(function(st, *map(st.tensor, arrays)))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype.kind) == (b.shape, b.dtype.kind)
        np.testing.assert_allclose(a, b, rtol=1e-6 if a.dtype.itemsize == 4 else 1e-12, atol=1e-12)


def test_an_array_is_written_along_an_axis_as_by_numpy():
    places, values = np.argsort(A, axis=1)[:, :2], RNG.standard_normal((4, 1))
    want = A.copy()
    np.put_along_axis(want, places, values, axis=1)
    np.testing.assert_array_equal(
        st.put_along_axis(st.tensor(A), st.tensor(places), st.tensor(values), axis=1), want
    )


REFUSED = {
    "gcd of floats": (lambda: st.gcd(st.ones(2), 3), "integers"),
    "a quantile beyond 1": (lambda: st.quantile(st.ones(3), 1.5), "between 0 and 1"),
    "a quantile of nothing": (lambda: st.quantile(st.ones(0), 0.5), "nothing"),
    "an unknown interpolation": (lambda: st.quantile(st.ones(3), 0.5, method="best"), "one of"),
    "kthvalue beyond the axis": (lambda: st.kthvalue(st.ones(3), 4), "counts from 1"),
    "mode of nothing": (lambda: st.mode(st.ones(2, 0)), "nothing"),
    "bincount below 0": (lambda: st.bincount(st.tensor([1, -1])), "from 0 on"),
    "bincount of floats": (lambda: st.bincount(st.ones(3)), "integers"),
    "no bins": (lambda: st.histc(st.ones(3), 0), "at least one bin"),
    "a range downwards": (lambda: st.histogram(st.ones(3), 4, (1, 0)), "goes up"),
    "edges downwards": (lambda: st.histogram(st.ones(3), [3, 2, 1]), "go up"),
    "an uneven split": (lambda: st.vsplit(st.ones(3, 2), 2), "evenly"),
    "no sections": (lambda: st.tensor_split(st.ones(3), 0), "section"),
    "a cross product of pairs": (lambda: st.cross(st.ones(2), st.ones(2)), "three"),
    "a diagonal of a cube": (lambda: st.diag(st.ones(2, 2, 2)), "matrix"),
    "pad by a float": (lambda: st.pad(st.ones(2), 1.5), "size"),
    "pad by less than nothing": (lambda: st.pad(st.ones(2), -1), "negative"),
    "pad an empty axis": (lambda: st.pad(st.ones(0), 1, "edge"), "inside"),
    "pad in an unknown mode": (lambda: st.pad(st.ones(2), 1, "best"), "one of"),
    "interp of unlike points": (lambda: st.interp(1.0, st.ones(2), st.ones(3)), "one length"),
    "convolve nothing": (lambda: st.convolve(st.ones(0), st.ones(2)), "elements"),
    "geomspace across 0": (lambda: st.geomspace(-1, 1), "sign"),
    "geomspace from 0 in one place": (lambda: st.geomspace([1, 0], 1), "sign"),
    "linspace between unlike arrays": (lambda: st.linspace(st.ones(2), st.ones(3), 4), "broadcast"),
    "linspace of words": (lambda: st.linspace("a", "b", 4), "numbers"),
    "logspace of less than nothing": (lambda: st.logspace(0, 1, -1), "number of values"),
    "linspace of half a value": (lambda: st.linspace(0, 1, 2.5), "number of values"),
    "chunk into nothing": (lambda: st.chunk(st.ones(3), 0), "at least one"),
    "cdist of unlike rows": (lambda: st.cdist(st.ones(2, 3), st.ones(2, 4)), "one length"),
    "renorm by 0": (lambda: st.renorm(st.ones(2, 2), 0, 0, 1.0), "positive"),
    "scatter by an unknown rule": (lambda: st.scatter_reduce(st.ones(2), 0, st.tensor([0]), st.ones(1),
        "max"), "one of"),
    "masked_scatter of too few": (
        lambda: st.masked_scatter(st.ones(3), st.ones(3) > 0, st.ones(2)).tolist(), "range"),
    "complex of integers": (lambda: st.complex(st.tensor([1]), st.tensor([2])), "float32 or float64"),
    "an odd last axis": (lambda: st.view_as_complex(st.ones(3)), "real and imaginary"),
    "select beyond the axis": (lambda: st.select(st.ones(3), 0, 3), "range"),
    "isclose within less than nothing": (lambda: st.isclose(1.0, 1.0, rtol=-1), "negative"),
    "median of nothing": (lambda: st.median(st.ones(0)), "nothing"),
    "unravel beyond the shape": (lambda: st.unravel_index(st.tensor([6]), (2, 3)), "range"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_result_is_refused(name):
    call, word = REFUSED[name]
    with pytest.raises(StratalError, match=word):
        call()
