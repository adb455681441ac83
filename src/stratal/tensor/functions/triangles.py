"""Parts of matrices on one side of a diagonal."""

from __future__ import annotations

from typing import Any

from stratal.base.dtypes import bool_
from stratal.base.errors import AttributeValueError
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.creation import diagonal_order
from stratal.tensor.functions.elementwise import where
from stratal.tensor.tensor import Tensor


def _triangle(name: str, x: Any, k: int, comparison: str) -> Tensor:
    t = as_tensor(x, name)
    if t.ndim < 2:
        raise AttributeValueError(f"{name}: needs at least two axes", got=str(t.type))
    kept = diagonal_order(t.shape[-2:], k, comparison)
    if t.dtype is bool_:
        return t & kept
    return where(kept, t, 0)


def tril(x: Any, /, k: int = 0, *, diagonal: int | None = None) -> Tensor:
    """Return matrices with zeros above the k-th diagonal."""
    return _triangle("tril", x, k if diagonal is None else diagonal, "less_equal")


def triu(x: Any, /, k: int = 0, *, diagonal: int | None = None) -> Tensor:
    """Return matrices with zeros below the k-th diagonal."""
    return _triangle("triu", x, k if diagonal is None else diagonal, "greater_equal")


__all__ = ["tril", "triu"]
