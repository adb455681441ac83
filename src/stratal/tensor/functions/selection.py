"""Where elements are not zero: a result whose size is data, so that the values are needed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratal.base.errors import CaptureError, IndexOutOfRangeError
from stratal.tensor.arrays import Array
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.ramps import written
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.handle import CONSTANT
from stratal.tensor.values.state import MODE


def nonzero_indices(x: Any, against: Sequence[Any] | None = None) -> tuple[Tensor, ...]:
    """Return the indices of elements that are not zero, one tensor per axis. Their number is data: the value
    is needed now. `against` are the sizes a mask must have; one of size 0 names nothing.
    """
    t = as_tensor(x, "nonzero")
    if against is not None and any(n not in (0, m) for n, m in zip(t.shape, against, strict=True)):
        raise IndexOutOfRangeError(
            "index: the mask has another shape", got=f"{list(t.shape)} for {list(against)}"
        )
    found = np.nonzero(_known("nonzero", t))
    return tuple(tensor(part.astype(np.int64, copy=False)) for part in found)


def _known(name: str, t: Tensor) -> np.ndarray[Any, Any]:
    """Return the value of a tensor, on which the shape of a result depends. Raises: CaptureError."""
    if MODE.trace is not None:
        raise CaptureError(
            "index: the shape of a masked selection is data, which a captured graph does not have",
            got=str(t.type),
            hint="st.where(mask, x, 0) keeps the shape; x[mask] = v is fine",
        )  # fmt: skip
    return t._value(name).array


def argwhere(x: Any, /) -> Tensor:
    """Return the indices of elements that are not zero, one row each. The value is needed now."""
    return tensor(np.argwhere(_known("argwhere", as_tensor(x, "argwhere"))).astype(np.int64, copy=False))


def flatnonzero(x: Any, /) -> Tensor:
    """Return the row-major places of elements that are not zero. The value is needed now."""
    t = as_tensor(x, "flatnonzero")
    return tensor(np.flatnonzero(_known("flatnonzero", t)).astype(np.int64, copy=False))


def is_plain_mask(x: Tensor, index: Any) -> bool:
    """Return whether an index is a mask of every element of what takes no gradient, outside of captures."""
    mask = isinstance(index, Tensor) and index.dtype.is_bool and index.ndim > 0 and index.shape == x.shape
    return mask and MODE.trace is None and x._track == CONSTANT


def selected(x: Tensor, mask: Tensor) -> Tensor:
    """Return the elements a mask of the same shape names, in row-major order. Both values are needed now."""
    places = np.flatnonzero(_known("index", mask))
    elements = _known("index", x).reshape(-1)

    def write(out: Array) -> None:
        elements.take(places, out=out, mode="clip")

    return written(x.dtype, places.shape, write)


__all__ = ["argwhere", "flatnonzero"]
