"""The loops a schedule rewrites: statements, the buffers they touch, and loops found by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer, Expr, Load, Var, unlike, walk
from stratal.loops.stmt import (
    Fail,
    Fetch,
    For,
    If,
    ProductCall,
    Seq,
    Stmt,
    Store,
    statements,
    substitute_stmt,
)
from stratal.schedule.primitives import Schedule


class Nest(NamedTuple):
    """An algorithm's loops. Names of loops are unlike each other, and so are names of buffers.

    `local` are temporaries: in `register` or `scratch` space they belong to one chunk; `global` ones are
    workspaces, which the statements at the top fill and read one after another.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    body: Stmt
    local: tuple[Buffer, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*self.reads, *self.writes, *self.local)

    @property
    def loops(self) -> dict[str, For]:
        """Loops by name, in program order."""
        return {s.var.name: s for s in statements(self.body) if isinstance(s, For)}

    def loop(self, name: str) -> For:
        """Return a loop by name. Raises: ScheduleError."""
        loops = self.loops
        if name not in loops:
            raise ScheduleError(
                f"schedule: there is no loop {name!r}", got=f"loops: {', '.join(loops) or 'none'}"
            )
        return loops[name]

    def buffer(self, name: str) -> Buffer:
        """Return a buffer by name. Raises: ScheduleError."""
        for b in self.buffers:
            if b.name == name:
                return b
        got = f"tensors: {', '.join(b.name for b in self.buffers)}"
        raise ScheduleError(f"schedule: there is no tensor {name!r}", got=got)

    def fresh(self, name: str) -> str:
        """Return a name no buffer has."""
        return unlike(name, [b.name for b in self.buffers])

    def around(self, loop: For) -> list[For]:
        """Return the loops around a loop, outermost first."""
        path = _path(self.body, loop)
        return [s for s in path or () if isinstance(s, For) and s is not loop]

    def edit(self, body: Stmt) -> Schedule:
        """Return the older, index-based schedule of a part of the loops, whose rewrites steps share."""
        return Schedule(body, self.local)

    def replaced(self, old: Stmt, new: Stmt) -> Nest:
        """Return this nest with one statement in the place of another."""
        return self._replace(body=replaced(self.body, old, new))


def _path(stmt: Stmt, wanted: Stmt) -> list[Stmt] | None:
    if stmt is wanted:
        return [stmt]
    for part in parts(stmt):
        below = _path(part, wanted)
        if below is not None:
            return [stmt, *below]
    return None


def parts(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements right below one."""
    if isinstance(stmt, For):
        return (stmt.body,)
    if isinstance(stmt, Seq):
        return stmt.body
    if isinstance(stmt, If):
        return (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise)
    return ()


def in_sequence(stmts: Iterable[Stmt]) -> Stmt:
    """Return statements in order; sequences inside are opened, one statement stays alone."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.body if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(flat)


def replaced(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """Return a tree with one statement, found by identity, replaced."""
    if stmt is old:
        return new
    if isinstance(stmt, For):
        body = replaced(stmt.body, old, new)
        return stmt if body is stmt.body else For(stmt.var, body, stmt.kind)
    if isinstance(stmt, Seq):
        return in_sequence(replaced(s, old, new) for s in stmt.body)
    if isinstance(stmt, If):
        otherwise = replaced(stmt.otherwise, old, new) if stmt.otherwise is not None else None
        return If(stmt.condition, replaced(stmt.then, old, new), otherwise)
    return stmt


def nested(axes: Iterable[Var], body: Stmt) -> Stmt:
    """Wrap a statement in loops, the first outermost; an axis of one element gets none."""
    for var in reversed([v for v in axes if v.extent != 1]):
        body = For(var, body)
    return body


def with_distinct_names(stmt: Stmt, kept: Iterable[Var] = ()) -> Stmt:
    """Return a tree in which every loop has a variable and a name of its own.

    The variables in `kept` keep their names where they first occur; of all others the first in the program.
    """
    bound = [s.var for s in statements(stmt) if isinstance(s, For)]
    names = {v.name for v in kept if v in bound}
    return _distinct(stmt, names, set(kept), set())


def _distinct(stmt: Stmt, names: set[str], kept: set[Var], seen: set[Var]) -> Stmt:
    if isinstance(stmt, For):
        var = stmt.var
        if var in seen or var not in kept:
            name = unlike(var.name, names)
            var = Var(name, var.extent) if name != var.name or var in seen else var
            names.add(name)
        seen.add(var)
        body = stmt.body if var is stmt.var else substitute_stmt(stmt.body, {stmt.var: var})
        return For(var, _distinct(body, names, kept, seen), stmt.kind)
    if isinstance(stmt, Seq):
        return Seq([_distinct(s, names, kept, seen) for s in stmt.body])
    if isinstance(stmt, If):
        then = _distinct(stmt.then, names, kept, seen)
        otherwise = _distinct(stmt.otherwise, names, kept, seen) if stmt.otherwise is not None else None
        return If(stmt.condition, then, otherwise)
    return stmt


class Access(NamedTuple):
    """A load or a store, and the conditions of the statements around it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    conditions: tuple[Expr, ...]


def accesses(stmt: Stmt, conditions: tuple[Expr, ...] = ()) -> Iterator[Access]:
    """Yield loads and stores in program order; the loads of a store come before it."""
    if isinstance(stmt, ProductCall):
        yield from accesses(stmt.body, conditions)
        return
    if isinstance(stmt, (For, Seq)):
        for part in parts(stmt):
            yield from accesses(part, conditions)
        return
    if isinstance(stmt, Fetch):
        return
    roots: list[Expr] = [*stmt.indices, stmt.value] if isinstance(stmt, Store) else [stmt.condition]
    for e in walk(roots):
        if isinstance(e, Load):
            yield Access(e.buffer, e.indices, False, conditions)
    if isinstance(stmt, Store):
        yield Access(stmt.buffer, stmt.indices, True, conditions)
    elif isinstance(stmt, If):
        for part in parts(stmt):
            yield from accesses(part, (*conditions, stmt.condition))
    else:
        assert isinstance(stmt, Fail)


def touched(stmt: Stmt, buffer: Buffer) -> list[Access]:
    """Return the accesses of a statement to one buffer."""
    return [a for a in accesses(stmt) if a.buffer is buffer]


def traffic(stmt: Stmt) -> Mapping[Buffer, tuple[int, int]]:
    """Return how many elements of each buffer are loaded and stored; conditions count as if they held.

    An expression that occurs twice in one statement is loaded once.
    """
    counts: dict[Buffer, tuple[int, int]] = {}

    def visit(s: Stmt, times: int) -> None:
        if isinstance(s, For):
            visit(s.body, times * s.var.extent)
            return
        if isinstance(s, Seq):
            for part in s.body:
                visit(part, times)
            return
        for a in accesses(s if not isinstance(s, If) else Fail(s.condition, 1)):
            loads, stores = counts.get(a.buffer, (0, 0))
            counts[a.buffer] = (loads + (not a.is_store) * times, stores + a.is_store * times)
        for part in parts(s):
            visit(part, times)

    visit(stmt, 1)
    return counts
