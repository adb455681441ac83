"""Functions that put elements in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, CaptureError
from stratal.graph.op import REGISTRY
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import apply, as_tensor
from stratal.tensor.naming import two_names
from stratal.tensor.reductions import ValuesIndices
from stratal.tensor.shapes import narrow, ravel, reshape
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, tensor


def _sorted(name: str, t: Tensor, axis: int, descending: bool) -> ValuesIndices:
    if t.ndim == 0:
        values, indices = _sorted(name, reshape(t, (1,)), 0, descending)
        return ValuesIndices(reshape(values, ()), reshape(indices, ()))
    op = REGISTRY["sort"](check_axis(name, axis, t.ndim), descending)  # type: ignore[call-arg]
    return ValuesIndices(*apply(op, t))


def sort(x: Any, /, *args: Any, axis: int | None = None, dim: int | None = None, **options: Any) -> Any:
    """Return the elements along an axis in order; called with `dim`, positionally or as a method, also where
    they stood.
    """
    descending = bool(options.pop("descending", False))
    options.pop("stable", None)
    if options:
        raise AttributeValueError("sort: takes axis, dim, descending, stable", got=", ".join(options))
    if len(args) > 1:
        descending = bool(args[1])
    if axis is not None:
        return _sorted("sort", as_tensor(x, "sort"), axis, descending).values
    at = args[0] if args else dim
    found = _sorted("sort", as_tensor(x, "sort"), -1 if at is None else at, descending)
    return found if at is not None else found.values


def sort_method(self: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesIndices:
    """Return the elements along an axis in order, and where they stood."""
    return _sorted("sort", self, dim, descending)


@two_names
def argsort(x: Any, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices that put the elements along an axis in order."""
    return _sorted("argsort", as_tensor(x, "argsort"), axis, descending).indices


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """Return the k greatest (or least) elements along an axis, in order, and where they stood."""
    t = as_tensor(x, "topk")
    a = check_axis("topk", dim, t.ndim)
    if not 0 <= k <= t.shape[a]:
        raise AttributeValueError("topk: k must not exceed the axis", got=f"{k} of {t.shape[a]}")
    found = _sorted("topk", t, a, largest)
    return ValuesIndices(narrow(found.values, a, 0, k), narrow(found.indices, a, 0, k))


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of all elements; along an axis also where it stood."""
    t = as_tensor(x, "median")
    flat = ravel(t) if dim is None else t
    a = check_axis("median", 0 if dim is None else dim, flat.ndim)
    values, indices = _sorted("median", flat, a, False)
    middle = (flat.shape[a] - 1) // 2
    shape = [n for k, n in enumerate(flat.shape) if k != a or keepdim]
    shape = shape if not keepdim or dim is None else [1 if k == a else n for k, n in enumerate(flat.shape)]
    if dim is None:
        return reshape(narrow(values, a, middle, 1), ())
    return ValuesIndices(*(reshape(narrow(part, a, middle, 1), shape) for part in (values, indices)))


def unique_values(x: Any, /) -> Tensor:
    """Return the different elements in order. Their number is data: the values are needed now."""
    t = as_tensor(x, "unique_values")
    if MODE.trace is not None:
        raise CaptureError("unique_values: the number of different elements is data", got=str(t.type),
                           hint="compute it outside the compiled function")  # fmt: skip
    return tensor(np.unique(t._value("unique_values").array))


def searchsorted(edges: Any, x: Any, /, *, side: str = "left") -> Tensor:
    """Return where the elements of `x` go into a sorted vector to keep it sorted: how many edges lie before
    each.
    """
    e, v = as_tensor(edges, "searchsorted"), as_tensor(x, "searchsorted")
    if side not in ("left", "right"):
        raise AttributeValueError("searchsorted: side is 'left' or 'right'", got=repr(side))
    wide = reshape(v, (*v.shape, 1))
    before = e < wide if side == "left" else e <= wide
    result: Tensor = before.sum(axis=-1)
    return result


__all__ = ["argsort", "median", "searchsorted", "sort", "topk", "unique_values"]
