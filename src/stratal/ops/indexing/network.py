"""Loops that sort short rows by comparing and exchanging, many rows side by side: one lane is one row.

Which places are compared follows from the length alone, so no lane waits for another. Such a network does not
keep the order of equal elements: their places are compared, too.
See: Batcher, "Sorting networks and their applications" (1968), the odd-even merge sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratal.loops.compute import Stage
from stratal.loops.expr import Buffer, Expr, Var, call, index_const
from stratal.loops.index import add, floordiv, less, mod, mul
from stratal.loops.stmt import For, Seq, Stmt, Store, guarded
from stratal.ops.indexing.rows import Rows, every

SIDE_BY_SIDE = 16  # rows
UNROLLED = 16  # elements of a row, up to which comparisons stand one after the other
FEW = 128  # elements of a row, up to which comparing takes less time than counting digits
ENOUGH = 4  # rows, from which on that is so for more than UNROLLED elements


def suits(rows: Rows) -> bool:
    """Return whether rows are short, and enough to be sorted side by side."""
    return rows.length <= (FEW if rows.count >= ENOUGH else UNROLLED)


def by_network(rows: Rows) -> list[Stage]:
    """Take blocks of rows, sort each in its lane, and write them back one by one."""
    n, items = rows.length, rows.items
    held = items.buffers("held", (n, SIDE_BY_SIDE), "scratch")
    spare = items.buffers("spare", (SIDE_BY_SIDE,), "scratch")
    place, number = Var("place", n), Var("number", SIDE_BY_SIDE)

    def exchanged(first: Expr, second: Expr) -> Stmt:
        return Seq(_exchange(held, spare, first, second))

    def block(first: Expr) -> Stmt:
        def loaded(k: int) -> Stmt:
            def one(lane: Expr) -> Store:
                row = call("min", add(first, lane), index_const(rows.count - 1))
                return Store(held[k], (place, lane), rows.read(row, place)[k])

            return every(SIDE_BY_SIDE, one)

        item = tuple(b[place, number] for b in held)
        row = add(first, number)
        return Seq((
            For(place, Seq(map(loaded, range(len(held))))),
            *_comparisons(n, exchanged),
            For(number, guarded(less(row, rows.count), For(place, rows.write(row, place, item)))),
        ))  # fmt: skip

    return [Stage(rows.shared(block, SIDE_BY_SIDE), (*held, *spare))]


def _exchange(held: list[Buffer], spare: list[Buffer], first: Expr, second: Expr) -> Iterator[Stmt]:
    """Put the lesser of two items first, in every lane: places by keys and places, then keys."""
    keys, *places = held

    def falls(lane: Expr) -> Expr:
        found = keys[second, lane] < keys[first, lane]
        for b in places:
            tie = call("eq", keys[second, lane], keys[first, lane])
            found = found | (tie & (b[second, lane] < b[first, lane]))
        return found

    def chosen(b: Buffer, one: Expr, other: Expr, lane: Expr, last: bool) -> Expr:
        if b is keys:
            return call("max" if last else "min", keys[one, lane], keys[other, lane])
        return call("select", falls(lane), b[one, lane], b[other, lane])

    def stores(b: Buffer, there: Buffer) -> Iterator[Stmt]:
        yield every(SIDE_BY_SIDE, lambda lane: Store(there, (lane,), chosen(b, second, first, lane, False)))
        yield every(SIDE_BY_SIDE, lambda lane: Store(b, (second, lane), chosen(b, first, second, lane, True)))
        yield every(SIDE_BY_SIDE, lambda lane: Store(b, (first, lane), there[lane,]))

    for b, there in zip(reversed(held), reversed(spare), strict=True):
        yield from stores(b, there)


def _comparisons(n: int, exchanged: Callable[[Expr, Expr], Stmt]) -> Iterator[Stmt]:
    """Yield the comparisons of Batcher's network: of few elements one after the other, of more those at one
    distance in one loop.
    """
    for merged, apart in _distances(n):
        begin = apart % merged
        count = -(-max(n - apart - begin, 0) // (2 * apart)) * apart
        if n <= UNROLLED:
            for k in range(count):
                low = k // apart * 2 * apart + k % apart + begin
                high = low + apart
                if high < n and low // (2 * merged) == high // (2 * merged):
                    yield exchanged(index_const(low), index_const(high))
        else:
            pair = Var("pair", count)
            first = add(add(mul(floordiv(pair, apart), 2 * apart), mod(pair, apart)), begin)
            second = add(first, apart)
            together = call("eq", floordiv(first, 2 * merged), floordiv(second, 2 * merged))
            yield For(pair, guarded(less(second, n), guarded(together, exchanged(first, second))))


def _distances(n: int) -> Iterator[tuple[int, int]]:
    """Yield the lengths of runs that are merged in pairs, and for each the distances of comparisons."""
    merged = 1
    while merged < n:
        apart = merged
        while apart:
            yield merged, apart
            apart //= 2
        merged *= 2
