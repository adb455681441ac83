"""Iterations that are left out: where that is asked, as far outside as their conditions allow.

    for k in 5: for c in 16: if k < i: S else: pass  ->  for k in 5: if k < i: for c in 16: S else: pass

A branch whose other arm is empty leaves an iteration out. Unlike the guard of a tail, it holds in most
iterations of no loop, so no loop is cut for it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from stratal.loops import index
from stratal.loops.expr import Expr, Var
from stratal.loops.stmt import For, If, Seq, Stmt
from stratal.schedule.primitives import Schedule, sequence


def only_where(conditions: Sequence[Expr], stmt: Stmt) -> Stmt:
    """Return a statement that is left out where not all conditions hold."""
    return If(functools.reduce(index.both, conditions), stmt, Seq(())) if conditions else stmt


def hoist(schedule: Schedule, inside: Collection[Var]) -> None:
    """Ask what leaves iterations out before the loops it does not mention, but within the loops `inside`.

    A conjunction is taken apart: each part goes out by itself.
    """
    schedule.body = _hoisted(schedule.body, inside)
    schedule.steps.append(f"hoist({', '.join(v.name for v in inside)})")


def _hoisted(stmt: Stmt, inside: Collection[Var]) -> Stmt:
    if isinstance(stmt, Seq):
        return sequence(*(_hoisted(s, inside) for s in stmt.body))
    if isinstance(stmt, For):
        body = _hoisted(stmt.body, inside)
        if stmt.var in inside:
            return For(stmt.var, body, stmt.kind)
        conditions, body = _parted(body)
        bound = [c for c in conditions if index.depends(c, stmt.var)]
        free = [c for c in conditions if not index.depends(c, stmt.var)]
        return only_where(free, For(stmt.var, only_where(bound, body), stmt.kind))
    if isinstance(stmt, If) and stmt.otherwise is None:  # a tail
        conditions, then = _parted(_hoisted(stmt.then, inside))
        return only_where(conditions, If(stmt.condition, then))
    return stmt


def _parted(stmt: Stmt) -> tuple[list[Expr], Stmt]:
    """Return the conditions that leave a statement out, and the statement."""
    found: list[Expr] = []
    while isinstance(stmt, If) and isinstance(stmt.otherwise, Seq) and not stmt.otherwise.body:
        found += index.conjuncts(stmt.condition)
        stmt = stmt.then
    return found, stmt
