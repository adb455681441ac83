"""Indexing: reading and writing at ints, slices, new axes, integer arrays and masks. What ints, slices
and new axes name is a view.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base.dims import Dim, Sym, as_int, known_equal, same_shape, upper_bound
from stratal.base.dtypes import bool_, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, IndexOutOfRangeError, ShapeError
from stratal.base.source import scope
from stratal.base.types import TensorType
from stratal.graph.op import Op
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import (
    OPS,
    Scalar,
    apply,
    as_tensor,
    broadcast_shapes,
    finish,
    full,
    iota,
    nodes_and_track,
    where_now,
)
from stratal.tensor.functions.elementwise import as_written, cast, where
from stratal.tensor.functions.selection import is_plain_mask, nonzero_indices, selected
from stratal.tensor.functions.shapes import (
    broadcast_to,
    moveaxis,
    permute_dims,
    reshape,
    slice_op,
    stack,
    view_of,
)
from stratal.tensor.lazy.partial_writes import write_part
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values.binding import lazy_value_of, rebind, takes_gradients
from stratal.tensor.values.state import MODE
from stratal.tensor.values.view_ops import put
from stratal.tensor.values.views import shares_memory


class _Range(NamedTuple):
    """What a basic index takes along one axis: the elements start, start + step, ..., count of them."""

    start: Dim
    length: Dim
    step: int

    @property
    def empty(self) -> bool:
        return known_equal(self.length, 0)

    @property
    def low(self) -> Dim:
        return self.start if self.step > 0 or self.empty else self.start + (self.length - 1) * self.step

    @property
    def stop(self) -> Dim:
        """One more than the greatest index."""
        return self.low if self.empty else self.low + (self.length - 1) * abs(self.step) + 1


class _Plan(NamedTuple):
    """An index taken apart: ranges of every axis, what the result's axes are, and integer arrays by axis."""

    ranges: list[_Range]
    layout: list[int | None]  # axes of the input that stay, None for a new one, ARRAYS for the arrays' axes
    arrays: dict[int, Tensor]


_ARRAYS = -1


def _entries(type_: TensorType, index: Any) -> list[Any]:
    given = list(index) if isinstance(index, tuple) else [index]
    given = [_as_entry(e) for e in given]
    dots = [k for k, e in enumerate(given) if e is Ellipsis]
    if len(dots) > 1:
        raise AttributeValueError("index: only one ellipsis is possible", got=str(index))
    used = sum(_axes_of(e) for e in given)
    if used > type_.ndim:
        raise IndexOutOfRangeError("index: more indices than axes", got=f"{used} indices for {type_}")
    at = dots[0] if dots else len(given)
    fill = [slice(None)] * (type_.ndim - used)
    return given[:at] + fill + given[at + len(dots) :]


def _axes_of(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, Tensor) and entry.dtype.is_bool else 1


def _as_entry(entry: Any) -> Any:
    if isinstance(entry, Tensor) and entry.dtype is uint8:
        raise DTypeError(
            "index: a tensor of uint8 is a mask in PyTorch and positions in NumPy", got=str(entry.type),
            hint="x[index.bool()] is a mask, x[index.long()] positions",
        )  # fmt: skip
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, (bool, np.bool_)):
        entry = np.asarray(entry)
    if isinstance(entry, (list, tuple, range)):
        entry = tensor(np.asarray(entry, dtype=None if len(entry) else np.int64))
    if isinstance(entry, np.ndarray):
        entry = tensor(entry)
    if isinstance(entry, Tensor):
        if not (entry.dtype.is_integer or entry.dtype.is_bool):
            raise DTypeError("index: takes integers and bools", got=str(entry.type))
        return entry
    try:
        return operator.index(entry)
    except TypeError:
        raise DTypeError(
            "index: takes ints, slices, ..., None and integer tensors", got=type(entry).__name__
        ) from None


def _as_size(part: Any) -> Dim | None:
    return part if part is None or isinstance(part, Sym) else operator.index(part)


