"""Derivatives of tensor expressions, as tensor expressions.

The tangent of a tensor is its term differentiated, under the same sum. The cotangent of an operand turns each
read around: for every element of the operand it sums over the places that read it, which the index tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stratal.base.errors import NotDifferentiableError
from stratal.loops import index
from stratal.loops.expr import Var
from stratal.loops.te.tensor import Computed, Placeholder, Tensor, compute, substituted, with_names
from stratal.loops.te.term import (
    FUNCTIONS,
    Access,
    Apply,
    Axis,
    Number,
    Reduction,
    Term,
    apply,
    cast,
    lower_term,
    number,
    reduction,
    walk,
)

Seed = Callable[[Access], "Term | None"]


def derivative(root: Term, seed: Seed) -> Term | None:
    """Return the directional derivative of a term, given those of its accesses; None where it is zero."""
    found: dict[int, Term | None] = {}
    for t in walk(root):
        found[id(t)] = _step(t, [found[id(p)] for p in t.parts], seed)
    return found[id(root)]


def _step(t: Term, parts: list[Term | None], seed: Seed) -> Term | None:
    if isinstance(t, Access):
        return seed(t)
    if not isinstance(t, Apply) or not t.dtype.is_float or all(p is None for p in parts):
        return None
    if t.fn == "cast":
        return cast(parts[0], t.dtype) if parts[0] is not None and parts[0].dtype.is_float else None
    if t.fn == "where":  # what is not chosen is not read, here as there
        zero = number(0.0, t.dtype)
        return apply("where", t.args[0], *(zero if p is None else p for p in parts[1:]))
    rule = FUNCTIONS[t.fn].partials
    if rule is None:
        raise NotDifferentiableError(f"te.{t.fn}: has no derivative", got=str(t))
    total: Term | None = None
    for partial, part in zip(rule(t.args, t), parts, strict=True):
        if partial is not None and part is not None:
            share = _times(partial, part)
            total = share if total is None else total + share
    return total


def _times(a: Term, b: Term) -> Term:
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Number) and one.value == 1:
            return other
        if isinstance(one, Number) and one.value == -1:
            return -other
    return a * b


def _sums(tensor: Computed) -> None:
    if isinstance(tensor.body, Reduction) and tensor.body.combiner != "sum":
        raise NotDifferentiableError(
            f"te.{tensor.body.combiner}: derivatives are derived for sums and element-wise terms",
            got=str(tensor.body),
            hint="st.max and its kin on tensors have derivatives",
        )


def tangent(tensor: Computed, moved: Mapping[Tensor, Placeholder]) -> Computed | None:
    """Return the tangent of a tensor: `moved` has a placeholder for the tangent of each operand with one."""
    _sums(tensor)
    body = derivative(
        tensor.term, lambda a: Access(moved[a.tensor], a.indices) if a.tensor in moved else None
    )
    if body is None:
        return None
    if tensor.reduced:
        body = reduction("sum", body, tensor.reduced)
    return Computed(tensor.shape, tensor.axes, body, tensor.dtype, "")


class _Solved(NamedTuple):
    """A read turned around: axes of the result by those of the operand, where that holds, what is summed."""

    values: dict[Axis, Term]
    condition: Term | None
    rest: tuple[Axis, ...]


def cotangents(tensor: Computed, operand: Tensor, cotangent: Placeholder) -> list[Computed]:
    """Return tensors whose sum is the cotangent of an operand: one per read of it that matters."""
    _sums(tensor)
    found = []
    for access in [t for t in walk(tensor.term) if isinstance(t, Access) and t.tensor is operand]:
        one = number(1.0, access.dtype)
        slope = derivative(tensor.term, lambda a, here=access, one=one: one if a is here else None)  # type: ignore[misc]
        if slope is not None:
            found.append(_turned(tensor, access, slope, cotangent))
    return found


def _turned(tensor: Computed, access: Access, slope: Term, cotangent: Placeholder) -> Computed:
    operand = access.tensor

    def body(*place: Axis) -> Term:
        solved = _solve(tensor, access, place)
        rest = {a: Axis(a.name, a.extent, reduce=True) for a in solved.rest}
        values: dict[Axis, Term] = {**{a: substituted(v, rest) for a, v in solved.values.items()}, **rest}
        value = _times(Access(cotangent, tuple(tensor.axes)), cast(slope, tensor.dtype))
        value = cast(substituted(value, values), operand.dtype)
        if solved.condition is not None:
            condition = substituted(solved.condition, values)
            value = apply("where", condition, value, number(0.0, operand.dtype))
        return reduction("sum", value, tuple(rest.values())) if rest else value

    names = [f"j{k}" for k in range(operand.ndim)]
    return compute(operand.shape, with_names(body, names), dtype=operand.dtype)


def _solve(tensor: Computed, access: Access, place: Sequence[Axis]) -> _Solved:
    """Return which elements of `tensor`, and which terms of its sum, read the operand at `place`."""
    known: dict[Axis, Term] = {}
    conditions: list[Term] = []
    everything = (*tensor.axes, *tensor.reduced)
    for target, at in zip(place, access.indices, strict=True):
        chosen = _choose(substituted(at, known), everything, place)
        if chosen is None:
            conditions.append(apply("eq", substituted(at, known), target))
            continue
        axis, step, others = chosen
        value = _difference(target, others) if step > 0 else _difference(others, target)
        known = {a: substituted(t, {axis: value}) for a, t in known.items()}
        known[axis] = value
        conditions += _inside(value, axis, target)
    condition: Term | None = None
    for c in conditions:  # conditions of an earlier axis may mention one solved for later
        c = substituted(c, known)
        condition = c if condition is None else condition & c
    return _Solved(known, condition, tuple(a for a in everything if a not in known))


def _difference(a: Term, b: Term) -> Term:
    return a if isinstance(b, Number) and b.value == 0 else a - b


def _inside(value: Term, axis: Axis, target: Axis) -> list[Term]:
    if value is target and target.extent <= axis.extent:
        return []
    return [value >= 0, value < axis.extent]


def _choose(at: Term, everything: Sequence[Axis], place: Sequence[Axis]) -> tuple[Axis, int, Term] | None:
    """Return an axis that an index moves with by one, its sign, and the rest of the index."""
    variables = {a: Var(a.name, a.extent) for a in (*everything, *place)}
    axis_of = {v: a for a, v in variables.items()}
    terms, constant = index.linear(lower_term(at, variables))
    if not all(isinstance(v, Var) for v in terms):
        return None
    for v, c in terms.items():
        axis = axis_of[v]  # type: ignore[index]
        if abs(c) == 1 and axis in everything:
            rest: Term | None = None
            for w, k in terms.items():
                if w is not v:
                    part = axis_of[w] * k if k != 1 else axis_of[w]  # type: ignore[index]
                    rest = part if rest is None else rest + part
            others = number(constant) if rest is None else rest + constant if constant else rest
            return axis, c, others
    return None
