"""What sorting carries about: keys, with the places of their elements where these are asked for."""

from __future__ import annotations

from stratal.base.dtypes import DType, int64, uint32, uint64
from stratal.loops.expr import Buffer, Expr, call, cast, const
from stratal.ops.indexing.keys import element_of, key_dtype, key_of

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
        above = call("shl", cast(key, uint64), const(32, uint64))
        return (call("or", above, cast(place, uint64)),)

    def element(self, item: Item) -> Expr:
        """Return the element of an item without a place."""
        return element_of(item[0], self.dtype, self.descending)

    def place(self, item: Item) -> Expr:
        """Return the place of an item that has one."""
        return cast(cast(item[-1], uint32), int64)

    def digit(self, item: Item) -> Expr:
        """Return the digit of the pass at hand."""
        low = call("shr", item[0], const(32, uint64)) if self.together else item[0]
        return cast(call("and", low, const(DIGITS - 1, low.dtype)), int64)

    def turned(self, item: Item, digits: int = 1) -> Item:
        """Return an item whose key is turned by some digits, back if there are less than none."""
        dtype = item[0].dtype
        by = digits * DIGIT % dtype.bits
        if by == 0:
            return item
        down, up = const(by, dtype), const(dtype.bits - by, dtype)
        return (call("or", call("shr", item[0], down), call("shl", item[0], up)), *item[1:])

    def buffers(self, name: str, shape: tuple[int, ...], space: str = "global") -> list[Buffer]:
        """Return memory for items."""
        return [Buffer(f"{name}{k}", dtype, shape, space=space) for k, dtype in enumerate(self.dtypes)]
