"""Reading what a record's lowering does: which axes it reads where.

Shared by fusion, layouts and scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratal.loops.compute import Compute
from stratal.loops.expr import Call, Const, Expr, Guard, Load, Var, loads


def is_view(compute: Compute) -> bool:
    """Return whether a compute only moves elements: its body is one load, from a place that no data decides.

    One that makes checks is none: views vanish into those that read them.
    """
    if compute.checks or compute.combiner is not None or not isinstance(compute.terms[0], Load):
        return False
    return not loads(compute.terms[0].indices)


def is_contraction(compute: Compute) -> bool:
    """Return whether a compute is a sum of products of two operands, each read at an affine place, over all
    of its reduction or where a condition holds.
    """
    if compute.combiner is None or compute.combiner.name != "dot":
        return False
    terms = compute.terms
    if counted_where(terms) is not None:
        terms = tuple(t.value for t in terms if isinstance(t, Guard))
    return all(isinstance(strip_cast(t), Load) for t in terms)


def counted_where(terms: Sequence[Expr]) -> Expr | None:
    """Return the condition without which every term is 0, if it is one and the same, and no data decides it.

    Such products add nothing to a sum, whatever the operands hold, and need not be made.
    """
    first = terms[0]
    if not isinstance(first, Guard) or loads((first.condition,)):
        return None
    same = all(
        isinstance(t, Guard)
        and t.condition is first.condition
        and isinstance(t.otherwise, Const)
        and not t.otherwise.value
        for t in terms
    )
    return first.condition if same else None


def is_segmented(compute: Compute) -> bool:
    """Return whether a compute sums what data assigns to the first axis: rows[k + 1] = out axis, else 0."""
    if compute.combiner is None or compute.combiner.name != "sum" or not isinstance(compute.terms[0], Guard):
        return False
    condition = compute.terms[0].condition
    return (
        isinstance(condition, Call)
        and condition.fn == "eq"
        and condition.args[1] is compute.axes[0]
        and bool(loads(condition.args))
    )


def strip_cast(expr: Expr) -> Expr:
    """Return the expression below a conversion of dtype."""
    while isinstance(expr, Call) and expr.fn == "cast":
        expr = expr.args[0]
    return expr


def axis_positions(indices: tuple[Expr, ...], axes: tuple[Var, ...]) -> tuple[int, ...] | None:
    """Return which of `axes` each index is, or None if some index is anything else."""
    place = {v: k for k, v in enumerate(axes)}
    found = []
    for i in indices:
        if not isinstance(i, Var) or i not in place:
            return None
        found.append(place[i])
    return tuple(found)
