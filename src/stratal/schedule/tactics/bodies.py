"""Loop bodies that records write themselves: their innermost independent loops run in vectors."""

from __future__ import annotations

from stratal.base.target import Target
from stratal.loops.expr import Var
from stratal.loops.stmt import For, Stmt, Store, map_parts
from stratal.schedule.expressions import by_stride, work
from stratal.schedule.primitives import Schedule, listed
from stratal.schedule.result import Tactic, of_stages
from stratal.schedule.tactics.common import (
    collapse,
    cut_tails,
    distribute,
    nest,
    vector_lanes,
    vectorize_inner,
)

NAME = "loop body"


def schedule_body(found: object, target: Target) -> Tactic:
    """Return the kernel, or one per stage, of what a loop body's `build` returned."""
    return of_stages(found, NAME, lambda body: _outermost(body, target))


def _outermost(stmt: Stmt, target: Target) -> Stmt:
    """Leave the loop over chunks alone, vectorise below it; deal out what is nothing but parallel loops."""
    loops, leaf = _parallel_loops(stmt)
    if loops and isinstance(leaf, Store):
        return _sweep(loops, leaf, target)
    if isinstance(stmt, For) and stmt.kind == "parallel":
        return For(stmt.var, _vectors(stmt.body, target), stmt.kind)
    return _vectors(stmt, target)


def _parallel_loops(stmt: Stmt) -> tuple[list[Var], Stmt]:
    """Return the variables of the parallel loops around everything else, and what they surround."""
    found = []
    while isinstance(stmt, For) and stmt.kind == "parallel":
        found.append(stmt.var)
        stmt = stmt.body
    return found, stmt


def _sweep(loops: list[Var], leaf: Store, target: Target) -> Stmt:
    """Collapse loops that memory allows to, take the last in vectors, the others in chunks."""
    ordered = by_stride(loops, leaf.buffer) if leaf.indices == tuple(loops) else loops
    schedule = Schedule(nest(ordered, leaf))
    kept = collapse(schedule, ordered)
    lanes = vector_lanes(target, [leaf.value])
    outer = vectorize_inner(schedule, kept.pop(), lanes)
    distribute(schedule, [*kept, outer], (1 + work([leaf.value])) * lanes / 4)
    return schedule.body


def _vectors(stmt: Stmt, target: Target) -> Stmt:
    parallel = isinstance(stmt, For) and stmt.kind == "parallel" and stmt.var.extent > 1
    stores = listed(stmt.body) if isinstance(stmt, For) else ()
    values = [s.value for s in stores if isinstance(s, Store)]
    if not (parallel and isinstance(stmt, For) and len(values) == len(stores)):
        return map_parts(stmt, lambda part: _vectors(part, target))
    schedule = Schedule(stmt)
    lanes = vector_lanes(target, values)
    vectorize_inner(schedule, stmt.var, lanes)
    cut_tails(schedule)
    return schedule.body
