"""Lengths of vectors, and how far two of them lie apart."""

from __future__ import annotations

import numpy as np

from stratal.base.errors import ShapeError
from stratal.tensor.elementwise import maximum, sqrt, where
from stratal.tensor.indexing import take
from stratal.tensor.reductions import norm
from stratal.tensor.tensor import Tensor, tensor


def _length(x: Tensor, p: float, axis: int, keepdims: bool) -> Tensor:
    """Return the p-norm along an axis; the gradient of a length 0 is 0, as in PyTorch."""
    if p in (0, 1, float("inf")):
        return norm(x, p, axis, keepdims)
    powers = x * x if p == 2 else abs(x) ** p
    total = powers.sum(axis=axis, keepdims=keepdims)
    none = total == 0
    total = where(none, 1.0, total)
    return where(none, 0.0, sqrt(total) if p == 2 else total ** (1.0 / p))  # type: ignore[no-any-return]


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return x divided along `dim` by its p-norm, or by eps where that is larger."""
    return input / maximum(_length(input, p, dim, True), eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angles between vectors along `dim`; lengths count as at least eps."""
    a = x1 / maximum(_length(x1, 2, dim, True), eps)
    b = x2 / maximum(_length(x2, 2, dim, True), eps)
    return (a * b).sum(axis=dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norms of x1 - x2 + eps along the last axis. Shapes: [N, D] or [D] each."""
    return _length(x1 - x2 + eps, p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm distances of all pairs of rows, [N, D] -> [N (N - 1) / 2], in row-major order."""
    if input.ndim != 2:
        raise ShapeError("pdist: takes two axes", got=f"shape {list(input.shape)}")
    first, second = np.triu_indices(int(input.shape[0]), 1)
    return _length(take(input, tensor(first), axis=0) - take(input, tensor(second), axis=0), p, 1, False)
