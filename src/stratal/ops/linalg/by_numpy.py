"""Factorisations by NumPy, where LAPACK's own functions are not found.

`choice.Factorisations` says what each returns. NumPy computes in float64, and has no LU factorisation and no
triangular solve (`blocked`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.graph.op import Array
from stratal.ops.linalg import blocked
from stratal.ops.linalg.family import Refused


def _each_accepted(function: Callable[..., Any], a: Array, *others: Any, **options: Any) -> Any:
    """Call a function of NumPy. Raises: Refused, with the place of the first matrix it refuses."""
    try:
        return function(a, *others, **options)
    except np.linalg.LinAlgError:
        for place in np.ndindex(a.shape[:-2]):
            try:
                function(a[place], *(other[place] for other in others), **options)
            except np.linalg.LinAlgError:
                raise Refused(place) from None
        raise Refused(()) from None


def lu(a: Array) -> tuple[Array, Array]:
    packed = np.array(a)
    return packed, blocked.lu_in_place(packed)


def det(a: Array) -> Array:
    return np.asarray(np.linalg.det(a))


def slogdet(a: Array) -> tuple[Array, Array]:
    sign, size = np.linalg.slogdet(a)
    return np.asarray(sign), np.asarray(size)


def solve(a: Array, b: Array) -> Array:
    return np.asarray(_each_accepted(np.linalg.solve, a, b))


def solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    if lower:
        return blocked.solve_lower(a, b, unit)
    turned = blocked.solve_lower(a[..., ::-1, ::-1], b[..., ::-1, :], unit)
    return np.ascontiguousarray(turned[..., ::-1, :])


def cholesky(a: Array) -> Array:
    return np.asarray(_each_accepted(np.linalg.cholesky, a))


def qr(a: Array, complete: bool) -> tuple[Array, Array]:
    q, r = np.linalg.qr(a, mode="complete" if complete else "reduced")
    return q, r


def eigh(a: Array) -> tuple[Array, Array]:
    values, vectors = _each_accepted(np.linalg.eigh, a)
    return values, vectors


def eigvalsh(a: Array) -> Array:
    return np.asarray(_each_accepted(np.linalg.eigvalsh, a))


def _whole(a: Array) -> np.dtype[Any]:
    return np.result_type(a.dtype, np.complex64)


def eig(a: Array) -> tuple[Array, Array]:
    values, vectors = _each_accepted(np.linalg.eig, a)
    return values.astype(_whole(a)), vectors.astype(_whole(a))


def eigvals(a: Array) -> Array:
    return np.asarray(_each_accepted(np.linalg.eigvals, a)).astype(_whole(a))


def svd(a: Array, full: bool) -> tuple[Array, Array, Array]:
    u, s, vh = _each_accepted(np.linalg.svd, a, full_matrices=full)
    return u, s, vh


def least_squares(a: Array, b: Array, cutoff: Array) -> tuple[Array, Array]:
    return np.zeros((*a.shape[:-2], a.shape[-1], b.shape[-1]), a.dtype), np.zeros(a.shape[:-2], bool)


def svdvals(a: Array) -> Array:
    return np.asarray(_each_accepted(np.linalg.svd, a, compute_uv=False))
