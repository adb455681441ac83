"""Functions that move elements without computing on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dims import Sym, exact_quotient, product, same_shape
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError
from stratal.base.types import TensorType
from stratal.graph.node import make
from stratal.graph.op import Op
from stratal.ops.views.in_memory import Layout
from stratal.ops.views.shapes import Reshape
from stratal.runtime.storage import Storage
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import (
    OPS,
    along,
    apply,
    as_tensor,
    broadcast_shapes,
    common_dtype,
    finish,
    full,
    nodes_and_track,
    where_now,
)
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.lazy.execution import store_result
from stratal.tensor.tensor import Tensor, alias, fresh, hold, tensor
from stratal.tensor.values.memory import layout_of
from stratal.tensor.values.state import LOCK, MODE
from stratal.tensor.values.views import join

_MANY = 128  # operands to join
Axis = Any  # an int, or a sequence of them


def as_shape(name: str, sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return a shape given as one sequence or as several numbers."""
    if len(sizes) == 1 and not hasattr(sizes[0], "__index__"):
        sizes = sizes[0]
    try:
        return tuple(n if type(n) is int or isinstance(n, Sym) else int(n) for n in sizes)
    except TypeError:
        raise DTypeError(f"{name}: a shape is made of ints", got=repr(sizes)) from None


