"""Loops that find one element of the order of each row: its key is built from the highest bit on.

A bit is set if no more keys than the number asked for are less than the key with it: one look at all keys,
many at once. Of equal elements, which stand in order, the one is meant that the number of lesser ones leaves.
"""

from __future__ import annotations

from stratal.base.dtypes import int32, int64
from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer, Expr, Var, call, cast, const, lanes
from stratal.loops.index import add, mul
from stratal.loops.stmt import For, Seq, Stmt, Store
from stratal.ops.indexing.rows import HELD, Rows, every

TOGETHER = 64  # keys compared at once
MOST_BYTES = 1 << 20  # of keys of a row: a cache of the second level holds them


def suits(rows: Rows) -> bool:
    """Return whether one element of each row is asked for, and a row is what one thread can look at alone."""
    most = HELD if rows.count == 1 else MOST_BYTES // rows.items.key.itemsize
    return rows.items.placed and rows.stop - rows.start == 1 and rows.length <= most


def nth_of_rows(rows: Rows) -> list[Stage]:
    """Return the loops that write element number `start` of the order of each row."""
    search = _Search(rows)

    def find(row: Expr) -> Stmt:
        return Seq((search.load(row), search.find_key(), search.find_place(), rows.put(row, *search.result)))

    return [Stage(rows.shared(find), search.memory)]


class _Search:
    """The keys of one row, padded by the greatest, and what is known of the one sought."""

    def __init__(self, rows: Rows) -> None:
        dtype = rows.items.key
        self.rows, self.dtype = rows, dtype
        self.blocks = -(-rows.length // TOGETHER)
        self.keys = Buffer("keys", dtype, (self.blocks * TOGETHER,), space="scratch")
        self.key = Buffer("key", dtype, (), space="register")
        counts = [
            Buffer(n, int32, (), space="register") for n in ("lesser", "counted", "block", "begun", "place")
        ]
        self.lesser, self.counted, self.block, self.begun, self.place = counts
        self.memory = (self.keys, self.key, *counts)
        self.number = const(rows.start, int32)
        self.result = (const(rows.start, int64), cast(self.place[()], int64))

    def load(self, row: Expr) -> Stmt:
        """Store the keys of a row."""
        n = self.rows.length
        rest = self.blocks * TOGETHER - n
        greatest = const((1 << self.dtype.bits) - 1, self.dtype)
        loaded = every(n, lambda lane: Store(self.keys, (lane,), self.rows.key(row, lane)))
        return Seq((loaded, every(rest, lambda lane: Store(self.keys, (add(lane, n),), greatest))))

    def find_key(self) -> Stmt:
        """Set the bits of the key, and count how many keys are less than it."""
        bit, bits = Var("bit", self.dtype.bits), self.dtype.bits
        highest = const(1 << (bits - 1), self.dtype)
        tried = self.key[()] | (highest >> cast(bit, self.dtype))
        fits = self.counted[()] <= self.number
        step = Seq((
            self._count(tried),
            Store(self.lesser, (), call("select", fits, self.counted[()], self.lesser[()])),
            Store(self.key, (), call("select", fits, tried, self.key[()])),
        ))  # fmt: skip
        return Seq((_zero(self.key), _zero(self.lesser), For(bit, step)))

    def _count(self, bound: Expr) -> Stmt:
        """Count the keys below a bound."""
        block = Var("block", self.blocks)
        less = self._number("lt", block, bound)
        more = Store(self.counted, (), self.counted[()] + less)
        return Seq((_zero(self.counted), For(block, more)))

    def _number(self, comparison: str, block: Expr, bound: Expr) -> Expr:
        lane = Var("lane", TOGETHER)
        key = self.keys[add(mul(block, TOGETHER), lane),]
        return lanes("add", cast(call(comparison, key, bound), int32), lane)

    def find_place(self) -> Stmt:
        """Find where the key stands: first in which block, then there."""
        block, lane = Var("block", self.blocks), Var("lane", TOGETHER)
        sought = self.number - self.lesser[()]
        equal = self._number("eq", block, self.key[()])
        begins = self.counted[()] <= sought
        here = begins & (sought < self.counted[()] + equal)
        by_block = Seq((
            Store(self.block, (), call("select", here, cast(block, int32), self.block[()])),
            Store(self.begun, (), call("select", here, self.counted[()], self.begun[()])),
            Store(self.counted, (), self.counted[()] + equal),
        ))  # fmt: skip
        at = add(mul(cast(self.block[()], int64), TOGETHER), lane)
        same = call("eq", self.keys[at,], self.key[()])
        it = same & call("eq", self.begun[()], sought)
        by_lane = Seq((
            Store(self.place, (), call("select", it, cast(at, int32), self.place[()])),
            Store(self.begun, (), self.begun[()] + cast(same, int32)),
        ))  # fmt: skip
        begin = map(_zero, (self.counted, self.block, self.begun, self.place))
        return Seq((*begin, For(block, by_block), For(lane, by_lane)))


def _zero(register: Buffer) -> Store:
    return Store(register, (), const(0, register.dtype))
