"""Indices, shifts and joins of data that is there: copied at once, before a call is looked up.

Their numbers differ from call to call, as where a batch lies does, so that no table of calls knows them. A
function here returns None where the call is not as plain as that, and it goes the way of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any, Final

import numpy as np

from stratal.base.types import TensorType
from stratal.runtime.program import new_storage, storage_maker
from stratal.runtime.storage import Array, Storage
from stratal.tensor.functions.indexing import basic_ops
from stratal.tensor.tensor import Tensor, hold
from stratal.tensor.values.handle import CONSTANT, STOPPED, TRACKED, attach
from stratal.tensor.values.immediate_values import MOVED_BYTES
from stratal.tensor.values.memory import View
from stratal.tensor.values.state import MODE
from stratal.tensor.values.views import showing

_NUMBERS: Final = frozenset({int, slice, type(None), type(Ellipsis)})
_BOUNDS: Final = frozenset({int, type(None)})
_STORAGE, _TRACK, _EXPORTS, _ARRAY, _DTYPE, _SHAPE = map(
    attrgetter, ("_storage", "_track", "_exports", "array", "dtype", "shape")
)  # faster than loops in Python

def _storage_for(part: Array, like: Tensor) -> Storage | None:
    """Return new memory for an array of a tensor's dtype; None where nothing or too much is to be copied."""
    nbytes = part.nbytes
    return new_storage(like.type.dtype, part.shape) if 0 < nbytes <= MOVED_BYTES else None


def _array(x: Any) -> Array | None:
    """Return the value of a tensor, if it is computed, not exported to NumPy, and takes no gradient."""
    if x.__class__ is not Tensor and not isinstance(x, Tensor):
        return None
    storage = x._storage
    if storage is None or (x._track and not _stops(x)):
        return None
    if storage._exports is not None and storage.exported:
        return None
    return storage.array


def _stops(x: Tensor) -> bool:
    return x._track == STOPPED or (x._track == TRACKED and not MODE.grad)


def _moved(storage: Storage, x: Tensor) -> Tensor:
    return hold(storage, STOPPED if x._track else CONSTANT)


def getitem(x: Tensor, index: Any) -> Tensor | None:
    """`x[index]` for ints, slices of ints, new axes and an ellipsis: a view."""
    storage = x._storage
    if storage is None or (x._track and not _stops(x)):
        return None
    owner, array = None, storage.array
    if storage._exports is not None:
        owner = storage.owner
        if owner is not None and owner.array is array:
            array = owner.view()
    if index.__class__ is not int:
        for part in index if index.__class__ is tuple else (index,):
            kind = part.__class__
            if kind is slice:
                if not {part.start.__class__, part.stop.__class__, part.step.__class__} <= _BOUNDS:
                    return None
            elif kind not in _NUMBERS:
                return None
    try:
        part = array[index]
    except (IndexError, ValueError):
        return None  # the usual way says what is wrong
    if part.__class__ is not np.ndarray:
        if owner is not None:
            return None
        part = np.asarray(part)
    if owner is not None:  # NumPy sees it, and what is taken of it
        made = Storage.part(owner, part, TensorType(x.type.dtype, part.shape))
    else:
        found = _storage_for(part, x)
        if found is None:
            return None
        made = found
        made.array[...] = part
    of, group = showing(x)
    item = _moved(made, x)
    return attach(item, View(None, of, partial(basic_ops, x.type, index), item.type, group))


def rows(x: Tensor, first: int, last: int) -> list[Tensor] | None:
    """`[x[first], ..., x[last - 1]]`: views."""
    array = _array(x)
    if array is None or not 0 < array.nbytes // len(array) <= MOVED_BYTES:
        return None
    make, (of, group), found = storage_maker(x.type.dtype, array.shape[1:]), showing(x), []
    for k in range(first, last):
        storage = make()
        storage.array[...] = array[k]
        made = _moved(storage, x)
        ops = partial(basic_ops, x.type, k)
        found.append(attach(made, View(None, of, ops, made.type, group and object())))
    return found


