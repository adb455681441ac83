"""LU factorisation and triangular solves of stacks of matrices in NumPy, by halves: products do the work.

See: Toledo, "Locality of reference in LU decomposition with partial pivoting", 1997.
"""

from __future__ import annotations

import numpy as np

from stratal.graph.op import Array

_WIDTH = 16  # columns below which a matrix is not halved


def lu_in_place(a: Array) -> Array:
    """Overwrite matrices [..., m, n] with L below the diagonal and U on and above it.

    Return the rows [..., m] of the original in the order of L U; pivots are the largest of their columns.
    """
    order = np.broadcast_to(np.arange(a.shape[-2]), a.shape[:-1]).copy()
    _factorise(a, order)
    return order


def _factorise(a: Array, order: Array) -> None:
    m, n = a.shape[-2:]
    if n > _WIDTH and m > 1:
        half = min(n // 2, m)
        left, right = a[..., :half], a[..., half:]
        moved = np.broadcast_to(np.arange(m), a.shape[:-1]).copy()
        _factorise(left, moved)
        right[...] = np.take_along_axis(right, moved[..., None], axis=-2)
        order[...] = np.take_along_axis(order, moved, axis=-1)
        top, rest = right[..., :half, :], right[..., half:, :]
        top[...] = solve_lower(left[..., :half, :], top, unit=True)
        rest -= left[..., half:, :] @ top
        moved = np.broadcast_to(np.arange(m - half), rest.shape[:-1]).copy()
        _factorise(rest, moved)
        left[..., half:, :] = np.take_along_axis(left[..., half:, :], moved[..., None], axis=-2)
        order[..., half:] = np.take_along_axis(order[..., half:], moved, axis=-1)
        return
    for k in range(min(m, n)):
        pivot = k + np.argmax(np.abs(a[..., k:, k]), axis=-1)[..., None]
        _swap(a, k, pivot[..., None])
        _swap(order[..., None], k, pivot[..., None])
        head = a[..., k : k + 1, k]
        a[..., k + 1 :, k] /= np.where(head == 0, 1, head)  # below a pivot of 0 all are 0
        a[..., k + 1 :, k + 1 :] -= a[..., k + 1 :, k, None] * a[..., k, None, k + 1 :]


def _swap(a: Array, row: int, other: Array) -> None:
    """Exchange a row with another one, which may differ between matrices."""
    there = np.take_along_axis(a, other, axis=-2)
    np.put_along_axis(a, other, a[..., row : row + 1, :].copy(), axis=-2)
    a[..., row : row + 1, :] = there


def solve_lower(a: Array, b: Array, unit: bool) -> Array:
    """Return X with A X = B for the lower triangle of A [..., n, n]; `unit`: with 1 on its diagonal."""
    n = a.shape[-1]
    if n > _WIDTH:
        half = n // 2
        top = solve_lower(a[..., :half, :half], b[..., :half, :], unit)
        rest = b[..., half:, :] - a[..., half:, :half] @ top
        return np.concatenate([top, solve_lower(a[..., half:, half:], rest, unit)], axis=-2)
    x = np.array(b)
    for k in range(n):
        x[..., k, :] -= (a[..., k, None, :k] @ x[..., :k, :])[..., 0, :]
        if not unit:
            x[..., k, :] /= a[..., k, k, None]
    return x
