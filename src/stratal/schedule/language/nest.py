"""The loops a schedule rewrites: statements, the buffers they touch, and loops found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer, Expr, Load, Var, unlike, walk
from stratal.loops.stmt import Fail, For, If, Seq, Stmt, Store, map_parts, parts, statements, substitute_stmt
from stratal.schedule.primitives import Schedule, sequence


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

    def edited(self, step: Callable[[Schedule], object]) -> Nest:
        """Return this nest after a step of the older, index-based schedules, whose rewrites steps share."""
        part = Schedule(self.body, self.local)
        step(part)
        return self._replace(body=part.body)

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


def replaced(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """Return a tree with one statement, found by identity, replaced."""
    if stmt is old:
        return new
    if isinstance(stmt, Seq):
        return sequence(*(replaced(s, old, new) for s in stmt.body))
    return map_parts(stmt, lambda part: replaced(part, old, new))


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
    return map_parts(stmt, lambda part: _distinct(part, names, kept, seen))


class Access(NamedTuple):
    """A load or a store, and the conditions of the statements around it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    conditions: tuple[Expr, ...]


def accesses(stmt: Stmt, conditions: tuple[Expr, ...] = ()) -> Iterator[Access]:
    """Yield loads and stores in program order; the loads of a store come before it."""
    roots: list[Expr] = [stmt.condition] if isinstance(stmt, (If, Fail)) else []
    if isinstance(stmt, Store):
        roots = [*stmt.indices, stmt.value]
    for e in walk(roots):
        if isinstance(e, Load):
            yield Access(e.buffer, e.indices, False, conditions)
    if isinstance(stmt, Store):
        yield Access(stmt.buffer, stmt.indices, True, conditions)
    if isinstance(stmt, If):
        conditions = (*conditions, stmt.condition)
    for part in parts(stmt):
        yield from accesses(part, conditions)


def touched(stmt: Stmt, buffer: Buffer) -> list[Access]:
    """Return the accesses of a statement to one buffer."""
    return [a for a in accesses(stmt) if a.buffer is buffer]


def traffic(stmt: Stmt) -> Mapping[Buffer, tuple[int, int]]:
    """Return how many elements of each buffer are loaded and stored; conditions count as if they held.

    An expression that occurs twice in one statement is loaded once.
    """
    counts: dict[Buffer, tuple[int, int]] = {}

    def visit(s: Stmt, times: int) -> None:
        own = Seq(()) if isinstance(s, (For, Seq)) else Fail(s.condition, 1) if isinstance(s, If) else s
        for a in accesses(own):
            loads, stores = counts.get(a.buffer, (0, 0))
            counts[a.buffer] = (loads + (not a.is_store) * times, stores + a.is_store * times)
        for part in parts(s):
            visit(part, times * s.var.extent if isinstance(s, For) else times)

    visit(stmt, 1)
    return counts
