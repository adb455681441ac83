"""Loops that sort rows by the digits of their keys, the lowest first: a stable counting sort for each.

Rows that a cache holds are sorted by one thread each, long ones in parts, which depend on sizes alone.
"""

from __future__ import annotations

from stratal.base.dtypes import int32, int64
from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer, Expr, Var, cast, const
from stratal.loops.index import add, less, mul, unflatten
from stratal.loops.stmt import For, Seq, Stmt, Store, guarded
from stratal.ops.indexing.items import DIGITS, Item
from stratal.ops.indexing.rows import PARTS, Rows, every


class Passes:
    """One counting sort for each digit, from one half of a memory into the other: statements of each.

    Memory has leading axes, if any: `at` are their indices. `used` is a counter: that of a digit.
    """

    def __init__(self, rows: Rows, leading: tuple[int, ...], parts: tuple[int, ...], space: str) -> None:
        items = rows.items
        self.rows = rows
        self.halves = [items.buffers(name, (*leading, rows.length), space) for name in ("one", "two")]
        self.counts = Buffer("counts", int32, (*leading, *parts, DIGITS), space=space)
        self.total, self.mine = (Buffer(name, int32, (), space="register") for name in ("total", "mine"))
        self.memory = (*self.halves[0], *self.halves[1], self.counts)

    def item(self, turn: int, row: Expr, place: Expr, *at: Expr) -> Item:
        """Return the item at a place before pass number `turn`."""
        if turn == 0:
            return self.rows.read(row, place)
        return tuple(b[*at, place] for b in self.halves[turn % 2])

    def clear(self, *at: Expr) -> Stmt:
        return every(DIGITS, lambda digit: Store(self.counts, (*at, digit), const(0, int32)))

    def count(self, *used: Expr) -> Store:
        return Store(self.counts, used, self.counts[used] + 1)

    def run(self, *used: Expr) -> Stmt:
        """Turn a count into a place, when those before it have been."""
        begun = Store(self.mine, (), self.counts[used])
        more = Store(self.total, (), self.total[()] + self.mine[()])
        return Seq((begun, Store(self.counts, used, self.total[()]), more))

    def put(self, turn: int, row: Expr, item: Item, at: tuple[Expr, ...], used: tuple[Expr, ...]) -> Stmt:
        """Move an item to where its digit has come to, in the last pass into the results."""
        items, to = self.rows.items, cast(self.counts[used], int64)
        if turn == items.passes - 1:
            return Seq((self.rows.write(row, to, items.turned(item, -turn)), self.count(*used)))
        moved = zip(self.halves[1 - turn % 2], items.turned(item), strict=True)
        return Seq((*(Store(b, (*at, to), part) for b, part in moved), self.count(*used)))


def by_digits(rows: Rows) -> list[Stage]:
    """Sort each row by one digit after the other, in the memory of a worker."""
    passes, items = Passes(rows, (), (), "scratch"), rows.items
    place, digit = Var("place", rows.length), Var("digit", DIGITS)

    def sort(row: Expr) -> Stmt:
        done: list[Stmt] = []
        for turn in range(items.passes):
            item = passes.item(turn, row, place)
            used = (items.digit(item),)
            done += [
                passes.clear(),
                For(place, passes.count(*used)),
                Store(passes.total, (), const(0, int32)),
                For(digit, passes.run(digit)),
                For(place, passes.put(turn, row, item, (), used)),
            ]
        return Seq(done)

    return [Stage(rows.shared(sort), (*passes.memory, passes.total, passes.mine))]


def in_parts(rows: Rows) -> list[Stage]:
    """Sort long rows by one digit after the other, in parts that are counted and moved apart."""
    passes, items = Passes(rows, (rows.count,), (PARTS,), "global"), rows.items
    share = -(-rows.length // PARTS)
    chunk, number = Var("chunk", rows.count * PARTS), Var("number", share)
    row, part = unflatten(chunk, (rows.count, PARTS))
    place = add(mul(part, share), number)
    each_row, each_part, digit = Var("row", rows.count), Var("part", PARTS), Var("digit", DIGITS)

    def over(stmt: Stmt) -> Stmt:
        return For(number, guarded(less(place, rows.length), stmt))

    run = Seq((
        Store(passes.total, (), const(0, int32)),
        For(digit, For(each_part, passes.run(each_row, each_part, digit), "unroll")),
    ))  # fmt: skip
    stages: list[Stage] = []
    for turn in range(items.passes):
        item = passes.item(turn, row, place, row)
        used = (row, part, items.digit(item))
        stages += [
            Stage(For(chunk, Seq((passes.clear(row, part), over(passes.count(*used)))), "parallel")),
            Stage(For(each_row, run, "parallel"), (passes.total, passes.mine)),
            Stage(For(chunk, over(passes.put(turn, row, item, (row,), used)), "parallel")),
        ]
    return stages
