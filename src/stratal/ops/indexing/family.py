"""What ops that read or write at computed places share: index checks, what is combined, drawing indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.base.dims import as_int, known_equal, product
from stratal.base.dtypes import DType, int64
from stratal.base.errors import AttributeValueError, DTypeError, IndexOutOfRangeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw
from stratal.loops.compute import Check
from stratal.loops.expr import Expr, call, cast
from stratal.ops.families import cast_to
from stratal.ops.families import check_axis as check_axis

KINDS = ("set", "add", "mul", "max", "min")


def check_indices(name: str, type_: TensorType) -> None:
    """Refuse indices that are not integers. Raises: DTypeError."""
    if not type_.dtype.is_integer:
        raise DTypeError(f"{name}: indices must be integers", got=str(type_))


def check_kind_of_scatter(name: str, kind: str, dtype: DType) -> None:
    """Refuse an unknown way to combine and dtypes it does not take."""
    if kind not in KINDS:
        raise AttributeValueError(f"{name}: kind is one of {', '.join(KINDS)}", got=repr(kind))
    if (kind != "set" and dtype.is_bool) or (kind in ("max", "min") and dtype.is_complex):
        raise DTypeError(f"{name}: {kind} does not take {dtype}", got=str(dtype))


def check_in_range(name: str, index: Array, size: int) -> None:
    """Refuse an index outside [0, size). Raises: IndexOutOfRangeError."""
    bad = (index < 0) | (index >= size)
    if bad.any():
        raise IndexOutOfRangeError(
            f"{name}: index out of range", got=f"{index[bad].flat[0]} for an axis of {size}",
            hint=f"indices lie in [0, {size})",
        )  # fmt: skip


def check(name: str, operand: int, size: int) -> Check:
    """Return the check of an operand's indices that a kernel makes."""
    return Check(operand, size, f"{name}: index out of range for an axis of {size}")


def combine(kind: str, old: Expr, new: Expr) -> Expr:
    """Return what a scatter stores over `old`: computed in the compute dtype, rounded at each update."""
    if kind == "set":
        return new
    compute = old.dtype.compute
    return cast(call(kind, cast(old, compute), cast(new, compute)), old.dtype)


def combine_at(kind: str, x: Array, where: tuple[Array | slice, ...], updates: Array) -> None:
    """Combine updates into `x` in index order, in place."""
    if kind == "set":
        x[where] = updates
    else:
        {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[kind].at(x, where, updates)  # type: ignore[arg-type]


def as_index(value: Expr) -> Expr:
    """Return a loaded index as an int64 index expression."""
    return cast(value, int64)


def draw(types: Sequence[TensorType], bound: int) -> Draw:
    """Return a drawing of operands whose second one indexes an axis of size `bound`; floats lie apart."""
    sizes = [as_int(product(t.shape)) for t in types]

    def values(rng: np.random.Generator) -> Sequence[Array]:
        arrays: list[Array] = []
        apart = np.split(rng.permutation(sum(sizes)) / max(sum(sizes), 1) * 4 - 2, np.cumsum(sizes)[:-1])
        for k, t in enumerate(types):
            array: Array
            if k == 1:
                array = rng.integers(0, max(bound, 1), t.ints)
            elif t.dtype.is_integer or t.dtype.is_bool:
                array = rng.integers(0, 2 if t.dtype.is_bool else 9, t.ints)
            else:
                array = apart[k].reshape(t.ints)
            arrays.append(np.asarray(array).astype(t.dtype.np))
        return arrays

    return values


def check_scatter(
    name: str, kind: str, axis: int, x: TensorType, index: TensorType, updates: TensorType
) -> None:
    """Check what both scatters demand of their operands, shapes of the updates aside."""
    check_axis(name, x, axis)
    check_indices(name, index)
    check_kind_of_scatter(name, kind, x.dtype)
    if updates.dtype is not x.dtype:
        raise DTypeError(f"{name}: updates differ in dtype", got=f"{x}, {updates}", hint="cast one side")


def check_same_but(name: str, x: TensorType, index: TensorType, axis: int) -> None:
    """Refuse indices whose shape differs from that of `x` other than along `axis`. Raises: ShapeError."""
    if index.ndim != x.ndim or any(
        k != axis and not known_equal(n, m) for k, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    ):
        raise ShapeError(f"{name}: indices have the shape of x but for axis {axis}", got=f"{x} and {index}")


def summed_at(b: Builder, scatter: str, x: Node, index: Node, ct: Node, axis: int) -> Node:
    """Return the transpose of a gather: cotangents summed at the places they were read from.

    16-bit floats are summed in float32, since a scatter rounds at each update.
    """
    wide = x.dtype.compute
    zeros = b.full(x.aval.with_dtype(wide), 0)
    return cast_to(b, b.op(scatter, zeros, index, cast_to(b, ct, wide), kind="add", axis=axis), x.dtype)


def along_slices(b: Builder, index: Node, x: Node, axis: int) -> Node:
    """Return indices [rows, i...] of whole slices of `x` [rows, a..., n, c...] as indices of its elements.

    Shape: [rows, a..., product of i, c...], as gather_along and scatter_along take them; `axis` is that of n.
    """
    count = product(index.shape[1:])
    flat = b.reshape(index, shape=(index.shape[0], count))
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return b.broadcast(flat, shape=shape, axes=(0, axis))
