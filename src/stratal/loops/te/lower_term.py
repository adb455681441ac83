"""Terms as expressions of the loop language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratal.base.dtypes import int64
from stratal.loops.expr import Buffer, Expr, Var, const, index_const
from stratal.loops.expr import cast as cast_expr
from stratal.loops.te.term import FUNCTIONS, Access, Apply, Axis, Number, Term, walk


def lower_index(root: Term, variables: Mapping[Axis, Var]) -> Expr:
    """Return an index as an expression of loop variables."""
    return lower_term(root, variables, {})


def lower_term(root: Term, variables: Mapping[Axis, Var], buffers: Mapping[Any, Buffer]) -> Expr:
    """Return a term over loop variables and buffers; 16-bit floats are float32 on the way."""
    made: dict[int, Expr] = {}
    for t in walk(root):
        made[id(t)] = _one(t, [made[id(p)] for p in t.parts], variables, buffers)
    return made[id(root)]


def _one(t: Term, parts: list[Expr], variables: Mapping[Axis, Var], buffers: Mapping[Any, Buffer]) -> Expr:
    if isinstance(t, Number):
        return index_const(int(t.value)) if t.dtype is int64 else const(t.value, t.dtype.compute)
    if isinstance(t, Axis):
        return index_const(0) if t.extent == 1 else variables[t]
    if isinstance(t, Access):
        return cast_expr(buffers[t.tensor][tuple(parts)], t.dtype.compute)
    assert isinstance(t, Apply)
    if t.fn == "cast":
        return cast_expr(cast_expr(parts[0], t.dtype), t.dtype.compute)
    return FUNCTIONS[t.fn].lower(*parts)
