"""Factorisations by LAPACK's own functions; `choice.Factorisations` says what each returns.

LAPACK counts along columns first, so a matrix of ours is to it the transpose. Where that serves as well, the
matrix is handed over as it lies.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from stratal.graph.op import Array
from stratal.ops.linalg.family import Refused
from stratal.ops.linalg.library import LENGTH, Work, call

_REAL = {"f": "f", "d": "d", "F": "f", "D": "d"}


# -- how matrices lie ----------------------------------------------------------------------------------------
def _turned(a: Array) -> Array:
    """Return a copy of the transposes: matrices as LAPACK reads them, or what it wrote as rows.

    Rows a multiple of 1 KB apart share a few sets of the cache; these are moved apart first (5x as fast).
    """
    m, n = a.shape[-2:]
    if min(m, n) >= 128 and a.strides[-2] % 1024 == 0:
        spaced = np.empty((*a.shape[:-1], n + 16), a.dtype)[..., :n]
        np.copyto(spaced, a)
        a = spaced
    return a.swapaxes(-1, -2).copy()


def _lower(m: int, n: int) -> Array:
    """Return what lies on and below the diagonal; small masks are kept."""
    return _kept_lower(m, n) if m * n <= 1 << 16 else np.tri(m, n, dtype=bool)


@lru_cache(maxsize=64)
def _kept_lower(m: int, n: int) -> Array:
    mask = np.tri(m, n, dtype=bool)
    mask.flags.writeable = False
    return mask


def _count(a: Array) -> int:
    return math.prod(a.shape[:-2])


def _succeed(told: Array, a: Array) -> None:
    """Refuse the first matrix LAPACK says something of."""
    if np.count_nonzero(told):
        raise Refused(np.argwhere(told.reshape(a.shape[:-2]))[0])


def _finite(a: Array) -> None:
    """Refuse what an iteration would not end on."""
    if not np.isfinite(a).all():
        raise Refused(np.argwhere(~np.isfinite(a))[0][:-2])


def _real(a: Array) -> np.dtype[np.generic]:
    return np.dtype(_REAL[a.dtype.char])


# -- triangles -----------------------------------------------------------------------------------------------
def lu(a: Array) -> tuple[Array, Array]:
    m, n = a.shape[-2:]
    packed, order = _turned(a), np.empty(a.shape[:-1], np.int64)
    order[...] = np.arange(m)
    if not a.size:
        return np.array(a), order
    count, k = _count(a), min(m, n)
    pivots = np.empty((count, k), np.int64)
    call("getrf", a, count, m, n, packed, m, pivots)
    whole = order.view(np.float64)  # a column of numbers whose bits are the places: they are moved, no more
    call("laswp", whole[..., None], count, 1, whole, m, 1, k, pivots, 1)
    return _turned(packed), order


def _eliminated(a: Array) -> tuple[Array, Array]:
    """Return the diagonals of U as [n, count], and -1 where an odd number of rows was exchanged, else 1.

    NumPy reduces a first axis in vectors, a short last one element by element.
    """
    packed, count, n = a.copy(), _count(a), a.shape[-1]
    pivots = np.empty((count, n), np.int64)
    call("getrf", a, count if n else 0, n, n, packed, n, pivots)
    exchanged = pivots.T.copy() != np.arange(1, n + 1)[:, None]
    diagonals = packed.reshape(count, n * n)[:, :: n + 1].T.copy()
    return diagonals, np.where(np.logical_xor.reduce(exchanged, axis=0), -1, 1)


def det(a: Array) -> Array:
    pivots, parity = _eliminated(a)
    product = (pivots.prod(axis=0) * parity).astype(a.dtype)
    sure = np.isfinite(product + 1 / product)
    if not sure.all():  # 0 or infinite: a part of the product may have left the range that the whole is in
        sign, size = _sign_and_size(pivots, parity)
        product = np.where(sure, product, (sign * np.exp(size)).astype(a.dtype))
    return np.asarray(product).reshape(a.shape[:-2])


def slogdet(a: Array) -> tuple[Array, Array]:
    sign, size = _sign_and_size(*_eliminated(a))
    return sign.reshape(a.shape[:-2]), size.reshape(a.shape[:-2])


def _sign_and_size(pivots: Array, parity: Array) -> tuple[Array, Array]:
    size = np.abs(pivots)
    phase = pivots / np.where(size == 0, 1, size) if pivots.dtype.kind == "c" else np.sign(pivots)
    return (phase.prod(axis=0) * parity).astype(pivots.dtype), np.log(size).sum(axis=0)


def solve(a: Array, b: Array) -> Array:
    if not b.size:
        return np.array(b)
    n, k = b.shape[-2:]
    factors, x = _turned(a), _turned(b)
    pivots = np.empty((_count(a), n), np.int64)
    _succeed(call("gesv", a, _count(a), n, k, factors, n, pivots, x, n), a)
    return _turned(x)


def solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    if not b.size:
        return np.array(b)
    n, k = b.shape[-2:]
    a, x, one = np.ascontiguousarray(a), b.copy(), np.ones((_count(a), 1), a.dtype)
    # to LAPACK it is X^T A^T = B^T; this routine of BLAS tells nothing
    triangle, diagonal = b"U" if lower else b"L", b"U" if unit else b"N"
    call("trsm", a, _count(a), b"R", triangle, b"N", diagonal, k, n, one, a, n, x, k)
    return x


def cholesky(a: Array) -> Array:
    n = a.shape[-1]
    low = np.zeros(a.shape, a.dtype)  # not `np.where`, whose result lies as its operand does
    np.copyto(low, a, where=_lower(n, n))
    if n:
        _succeed(call("potrf", a, _count(a), b"U", n, low, n), a)
    return low


def qr(a: Array, complete: bool) -> tuple[Array, Array]:
    *batch, m, n = a.shape
    k = min(m, n)
    columns = m if complete else k
    if not a.size:
        q = np.zeros((*batch, m, columns), a.dtype)
        q[...] = np.eye(m, columns)
        return q, np.zeros((*batch, columns, n), a.dtype)
    count, factors, scales = _count(a), _turned(a), np.empty((_count(a), k), a.dtype)
    call("geqrf", a, count, m, n, factors, m, scales, Work(a.dtype.char), LENGTH)
    r = np.zeros((*batch, n, columns), a.dtype)
    np.copyto(r, factors[..., :columns], where=_lower(n, columns))
    if columns == n:
        q = factors
    else:
        q = np.empty((*batch, columns, m), a.dtype)
        q[..., :k, :] = factors[..., :k, :]
    make = "ungqr" if a.dtype.kind == "c" else "orgqr"
    call(make, a, count, m, columns, k, q, m, scales, Work(a.dtype.char), LENGTH)
    return _turned(q), _turned(r)


# -- eigenvalues and singular values -------------------------------------------------------------------------
def _hermitian(a: Array, job: bytes) -> tuple[Array, Array]:
    _finite(a)
    n, count = a.shape[-1], _count(a) if a.size else 0
    vectors, values = a.copy(), np.empty(a.shape[:-1], _real(a))
    whole = a.dtype.kind == "c"
    name, extra = ("heevd", (Work(_REAL[a.dtype.char]), LENGTH)) if whole else ("syevd", ())
    told = call(name, a, count, job, b"U", n, vectors, n, values, Work(a.dtype.char), LENGTH, *extra,
                Work("q"), LENGTH)  # fmt: skip
    _succeed(told, a)
    return values, vectors.conj() if whole else vectors


def eigh(a: Array) -> tuple[Array, Array]:
    values, vectors = _hermitian(a, b"V")
    return values, _turned(vectors)


def eigvalsh(a: Array) -> Array:
    return _hermitian(a, b"N")[0]


def _general(a: Array, job: bytes) -> tuple[Array, Array]:
    _finite(a)
    n, count = a.shape[-1], _count(a) if a.size else 0
    matrices, vectors = _turned(a), np.empty(a.shape if job == b"V" else (count, 1), a.dtype)
    whole, none = a.dtype.kind == "c", np.empty((count, 1), a.dtype)
    values = [np.empty(a.shape[:-1], a.dtype) for _ in range(1 if whole else 2)]
    extra = (Work(_REAL[a.dtype.char], 2 * n),) if whole else ()
    told = call("geev", a, count, b"N", job, n, matrices, n, *values, none, 1, vectors,
                n if job == b"V" else 1, Work(a.dtype.char), LENGTH, *extra)  # fmt: skip
    _succeed(told, a)
    return values[0] if whole else values[0] + 1j * values[1], vectors


def eig(a: Array) -> tuple[Array, Array]:
    values, vectors = _general(a, b"V")
    if a.dtype.kind != "c":
        vectors = _paired(values, vectors)
    return values, _turned(vectors)


def _paired(values: Array, vectors: Array) -> Array:
    """Return complex eigenvectors, a row each, from real ones.

    Those of two conjugate values are the real and the imaginary part of the first's, in this order.
    """
    positive, negative = values.imag > 0, values.imag < 0
    real, imaginary = vectors.copy(), np.zeros_like(vectors)
    imaginary[positive] = vectors[negative]
    real[negative] = vectors[positive]
    imaginary[negative] = -vectors[negative]
    return real + 1j * imaginary


def eigvals(a: Array) -> Array:
    return _general(a, b"N")[0]


def _singular(a: Array, job: bytes) -> tuple[Array, Array, Array]:
    """To LAPACK A^T = V S U^T: what it returns as V^T and U are, as they lie, U and V^H."""
    _finite(a)
    *batch, m, n = a.shape
    k, count = min(m, n), _count(a) if a.size else 0
    left, right = {b"A": (m, n), b"S": (k, k), b"N": (1, 1)}[job]
    values = np.empty((*batch, k), _real(a))
    u = np.empty((*batch, m, left) if job != b"N" else (*batch, 1, 1), a.dtype)
    vh = np.empty((*batch, right, n) if job != b"N" else (*batch, 1, 1), a.dtype)
    if not a.size:
        u[...], vh[...] = np.eye(*u.shape[-2:]), np.eye(*vh.shape[-2:])
        return u, values, vh
    extra: tuple[Work, ...] = ()
    if a.dtype.kind == "c":
        most = max(m, n)
        extra = (Work(_REAL[a.dtype.char], max(5 * k * k + 7 * k, 2 * most * k + 2 * k * k + k)),)
    told = call("gesdd", a, count, job, n, m, a.copy(), n, values, vh, max(1, vh.shape[-1]), u, max(1, left),
                Work(a.dtype.char), LENGTH, *extra, Work("q", 8 * k))  # fmt: skip
    _succeed(told, a)
    return u, values, vh


def svd(a: Array, full: bool) -> tuple[Array, Array, Array]:
    return _singular(a, b"A" if full else b"S")


def svdvals(a: Array) -> Array:
    return _singular(a, b"N")[1]


# -- least squares -------------------------------------------------------------------------------------------
_FAR = 10  # times the cutoff: the ratio of singular values is an estimate here


def least_squares(a: Array, b: Array, cutoff: Array) -> tuple[Array, Array]:
    """By QR with exchanged columns. See: Bischof, "Incremental condition estimation", 1990."""
    _finite(a)
    *batch, m, n = a.shape
    k, count = b.shape[-1], _count(a)
    if not (a.size and k):
        return np.zeros((*batch, n, k), a.dtype), np.ones(batch, bool)
    x = np.zeros((*batch, k, max(m, n)), a.dtype)
    x[..., :m] = b.swapaxes(-1, -2)
    orders, ranks = np.zeros((count, n), np.int64), np.zeros(batch, np.int64)
    least = np.asarray(np.minimum(_FAR * cutoff, 1), _real(a))
    extra = (Work(_REAL[a.dtype.char], 2 * n),) if a.dtype.kind == "c" else ()
    told = call("gelsy", a, count, m, n, k, _turned(a), m, x, max(m, n), orders, least, ranks,
                Work(a.dtype.char), LENGTH, *extra)  # fmt: skip
    _succeed(told, a)
    return x[..., :n].swapaxes(-1, -2), np.asarray(ranks == min(m, n))
