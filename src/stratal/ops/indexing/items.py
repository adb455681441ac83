"""Unsigned integers in the order of elements: what sorting and selecting compare.

NaN is the greatest. Where places go along, -0 and 0 have one key, since they are equal and keep their order;
where values alone are sorted every key gives its element back, so -0 lies below 0. An item
is a key, with the place of its element where that is asked for.
"""

from __future__ import annotations

import numpy as np

from stratal.base.dtypes import DType, int64, uint8, uint16, uint32, uint64
from stratal.graph.op import Array
from stratal.loops.expr import Buffer, Expr, call, cast, const

BY_BITS = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


def key_dtype(dtype: DType) -> DType:
    """Return the unsigned integers as wide as elements are; a byte for bool."""
    return BY_BITS[max(dtype.bits, 8)]


def key_of(x: Expr, descending: bool, exact: bool) -> Expr:
    """Return the key of an element. `exact` keys tell -0 from 0."""
    dtype = key_dtype(x.dtype)
    if x.dtype.is_float:
        key = _float_key(x, dtype, exact)
    elif x.dtype.kind == "i":
        key = call("bitcast", x, dtype=dtype) ^ _top(dtype)
    else:
        key = cast(x, dtype)
    return ~key if descending else key


def _float_key(x: Expr, dtype: DType, exact: bool) -> Expr:
    """Return the bits of a float: all of them turned over if it is negative, else the sign alone."""
    bits, wide = call("bitcast", x, dtype=dtype), cast(x, x.dtype.compute)
    if not exact:
        bits = call("select", call("eq", wide, const(0, wide.dtype)), const(0, dtype), bits)
    turned = call("select", bits >= _top(dtype), ~bits, bits ^ _top(dtype))
    return call("select", call("ne", wide, wide), const((1 << dtype.bits) - 1, dtype), turned)


def element_of(key: Expr, dtype: DType, descending: bool) -> Expr:
    """Return the element an exact key was made of; NaN for that of NaN."""
    key = ~key if descending else key
    if dtype.is_float:
        turned = key ^ _top(key.dtype)
        bits = call("select", key >= _top(key.dtype), turned, ~key)
        return call("bitcast", bits, dtype=dtype)
    if dtype.kind == "i":
        return call("bitcast", key ^ _top(key.dtype), dtype=dtype)
    return cast(key, dtype)


def _top(dtype: DType) -> Expr:
    return const(1 << (dtype.bits - 1), dtype)


def keys_of(x: Array, descending: bool) -> Array:
    """Return the keys of an array's elements, -0 equal to 0: the same with NumPy."""
    if x.dtype.kind not in "iub":
        x = x.astype(np.float32) if x.dtype.itemsize == 2 else x  # floats NumPy may know no order of
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        top, ones = unsigned.type(1 << (8 * unsigned.itemsize - 1)), unsigned.type(~unsigned.type(0))
        bits = (x + x.dtype.type(0)).view(unsigned)  # -0 becomes 0
        key = np.where(x != x, ones, np.where(bits >= top, ~bits, bits ^ top))
    elif x.dtype.kind == "i":
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        key = x.view(unsigned) ^ unsigned.type(1 << (8 * unsigned.itemsize - 1))
    else:
        key = x.astype(np.uint8) if x.dtype.kind == "b" else x
    return np.asarray(~key if descending else key)


# -- items ---------------------------------------------------------------------------------------------------
DIGIT = 8  # bits: as many streams of writes as a cache of the first level has lines for
DIGITS = 1 << DIGIT

Item = tuple[Expr, ...]  # a key; one word of key and place; or both apart


class Items:
    """How elements of one dtype are carried.

    A key of up to 32 bits is the upper half of a word whose lower half is the place. Each pass over the
    digits of keys turns them by one digit, so that the next finds its own where this one did.
    """

    def __init__(self, dtype: DType, descending: bool, placed: bool) -> None:
        self.dtype, self.descending, self.placed = dtype, descending, placed
        self.key = key_dtype(dtype)
        self.together = placed and self.key.bits <= 32
        self.dtypes = (uint64,) if self.together else (self.key, uint32)[: 1 + placed]
        self.passes = self.key.bits // DIGIT

    def key_of(self, x: Expr) -> Expr:
        """Return the key of an element."""
        return key_of(x, self.descending, exact=not self.placed)

    def of(self, x: Expr, place: Expr) -> Item:
        """Return the item of an element."""
        key = self.key_of(x)
        if not self.together:
            return (key, cast(place, uint32))[: len(self.dtypes)]
        above = cast(key, uint64) << 32
        return (above | cast(place, uint64),)

    def element(self, item: Item) -> Expr:
        """Return the element of an item without a place."""
        return element_of(item[0], self.dtype, self.descending)

    def place(self, item: Item) -> Expr:
        """Return the place of an item that has one."""
        return cast(cast(item[-1], uint32), int64)

    def digit(self, item: Item) -> Expr:
        """Return the digit of the pass at hand."""
        low = item[0] >> 32 if self.together else item[0]
        return cast(low & const(DIGITS - 1, low.dtype), int64)

    def turned(self, item: Item, digits: int = 1) -> Item:
        """Return an item whose key is turned by some digits, back if there are less than none."""
        dtype = item[0].dtype
        by = digits * DIGIT % dtype.bits
        if by == 0:
            return item
        down, up = const(by, dtype), const(dtype.bits - by, dtype)
        return ((item[0] >> down) | (item[0] << up), *item[1:])

    def buffers(self, name: str, shape: tuple[int, ...], space: str = "global") -> list[Buffer]:
        """Return memory for items."""
        return [Buffer(f"{name}{k}", dtype, shape, space=space) for k, dtype in enumerate(self.dtypes)]
