"""Whether a temporary is written before it is read, found by going through the accesses one by one."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.interpret import Array, evaluate, grid
from stratal.loops.stmt import Fail, For, If, Stmt, Store
from stratal.schedule.language.nest import Access, accesses, parts, touched

MOST_POINTS = 1 << 20


def written_before_read(stmt: Stmt, buffer: Buffer, inner: Collection[Var]) -> bool:
    """Return whether every element a statement reads of a buffer was written in it before.

    Stores under conditions do not count, loads under conditions do. Places may depend on the loops around
    only by a shift that all have in common; where they do otherwise, or are too many, the answer is no.
    """
    moving = set(inner)
    shifts = {tuple(_fixed(i, moving) for i in a.indices) for a in touched(stmt, buffer)}
    if len(shifts) != 1 or _points(stmt, buffer) > MOST_POINTS:
        return False
    return _Replay(buffer, moving).run(stmt, {})


def _fixed(i: Expr, moving: set[Var]) -> Expr:
    """Return the part of an index that only the loops around decide."""
    terms, _ = index.linear(i)
    return index.from_linear({a: c for a, c in terms.items() if not a.free & moving}, 0)


def _points(stmt: Stmt, buffer: Buffer) -> int:
    if not touched(stmt, buffer):
        return 0
    below = sum(_points(s, buffer) for s in parts(stmt)) or 1
    return below * stmt.var.extent if isinstance(stmt, For) else below


class _Replay:
    """The elements written so far."""

    def __init__(self, buffer: Buffer, moving: set[Var]) -> None:
        self.buffer = buffer
        self.moving = moving
        self.written: Array = np.zeros(buffer.shape, bool)
        self.conditions = 0  # around the statement at hand

    def run(self, stmt: Stmt, values: dict[Expr, Array]) -> bool:
        """Go through a statement; return whether no element was read too early."""
        if not touched(stmt, self.buffer):
            return True
        loops, leaf = _perfect(stmt)
        if isinstance(leaf, Store):  # its loads count before all of its stores: cautious, and many at once
            points = grid(loops)
            bound = {**values, **points}
            found = list(accesses(leaf))
            return all(self._read(a, bound) for a in found if not a.is_store) and all(
                self._write(a, bound, tuple(v.extent for v in loops)) for a in found if a.is_store
            )
        if isinstance(stmt, For):
            steps = (np.asarray(k, np.int64) for k in range(stmt.var.extent))
            return all(self.run(stmt.body, {**values, stmt.var: k}) for k in steps)
        if isinstance(stmt, If):
            asked = [a for a in accesses(Fail(stmt.condition, 1)) if a.buffer is self.buffer]
            self.conditions += 1
            fine = not asked and all(self.run(s, values) for s in parts(stmt))
            self.conditions -= 1
            return fine
        return not isinstance(stmt, Fail) and all(self.run(s, values) for s in parts(stmt))

    def _places(self, access: Access, values: dict[Expr, Array]) -> tuple[Array, ...] | None:
        """Return where an access goes, without the shift; None where the loops around decide more."""
        moving = [index.sub(i, _fixed(i, self.moving)) for i in access.indices]
        if any(v not in values for i in moving for v in i.free):
            return None
        where = tuple(evaluate(moving, values, {}))
        inside = all(np.all((w >= 0) & (w < n)) for w, n in zip(where, self.buffer.shape, strict=True))
        return where if inside else None

    def _read(self, access: Access, values: dict[Expr, Array]) -> bool:
        if access.buffer is not self.buffer:
            return True
        where = self._places(access, values)
        return where is not None and bool(np.all(self.written[where]))

    def _write(self, access: Access, values: dict[Expr, Array], shape: tuple[int, ...]) -> bool:
        if access.buffer is not self.buffer or not math.prod(shape):
            return True
        where = self._places(access, values)
        if where is not None and not self.conditions:
            self.written[where] = True
        return True


def _perfect(stmt: Stmt) -> tuple[list[Var], Stmt]:
    loops: list[Var] = []
    while isinstance(stmt, For):
        loops.append(stmt.var)
        stmt = stmt.body
    return loops, stmt
