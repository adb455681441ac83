"""Loops that find the first few elements of each row in order: what is better goes into a short sorted list.

Lanes run along a row, and the best of each are compared first: they bound what can be among the first. Few
elements come up to that, so most vectors are passed over after one comparison, however the row is ordered.
"""

from __future__ import annotations

from collections.abc import Callable

from stratal.base.dtypes import int64
from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer, Expr, Var, call, const, index_const, lanes
from stratal.loops.index import add, mul, unflatten
from stratal.loops.stmt import For, If, Seq, Stmt, Store
from stratal.ops.indexing import network
from stratal.ops.indexing.items import Items
from stratal.ops.indexing.rows import HELD, PARTS, Rows, every

MOST = 256  # elements of a list
LEAST = 8  # elements of a row for each one of the list: of fewer a list keeps too many
LEAST_OF_SHORT = 64  # the same where a network sorts the row
VECTOR = 16  # elements compared at once
LANES = 64  # whose best are compared first, or more: some for each element of the list
LANES_EACH = 4

Candidate = tuple[Expr, Expr]  # a key and its place


def suits(rows: Rows) -> bool:
    """Return whether few enough are asked for that changing the list is the lesser work."""
    count, length = rows.stop, rows.length
    each = length if length <= HELD else length // PARTS
    least = LEAST_OF_SHORT if network.suits(rows) else LEAST
    return rows.items.placed and count <= MOST and length >= least * count and 2 * each >= count * count


def best_of_rows(rows: Rows) -> list[Stage]:
    """Return the loops that write the first elements of each row in order."""
    return _in_parts(rows) if rows.length > HELD else _by_rows(rows)


class Best:
    """The list of one row: keys in rising order and their places.

    Behind `filled` entries stand empty ones, with the key that bounds what can be among the first; before the
    first entry stands one that nothing is less than.
    """

    def __init__(self, items: Items, count: int) -> None:
        self.count, self.key = count, items.key
        dtypes = {"keys": items.key, "places": int64, "new_keys": items.key, "new_places": int64}
        made = [Buffer(name, dtype, (count + 1,), space="scratch") for name, dtype in dtypes.items()]
        self.keys, self.places, self.new_keys, self.new_places = made
        self.filled = Buffer("filled", int64, (1,), space="scratch")
        self.last = self.keys[count]
        self.memory = (*made, self.filled)

    def entry(self, number: Expr) -> Candidate:
        """Return the key and the place that stand at a number of the order."""
        return self.keys[add(number, 1),], self.places[add(number, 1),]

    def clear(self, bound: Expr) -> Stmt:
        """Empty the list; what is greater than the bound is not taken."""
        return Seq((
            every(self.count, lambda k: Store(self.keys, (add(k, 1),), bound)),
            Store(self.keys, (index_const(0),), const(0, self.key)),
            Store(self.filled, (index_const(0),), index_const(0)),
        ))  # fmt: skip

    def admits(self, key: Expr) -> Expr:
        """Return whether a key is better than the last entry, or as good as one that is empty."""
        room = self.filled[0] < self.count
        return (key < self.last) | (room & call("eq", key, self.last))

    def take(self, candidate: Candidate) -> Stmt:
        """Put a candidate into the list if it is admitted: move what is worse back by one."""
        key, place = candidate

        def worse(k: Expr) -> Expr:
            return (key < self.keys[k,]) | (k > self.filled[0])

        def moved(old: Buffer, new: Expr, k: Expr) -> Expr:
            before = call("select", worse(k), old[k,], new)
            return call("select", worse(add(k, 1)), before, old[add(k, 1),])

        def written(to: Buffer, old: Buffer, new: Expr) -> Stmt:
            return every(self.count, lambda k: Store(to, (k,), moved(old, new, k)))

        def copied(to: Buffer, new: Buffer) -> Stmt:
            return every(self.count, lambda k: Store(to, (add(k, 1),), new[k,]))

        more = call("min", add(self.filled[0], 1), index_const(self.count))
        inserted = Seq((
            written(self.new_keys, self.keys, key), written(self.new_places, self.places, place),
            copied(self.keys, self.new_keys), copied(self.places, self.new_places),
            Store(self.filled, (index_const(0),), more),
        ))  # fmt: skip
        return If(self.admits(key), inserted)


