"""Methods that give a tensor another value: those that its users call, and what in-place methods share."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError
from stratal.tensor.build import Scalar, full
from stratal.tensor.composites.matrices import fill_diagonal
from stratal.tensor.functions import creation, shapes
from stratal.tensor.functions.elementwise import cast, where
from stratal.tensor.functions.indexing import set_at
from stratal.tensor.tensor import Tensor, write_over
from stratal.tensor.tensor import tensor as make_tensor
from stratal.tensor.values.binding import is_leaf, lazy_value_of, rebind, takes_gradients
from stratal.tensor.values.handle import CONSTANT

_CATEGORIES: Final = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # one does not become another in place


def update(self: Tensor, value: Tensor, name: str) -> Tensor:
    """Rebind a tensor to a value that keeps its type, and return it. Raises: ShapeError, DTypeError."""
    if _CATEGORIES[value.dtype.kind] > _CATEGORIES[self.dtype.kind]:
        raise DTypeError(
            f"{name}: the result does not fit the tensor in place", got=f"{value.dtype} into {self.type}"
        )
    return _assign(self, _fitted(self, value))


def copy_(self: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Give this tensor the value of another, stretched and cast to its type, and return it."""
    value = _fitted(self, source)
    if takes_gradients(self) and not is_leaf(self):
        value = where(True, value, self)  # gradients of what it was are zeros, not missing
    return _assign(self, value)


def _fitted(self: Tensor, source: Any) -> Tensor:
    value = source if isinstance(source, Tensor) else make_tensor(source, dtype=self.dtype)
    if value.dtype is not self.dtype:
        value = cast(value, self.dtype)
    return value if value.shape == self.shape else shapes.broadcast_to(value, self.shape)


def _assign(self: Tensor, value: Tensor) -> Tensor:
    if not write_over(self, value):
        rebind(self, *lazy_value_of(value))
    return self


def fill_(self: Tensor, value: Any) -> Tensor:
    """Give every element of this tensor one value, and return it."""
    if isinstance(value, Scalar) and (is_leaf(self) or not takes_gradients(self)):
        plain = value.item() if isinstance(value, np.generic) else value
        rebind(self, full("fill_", plain, self.dtype, self.shape), CONSTANT)
        return self
    return copy_(self, value)


def zero_(self: Tensor) -> Tensor:
    """Give every element of this tensor the value 0, and return it."""
    return fill_(self, 0)


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Give this tensor one value along its main diagonal, and return it: a matrix, or axes of one length."""
    if wrap or self.ndim < 2 or (self.ndim > 2 and len(set(self.shape)) > 1):
        raise AttributeValueError(
            "fill_diagonal_: takes a matrix, or axes of one length, and does not wrap",
            got=f"{self.type}, wrap={wrap}",
        )
    if self.ndim == 2:
        return update(self, fill_diagonal(self, fill_value), "fill_diagonal_")
    places = creation.arange(self.shape[0])
    return update(self, set_at(self, (places,) * self.ndim, fill_value), "fill_diagonal_")


WRITES = (copy_, fill_, fill_diagonal_, zero_)
__all__ = ["WRITES", "copy_", "fill_", "update"]
