"""Rebuilding expressions with other parts, so that index arithmetic stays in normal form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from stratal.base.dtypes import bool_, int64
from stratal.loops import index
from stratal.loops.expr import Call, Expr, Guard, Lanes, Load, Var, call, guard, lanes, load, walk

INDEX_FUNCTIONS: Final = frozenset(("add", "sub", "mul", "floordiv", "mod", "lt"))  # of int64: in normal form


def with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """Return `expr` with other sub-expressions; index arithmetic is normalised again."""
    if isinstance(expr, Load):
        return load(expr.buffer, new)
    if isinstance(expr, Guard):
        return guard(*new)
    if isinstance(expr, Lanes):
        return lanes(expr.fn, new[0], expr.var)
    if isinstance(expr, Call):
        if (new[0].dtype is int64 and expr.fn in INDEX_FUNCTIONS) or (
            expr.dtype is bool_ and expr.fn == "and"
        ):
            return index.rebuild(expr.fn, new)
        return call(expr.fn, *new, dtype=expr.dtype)
    return expr


def transform(roots: Iterable[Expr], change: Callable[[Expr], Expr | None]) -> list[Expr]:
    """Rebuild expressions bottom up.

    `change` sees each rebuilt node and returns its replacement, or None to keep it.
    """
    wanted = list(roots)
    new: dict[Expr, Expr] = {}
    for expr in walk(wanted):
        rebuilt = _rebuilt(expr, new)
        new[expr] = change(rebuilt) or rebuilt
    return [new[r] for r in wanted]


def _rebuilt(expr: Expr, new: Mapping[Expr, Expr]) -> Expr:
    parts = expr.parts
    if not parts:
        return expr
    made = tuple([new.get(c, c) for c in parts])
    return expr if made == parts else with_children(expr, made)  # equal only where identical


def substitute(roots: Iterable[Expr], values: Mapping[Var, Expr]) -> list[Expr]:
    """Replace loop variables by index expressions. What does not mention them is not looked into."""
    wanted = list(roots)
    replaced = values.keys()
    new: dict[Expr, Expr] = {}
    new.update(values.items())

    def below(expr: Expr) -> list[Expr]:
        parts = index.atoms(expr) if index.is_linear(expr) else expr.parts
        return [p for p in parts if not replaced.isdisjoint(p.free)]

    for expr in walk([r for r in wanted if not replaced.isdisjoint(r.free)], below):
        if expr not in new:
            new[expr] = index.replace_atoms(expr, new) if index.is_linear(expr) else _rebuilt(expr, new)
    return [new.get(r, r) for r in wanted]
