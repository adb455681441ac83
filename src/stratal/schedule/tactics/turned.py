"""Dot products one of whose operands is turned first, so that both are contiguous along the reduction.

With few columns, most of a vector along them would be empty, and turning the operand with many rows instead
takes longer than the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from stratal.base.target import Target
from stratal.loops.expr import Buffer, Expr
from stratal.loops.stmt import Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics import dots
from stratal.schedule.tactics.common import distribute, finished, nest, reduction_order, unroll_neighbours
from stratal.schedule.tactics.product import Product, product_of

KIND = "contract"

ALGORITHM: Final = "dots, one side turned"
TURN_CYCLES: Final = 1.0  # an element copied across its line


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield dot products where one operand alone is contiguous along the reduction."""
    plain = product_of(x, target)
    if not all(v.extent for v in (*plain.axes, *plain.roles.reduce)):
        return
    for k in (0, 1):
        if not _may_turn(plain, k):
            continue
        p = TurnedProduct(x, target, k)
        if not dots.suits(p):
            continue
        cut = dots.choose_cut(p)
        yield Candidate(
            ALGORITHM,
            (dots.cycles_of(p, cut) + p.copy_cycles) / (target.ghz * 1e9),
            partial(_schedule, target=target, k=k),
            (("operand", k), ("rows", cut.rows), ("columns", cut.columns)),
            plain.operations,
        )


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return the product of that name, if it has those parameters."""
    if algorithm != ALGORITHM:
        return None
    return next((c for c in candidates(x, target) if dict(c.parameters) == parameters), None)


def _may_turn(p: Product, k: int) -> bool:
    """Return whether an operand may be turned: the other one lies along the reduction, this one does not, and
    no element of it is in several windows.
    """
    operand, last = p.operand(k), p.roles.reduce[-1] if p.roles.reduce else None
    return (
        operand is not None
        and last is not None
        and p.step(1 - k, last) == 1 != p.step(k, last)
        and not any(map(p.narrow, (0, 1)))
        and p.panels(k)
        and len(used := p.used(k, p.loops)) > 0  # a sum of one term may depend on no loop
        and math.prod(v.extent for v in used) <= operand.buffer.size
    )


def _schedule(x: GroupExpressions, target: Target, k: int) -> Tactic:
    p = TurnedProduct(x, target, k)
    schedule = dots.DotProducts(p, dots.choose_cut(p)).schedule()
    schedule.steps.append(reduction_order(p.roles.reduce))
    return finished(schedule, "dots", p.in_place, [p.pack])


class TurnedProduct(Product):
    """A product that reads a copy of one operand, laid out along the reduction; `pack` is the kernel that
    makes it.
    """

    def __init__(self, x: GroupExpressions, target: Target, k: int) -> None:
        super().__init__(x, target)
        loops = self.used(k, self.loops)
        copy = Buffer("turned", self.terms[k].dtype, [v.extent for v in loops])
        at: tuple[Expr, ...] = tuple(loops)
        together = [v for v in loops[:-1] if self.step(k, v) == 1]  # what lies so, at most one
        around = [v for v in loops[:-1] if v not in together]
        s = Schedule(nest(loops, Store(copy, at, self.terms[k])))
        many, lane = s.split(loops[-1], self.lanes)
        s.vectorize(lane)
        s.reorder(*around, many, *together, lane)
        for v in together:
            unroll_neighbours(s, v)
        distribute(s, [*around, many], 2.0 * math.prod(v.extent for v in (*together, lane)))
        self.pack: Final = Pack(copy, s.body, tuple(s.steps))
        self.copy_cycles: Final = 0.0 if self.held[k] else copy.size * TURN_CYCLES
        self.terms[k] = copy[at]
