"""What linear ops share: operand checks, the accumulator's dtype, spec letters, window arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import DType, as_dtype, bool_, int8, int16, int32, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op
from stratal.loops.expr import Const, Expr, Var, call, const, index_const
from stratal.loops.index import add, both, floordiv, mod, mul, sub, within

Pairs = tuple[tuple[int, int], ...]


def result_dtype(name: str, types: Sequence[TensorType], dtype: DType | None) -> DType:
    """Return the dtype of a sum of products: `dtype`, or the operands'. Raises: DTypeError.

    Signed bytes multiply unsigned ones into a signed `dtype`, as quantised values multiply weights.
    """
    first, given = types[0].dtype, ", ".join(map(str, types))
    if {first, types[1].dtype} == {int8, uint8} and dtype is not None and dtype in (int16, int32, int64):
        return dtype
    if types[1].dtype is not first:
        hint = "x.float(), x.double() or x.astype(dtype) converts one side; net.to(dtype) a module"
        raise DTypeError(f"{name}: operands differ in dtype", got=given, hint=hint)
    if first.is_bool:
        raise DTypeError(f"{name}: takes numbers, not bool", got=given, hint="cast to an integer")
    if dtype is None:
        return first
    kinds = {"i": "i", "u": "ui", "f": "f", "c": "c"}[first.kind]
    if dtype.kind not in kinds or dtype.bits < first.bits:
        raise DTypeError(f"{name}: cannot accumulate {first} in {dtype}", hint="a wider dtype of its kind")
    return dtype


def accumulating(x: Array, dtype: DType | None = None) -> Array:
    """Return `x` in the dtype its sums of products run in: float32 for results of 16-bit floats."""
    return x.astype((dtype or as_dtype(x.dtype)).compute.np, copy=False)


class Bilinear(Op):
    """Is linear in each of its two operands, and refuses other numbers of them."""

    arity = 2

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        dx, dy = tangents
        parts = [b.op(self.name, dx, inputs[1], **self.attributes)] if dx is not None else []
        parts += [b.op(self.name, inputs[0], dy, **self.attributes)] if dy is not None else []
        return parts[0] if len(parts) == 1 else b.add(*parts)


# Windows: window y of an axis reads the positions y*stride + k*dilation - low for k in [0, window).


def dilated(size: Dim, dilation: int) -> Dim:
    """Return the extent of `size` elements that lie `dilation` apart; nothing has none."""
    if isinstance(size, int) and size == 0:
        return 0
    return (size - 1) * dilation + 1


def window_count(
    name: str, size: Dim, window: Dim, stride: int, padding: tuple[int, int], dilation: int
) -> Dim:
    """Return how many windows fit an axis of extent `size`. Raises: ShapeError where not even one does."""
    extent = dilated(window, dilation)
    room = size + sum(padding) - extent
    empty = known_equal(size + sum(padding), 0) and known_equal(extent, 1)  # nothing: no window, no fault
    if isinstance(room, int) and room < 0 and not empty:
        raise ShapeError(
            f"{name}: the window is larger than the padded input",
            got=f"window {window} (dilation {dilation}) over {size} with padding {padding}",
        )
    return room // stride + 1


def products_inside(sizes: Sequence[int], window: Sequence[int], attributes: Mapping[str, Any]) -> int:
    """Return how many pairs of a result's place and a tap of its window do not lie in the padding.

    `attributes` are those of a convolution over an image of these sizes.
    """
    count = 1
    names = "strides", "padding", "lhs_dilation", "rhs_dilation"
    given = (attributes[name] for name in names)
    for n, k, stride, padding, base, dilation in zip(sizes, window, *given, strict=True):
        size = int(dilated(n, base))
        places = int(window_count("conv", size, k, stride, padding, dilation))
        edge = padding[0] - np.arange(k) * dilation  # where the window of a tap inside begins, at least
        first, end = (np.clip(-(-at // stride), 0, places) for at in (edge, edge + size))
        count *= int((end - first).sum())
    return count


def check_windows(name: str, ndim: int, padding: Pairs, **positive: Sequence[int]) -> None:
    """Check one entry per axis, each at least 1, and padding of at least 0. Raises: AttributeValueError."""
    for what, values in positive.items():
        if len(values) != ndim:
            raise AttributeValueError(f"{name}: {what} takes an entry per axis", got=f"{values} for {ndim}")
        if any(v < 1 for v in values):
            raise AttributeValueError(f"{name}: {what} must be at least 1", got=str(values))
    if len(padding) != ndim or any(len(p) != 2 for p in padding):
        raise AttributeValueError(f"{name}: padding takes (low, high) per axis", got=f"{padding} for {ndim}")
    if any(p < 0 for pair in padding for p in pair):
        raise AttributeValueError(f"{name}: padding must be at least 0", got=str(padding), hint="slice first")


def crop_negative(b: Builder, x: Node, first: int, padding: Pairs, base: Sequence[int]) -> tuple[Node, Pairs]:
    """Slice `x` so that every padding of its axes from `first` on is at least 0; returns both.

    Elements lie `base[k]` apart: cropping part of a gap takes the element before it and pads the rest back.
    """
    start, stop = [0] * len(x.shape), list(x.shape)
    result = []
    for k, ((low, high), step) in enumerate(zip(padding, base, strict=True)):
        axis, size = first + k, x.shape[first + k]
        total = dilated(size, step) + low + high
        head = -(low // step) if low < 0 else 0
        tail = -(high // step) if high < 0 else 0
        if isinstance(size, int) and head + tail >= size:
            stop[axis] = 0
            result.append((int(total), 0))
            continue
        start[axis], stop[axis] = head, size - tail
        result.append((low + head * step, high + tail * step))
    if start != [0] * len(start) or tuple(stop) != x.shape:
        x = b.slice(x, start=tuple(start), stop=tuple(stop), step=(1,) * len(start))
    return x, tuple(result)


def exchanged(b: Builder, w: Node, groups: int) -> Node:
    """Return filters [groups * o, i, window...] as [groups * i, o, window...]."""
    count, inner, *window = w.shape
    turned = b.reshape(w, shape=(groups, count // groups, inner, *window))
    turned = b.permute(turned, perm=(0, 2, 1, *range(3, w.aval.ndim + 1)))
    return b.reshape(turned, shape=(groups * inner, count // groups, *window))


def window_reads(
    places: Sequence[Var], offsets: Sequence[Expr], sizes: Sequence[int], strides: Sequence[int],
    padding: Pairs, base: Sequence[int], dilation: Sequence[int],
) -> tuple[Expr, tuple[Expr, ...]]:  # fmt: skip
    """Return where window offsets read, per axis, and the condition that an element stands there."""
    condition: Expr = const(True, bool_)
    at = []
    windows = zip(places, offsets, sizes, strides, padding, base, dilation, strict=True)
    for y, k, n, s, (low, _), step, d in windows:
        position = add(add(mul(y, s), mul(k, d)), -low)
        condition = both(condition, within(position, 0, int(dilated(n, step))))
        if step > 1:
            condition = both(condition, multiple(position, step))
        at.append(floordiv(position, step))
    return condition, tuple(at)


def window_writes(
    elements: Sequence[Var], offsets: Sequence[Expr], counts: Sequence[int], strides: Sequence[int],
    padding: Pairs, dilation: Sequence[int],
) -> tuple[Expr, tuple[Expr, ...]]:  # fmt: skip
    """Return which window reads an element at an offset, per axis, and the condition that there is one."""
    condition: Expr = const(True, bool_)
    at = []
    for i, k, n, s, (low, _), d in zip(elements, offsets, counts, strides, padding, dilation, strict=True):
        start = add(sub(i, mul(k, d)), low)
        condition = both(condition, within(start, 0, (n - 1) * s + 1))
        condition = both(condition, multiple(start, s))
        at.append(floordiv(start, s))
    return condition, tuple(at)


def multiple(position: Expr, step: int) -> Expr:
    """Return the condition that `step` divides a position."""
    phase = mod(position, step)
    if isinstance(phase, Const):
        return const(phase.value == 0, bool_)
    return call("eq", phase, index_const(0))


def windows(
    x: Array, first: int, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """Return the view [leading..., out..., window...] of a padded array, axes from `first` on windowed."""
    axes = tuple(range(first, x.ndim))
    extents = tuple(int(dilated(w, d)) for w, d in zip(window, dilation, strict=True))
    short = [n < e for n, e in zip(x.shape[first:], extents, strict=True)]  # no window: NumPy refuses that
    if any(short):
        x = np.zeros((*x.shape[:first], *map(max, x.shape[first:], extents)), x.dtype)
    view = np.lib.stride_tricks.sliding_window_view(x, extents, axis=axes)
    pick = (slice(None),) * first
    pick += tuple(slice(0, 0 if none else None, s) for none, s in zip(short, strides, strict=True))
    return view[pick + tuple(slice(None, None, d) for d in dilation)]


def spread(x: Array, first: int, padding: Pairs, base: Sequence[int], fill: object = 0) -> Array:
    """Return `x` with its axes from `first` on dilated by `base` and padded by `padding`."""
    sizes = [int(dilated(n, s)) for n, s in zip(x.shape[first:], base, strict=True)]
    shape = x.shape[:first] + tuple(n + low + high for n, (low, high) in zip(sizes, padding, strict=True))
    out = np.full(shape, fill, x.dtype)
    inside = tuple(slice(low, low + n, s) for n, (low, _), s in zip(sizes, padding, base, strict=True))
    out[(slice(None),) * first + inside] = x
    return out
