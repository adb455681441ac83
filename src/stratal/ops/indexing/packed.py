"""Stable orders of NumPy arrays, by sorting keys that carry their places.

A stable `argsort` compares one pair at a time; `np.sort` and `np.partition` of plain numbers work on vectors.
So elements of up to 32 bits become the upper half of a 64-bit key and their places the lower: no two keys are
equal, and in their order equal elements stand as they stood. Twice to ten times as fast.
"""

from __future__ import annotations

import numpy as np

from stratal.graph.op import Array

_LOW = np.uint64(0xFFFFFFFF)
_BLOCKS = 4  # minima looked at for each of the few elements wanted
_FEW = 16  # elements of an axis for each one wanted, from which on minima are looked at first


def reversing(x: Array) -> Array:
    """Return keys in whose order `x` descends, equal elements equal and NaN last."""
    return np.invert(x) if x.dtype.kind in "iub" else np.asarray(-x)


def order_of(x: Array, axis: int, descending: bool = False, count: int | None = None) -> Array:
    """Return the places of elements along an axis in order, stable, NaN last; the first `count` of them."""
    key = x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iub" else x
    key = np.moveaxis(reversing(key) if descending else key, axis, -1)
    n = key.shape[-1]
    count = n if count is None else count
    found = _few(key, count) if 0 < count * _FEW <= n else None
    return np.moveaxis(_all(key, count) if found is None else found, -1, axis)


def _all(key: Array, count: int) -> Array:
    """Return the first places in order along the last axis."""
    n = key.shape[-1]
    if key.dtype.itemsize > 4 or n >= 1 << 31:
        return np.argsort(key, axis=-1, kind="stable").astype(np.int64, copy=False)[..., :count]
    packed = _packed(key)
    if 0 < count < n:
        packed = np.partition(packed, count - 1, axis=-1)[..., :count]
    packed.sort(axis=-1)
    return np.asarray((packed[..., :count] & _LOW).astype(np.int64))


def _few(key: Array, count: int) -> Array | None:
    """Return the first places where they are few: none is beyond the `count`-th of the minima of some blocks.

    None where that leaves too many, because most are equal or NaN.
    """
    rows, n = key.reshape(-1, key.shape[-1]), key.shape[-1]
    blocks = _BLOCKS * count
    minima = np.fmin.reduce(rows[:, : n // blocks * blocks].reshape(len(rows), -1, blocks), axis=1)
    bound = np.partition(minima, count - 1, axis=-1)[:, count - 1]
    row, place = np.nonzero(rows <= bound[:, None])
    if 8 * len(row) > rows.size or np.any(bound != bound):
        return None
    order = np.lexsort((rows[row, place], row))  # stable, and places go up within a row
    starts = np.searchsorted(row, np.arange(len(rows)))
    first = starts[:, None] + np.arange(count)
    return np.asarray(place[order[first]].reshape(*key.shape[:-1], count).astype(np.int64, copy=False))


def _packed(key: Array) -> Array:
    """Return the places along the last axis under unsigned keys of the same order."""
    if key.dtype.kind == "f":
        bits = (key + np.float32(0)).view(np.uint32)  # -0 becomes +0
        negative = (bits >> np.uint32(31)).astype(bool)
        bits = np.where(negative, ~bits, bits | np.uint32(1 << 31))
        bits = np.where(np.isnan(key), np.uint32(0xFFFFFFFF), bits)
    elif key.dtype.kind == "i":
        bits = key.astype(np.int32).view(np.uint32) ^ np.uint32(1 << 31)
    else:
        bits = key.astype(np.uint32)
    wide = bits.astype(np.uint64)
    wide <<= np.uint64(32)
    wide |= np.arange(key.shape[-1], dtype=np.uint64)
    return wide