class _Search:
    """How the first of a row, or of a part of it, are found."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.best = rows, Best(rows.items, rows.stop)
        self.width = -(-max(LANES, LANES_EACH * rows.stop) // LANES) * LANES
        self.lanes = Buffer("lanes", rows.items.key, (self.width,), space="scratch")
        self.memory = (*self.best.memory, self.lanes)
        self.greatest = const((1 << rows.items.key.bits) - 1, rows.items.key)

    def look(self, row: Expr, begin: Expr, end: Expr, most: int) -> Stmt:
        """Find the first of the elements from `begin` to `end`, at most `most`."""
        best, rows = self.best, self.rows
        lane, number = Var("lane", VECTOR), Var("number", VECTOR)
        start = add(begin, mul(Var("block", -(-most // VECTOR)), VECTOR))
        (block,) = start.free - begin.free
        place = add(start, number)
        taken = best.take((rows.key(row, place), place))
        least = lanes("min", rows.key(row, add(start, lane)), lane)
        whole = add(start, VECTOR) <= end
        rest = For(number, If(place < end, taken))
        return Seq((
            self._bound(row, begin, end, most),
            best.clear(best.last),
            For(block, If(whole, If(best.admits(least), For(number, taken)), rest)),
        ))  # fmt: skip

    def merge(self, count: int, candidate: Callable[[Expr], Candidate]) -> Stmt:
        """Find the first of some candidates."""
        number = Var("number", count)
        return Seq((self.best.clear(self.greatest), For(number, self.best.take(candidate(number)))))

    def _bound(self, row: Expr, begin: Expr, end: Expr, most: int) -> Stmt:
        """Leave in the list the best of lanes, the last of which bounds the first of all."""
        block = Var("block", most // self.width)
        start = add(begin, mul(block, self.width))

        def lesser(lane: Expr) -> Store:
            key = self.rows.key(row, add(start, lane))
            return Store(self.lanes, (lane,), call("min", self.lanes[lane,], key))

        return Seq((
            every(self.width, lambda lane: Store(self.lanes, (lane,), self.greatest)),
            For(block, If(add(start, self.width) <= end, every(self.width, lesser))),
            self.merge(self.width, lambda k: (self.lanes[k,], k)),
        ))  # fmt: skip

    def write(self, row: Expr) -> Stmt:
        number = Var("number", self.rows.stop - self.rows.start)
        to = add(number, self.rows.start)
        return For(number, self.rows.put(row, to, self.best.entry(to)[1]))


def _by_rows(rows: Rows) -> list[Stage]:
    search, n = _Search(rows), rows.length

    def find(row: Expr) -> Stmt:
        return Seq((search.look(row, index_const(0), index_const(n), n), search.write(row)))

    return [Stage(rows.shared(find), search.memory)]


def _in_parts(rows: Rows) -> list[Stage]:
    """Find the first of each part of long rows, then the first of these."""
    search, count = _Search(rows), rows.stop
    share = -(-rows.length // (PARTS * VECTOR)) * VECTOR
    keys = Buffer("found_keys", rows.items.key, (rows.count, PARTS * count))
    places = Buffer("found_places", int64, (rows.count, PARTS * count))
    chunk, entry, merged = Var("chunk", rows.count * PARTS), Var("entry", count), Var("row", rows.count)
    row, part = unflatten(chunk, (rows.count, PARTS))
    begin = mul(part, share)
    end = call("min", add(begin, share), index_const(rows.length))
    to = (row, add(mul(part, count), entry))
    key, place = search.best.entry(entry)
    kept = Seq((Store(keys, to, key), Store(places, to, place)))
    merge = search.merge(PARTS * count, lambda k: (keys[merged, k], places[merged, k]))
    return [
        Stage(
            For(chunk, Seq((search.look(row, begin, end, share), For(entry, kept))), "parallel"),
            search.memory,
        ),
        Stage(For(merged, Seq((merge, search.write(merged))), "parallel"), search.memory),
    ]
