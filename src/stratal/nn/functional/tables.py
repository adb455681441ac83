"""Rows of a table by integer index: one by one, in bags, or as vectors with a single one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.source import scope
from stratal.tensor.build import call, required
from stratal.tensor.functions.creation import arange, full, zeros
from stratal.tensor.functions.elementwise import cast, maximum, where
from stratal.tensor.functions.indexing import index_add, take, take_along_axis
from stratal.tensor.functions.reductions import max, norm
from stratal.tensor.functions.shapes import expand_dims
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Return int64 rows with a one at each index. The number of classes is given, or read from the data."""
    if not input.dtype.is_integer:
        raise DTypeError("one_hot: classes are integers", got=str(input.dtype))
    count = num_classes
    if num_classes == -1:
        highest = int(input.max())
        count = highest + 1 if highest >= 0 else 0
    given = required(input, input, count, f"one_hot: class out of range for {count} classes")
    return cast(given.reshape((*input.shape, 1)) == arange(count), "int64")


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Return rows of `weight` by index; the row `padding_idx` receives no gradient.

    With `max_norm`, rows that are read and longer than that are shortened in the table first. With
    `scale_grad_by_freq`, gradients are divided by how often their row is read. Gradients are dense.
    Shapes: input [...] of integers, weight [rows, D] -> [..., D].
    """
    _check(input, weight, sparse)
    if max_norm is not None:
        _shorten(input, weight, max_norm, norm_type)
    rows = int(weight.shape[0])
    table = weight
    if padding_idx is not None:
        row = table_row("embedding", padding_idx, rows)
        table = where((arange(rows) == row).reshape((-1, 1)), weight.detach(), weight)
    with scope("embedding"):
        result: Tensor = call("gather", table, input, axis=0)
    if scale_grad_by_freq:
        often = cast(_counts(input, rows), weight.dtype)
        share = 1.0 / take(often, input, axis=0).reshape((*input.shape, 1))
        fixed = result.detach()
        result = fixed + (result - fixed) * share
    return result


def _check(input: Tensor, weight: Tensor, sparse: bool) -> None:
    if not input.dtype.is_integer:
        raise DTypeError("embedding: indices are integers", got=str(input.dtype))
    if weight.ndim != 2:
        raise ShapeError("embedding: the table has two axes", got=f"shape {list(weight.shape)}")
    check_dense("embedding", sparse)


def check_dense(name: str, sparse: bool) -> None:
    """Refuse sparse gradients. Raises: AttributeValueError."""
    if sparse:
        raise AttributeValueError(f"{name}: gradients are dense", got="sparse=True", hint="leave sparse out")


def table_row(name: str, index: int, rows: int) -> int:
    """Return the number of a row, which may be counted from the end. Raises: AttributeValueError."""
    if not -rows <= index < rows:
        raise AttributeValueError(f"{name}: padding_idx must be a row of the table", got=f"{index} of {rows}")
    return index % rows


def _counts(input: Tensor, rows: int) -> Tensor:
    """Return how often each row is read, int64 [rows]."""
    flat = input.reshape((-1,))
    return index_add(zeros((rows,), dtype="int64"), 0, flat, full(flat.shape, 1, dtype="int64"))


def _shorten(input: Tensor, weight: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows that are read down to `max_norm`, in place, as PyTorch's embedding_renorm_ does."""
    with no_grad():
        length = norm(weight, norm_type, 1, True)
        read = (_counts(input, int(weight.shape[0])) > 0).reshape((-1, 1))
        factor = where(read & (length > max_norm), max_norm / (length + 1e-7), 1.0)
        weight.copy_(weight * factor)