def roll(x: Any, shift: Any, axis: Any = None) -> Tensor | None:
    """`roll(x, shift, axis)` along one axis, or several by a shift each."""
    array = _array(x)
    if array is not None and shift.__class__ is int and axis.__class__ is int:
        return _roll_along(x, array, shift, axis)
    axes = axis if axis.__class__ is tuple else (axis,)
    shifts = shift if shift.__class__ is tuple else (shift,)
    if array is None or len(axes) != len(shifts) or {a.__class__ for a in (*axes, *shifts)} != {int}:
        return None
    storage = _storage_for(array, x) if _are_axes(axes, array.ndim) else None
    if storage is None:
        return None
    ndim, made, full = array.ndim, storage.array, slice(None)
    pieces = []
    for a, s in zip(axes, shifts, strict=True):
        s %= array.shape[a]
        pairs = ((slice(s, None), slice(None, -s)), (slice(None, s), slice(-s, None)))
        pieces.append(pairs if s else ((full, full),))
    to, of = [full] * ndim, [full] * ndim
    for chosen in product(*pieces):
        for a, (there, here) in zip(axes, chosen, strict=True):
            to[a], of[a] = there, here
        made[tuple(to)] = array[tuple(of)]
    return _moved(storage, x)


def _roll_along(x: Tensor, array: Array, shift: int, axis: int) -> Tensor | None:
    storage = _storage_for(array, x) if -array.ndim <= axis < array.ndim else None
    if storage is None:
        return None
    lead, shift = (slice(None),) * (axis % array.ndim), shift % array.shape[axis]
    storage.array[(*lead, slice(shift, None))] = array[(*lead, slice(array.shape[axis] - shift))]
    if shift:
        storage.array[(*lead, slice(shift))] = array[(*lead, slice(-shift, None))]
    return _moved(storage, x)


def flip(x: Any, *args: Any) -> Tensor | None:
    """`flip(x, axes)`: in reverse order along some axes."""
    array = _array(x)
    axes = args[0] if len(args) == 1 and args[0].__class__ in (tuple, list) else args
    if array is None or {a.__class__ for a in axes} != {int}:
        return None
    storage = _storage_for(array, x) if _are_axes(axes, array.ndim) else None
    if storage is None:
        return None
    index = [slice(None)] * array.ndim
    for a in axes:
        index[a] = slice(None, None, -1)
    storage.array[...] = array[tuple(index)]
    return _moved(storage, x)


def _are_axes(axes: Collection[int], ndim: int) -> bool:
    """Return whether these are different axes of an array."""
    return all(-ndim <= a < ndim for a in axes) and len({a % ndim for a in axes}) == len(axes)


def _arrays(given: Any) -> list[Array] | None:
    """Return what tensors of one dtype, none of which takes a gradient, hold."""
    if given.__class__ not in (list, tuple) or set(map(type, given)) != {Tensor}:
        return None
    storages = list(map(_STORAGE, given))
    if None in storages or any(map(_TRACK, given)) or [*map(_EXPORTS, storages)].count(None) < len(given):
        return None
    arrays = list(map(_ARRAY, storages))
    return arrays if len(set(map(_DTYPE, arrays))) == 1 else None


def stack(given: Any, axis: Any = 0) -> Tensor | None:
    """`stack(arrays)` along a new first axis."""
    arrays = _arrays(given) if axis.__class__ is int and axis == 0 else None
    if arrays is None:
        return None
    shape, count = arrays[0].shape, len(arrays)
    nbytes = count * arrays[0].nbytes
    if not 0 < nbytes <= MOVED_BYTES or set(map(_SHAPE, arrays)) != {shape}:
        return None
    storage = new_storage(given[0].type.dtype, (count, *shape))
    made = storage.array
    if shape:
        np.concatenate(arrays, out=made.reshape(count * shape[0], *shape[1:]))
    else:
        made[...] = arrays
    return hold(storage)


def concat(given: Any, axis: Any = 0) -> Tensor | None:
    """`concat(arrays, axis)` of as many axes each."""
    arrays = _arrays(given) if axis.__class__ is int else None
    if arrays is None or not -arrays[0].ndim <= axis < arrays[0].ndim:
        return None
    shape = list(arrays[0].shape)
    rest = shape[:axis] + shape[axis:][1:]
    if any(a.ndim != len(shape) or [*a.shape[:axis], *a.shape[axis:][1:]] != rest for a in arrays):
        return None
    shape[axis] = sum(a.shape[axis] for a in arrays)
    nbytes = sum(a.nbytes for a in arrays)
    if not 0 < nbytes <= MOVED_BYTES:
        return None
    storage = new_storage(given[0].type.dtype, tuple(shape))
    np.concatenate(arrays, axis, out=storage.array)
    return hold(storage)


MOVES: Final[dict[str, Callable[..., Any]]] = {
    "getitem": getitem, "rows": rows, "roll": roll, "flip": flip, "stack": stack, "concat": concat,
}  # fmt: skip
