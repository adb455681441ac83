"""Loops that find the first few elements of each row in order: what is better goes into a short sorted list.

Few elements of a row in random order are better than the last of the list, so most vectors of them are passed
over after one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

from stratal.base.dtypes import int64
from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer, Expr, Var, call, index_const, lanes
from stratal.loops.index import add, mul, unflatten
from stratal.loops.stmt import For, If, Seq, Stmt, Store
from stratal.ops.indexing.items import Items
from stratal.ops.indexing.rows import HELD, PARTS, Rows

MOST = 16  # elements of a list
LEAST = 8  # elements of a row for each one of the list: of fewer a list keeps too many
VECTOR = 16  # elements compared at once

Candidate = tuple[Expr, Expr]  # a key and its place


class Best:
    """The list of one row: keys in rising order and their places."""

    def __init__(self, items: Items, count: int) -> None:
        self.count = count
        self.keys = Buffer("keys", items.key, (count,), space="scratch")
        self.places = Buffer("places", int64, (count,), space="scratch")
        self.memory = (self.keys, self.places)

    def fill(self, read: Callable[[Expr], Candidate]) -> Stmt:
        """Put the first candidates into the empty list."""
        number = Var("number", self.count)
        return For(number, self._insert(*read(number), lambda k: call("ge", index_const(k), number)))

    def take(self, candidate: Candidate) -> Stmt:
        """Put a candidate that is better than the last of the full list into it."""
        return If(self.admits(candidate[0]), self._insert(*candidate))

    def admits(self, key: Expr) -> Expr:
        return call("lt", key, self.keys[self.count - 1])

    def _insert(self, key: Expr, place: Expr, empty: Callable[[int], Expr] | None = None) -> Stmt:
        """Move what is worse back by one, from the end on, and put a candidate before it."""

        def worse(k: int) -> Expr:
            found = call("lt", key, self.keys[k])
            return found if empty is None else call("or", found, empty(k))

        def stored(buffer: Buffer, k: int, new: Expr) -> Store:
            moved = new if k == 0 else call("select", worse(k - 1), buffer[k - 1], new)
            return Store(buffer, (index_const(k),), call("select", worse(k), moved, buffer[k]))

        pairs = ((self.places, place), (self.keys, key))  # keys last: they decide
        return Seq(stored(b, k, new) for k in reversed(range(self.count)) for b, new in pairs)


def best_of_rows(rows: Rows, count: int) -> list[Stage]:
    """Return the loops that write the first `count` elements of each row in order."""
    return _in_parts(rows, count) if rows.length > HELD else _by_rows(rows, count)


def _by_rows(rows: Rows, count: int) -> list[Stage]:
    best = Best(rows.items, count)

    def find(row: Expr) -> Stmt:
        end = index_const(rows.length)
        return Seq((_search(best, rows, row, index_const(0), end, rows.length), _write(best, rows, row)))

    return [Stage(rows.shared(find), best.memory)]


def _in_parts(rows: Rows, count: int) -> list[Stage]:
    """Find the best of each part of long rows, then the best of these."""
    best = Best(rows.items, count)
    share = -(-rows.length // (PARTS * VECTOR)) * VECTOR
    chunk, number = Var("chunk", rows.count * PARTS), Var("number", PARTS * count - count)
    found = [Buffer(f"found{k}", b.dtype, (rows.count, PARTS * count)) for k, b in enumerate(best.memory)]
    row, part = unflatten(chunk, (rows.count, PARTS))
    entry, merged = Var("entry", count), Var("row", rows.count)
    begin = mul(part, share)
    kept = [
        Store(there, (row, add(mul(part, count), entry)), here[entry,])
        for here, there in zip(best.memory, found, strict=True)
    ]

    def candidate(k: Expr) -> Candidate:
        return found[0][merged, k], found[1][merged, k]

    search = _search(best, rows, row, begin, call("min", add(begin, share), index_const(rows.length)), share)
    merge = (best.fill(candidate), For(number, best.take(candidate(add(number, count)))))
    return [
        Stage(For(chunk, Seq((search, For(entry, Seq(kept)))), "parallel"), best.memory),
        Stage(For(merged, Seq((*merge, _write(best, rows, merged))), "parallel"), best.memory),
    ]


def _search(best: Best, rows: Rows, row: Expr, begin: Expr, end: Expr, most: int) -> Stmt:
    """Look through the elements from `begin` to `end`, at most `most`, a vector at a time."""
    block = Var("block", -(-(most - best.count) // VECTOR))
    number, lane = Var("number", VECTOR), Var("lane", VECTOR)
    start = add(add(begin, best.count), mul(block, VECTOR))

    def candidate(place: Expr) -> Candidate:
        return rows.key(row, place), place

    place = add(start, number)
    one_by_one = For(number, best.take(candidate(place)))
    least = lanes("min", rows.key(row, add(start, lane)), lane)
    rest = For(number, If(call("lt", place, end), best.take(candidate(place))))
    whole = call("le", add(start, VECTOR), end)
    return Seq((
        best.fill(lambda number: candidate(add(begin, number))),
        For(block, If(whole, If(best.admits(least), one_by_one), rest)),
    ))  # fmt: skip


def _write(best: Best, rows: Rows, row: Expr) -> Stmt:
    number = Var("number", rows.stop - rows.start)
    to = add(number, rows.start)
    return For(number, rows.put(row, to, best.places[to,]))