# -- bags ----------------------------------------------------------------------------------------------------
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Any = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None
) -> Tensor:
    """Return the sum, mean or maximum of the rows of each bag; of an empty bag 0.

    Bags are the rows of a matrix of indices, or pieces of a vector that start at `offsets`, whose last entry
    is its length with `include_last_offset`. Rows `padding_idx` count for nothing.
    Shapes: input [bags, n] or [n], weight [rows, D] -> [bags, D].
    """
    if mode not in ("sum", "mean", "max"):
        raise AttributeValueError("embedding_bag: mode is 'sum', 'mean' or 'max'", got=repr(mode))
    if per_sample_weights is not None and mode != "sum":
        raise AttributeValueError("embedding_bag: weights of samples go with mode 'sum'", got=repr(mode))
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ShapeError(
            "embedding_bag: takes one weight per index",
            got=f"{list(per_sample_weights.shape)} for {list(input.shape)}",
        )
    places, bags, count = _bags(input, offsets, include_last_offset)
    rows = embedding(places, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        rows = rows * expand_dims(per_sample_weights, axis=-1)
    kept = full((*places.shape, 1), True, dtype="bool")
    if padding_idx is not None:
        kept = expand_dims(places != table_row("embedding_bag", padding_idx, int(weight.shape[0])), axis=-1)
    sizes = _sums(cast(kept, rows.dtype), bags, count)
    if mode == "max":
        return where(sizes == 0, 0.0, _maxima(where(kept, rows, -math.inf), bags, count))  # type: ignore[no-any-return]
    total = _sums(where(kept, rows, 0.0), bags, count)
    return total if mode == "sum" else total / maximum(sizes, 1.0)


def _sums(x: Tensor, bags: Tensor | None, count: int) -> Tensor:
    """Return the sum of each bag of rows: x [bags, n, D], or [n, D] with the bag of each row."""
    if bags is None:
        return x.sum(axis=1)
    return index_add(zeros((count, int(x.shape[-1])), dtype=x.dtype), 0, bags, x)


def _maxima(x: Tensor, bags: Tensor | None, count: int) -> Tensor:
    """Return the maxima of each bag of rows; of equal ones the first takes the gradient."""
    if bags is None:
        return max(x, dim=1).values  # type: ignore[no-any-return]
    n, width = (int(k) for k in x.shape)
    lowest = full((count, width), -math.inf, dtype=x.dtype)
    found = call("scatter", lowest, bags, x.detach(), kind="max", axis=0)
    top = take(found, bags, axis=0)
    order = where((x == top) | (x != x), arange(n).reshape((-1, 1)), n)
    first = call("scatter", full((count, width), n, dtype="int64"), bags, order, kind="min", axis=0)
    picked = take_along_axis(x, where(first == n, 0, first), axis=0)
    return where(first == n, found, picked)  # type: ignore[no-any-return]


def _bags(input: Tensor, offsets: Any, include_last: bool) -> tuple[Tensor, Tensor | None, int]:
    """Return all indices, the number of the bag of each unless bags are the rows of a matrix, and how many
    bags there are.
    """
    if input.ndim == 2:
        if offsets is not None:
            raise AttributeValueError("embedding_bag: the rows of a matrix are its bags", got="offsets too")
        count, size = (int(n) for n in input.shape)
        return (input, None, count) if size else (input.reshape((0,)), arange(0), count)
    if input.ndim != 1 or offsets is None:
        raise ShapeError(
            "embedding_bag: takes a matrix of indices, or a vector and offsets",
            got=f"shape {list(input.shape)}" + ("" if offsets is not None else " without offsets"),
        )
    starts = offsets if isinstance(offsets, Tensor) else tensor(np.asarray(offsets))
    if starts.ndim != 1 or not starts.dtype.is_integer:
        raise ShapeError("embedding_bag: offsets are a vector of integers", got=str(starts.type))
    starts = starts[:-1] if include_last else starts
    count, places = int(starts.shape[0]), arange(int(input.shape[0])).reshape((-1, 1))
    started = cast(places >= cast(starts, "int64").reshape((1, -1)), "int64").sum(axis=1)
    # What stands before the first offset is in no bag: an index out of range, which is an error.
    return input, where(started == 0, count, started - 1), count
