"""Stable orders of NumPy arrays, by sorting keys that carry their places.

A stable `argsort` compares one pair at a time; `np.sort` and `np.partition` of plain numbers work on vectors.
So elements of up to 32 bits become the upper half of a 64-bit key and their places the lower: no two keys are
equal, and in their order equal elements stand as they stood. Twice to ten times as fast. NaN counts as the
greatest: it is last in rising order, and first in falling.
"""

from __future__ import annotations

import numpy as np

from stratal.graph.op import Array

_LOW = np.uint64(0xFFFFFFFF)
_BLOCKS = 4  # best elements of blocks looked at for each of the few elements wanted
_LEAST_BLOCKS = 64  # inner loops of NumPy are this long at least
_FEW = 16  # elements of an axis for each one wanted, from which on the best of blocks are looked at first


def order_of(x: Array, axis: int, descending: bool = False, start: int = 0, stop: int | None = None) -> Array:
    """Return the places of elements along an axis in order, stable: those from `start` to `stop` of it."""
    key = x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else x
    key = np.moveaxis(key, axis, -1)
    n = key.shape[-1]
    stop = n if stop is None else stop
    found = None
    if start == 0 and 0 < stop * _FEW <= n:
        found = _best(key, descending) if stop == 1 else _few(key, descending, stop)
    if found is None:
        wide = key.dtype.itemsize > 4 or n >= 1 << 31
        found = (_by_values if wide else _by_keys)(key, descending, start, stop)
    return np.moveaxis(found, -1, axis)


def _by_keys(key: Array, descending: bool, start: int, stop: int) -> Array:
    """Return places of the order along the last axis, of elements of up to 32 bits."""
    packed = _ordered(key, descending).astype(np.uint64)
    packed <<= np.uint64(32)
    packed |= np.arange(key.shape[-1], dtype=np.uint64)
    if 0 < stop - start < key.shape[-1]:
        packed = np.partition(packed, sorted({start, stop - 1}), axis=-1)
    packed = packed[..., start:stop]
    packed.sort(axis=-1)
    packed &= _LOW
    return packed.astype(np.int64)


def _by_values(key: Array, descending: bool, start: int, stop: int) -> Array:
    """Return the same of wider elements: in full, but for a single place, which is found by its value."""
    bits = _ordered(key, descending)
    if stop - start != 1:
        return np.argsort(bits, axis=-1, kind="stable").astype(np.int64, copy=False)[..., start:stop]
    value = np.partition(bits, start, axis=-1)[..., start : start + 1]
    before = np.count_nonzero(bits < value, axis=-1, keepdims=True)
    counted = np.cumsum(bits == value, axis=-1)  # equal elements stand in order
    return np.asarray(np.argmax(counted == start - before + 1, axis=-1, keepdims=True))


def _best(key: Array, descending: bool) -> Array | None:
    """Return the first place of the best element along the last axis, None where NaN might be in the way."""
    if descending:
        return np.asarray(np.argmax(key, axis=-1, keepdims=True))  # NumPy's is that of NaN, too
    found = np.asarray(np.argmin(key, axis=-1, keepdims=True))
    least = np.take_along_axis(key, found, -1)
    return None if np.any(least != least) else found


def _few(key: Array, descending: bool, count: int) -> Array | None:
    """Return the first places where they are few: none is beyond the `count`-th of the best of some blocks.

    None where that leaves too many, because most are equal or NaN.
    """
    rows, n = key.reshape(-1, key.shape[-1]), key.shape[-1]
    blocks = min(max(_BLOCKS * count, _LEAST_BLOCKS), n)
    whole = n // blocks * blocks
    choose = np.maximum if descending else np.fmin  # NaN is first where they fall: it must show up then
    best = choose.reduce(rows[:, :whole].reshape(len(rows), -1, blocks), axis=1)
    at = blocks - count if descending else count - 1
    bound = np.partition(best, at, axis=-1)[:, at]
    if np.any(best != best) or (descending and np.any(rows[:, whole:] != rows[:, whole:])):
        return None
    row, place = np.nonzero(rows >= bound[:, None] if descending else rows <= bound[:, None])
    if 8 * len(row) > rows.size:
        return None
    order = np.lexsort((_ordered(rows[row, place], descending), row))  # stable, and places go up within a row
    starts = np.searchsorted(row, np.arange(len(rows)))
    first = starts[:, None] + np.arange(count)
    return np.asarray(place[order[first]].reshape(*key.shape[:-1], count).astype(np.int64, copy=False))


def _ordered(key: Array, descending: bool) -> Array:
    """Return unsigned integers of 32 or 64 bits in the order of elements, NaN greatest, -0 equal to 0."""
    bits = 64 if key.dtype.itemsize > 4 else 32
    unsigned = np.dtype(f"u{bits // 8}")
    top, all_ones = 1 << (bits - 1), (1 << bits) - 1
    if key.dtype.kind == "f":
        ordered = (key + key.dtype.type(0)).view(unsigned)  # -0 becomes +0
        ordered ^= np.where(ordered >= top, unsigned.type(all_ones), unsigned.type(top))
        ordered[key != key] = all_ones
    elif key.dtype.kind == "i":
        ordered = key.astype(f"i{bits // 8}").view(unsigned) ^ unsigned.type(top)
    else:
        ordered = key.astype(unsigned)
    return np.asarray(np.invert(ordered) if descending else ordered)
