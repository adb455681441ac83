"""Functions made of others against PyTorch: one table of calls, each made with both libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stratal as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def holes(*shape: int) -> np.ndarray:
    x = floats(*shape)
    x[RNG.random(shape) < 0.3] = np.nan
    return x


def whole(low: int, high: int, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape)


A, B, C = floats(4, 5), floats(4, 5), floats(3, 4, 5)
V, W = floats(6), floats(6)
EDGES = np.array([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 3.0, -7.0, 1e-310, -1e300])
N, M = whole(-9, 9, 4, 5), whole(1, 9, 4, 5)
H = holes(4, 7)
ROWS = np.array([[0, 2, 1], [1, 1, 0]])
MASK = RNG.random((4, 5)) < 0.5
PAIRS = [g.ravel() for g in np.meshgrid(EDGES, EDGES)]

CALLS = {
    "fmod": (lambda lib, x, y: lib.fmod(x, y), A, B),
    "fmod of integers": (lambda lib, x, y: lib.fmod(x, y), N, M),
    "frac": (lambda lib, x: lib.frac(x), 3 * A),
    "frexp": (lambda lib, x: tuple(lib.frexp(x)), EDGES),
    "frexp of float32": (lambda lib, x: tuple(lib.frexp(x)), (A * 1e-39).astype(np.float32)),
    "ldexp": (lambda lib, x, n: lib.ldexp(x, n), A, N),
    "gcd": (lambda lib, x, y: lib.gcd(x, y), N, M),
    "lcm": (lambda lib, x, y: lib.lcm(x, y), N, M),
    "fmax of edges": (lambda lib, x, y: lib.fmax(x, y), *PAIRS),
    "fmin of edges": (lambda lib, x, y: lib.fmin(x, y), *PAIRS),
    "heaviside": (lambda lib, x, y: lib.heaviside(x, y), np.array([-2.0, 0.0, 3.0]), V[:3]),
    "sgn": (lambda lib, x: lib.sgn(x), EDGES[:6]),
    "sgn of complex": (lambda lib, x: lib.sgn(x), A + 1j * B),
    "float_power": (lambda lib, x, y: lib.float_power(x, y), M, N),
    "logaddexp2": (lambda lib, x, y: lib.logaddexp2(x, y), A, B),
    "deg2rad": (lambda lib, x: lib.deg2rad(x), A),
    "rad2deg of integers": (lambda lib, x: lib.rad2deg(x), N),
    "round to decimals": (lambda lib, x: lib.round(x, decimals=2), A),
    "round to tens": (lambda lib, x: lib.round(x, decimals=-1), 100 * A),
    "addcmul": (lambda lib, x, y: lib.addcmul(x, x, y, value=2.5), A, B),
    "addcdiv": (lambda lib, x, y: lib.addcdiv(x, x, y), A, B),
    "clamp_min": (lambda lib, x: lib.clamp_min(x, 0.1), A),
    "clamp_max": (lambda lib, x: lib.clamp_max(x, 0.1), A),
    "isclose": (lambda lib, x, y: lib.isclose(x, y, rtol=0.5), *PAIRS),
    "isclose with NaN": (lambda lib, x, y: lib.isclose(x, y, equal_nan=True), *PAIRS),
    "isclose of integers": (lambda lib, x, y: lib.isclose(x, y, rtol=0.3), N, M),
    "allclose": (lambda lib, x, y: lib.allclose(x, y, atol=9.0), A, B),
    "isposinf": (lambda lib, x: lib.isposinf(x), EDGES),
    "isneginf": (lambda lib, x: lib.isneginf(x), EDGES),
    "isreal": (lambda lib, x: lib.isreal(x), A * (1 + 1j * MASK)),
    "fix": (lambda lib, x: lib.fix(x), 3 * A),
    "complex": (lambda lib, x, y: lib.complex(x, y), A, B),
    "polar": (lambda lib, x, y: lib.polar(x, y), A, B),
    "view_as_real": (lambda lib, x: lib.view_as_real(x), A + 1j * B),
    "view_as_complex": (lambda lib, x: lib.view_as_complex(x), floats(3, 2)),
    "bincount": (lambda lib, x: lib.bincount(x, minlength=12), whole(0, 7, 20)),
    "bincount with weights": (lambda lib, x, w: lib.bincount(x, w), whole(0, 7, 20), floats(20)),
    "histc": (lambda lib, x: lib.histc(x, 5), A),
    "histc in a range": (lambda lib, x: lib.histc(x, bins=4, min=-1, max=1), A),
    "bucketize": (lambda lib, x, e: lib.bucketize(x, e), N, np.arange(-5, 6, 2)),
    "bucketize right": (lambda lib, x, e: lib.bucketize(x, e, right=True), N, np.arange(-5, 6, 2)),
    "atleast_3d": (lambda lib, x: lib.atleast_3d(x), A),
    "atleast_2d": (lambda lib, x, y: lib.atleast_2d(x, y), V, W),
    "hstack": (lambda lib, x, y: lib.hstack([x, y]), A, B),
    "hstack of vectors": (lambda lib, x, y: lib.hstack([x, y]), V, W),
    "vstack": (lambda lib, x, y: lib.vstack([x, y]), V, W),
    "dstack": (lambda lib, x, y: lib.dstack([x, y]), A, B),
    "column_stack": (lambda lib, x, y: lib.column_stack([x, y]), V, W),
    "block_diag": (lambda lib, x, y: lib.block_diag(x, y, x), A, V),
    "cartesian_prod": (lambda lib, x, y: lib.cartesian_prod(x, y, x), V, W),
    "combinations": (lambda lib, x: lib.combinations(x, 3), V),
    "combinations with replacement": (lambda lib, x: lib.combinations(x, with_replacement=True), V),
    "combinations of too many": (lambda lib, x: lib.combinations(x, 9), V),
    "tensor_split": (lambda lib, x: lib.tensor_split(x, 3, dim=1), A),
    "tensor_split at": (lambda lib, x: lib.tensor_split(x, (1, 3, 9), dim=0), A),
    "hsplit": (lambda lib, x: lib.hsplit(x, [2, 4]), A),
    "vsplit": (lambda lib, x: lib.vsplit(x, 2), A),
    "dsplit": (lambda lib, x: lib.dsplit(x, 5), C),
    "fliplr": (lambda lib, x: lib.fliplr(x), A),
    "flipud": (lambda lib, x: lib.flipud(x), A),
    **{f"rot90 {k}": (lambda lib, x, k=k: lib.rot90(x, k, (0, 2)), C) for k in range(-1, 4)},
    "select": (lambda lib, x: lib.select(x, 1, -2), C),
    "unravel_index": (lambda lib, x: lib.unravel_index(x, (3, 4, 5)), whole(0, 60, 7)),
    "diag": (lambda lib, x: lib.diag(x, 1), V),
    "diag of a matrix": (lambda lib, x: lib.diag(x, -1), A),
    "diag_embed": (lambda lib, x: lib.diag_embed(x, -2), A),
    "diag_embed on axes": (lambda lib, x: lib.diag_embed(x, 1, 0, 2), A),
    "diagflat": (lambda lib, x: lib.diagflat(x, 1), A),
    "tril_indices": (lambda lib: lib.tril_indices(3, 4, 1),),
    "triu_indices": (lambda lib: lib.triu_indices(4, 3, -1),),
    "vander": (lambda lib, x: lib.vander(x, 4), V),
    "vander upwards": (lambda lib, x: lib.vander(x, increasing=True), M[0]),
    "kron": (lambda lib, x, y: lib.kron(x, y), A, V),
    "inner": (lambda lib, x, y: lib.inner(x, y), A, B),
    "vdot": (lambda lib, x, y: lib.vdot(x, y), V + 2j * W, W + 0j),
    "cross": (lambda lib, x, y: lib.cross(x, y, dim=0), C, floats(3, 4, 5)),
    "addmv": (lambda lib, x, m, v: lib.addmv(x, m, v, beta=0.5, alpha=2), V[:4], A, V[:5]),
    "addmv without x": (lambda lib, x, m, v: lib.addmv(x, m, v, beta=0), np.full(4, np.nan), A, V[:5]),
    "addr": (lambda lib, x, y, z: lib.addr(x, y, z, alpha=3), A, V[:4], V[:5]),
    "addbmm": (lambda lib, x, y, z: lib.addbmm(x, y, z), floats(4, 2), C, floats(3, 5, 2)),
    "baddbmm": (lambda lib, x, y, z: lib.baddbmm(x, y, z, beta=2), floats(4, 2), C, floats(3, 5, 2)),
    "nansum": (lambda lib, x: lib.nansum(x, dim=1), H),
    "nanmean": (lambda lib, x: lib.nanmean(x, dim=0, keepdim=True), H),
    "nanmedian": (lambda lib, x: lib.nanmedian(x), H),
    "nanmedian along": (lambda lib, x: lib.nanmedian(x, dim=1), H),
    "median with NaN": (lambda lib, x: lib.median(x, dim=1), H),
    "quantile": (lambda lib, x, q: lib.quantile(x, q, dim=1), A, np.array([0.0, 0.3, 1.0])),
    "quantile with NaN": (lambda lib, x: lib.quantile(x, 0.4, dim=0, keepdim=True), H),
    "nanquantile": (lambda lib, x, q: lib.nanquantile(x, q, dim=1), H, np.array([0.0, 0.3, 1.0])),
    **{
        f"quantile {how}": (lambda lib, x, how=how: lib.quantile(x, 0.6, interpolation=how), A)
        for how in ("linear", "lower", "higher", "nearest", "midpoint")
    },
    "kthvalue": (lambda lib, x: lib.kthvalue(x, 2, dim=0), A),
    "mode": (lambda lib, x: lib.mode(x, dim=1).values, whole(0, 3, 5, 8)),
    "msort": (lambda lib, x: lib.msort(x), A),
    "cummax": (lambda lib, x: lib.cummax(x, dim=1), H),
    "cummax of equal elements": (lambda lib, x: lib.cummax(x, 1), whole(0, 3, 5, 8)),
    "cummin": (lambda lib, x: lib.cummin(x, dim=0), A),
    "logcumsumexp": (lambda lib, x: lib.logcumsumexp(x, dim=1), 300 * A),
    "logcumsumexp of edges": (lambda lib, x: lib.logcumsumexp(x, 0), np.array([-math.inf, -3.0, 1.0,
        math.inf, 2.0])),
    "aminmax": (lambda lib, x: tuple(lib.aminmax(x, dim=1)), A),
    "var_mean": (lambda lib, x: lib.var_mean(x, dim=1), A),
    "std_mean": (lambda lib, x: lib.std_mean(x, dim=0, correction=0, keepdim=True), A),
    "cov": (lambda lib, x: lib.cov(x), A),
    "cov with weights": (lambda lib, x, f, w: lib.cov(x, fweights=f, aweights=w), A, whole(1, 5, 5),
        RNG.random(5)),
    "corrcoef": (lambda lib, x: lib.corrcoef(x), A),
    **{f"cdist {p}": (lambda lib, x, y, p=p: lib.cdist(x, y, p=p), A, floats(3, 5)) for p in (0, 1, 2, 3,
        math.inf)},
    "cdist in batches": (lambda lib, x, y: lib.cdist(x, y), C, floats(3, 2, 5)),
    "dist": (lambda lib, x, y: lib.dist(x, y, 3), A, B),
    "renorm": (lambda lib, x: lib.renorm(x, 2, 0, 1.5), A),
    "logspace": (lambda lib: lib.logspace(-1, 2, steps=5),),
    "chunk of nothing": (lambda lib, x: lib.chunk(x, 3, 1), A[:, :0]),
    "nanmedian of all": (lambda lib, x: lib.nanmedian(x), np.where(A > 0, A, np.nan)),
    "index_fill": (lambda lib, x, i: lib.index_fill(x, 1, i, -1.0), A, np.array([0, 3])),
    "index_copy": (lambda lib, x, i, s: lib.index_copy(x, 0, i, s), A, np.array([2, 0]), floats(2, 5)),
    "index_put": (lambda lib, x, i, j, v: lib.index_put(x, (i, j), v), A, ROWS[0], ROWS[1], V[:3]),
    "index_put adding": (lambda lib, x, i, v: lib.index_put(x, (i,), v, accumulate=True), A, ROWS[1],
        floats(3, 5)),
    "put": (lambda lib, x, i, v: x.put(i, v), A, ROWS, floats(2, 3)[:, :]),
    "put adding": (lambda lib, x, i, v: x.put(i, v, accumulate=True), A, ROWS, floats(2, 3)),
    "masked_scatter": (lambda lib, x, m, s: lib.masked_scatter(x, m, s), A, MASK, floats(30)),
    "select_scatter": (lambda lib, x, s: lib.select_scatter(x, s, 1, 2), A, V[:4]),
    "slice_scatter": (lambda lib, x, s: lib.slice_scatter(x, s, 1, 1, 5, 2), A, floats(4, 2)),
    "diagonal_scatter": (lambda lib, x, s: lib.diagonal_scatter(x, s, 1), A, V[:4]),
    "diagonal_scatter below": (lambda lib, x, s: lib.diagonal_scatter(x, s, -1, 1, 2), C, floats(3, 3)),
    **{
        f"scatter_reduce {how} {own}": (
            lambda lib, x, i, s, how=how, own=own: lib.scatter_reduce(x, 1, i, s, how, include_self=own),
            floats(2, 4), ROWS, floats(2, 3),
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    "scatter_reduce mean of integers": (lambda lib, x, i, s: lib.scatter_reduce(x, 0, i, s, "mean"),
                                        whole(0, 50, 4), ROWS[0], whole(0, 50, 3)),
    "argwhere": (lambda lib, x: lib.argwhere(x), MASK),
    "unique_consecutive": (
        lambda lib, x: lib.unique_consecutive(x, True, True), np.array([[1, 1, 2], [2, 2, 1], [1, 1, 1]])),
    "unique_consecutive along": (
        lambda lib, x: lib.unique_consecutive(x, return_counts=True, dim=0),
        np.array([[1, 1], [1, 1], [2, 1]])),
    "topk": (lambda lib, x: lib.topk(x, 3, dim=1), A),
    "topk of many": (lambda lib, x: lib.topk(x, 4, largest=False), RNG.permutation(1000).astype(np.float64)),
    "topk of rows": (lambda lib, x: lib.topk(x, 2, dim=0), RNG.permutation(400).reshape(100, 4)),
    "softmax of a number": (lambda lib, x: (lib.softmax(x, -1), lib.log_softmax(x, 0)), np.array(3.0)),
    "softmax of nothing": (lambda lib, x: (lib.softmax(x, 1), lib.log_softmax(x, 0)), np.zeros((3, 0))),
    "logsumexp of nothing": (
        lambda lib, x: (lib.logsumexp(x, 1), lib.logsumexp(x, (0, 1), keepdim=True), lib.logsumexp(x, 0)),
        np.zeros((3, 0))),
    "logsumexp of a number": (
        lambda lib, x: (lib.logsumexp(x, 0), lib.logsumexp(x, -1, keepdim=True)), np.array(3.0)),
    "logsumexp": (
        lambda lib, x: (lib.logsumexp(x, (0, 2)), lib.logsumexp(x, 1, keepdim=True)), 300 * C),
    "logsumexp of infinities": (lambda lib, x: lib.logsumexp(x, 0), EDGES[[4, 5]]),
    "threshold": (lambda lib, x: lib.threshold(x, 0.1, 20.0), A),
    "softplus": (lambda lib, x: (lib.nn.functional if lib is torch else lib).softplus(x), A),
}  # fmt: skip


def as_arrays(result):
    if isinstance(result, (tuple, list)):
        return [a for part in result for a in as_arrays(part)]
    return [np.asarray(result.detach() if hasattr(result, "detach") else result)]


@pytest.mark.parametrize("name", CALLS)
def test_a_function_agrees_with_pytorch(name):
    function, *arrays = CALLS[name]
    want = as_arrays(function(torch, *map(torch.tensor, arrays)))
    got = as_arrays(function(st, *map(st.tensor, arrays)))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype.kind) == (b.shape, b.dtype.kind)
        np.testing.assert_allclose(a, b, rtol=1e-6 if b.dtype.itemsize == 4 else 1e-12, atol=1e-12)
