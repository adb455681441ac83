"""Index updates that return a value: `x.at[i].add(v)` leaves `x` alone.

The functional twin of `x[i] = v`, after JAX's `jax.numpy.ndarray.at`: unlike `x[i] += v`, an element that
integer arrays name twice takes both updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.tensor.build import Scalar, as_tensor
from stratal.tensor.elementwise import FUNCTIONS, cast, where
from stratal.tensor.elementwise import pow as power
from stratal.tensor.indexing import getitem, set_at, whole_mask
from stratal.tensor.tensor import Tensor


class At:
    """`x.at`, which waits for an index."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Places:
        return Places(self._x, index)


class Places:
    """The elements of a tensor that an index names: read them, or return the tensor with others there."""

    def __init__(self, x: Tensor, index: Any) -> None:
        self._x, self._index = x, index

    def get(self) -> Tensor:
        """Return the elements, as `x[index]`."""
        return getitem(self._x, self._index)

    def set(self, value: Any) -> Tensor:
        """Return the tensor with these elements replaced."""
        return self._updated(lambda old, new: new, value, "set")

    def add(self, value: Any) -> Tensor:
        """Return the tensor with a value added here; as often as an element is named."""
        return self._updated(FUNCTIONS["add"], value, "add")

    def subtract(self, value: Any) -> Tensor:
        """Return the tensor with a value subtracted here; as often as an element is named."""
        return self.add(-as_tensor(value, "at"))

    def max(self, value: Any) -> Tensor:
        """Return the tensor with the greater of each element here and a value."""
        return self._updated(FUNCTIONS["maximum"], value, "max")

    def min(self, value: Any) -> Tensor:
        """Return the tensor with the lesser of each element here and a value."""
        return self._updated(FUNCTIONS["minimum"], value, "min")

    def multiply(self, value: Any) -> Tensor:
        """Return the tensor with these elements multiplied by a value."""
        return self._updated(FUNCTIONS["multiply"], value)

    def divide(self, value: Any) -> Tensor:
        """Return the tensor with these elements divided by a value."""
        return self._updated(FUNCTIONS["divide"], value)

    def power(self, value: Any) -> Tensor:
        """Return the tensor with these elements raised to a power."""
        return self._updated(power, value)

    def apply(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the tensor with a function of these elements here, of each as it was."""
        return set_at(self._x, self._index, cast(function(self.get()), self._x.dtype))

    def _updated(self, combine: Callable[[Any, Any], Tensor], value: Any, kind: str = "") -> Tensor:
        x = self._x
        given = value if isinstance(value, Scalar) else cast(as_tensor(value, "at"), x.dtype)
        mask = whole_mask(x, self._index, given)
        if mask is not None:
            result: Tensor = where(mask, cast(as_tensor(combine(x, given), "at"), x.dtype), x)
            return result
        if not _has_arrays(self._index):  # every element is named at most once
            return set_at(
                x, self._index, given if kind == "set" else cast(combine(self.get(), given), x.dtype)
            )
        if not kind:
            raise AttributeValueError(
                "at: where an element may be named twice, only set, add, subtract, max and min combine",
                got=str(x.type), hint="x.at[i].apply(f) acts on each element once, as it was",
            )  # fmt: skip
        return set_at(x, self._index, given, kind)


def _has_arrays(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(p, (Tensor, np.ndarray, list)) for p in parts)


__all__ = ["At", "Places"]