def as_axes(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return axes in [0, ndim), all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(check_axis(name, a, ndim) for a in given)
    if len(set(axes)) != len(axes):
        raise AttributeValueError(f"{name}: an axis is named twice", got=str(given))
    return axes


def reduced_axes(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return axes as `as_axes`; of a number, which has one to name as in PyTorch, none."""
    if ndim or axis is None or (isinstance(axis, (tuple, list)) and len(axis) > 1):
        return as_axes(name, axis, ndim)
    as_axes(name, axis, 1)
    return ()


def view_of(x: Tensor, *ops: Op, layout: Layout | None = None) -> Tensor:
    """Return the view of a tensor that some ops take of it, or a copy where memory lies otherwise."""
    if not ops:
        return alias(x)
    made = x
    regroups = False
    for op in ops:
        regroups = regroups or (isinstance(op, Reshape) and not _is_squeeze(made.shape, op.shape))
        made = apply(op, made)
    view, trace = x._view, MODE.trace if regroups else None
    copied = regroups and layout is None and not (view is None or view.is_contiguous or layout_of(view, ops))
    if not copied:
        join(made, x, ops, layout=layout)
    if trace is not None:
        trace.regroup(x, made)
    return made


def _is_squeeze(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether shapes differ by axes of size 1 only."""
    one, other = ([n for n in shape if type(n) is not int or n != 1] for shape in (before, after))
    return len(one) == len(other) and same_shape(one, other)


def is_contiguous(x: Tensor, **_: Any) -> bool:
    """Return whether the elements of a tensor lie one after another; only those of some views do not."""
    if MODE.trace is not None and MODE.trace.decides(x):
        MODE.trace.ask_layouts()
    return x._view is None or x._view.is_contiguous


def contiguous(x: Tensor, **_: Any) -> Tensor:
    """Return the tensor, or a copy where it is a view whose elements do not lie one after another."""
    return x if is_contiguous(x) else fresh(x)


def _op(name: str, x: Tensor, **attributes: Any) -> Tensor:
    return view_of(x, OPS[name](**attributes))


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Return the elements in row-major order under another shape; one size may be -1."""
    t = as_tensor(x, "reshape")
    target = as_shape("reshape", (shape,) if not hasattr(shape, "__index__") else ((shape,),))
    if -1 in target:
        target = _resolve(t, target)
    t = fresh(t) if copy else t
    found = alias(t) if same_shape(t.shape, target) else _op("reshape", t, shape=target)
    if copy is False and (found._view is None or t._view is None or found._view.memory is not t._view.memory):
        raise AttributeValueError(
            "reshape: copy=False, but only a copy has that shape", got=f"{t.type} to {list(target)}"
        )
    return found


def _resolve(t: Tensor, target: tuple[Any, ...]) -> tuple[Any, ...]:
    rest = product(n for n in target if n != -1)
    total = t.type.size
    if target.count(-1) > 1:
        raise ShapeError("reshape: only one size can be -1", got=str(list(target)))
    missing = exact_quotient(total, rest)
    if missing is None:
        raise ShapeError("reshape: no size fits in place of -1", got=f"{t.type} to {list(target)}")
    return tuple(missing if n == -1 else n for n in target)


def permute_dims(x: Any, /, axes: Sequence[int]) -> Tensor:
    """Return `x` with its axes in another order."""
    t = as_tensor(x, "permute_dims")
    perm = as_axes("permute", tuple(axes), t.ndim)
    if len(perm) != t.ndim:
        raise AttributeValueError("permute: needs every axis once", got=f"{tuple(axes)} for {t.type}")
    return alias(t) if perm == tuple(range(t.ndim)) else _op("permute", t, perm=perm)


def transpose(x: Any, dim0: int, dim1: int) -> Tensor:
    """Return `x` with two axes exchanged."""
    t = as_tensor(x, "transpose")
    perm = list(range(t.ndim))
    a, b = check_axis("transpose", dim0, t.ndim), check_axis("transpose", dim1, t.ndim)
    perm[a], perm[b] = perm[b], perm[a]
    return permute_dims(t, perm)


def t(x: Tensor) -> Tensor:
    """Return a matrix with its axes exchanged; a vector as it is."""
    if x.ndim > 2:
        raise ShapeError(
            "t: takes a matrix or a vector", got=str(x.type), hint="use .mT or transpose(dim0, dim1)"
        )
    return permute_dims(x, range(x.ndim)[::-1])


def matrix_transpose(x: Any, /) -> Tensor:
    """Return `x` with its last two axes exchanged."""
    t = as_tensor(x, "matrix_transpose")
    if t.ndim < 2:
        raise ShapeError("matrix_transpose: needs at least two axes", got=str(t.type))
    return transpose(t, -2, -1)


def moveaxis(x: Any, source: Axis, destination: Axis, /) -> Tensor:
    """Return `x` with some axes moved to other places."""
    t = as_tensor(x, "moveaxis")
    old, new = as_axes("moveaxis", source, t.ndim), as_axes("moveaxis", destination, t.ndim)
    if len(old) != len(new):
        raise AttributeValueError(
            "moveaxis: needs as many targets as sources", got=f"{source} to {destination}"
        )
    perm = [a for a in range(t.ndim) if a not in old]
    for to, a in sorted(zip(new, old, strict=True)):
        perm.insert(to, a)
    return permute_dims(t, perm)


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return `x` with the axes from `start_dim` to `end_dim` merged into one."""
    t = as_tensor(x, "flatten")
    if t.ndim == 0:
        return reshape(t, (1,))
    a, b = check_axis("flatten", start_dim, t.ndim), check_axis("flatten", end_dim, t.ndim)
    if a > b:
        raise AttributeValueError("flatten: start_dim lies behind end_dim", got=f"{start_dim}, {end_dim}")
    return t if a == b else reshape(t, (*t.shape[:a], product(t.shape[a : b + 1]), *t.shape[b + 1 :]))


def unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """Return `x` with one axis split into several."""
    t, a = along("unflatten", x, dim)
    given = tuple(sizes)
    if -1 in given:
        known = product(n for n in given if n != -1)
        given = tuple(t.shape[a] // known if n == -1 else n for n in given)  # type: ignore[operator]
    return reshape(t, (*t.shape[:a], *given, *t.shape[a + 1 :]))


def ravel(x: Any) -> Tensor:
    """Return all elements along one axis: a view where they lie one after another, else a copy."""
    t = contiguous(as_tensor(x, "ravel"))
    return reshape(t, (-1,)) if t.numel() else reshape(t, (0,))


def squeeze(x: Any, /, axis: Axis = None, *, dim: Axis = None) -> Tensor:
    """Return `x` without axes of size 1: all of them, or the given ones.

    One of another size is an error if named as `axis`, as in the array API; as `dim` it stays, as in PyTorch.
    """
    t = as_tensor(x, "squeeze")
    axes = reduced_axes("squeeze", dim if axis is None else axis, t.ndim)
    long = [k for k in axes if t.shape[k] != 1]  # asks a size that only a run knows
    if axis is not None and long:
        raise ShapeError("squeeze: the axis must have size 1", got=f"axis {long[0]} of {t.type}",
                         hint="squeeze(dim=...) leaves longer axes alone")  # fmt: skip
    return reshape(t, [n for k, n in enumerate(t.shape) if k not in axes or k in long])


def expand_dims(x: Any, /, axis: int = 0) -> Tensor:
    """Return `x` with a new axis of size 1 at a place."""
    t = as_tensor(x, "expand_dims")
    a = check_axis("expand_dims", axis, t.ndim + 1)
    return reshape(t, (*t.shape[:a], 1, *t.shape[a:]))


def broadcast_to(x: Any, /, shape: Sequence[int]) -> Tensor:
    """Return `x` stretched to a shape, new axes in front."""
    t = as_tensor(x, "broadcast_to")
    target = as_shape("broadcast_to", (shape,))
    if broadcast_shapes("broadcast_to", t.shape, target) != target:
        raise ShapeError(
            "broadcast_to: the shape does not stretch to the target", got=f"{t.type} to {list(target)}"
        )
    if same_shape(t.shape, target):
        return alias(t)
    return _op("broadcast", t, shape=target, axes=tuple(range(len(target) - t.ndim, len(target))))


def expand(x: Any, *sizes: Any) -> Tensor:
    """Return `x` stretched to sizes, of which -1 keeps the present one."""
    t = as_tensor(x, "expand")
    target = list(as_shape("expand", sizes))
    lead = len(target) - t.ndim
    for k, n in enumerate(target):
        if n == -1:
            if k < lead:
                raise ShapeError("expand: -1 names no axis in front", got=f"{t.type} to {target}")
            target[k] = t.shape[k - lead]
    return broadcast_to(t, target)


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """Return arrays stretched to one shape."""
    given = [as_tensor(a, "broadcast_arrays") for a in arrays]
    shape = broadcast_shapes("broadcast_arrays", *[t.shape for t in given])
    return [t if same_shape(t.shape, shape) else broadcast_to(t, shape) for t in given]


def concat(arrays: Sequence[Any], /, *args: int | None, axis: int | None = 0) -> Tensor:
    """Return arrays joined along an axis; with None, all flattened first. Beside arrays of more axes, vectors
    of no elements count for nothing but their dtype, as in PyTorch.
    """
    if args:
        (axis,) = args
    given = [as_tensor(a, "concat") for a in arrays]
    if not given:
        raise ShapeError("concat: needs at least one array", got="none")
    if axis is not None and any(map(_is_nothing, given)) and any(t.ndim > 1 for t in given):
        dtype = common_dtype("concat", given)
        given = [cast(t, dtype) for t in given if not _is_nothing(t)]
    storage = _gathered(np.concatenate, given, axis)
    if storage is not None and not any(t._track for t in given):
        return hold(storage)
    if axis is None:
        given, axis = [ravel(t) for t in given], 0
    dtype = common_dtype("concat", given)
    at = check_axis("concat", axis, given[0].ndim)
    if len(given) == 1:
        return fresh(given[0])
    made = apply(OPS["concatenate"](at), *[cast(t, dtype) for t in given])
    if storage is not None:
        store_result(made, storage, {})
    return made


def _is_nothing(t: Tensor) -> bool:
    return t.ndim == 1 and type(t.shape[0]) is int and not t.shape[0]


def stack(arrays: Sequence[Any], /, *args: int, axis: int = 0) -> Tensor:
    """Return arrays of one shape joined along a new axis."""
    if args:
        (axis,) = args
    given = [as_tensor(a, "stack") for a in arrays]
    if len({t.shape for t in given}) > 1:
        raise ShapeError("stack: shapes differ", got=", ".join(str(t.type) for t in given))
    storage = _gathered(np.stack, given, axis)
    if storage is not None and not any(t._track for t in given):
        return hold(storage)
    made = concat([expand_dims(t, axis=axis) for t in given], axis=axis)
    if storage is not None:
        store_result(made, storage, {})
    return made


def _gathered(join: Callable[..., Any], given: Sequence[Tensor], axis: Any) -> Storage | None:
    """Return many stored tensors of one dtype, or some of which one comes twice, joined on the host, in one
    copy: a program for as many operands takes seconds to compile, and each pattern of repetition another one.
    """
    mode = MODE.__dict__
    few = len(given) < _MANY and len(set(map(id, given))) == len(given)
    if few or mode["trace"] or mode["eager"] or mode["autocast"]:
        return None
    with LOCK:
        storages = [t._storage for t in given if t._storage is not None and t.dtype is given[0].dtype]
        if len(storages) < len(given):
            return None
        try:
            array = join([s.array for s in storages], axis=axis)
        except (ValueError, TypeError, IndexError):  # of shapes or axes: the op says which
            return None
        return Storage.copy_of(array, TensorType(given[0].dtype, array.shape))


def slice_op(t: Tensor, start: Sequence[Any], stop: Sequence[Any], step: Sequence[int]) -> Tensor:
    """Return x[start:stop:step] on every axis."""
    return _op("slice", t, start=tuple(start), stop=tuple(stop), step=tuple(step))


def narrow(x: Any, dim: int, start: int, length: int) -> Tensor:
    """Return `length` rows along an axis from `start` on."""
    t, a = along("narrow", x, dim)
    n = t.shape[a]
    begin = start + n if start < 0 else start
    if not 0 <= begin <= begin + length <= n:
        raise AttributeValueError(
            "narrow: the range leaves the axis", got=f"[{start}, {start + length}) of {n}"
        )
    low, high = [0] * t.ndim, list(t.shape)
    low[a], high[a] = begin, begin + length
    return slice_op(t, low, high, [1] * t.ndim)


def split(x: Any, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return pieces along an axis: of one size, the last maybe shorter, or of the given sizes."""
    t, a = along("split", x, dim)
    n = t.shape[a]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size <= 0:
            raise AttributeValueError("split: the size must be positive", got=str(size))
        sizes = [min(size, n - k) for k in range(0, n, size)] or [0]
    else:
        sizes = list(split_size_or_sections)
        if sum(sizes) != n:
            raise ShapeError("split: the sizes must add up to the axis", got=f"{sizes} for {n}")
    pieces, at = [], 0
    for size in sizes:
        pieces.append(narrow(t, a, at, size))
        at += size
    return tuple(pieces)


def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most `chunks` pieces along an axis, all but the last of one size; as many if there are no
    elements. Raises: AttributeValueError for less than one.
    """
    t = as_tensor(x, "chunk")
    n = t.shape[check_axis("chunk", dim, t.ndim)]
    if chunks < 1:
        raise AttributeValueError("chunk: there is at least one piece", got=str(chunks))
    if n == 0:
        return split(t, [0] * chunks, dim)
    return split(t, max(1, -(-n // chunks)), dim)


def unstack(x: Any, /, *args: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the rows along an axis, which vanishes."""
    if args:
        (axis,) = args
    t, a = along("unstack", x, axis)
    shape = (*t.shape[:a], *t.shape[a + 1 :])
    return tuple(reshape(narrow(t, a, k, 1), shape) for k in range(t.shape[a]))


def flip(x: Any, /, *args: Any, axis: Axis = None) -> Tensor:
    """Return `x` in reverse order along axes, one sequence or several numbers; along all for None."""
    t = as_tensor(x, "flip")
    if args:
        axis = args if len(args) > 1 else args[0]
    axes = reduced_axes("flip", axis, t.ndim)
    return apply(OPS["flip"](tuple(sorted(axes))), t) if axes else fresh(t)


def roll(x: Any, /, shift: Any, axis: Axis = None) -> Tensor:
    """Return `x` shifted along axes, what leaves at one end entering at the other."""
    t = as_tensor(x, "roll")
    if axis is None:
        return reshape(roll(ravel(t), shift, 0), t.shape)
    axes = as_axes("roll", axis, t.ndim)
    shifts = tuple(shift) if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    for a, s in zip(axes, shifts, strict=True):
        n = t.shape[a]
        s = s % n if n else 0
        if s:
            t = concat([narrow(t, a, n - s, s), narrow(t, a, 0, n - s)], axis=a)
    return fresh(t) if t is x else t


def tile(x: Any, repetitions: Any, /, *more: int) -> Tensor:
    """Return `x` repeated as a whole along each axis."""
    t = as_tensor(x, "tile")
    several = more or not hasattr(repetitions, "__index__")
    counts = as_shape("tile", (repetitions, *more)) if several else (repetitions,)
    rank = max(t.ndim, len(counts))
    shape = (1,) * (rank - t.ndim) + t.shape
    counts = (1,) * (rank - len(counts)) + tuple(counts)
    doubled = [m for n in shape for m in (1, n)]
    wide = [m for c, n in zip(counts, shape, strict=True) for m in (c, n)]
    stretched = broadcast_to(reshape(t, doubled), wide)
    return fresh(reshape(stretched, [c * n for c, n in zip(counts, shape, strict=True)]))


def repeat_interleave(x: Any, repeats: Any, axis: int | None = None) -> Tensor:
    """Return `x` with every element repeated in place along an axis: `repeats` times, or each as often as its
    entry of a vector says, whose values must be known.
    """
    t = as_tensor(x, "repeat")
    if axis is None:
        t, axis = ravel(t), 0
    a = check_axis("repeat", axis, t.ndim)
    if not isinstance(repeats, int):
        return _repeat_each(t, as_tensor(repeats, "repeat"), a)
    if repeats < 0:
        raise AttributeValueError("repeat: the count must not be negative", got=str(repeats))
    wide = (*t.shape[: a + 1], repeats, *t.shape[a + 1 :])
    stretched = broadcast_to(reshape(t, (*t.shape[: a + 1], 1, *t.shape[a + 1 :])), wide)
    return fresh(reshape(stretched, (*t.shape[:a], t.shape[a] * repeats, *t.shape[a + 1 :])))


def _repeat_each(t: Tensor, repeats: Tensor, axis: int) -> Tensor:
    if MODE.trace is not None:
        raise CaptureError("repeat: the size of the result is data", got=str(repeats.type),
                           hint="pass an int, or compute it outside the compiled function")  # fmt: skip
    counts = repeats._value("repeat").array
    if counts.ndim > 1 or counts.dtype.kind not in "iu" or counts.size not in (1, t.shape[axis]):
        raise ShapeError("repeat: needs one count, or one per element", got=f"{repeats.type} for {t.type}")
    if counts.size and counts.min() < 0:
        raise AttributeValueError("repeat: a count is negative", got=str(counts.min()))
    places = np.repeat(np.arange(t.shape[axis]), counts.reshape(-1))
    return apply(OPS["gather"](axis), t, tensor(places))


def pad_constant(x: Any, pads: Sequence[tuple[int, int]], value: Any = 0) -> Tensor:
    """Return `x` surrounded by a value: (before, after) per axis; negative sizes cut off."""
    t = as_tensor(x, "pad")
    if len(pads) != t.ndim:
        raise AttributeValueError("pad: needs sizes for every axis", got=f"{list(pads)} for {t.type}")
    if any(n < 0 for pair in pads for n in pair):
        low = [max(-a, 0) for a, _ in pads]
        high = [n - max(-b, 0) for (_, b), n in zip(pads, t.shape, strict=True)]
        t = slice_op(t, low, high, [1] * t.ndim)
        pads = [(max(a, 0), max(b, 0)) for a, b in pads]
    if not any(n for pair in pads for n in pair):
        return fresh(t)
    (node,), track = nodes_and_track([t])
    op = OPS["pad"](tuple(a for a, _ in pads), tuple(b for _, b in pads), (0,) * t.ndim)
    return finish(make(op, node, full("pad", value, t.dtype, ()), where=where_now()), track)


__all__ = [
    "broadcast_arrays", "broadcast_to", "chunk", "concat", "expand", "expand_dims", "flatten", "flip",
    "matrix_transpose", "moveaxis", "narrow", "permute_dims", "ravel", "repeat_interleave", "reshape",
    "roll", "split",
    "squeeze", "stack", "t", "tile", "transpose", "unflatten", "unstack",
]  # fmt: skip
