"""Lengths of vectors, and how far two of them lie apart."""

from __future__ import annotations

import numpy as np

from stratal.base.errors import ShapeError
from stratal.tensor.functions.elementwise import clip, maximum
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.reductions import norm, rounded_once
from stratal.tensor.tensor import Tensor, tensor


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Return x divided along `dim` by its p-norm, or by eps where that is larger."""
    return input / clip(norm(input, p, dim, True), eps)


@rounded_once
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angles between vectors along `dim`; lengths count as at least eps."""
    a = x1 / maximum(norm(x1, 2, dim, True), eps)
    b = x2 / maximum(norm(x2, 2, dim, True), eps)
    return (a * b).sum(axis=dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norms of x1 - x2 + eps along the last axis. Shapes: [N, D] or [D] each."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norm distances of all pairs of rows, [N, D] -> [N (N - 1) / 2], in row-major order."""
    if input.ndim != 2:
        raise ShapeError("pdist: takes two axes", got=f"shape {list(input.shape)}")
    first, second = np.triu_indices(int(input.shape[0]), 1)
    return norm(take(input, tensor(first), axis=0) - take(input, tensor(second), axis=0), p, 1, False)
