"""The rows of a tensor along an axis as loops that sort and select see them: items in, results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stratal.base.dims import as_int, product
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.index import add, less, mul, sub, unflatten
from stratal.loops.stmt import For, Seq, Stmt, Store, guarded
from stratal.ops.indexing.items import Item, Items

HELD = 1 << 15  # elements of a row that a thread works on alone, in its own cache
PARTS = 8  # of a longer row
CHUNKS = 64  # that other rows are shared out in


class Rows:
    """Rows of `x` along `axis`, numbered, of whose order `outs` get elements from `start` on.

    There are one or two results: the elements and, where items are placed, where these stood.
    """

    def __init__(self, x: Buffer, outs: Sequence[Buffer], axis: int, items: Items, start: int = 0) -> None:
        self.x, self.outs, self.axis, self.items, self.start = x, outs, axis, items, start
        self.outer: Final = (*x.shape[:axis], *x.shape[axis + 1 :])
        self.count: Final = as_int(product(self.outer))
        self.length: Final = x.shape[axis]
        self.stop: Final = start + outs[0].shape[axis]

    def at(self, row: Expr, place: Expr) -> tuple[Expr, ...]:
        """Return the indices of an element of a row."""
        where = unflatten(row, self.outer)
        return (*where[: self.axis], place, *where[self.axis :])

    def read(self, row: Expr, place: Expr) -> Item:
        """Return the item at a place of a row."""
        return self.items.of(self.x[self.at(row, place)], place)

    def key(self, row: Expr, place: Expr) -> Expr:
        """Return the key of the element at a place of a row."""
        return self.items.key_of(self.x[self.at(row, place)])

    def write(self, row: Expr, to: Expr, item: Item) -> Stmt:
        """Store what is number `to` of the order, where it is asked for."""
        if self.items.placed:
            stores = self.put(row, to, self.items.place(item))
        else:
            stores = Store(self.outs[0], self.at(row, sub(to, self.start)), self.items.element(item))
        late = guarded(to >= self.start, stores) if self.start else stores
        return late if self.stop == self.length else guarded(less(to, self.stop), late)

    def put(self, row: Expr, to: Expr, place: Expr) -> Stmt:
        """Store the element at a place, and the place, as number `to` of the order."""
        at = self.at(row, sub(to, self.start))
        return Seq((Store(self.outs[1], at, place), Store(self.outs[0], at, self.x[self.at(row, place)])))

    def shared(self, body: Callable[[Expr], Stmt], together: int = 1) -> Stmt:
        """Return `body` for the first row of each block of rows that are worked on `together`, in chunks."""
        blocks = -(-self.count // together)
        each = -(-blocks // CHUNKS)
        chunk, turn = Var("chunk", -(-blocks // each)), Var("block", each)
        block = add(mul(chunk, each), turn)
        return For(chunk, For(turn, guarded(less(block, blocks), body(mul(block, together)))), "parallel")


def every(count: int, store: Callable[[Expr], Store]) -> Stmt:
    """Return a store for every number below `count`, side by side."""
    lane = Var("lane", count)
    return For(lane, store(lane), "parallel")