def _range(entry: slice, n: Dim) -> _Range:
    """Return what a slice takes of an axis. A symbolic size must decide by its bounds what lies inside."""
    start, stop, step = map(_as_size, (entry.start, entry.stop, entry.step))
    if all(isinstance(v, int) for v in (n, 0 if start is None else start, 0 if stop is None else stop)):
        first, last, by = slice(start, stop, step).indices(n)
        return _Range(first, len(range(first, last, by)), by)
    by = 1 if step is None else as_int(step)
    if by < 0 and start is stop is None:
        return _Range(n - 1, (n - 1) // -by + 1, by)
    if by <= 0:
        raise ShapeError("index: a backward slice of a symbolic size takes the whole axis", got=str(entry))
    first, last = (default if v is None else v if v >= 0 else n + v for v, default in ((start, 0), (stop, n)))  # type: ignore[assignment]
    if not (first >= 0 and first <= last and last <= n):
        raise ShapeError("index: a slice leaves an axis of symbolic size", got=f"{first}:{last} of {n}")
    return _Range(first, (last - first + by - 1) // by, by)


def _plan(type_: TensorType, index: Any) -> _Plan:
    ranges: list[_Range] = []
    layout: list[int | None] = []
    arrays: dict[int, Tensor] = {}
    spots: list[int] = []  # in the layout, of arrays with axes; an int selects before them, as in PyTorch
    n: Dim
    for entry in _entries(type_, index):
        axis = len(ranges)
        if entry is None:
            layout.append(None)
        elif isinstance(entry, slice):
            ranges.append(_range(entry, type_.shape[axis]))
            layout.append(axis)
        elif isinstance(entry, int):
            n = type_.shape[axis]
            if not (-n <= entry and n > entry):
                raise IndexOutOfRangeError("index: out of range", got=f"{entry} on axis {axis} of {type_}")
            ranges.append(_Range(entry if entry >= 0 else n + entry, 1, 1))
        else:
            masked = entry.dtype.is_bool
            sizes = type_.shape[axis : axis + entry.ndim]
            parts = nonzero_indices(entry, against=sizes) if masked else [entry]
            for part in parts:
                n = type_.shape[len(ranges)]
                arrays[len(ranges)] = part if masked else _from_end(part, n)
                ranges.append(_Range(0, n, 1))
            spots += [len(layout)] * bool(entry.ndim)
    if arrays:
        layout.insert(spots[0] if len(set(spots)) == 1 else 0, _ARRAYS)
    return _Plan(ranges, layout, arrays)


def _from_end(index: Tensor, size: Any) -> Tensor:
    """Return indices counted from the start; bounds are checked where the elements are read."""
    if index.dtype.kind != "i":  # none to count, or an error of the op that reads there
        return index
    known = index._storage
    if known is not None and MODE.trace is None and (not known.array.size or known.array.min() >= 0):
        return index
    if upper_bound(size) > np.iinfo(index.dtype.np).max:
        index = cast(index, int64)
    low, size = (wrap(full("index", n, index.dtype, ())) if isinstance(n, int) else n for n in (-size, size))
    near = where(index < low, index, index + size)  # what is too low is reported as it was given
    return where(index < 0, near, index)


def _widened(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """Give every mask without axes an axis of size 1 of its own, which it keeps or empties."""
    given = index if isinstance(index, tuple) else (index,)
    if not any(_is_scalar_mask(e) for e in given):
        return x, index
    entries = _entries(x.type, index)
    axis = 0
    for k, entry in enumerate(entries):
        if _is_scalar_mask(entry):
            x = reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))
            entries[k] = nonzero_indices(reshape(entry, (1,)))[0]
        axis += _axes_of(entries[k])
    return x, tuple(entries)


def _is_scalar_mask(entry: Any) -> bool:
    if isinstance(entry, (Tensor, np.ndarray)):
        return not entry.ndim and entry.dtype in (bool_, np.bool_)
    return isinstance(entry, (bool, np.bool_))


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return the elements an index names, as a value."""
    if is_plain_mask(x, index):
        return selected(x, index)
    x, index = _widened(x, index)
    plan = _plan(x.type, index)
    if plan.arrays:
        return _take_arrays(view_of(x, *_take_ranges(x.type, plan.ranges)), plan)
    return view_of(x, *_basic(x.type, plan))


def rows(x: Tensor, first: int, last: int) -> list[Tensor]:
    """Return `x[first]` to `x[last - 1]`."""
    return [getitem(x, k) for k in range(first, last)]


def basic_ops(type_: TensorType, index: Any) -> tuple[Op, ...]:
    """Return the ops of an index without arrays."""
    return tuple(_basic(type_, _plan(type_, index)))


def _basic(type_: TensorType, plan: _Plan) -> list[Op]:
    """Return the ops of an index without arrays."""
    ops = _take_ranges(type_, plan.ranges)
    shape = tuple(1 if axis is None else plan.ranges[axis].length for axis in plan.layout)
    if not same_shape(shape, [r.length for r in plan.ranges]):
        ops.append(OPS["reshape"](shape))
    return ops


def _take_all(ranges: Sequence[_Range], type_: TensorType) -> bool:
    return all(r.step == 1 and known_equal(r.length, n) for r, n in zip(ranges, type_.shape, strict=True))


def _take_ranges(type_: TensorType, ranges: Sequence[_Range]) -> list[Op]:
    ops: list[Op] = []
    if not _take_all(ranges, type_):
        lows, stops, steps = zip(*((r.low, r.stop, abs(r.step)) for r in ranges), strict=True)
        if not same_shape([*lows, *stops, *steps], [*[0] * type_.ndim, *type_.shape, *[1] * type_.ndim]):
            ops.append(OPS["slice"](lows, stops, steps))
    turned = tuple(k for k, r in enumerate(ranges) if r.step < 0 and not r.empty)
    return [*ops, OPS["flip"](turned)] if turned else ops


class _Gathered(NamedTuple):
    """Integer arrays merged into one: indices along one axis, which is the product of those they index."""

    source: Tensor
    indices: Tensor
    axis: int
    order: list[int]  # which axis of what is gathered each axis of the result is
    shape: list[Any]  # of the result


def _merge(x: Tensor, plan: _Plan) -> _Gathered:
    arrays, axes = plan.arrays, list(plan.arrays)
    shape = broadcast_shapes("index", *[t.shape for t in arrays.values()])
    rest = [k for k in range(x.ndim) if k not in arrays]
    at = axes[0] if len(axes) == 1 else 0
    place = {a: k if k < at else k + len(shape) for k, a in enumerate(rest)}
    order = _order(plan, place, list(range(at, at + len(shape))), shape)
    if len(axes) == 1:
        return _Gathered(x, arrays[at], at, *order)
    sizes = [x.shape[a] for a in axes]
    front = moveaxis(x, axes, list(range(len(axes))))
    merged = reshape(front, (math.prod(sizes), *front.shape[len(axes) :]))
    flat: Any = None
    for a, n in zip(axes, sizes, strict=True):
        part = cast(_checked(arrays[a], n), int64)
        flat = part if flat is None else flat * n + part
    return _Gathered(merged, broadcast_to(flat, shape), at, *order)


def _checked(index: Tensor, size: int) -> Tensor:
    """Let an index out of its own axis leave the merged axis too, where reading it is an error."""
    index = cast(index, int64)
    return where((index < 0) | (index >= size), np.iinfo(np.int32).max, index)


def _take_arrays(x: Tensor, plan: _Plan) -> Tensor:
    found = _merge(x, plan)
    result = apply(OPS["gather"](found.axis), found.source, found.indices)
    return reshape(permute_dims(result, found.order), found.shape)


def _order(
    plan: _Plan, place: dict[int, int], block: list[int], block_shape: tuple[Any, ...]
) -> tuple[list[int], list[Any]]:
    """Return in which order the gathered axes go into the result, and its shape."""
    order: list[int] = []
    shape: list[Any] = []
    for axis in plan.layout:
        if axis is None:
            shape.append(1)
        elif axis == _ARRAYS:
            order += block
            shape += block_shape
        else:
            order.append(place[axis])
            shape.append(plan.ranges[axis].length)
    order += [place[a] for a in place if a not in plan.layout]  # an int's axis has size 1 and vanishes
    return order, shape


# -- writing -------------------------------------------------------------------------------------------------
def setitem(x: Tensor, index: Any, value: Any) -> None:
    """Give this tensor, and what it is a view of, the value it has with what an index names replaced."""
    if isinstance(value, Tensor) and shares_memory(value, x) and _is_at(value, x, index):
        return  # x[i] += v has written to x already
    given = value if isinstance(value, Scalar) else as_written("x[i] = v", value, x.dtype)
    if MODE.trace is None and _is_basic(index):
        part = tensor(given, dtype=x.dtype) if isinstance(given, Scalar) else given
        if write_part(x, basic_ops(x.type, index), part):
            return
    mask = whole_mask(x, index, given)
    updated = set_at(x, index, given) if mask is None else masked_fill(x, mask, given)
    if updated.type != x.type:
        raise ShapeError("x[i] = v: the value does not fit", got=f"{updated.type} into {x.type}")
    rebind(x, *lazy_value_of(updated))


def _is_at(value: Tensor, x: Tensor, index: Any) -> bool:
    """Return whether a view is the very one that an index without arrays takes of `x`."""
    view, base = value._view, x._view
    if view is None or base is None or not base.covers(view) or len(view.ops) == len(base.ops):
        return False
    return _is_basic(index) and basic_ops(x.type, index) == view.ops[len(base.ops) :]


def _is_basic(index: Any) -> bool:
    """Return whether an index has ints, slices and new axes alone."""
    kinds = {type(part) for part in (index if isinstance(index, tuple) else (index,))}
    return kinds <= {int, slice, type(None), type(Ellipsis)}


def whole_mask(x: Tensor, index: Any, update: Any) -> Tensor | None:
    """Return an index that is a mask, with an axis for each of `x`, where one value goes to all it names.

    What a mask names would be a result whose size is data, which a captured graph does not have.
    """
    if isinstance(index, (bool, np.bool_)) or (isinstance(index, np.ndarray) and index.dtype == np.bool_):
        index = tensor(np.asarray(index))
    if not (isinstance(index, Tensor) and index.dtype.is_bool) or index.shape != x.shape[: index.ndim]:
        return None
    rest = x.ndim - index.ndim
    if isinstance(update, Tensor) and update.ndim > rest and update.numel() != 1:
        return None  # one value per place the mask names, in order
    return reshape(index, (*index.shape, *(1,) * rest))


def set_at(x: Tensor, index: Any, value: Any, kind: str = "set") -> Tensor:
    """Return `x` with the elements an index names replaced by a value.

    Where integer arrays name an element more than once, `kind` says what becomes of it: "set" is the last
    value, "add", "max" and "min" combine all of them with what was there.
    """
    wide, index = _widened(x, index)
    if wide is not x:
        return reshape(set_at(wide, index, value, kind), x.shape)
    plan = _plan(x.type, index)
    if not plan.arrays:
        shape = tuple(1 if axis is None else plan.ranges[axis].length for axis in plan.layout)
        (node, part), track = nodes_and_track([x, _fit(value, x, shape)])
        made = finish(put(node, _basic(x.type, plan), part, where_now()), track)
        whole = _take_all(plan.ranges, x.type)
        return where(True, made, x) if whole and takes_gradients(x) else made  # they are zeros, not missing
    if _take_all(plan.ranges, x.type):
        return _set_arrays(x, plan, value, kind)
    where_to = getitem(positions(x), index)
    update = _fit(value, x, where_to.shape)
    flat_index, flat_update = (reshape(t, (t.numel(),)) for t in (where_to, update))
    return reshape(apply(OPS["scatter"](kind, 0), reshape(x, (x.numel(),)), flat_index, flat_update), x.shape)


def _set_arrays(x: Tensor, plan: _Plan, value: Any, kind: str) -> Tensor:
    """Write whole slices: where `_take_arrays` reads."""
    found = _merge(x, plan)
    sizes = [*found.source.shape[: found.axis], *found.indices.shape, *found.source.shape[found.axis + 1 :]]
    update = reshape(_fit(value, x, tuple(found.shape)), [sizes[k] for k in found.order])
    back = sorted(range(len(sizes)), key=found.order.__getitem__)
    op = OPS["scatter"](kind, found.axis)
    written = apply(op, found.source, found.indices, permute_dims(update, back))
    axes = list(plan.arrays)
    if len(axes) == 1:
        return written
    rest = [k for k in range(x.ndim) if k not in axes]
    return moveaxis(reshape(written, [x.shape[a] for a in (*axes, *rest)]), list(range(len(axes))), axes)


def _fit(value: Any, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """Return a value broadcast to the shape of what it replaces; leading axes of size 1 may be more."""
    if isinstance(value, Scalar):
        return broadcast_to(tensor(value, dtype=x.dtype), shape)
    extra = value.ndim - len(shape)
    if extra > 0 and set(value.shape[:extra]) == {1}:
        value = reshape(value, value.shape[extra:])
    if broadcast_shapes("x[i] = v", value.shape, shape) != shape:
        raise ShapeError("x[i] = v: the value does not fit", got=f"{value.type} into {list(shape)}")
    return broadcast_to(value, shape)


def positions(x: Tensor) -> Tensor:
    """Return the row-major position of every element."""
    return reshape(iota((x.numel(),)), x.shape)


# -- functions -----------------------------------------------------------------------------------------------
def take(x: Any, indices: Any, /, axis: int | None = None) -> Tensor:
    """Return whole slices along an axis at indices."""
    t, i = as_tensor(x, "take"), as_tensor(indices, "take")
    if axis is None:
        t, axis = reshape(t, (t.numel(),)), 0
    a = check_axis("take", axis, t.ndim)
    return apply(OPS["gather"](a), t, _from_end(i, t.shape[a]))


def index_select(x: Any, dim: int, index: Any) -> Tensor:
    """Return whole slices along an axis at the indices of a vector."""
    t, i = as_tensor(x, "index_select"), as_tensor(index, "index_select")
    a = check_axis("index_select", dim, t.ndim)
    with scope("index_select"):
        return apply(OPS["gather"](a), t, reshape(i, (1,)) if i.ndim == 0 else i)


def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Tensor:
    """Return single elements along an axis at indices; the other axes broadcast."""
    t, i = as_tensor(x, "take_along_axis"), as_tensor(indices, "take_along_axis")
    if t.ndim != i.ndim:
        raise ShapeError("take_along_axis: needs as many axes of both", got=f"{t.type} and {i.type}")
    a = check_axis("take_along_axis", axis, t.ndim)
    rest = broadcast_shapes("take_along_axis", *[(*s[:a], 1, *s[a + 1 :]) for s in (t.shape, i.shape)])
    t = broadcast_to(t, [t.shape[a] if k == a else n for k, n in enumerate(rest)])
    i = broadcast_to(i, [i.shape[a] if k == a else n for k, n in enumerate(rest)])
    with scope("take_along_axis"):
        return apply(OPS["gather_along"](a), t, _from_end(i, t.shape[a]))


def _cut_to(t: Tensor, shape: Sequence[Any], axis: int) -> Tensor:
    """Return the leading part of the other axes, as PyTorch's gather and scatter read them."""
    if any(k != axis and n < m for k, (n, m) in enumerate(zip(t.shape, shape, strict=True))):
        raise ShapeError(
            "gather: the index is larger on another axis",
            got=f"index {list(shape)} into {t.type} on axis {axis}",
        )
    stop = [n if k == axis else m for k, (n, m) in enumerate(zip(t.shape, shape, strict=True))]
    return t if tuple(stop) == t.shape else slice_op(t, [0] * t.ndim, stop, [1] * t.ndim)


def gather(x: Any, dim: int, index: Any) -> Tensor:
    """Return out[i][j][k] = x[index[i][j][k]][j][k], for dim 0 of three."""
    t, i = as_tensor(x, "gather"), as_tensor(index, "gather")
    if t.ndim != i.ndim:
        raise ShapeError("gather: needs as many axes of both", got=f"{t.type} and {i.type}")
    a = check_axis("gather", dim, t.ndim)
    with scope("gather"):
        return apply(OPS["gather_along"](a), _cut_to(t, i.shape, a), i)


def scatter_kind(kind: str, x: Any, dim: int, index: Any, src: Any) -> Tensor:
    """Return `x` with src written at indices along an axis, combined by a kind of `scatter_along`."""
    t, i = as_tensor(x, "scatter"), as_tensor(index, "scatter")
    a = check_axis("scatter", dim, t.ndim)
    agree = t.ndim == i.ndim
    pairs = [(t.shape[k], i.shape[k]) for k in range(t.ndim) if k != a] if agree else []
    if not agree or any(not known_equal(n, m) and m > n for n, m in pairs):
        raise ShapeError(
            "scatter: the index is no longer than the tensor on the other axes", got=f"{i.type} into {t.type}"
        )
    if not all(known_equal(n, m) for n, m in pairs):  # of the others the first elements take part
        part = tuple(slice(None) if k == a else slice(m) for k, m in enumerate(i.shape))
        return set_at(t, part, scatter_kind(kind, t[part], a, i, src))
    update = as_written("scatter", src, t.dtype)
    number = isinstance(src, (*Scalar, np.generic))
    update = broadcast_to(update, i.shape) if number else _cut_to(update, i.shape, -1)
    if update.shape != i.shape:
        update = slice_op(update, [0] * t.ndim, i.shape, [1] * t.ndim)
    with scope("scatter"):
        return apply(OPS["scatter_along"](kind, a), t, i, update)


def scatter(
    x: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """Return `x` with out[index[i][j]][j] = src[i][j], for dim 0 of two; `reduce` is "add", or None to
    replace. `value` is the name that a number has in place of `src`, as in PyTorch.
    """
    if (src is None) == (value is None):
        raise AttributeValueError("scatter: takes src or value", got="neither" if src is None else "both")
    src = value if src is None else src
    if reduce not in (None, "add"):
        raise AttributeValueError(
            "scatter: reduce is None or 'add'", got=repr(reduce), hint="scatter_reduce has more"
        )
    return scatter_kind(reduce or "set", x, dim, index, src)


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Tensor:
    """Return `x` with src added at indices along an axis."""
    return scatter_kind("add", x, dim, index, src)


def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Tensor:
    """Return `x` with whole slices of `source`, times `alpha`, added at the indices of a vector."""
    t, i = as_tensor(x, "index_add"), as_tensor(index, "index_add")
    a = check_axis("index_add", dim, t.ndim)
    added = as_tensor(source, "index_add")
    added = cast(added if alpha == 1 else added * alpha, t.dtype)
    return scatter_slices("index_add", "add", t, a, i, added)


def scatter_slices(name: str, kind: str, x: Tensor, axis: int, index: Tensor, slices: Tensor) -> Tensor:
    """Return `x` with whole slices along an axis set or combined at the indices of a vector."""
    with scope(name):
        return apply(OPS["scatter"](kind, axis), x, index, slices)


def masked_fill(x: Any, mask: Any, value: Any) -> Tensor:
    """Return `x` with a value where the mask holds."""
    t = as_tensor(x, "masked_fill")
    return where(mask, as_written("masked_fill", value, t.dtype), t)


def masked_select(x: Any, mask: Any) -> Tensor:
    """Return the elements where a mask holds, which must be known now."""
    t, m = as_tensor(x, "masked_select"), as_tensor(mask, "masked_select")
    shape = broadcast_shapes("masked_select", t.shape, m.shape)
    return getitem(broadcast_to(t, shape), broadcast_to(m, shape))


def nonzero(x: Any, /, *, as_tuple: bool = True) -> Any:
    """Return the indices of elements that are not zero: one tensor per axis, or the rows of a matrix, as
    PyTorch does unless told. Their number is data: the value is needed now.
    """
    found = nonzero_indices(x)
    return found if as_tuple else stack(found, axis=-1)


__all__ = [
    "gather", "index_add", "index_select", "masked_fill", "masked_select", "nonzero", "scatter",
    "scatter_add", "take", "take_along_axis",
]  # fmt: skip
