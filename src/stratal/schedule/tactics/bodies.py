"""Loop bodies that records write themselves: their innermost independent loops run in vectors."""

from __future__ import annotations

from stratal.base.target import Target
from stratal.loops.compute import Stage
from stratal.loops.stmt import For, If, Seq, Stmt, Store
from stratal.schedule.primitives import Schedule
from stratal.schedule.result import Pack, Tactic
from stratal.schedule.tactics.common import cut_tails, vector_lanes

NAME = "loop body"


def schedule_body(found: object, target: Target) -> Tactic:
    """Return the kernel, or one per stage, of what a loop body's `build` returned."""
    if not isinstance(found, list):
        return Tactic(_outermost(found, target), (), NAME, ())  # type: ignore[arg-type]
    *first, last = (Stage(_outermost(s.body, target), s.workspace, s.local) for s in found)
    packs = tuple(Pack(s.workspace, s.body, (), s.local, NAME) for s in first)  # type: ignore[arg-type]
    return Tactic(last.body, last.local, NAME, (), packs=packs)  # type: ignore[arg-type]


def _outermost(stmt: Stmt, target: Target) -> Stmt:
    """Leave the loop over chunks alone, vectorise below it."""
    if isinstance(stmt, For) and stmt.kind == "parallel" and not isinstance(stmt.body, Store):
        return For(stmt.var, _vectors(stmt.body, target), stmt.kind)
    return stmt if isinstance(stmt, For) and stmt.kind == "parallel" else _vectors(stmt, target)


def _vectors(stmt: Stmt, target: Target) -> Stmt:
    if isinstance(stmt, Seq):
        return Seq(_vectors(s, target) for s in stmt.body)
    if isinstance(stmt, If):
        otherwise = None if stmt.otherwise is None else _vectors(stmt.otherwise, target)
        return If(stmt.condition, _vectors(stmt.then, target), otherwise)
    if not isinstance(stmt, For):
        return stmt
    if stmt.kind != "parallel" or not isinstance(stmt.body, Store) or stmt.var.extent < 2:
        return For(stmt.var, _vectors(stmt.body, target), stmt.kind)
    schedule = Schedule(stmt)
    lanes = vector_lanes(target, [stmt.body.value])
    _, inner = schedule.split(stmt.var, lanes)
    schedule.vectorize(inner)
    cut_tails(schedule)
    return schedule.body
