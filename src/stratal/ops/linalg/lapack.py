"""LU factorisation and triangular solves of stacks of matrices, of which NumPy has no functions.

They are in the OpenBLAS that NumPy's wheels bring along and have loaded. Where there is none, and for many
small matrices, of which each would be a call, `blocked.py` works on whole stacks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from stratal.base.vendor import NOT_TRANSPOSED, ROW_MAJOR, vendor
from stratal.graph.op import Array
from stratal.ops.linalg import blocked

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_LEFT, _UPPER, _LOWER, _NON_UNIT, _UNIT = 141, 121, 122, 131, 132  # as CBLAS names things

_SMALL, _MANY = 256, 32  # elements of a matrix, matrices of a stack


@cache
def _library() -> ctypes.CDLL | None:
    """Return NumPy's own instance of its library, threads and all."""
    found = vendor()
    try:
        return None if found is None else ctypes.CDLL(str(found.path))
    except OSError:
        return None


def _function(pattern: str, dtype: np.dtype[Any]) -> Any:
    return getattr(_library(), pattern.format(_LETTERS[dtype.name]), None)


def _many_small(a: Array) -> bool:
    """Return whether NumPy goes through a stack faster than calls do, one per matrix: 2 to 8 times at 8x8."""
    each = a.shape[-2] * a.shape[-1]
    return bool(each <= _SMALL and a.size >= _MANY * each)


def lu(a: Array) -> tuple[Array, Array]:
    """Return L (below the diagonal, its own being 1) and U in one, and the rows of A in the order of L U.

    Shapes: A [..., m, n] -> [..., m, n] and int64 [..., m].
    """
    getrf = _function("scipy_{}getrf_64_", a.dtype)
    if getrf is None or _many_small(a):
        packed = np.array(a)
        return packed, blocked.lu_in_place(packed)
    m, n = a.shape[-2:]
    packed = np.array(np.swapaxes(a, -1, -2), order="C")  # by columns
    pivots = np.empty((*a.shape[:-2], min(m, n)), np.int64)
    rows, columns, info = (ctypes.byref(ctypes.c_int64(k)) for k in (m, n, 0))
    for matrix, at in zip(_addresses(packed, m * n), _addresses(pivots, min(m, n)), strict=True):
        getrf(rows, columns, matrix, rows, at, info)
    return np.swapaxes(packed, -1, -2), _order(pivots - 1, m)


def _addresses(a: Array, elements: int) -> Iterator[ctypes.c_void_p]:
    """Yield where each matrix of a stack begins."""
    step = elements * a.itemsize
    for k in range(a.nbytes // step):
        yield ctypes.c_void_p(a.ctypes.data + k * step)


def _order(pivots: Array, count: int) -> Array:
    """Return what is left of 0, 1, ... after row k was exchanged with row pivots[k], for each k."""
    orders = np.empty((*pivots.shape[:-1], count), np.int64)
    for place in np.ndindex(pivots.shape[:-1]):
        order = list(range(count))
        for k, other in enumerate(pivots[place].tolist()):
            order[k], order[other] = order[other], order[k]
        orders[place] = order
    return orders


def solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    """Return X with A X = B, where one triangle of A is read: A [..., n, n], B [..., n, k]."""
    trsm = _function("scipy_cblas_{}trsm64_", a.dtype)
    if trsm is None or not b.size or _many_small(a):
        if lower:
            return blocked.solve_lower(a, b, unit)
        turned = blocked.solve_lower(a[..., ::-1, ::-1], b[..., ::-1, :], unit)
        return np.ascontiguousarray(turned[..., ::-1, :])
    x, a = np.array(b, order="C"), np.ascontiguousarray(a)
    n, k = x.shape[-2:]
    one = np.ones((), a.dtype)
    scale: Any = one.ctypes.data_as(ctypes.c_void_p)  # complex numbers go by reference
    if a.dtype.kind == "f":
        scale = (ctypes.c_float if a.itemsize == 4 else ctypes.c_double)(1.0)
    sides = (ROW_MAJOR, _LEFT, _LOWER if lower else _UPPER, NOT_TRANSPOSED, _UNIT if unit else _NON_UNIT)
    n_, k_ = ctypes.c_int64(n), ctypes.c_int64(k)
    for matrix, at in zip(_addresses(a, n * n), _addresses(x, n * k), strict=True):
        trsm(*sides, n_, k_, scale, matrix, n_, at, k_)
    return x
