"""Row kernels whose rows are too short to fill vectors: a vector takes the same element of neighbouring rows.

The scores of ten classes or the three coordinates of a point leave lanes of a vector along the row empty, and
adding up its lanes takes longer than the row. Across rows no lane is empty, reductions add vectors, and what
is computed once per row is computed for as many rows at once. Elements are unrolled, so that neighbours are
read together and turned in registers. Phases are those of `rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Expr, Var, cast
from stratal.loops.stmt import For, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, at_once, fresh_loops, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import distribute, finished, nest, vector_lanes
from stratal.schedule.tactics.rows import RowPlan, pairs_of_phases

KIND = "rows"

ALGORITHM: Final = "rows across"
MOST_WORK: Final = 1 << 10  # operations of a row, all of which are written out
TURN_CYCLES: Final = 2.5  # a vector of lanes that lie apart, read with its neighbours


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is, for short rows with enough neighbours to fill vectors."""
    plan = RowPlan(x)
    width = vector_lanes(target, plan.terms)
    neighbours = plan.row_shape[-1] if plan.row_shape else 1
    if not 0 < plan.size < 2 * width or neighbours < 2 * width or plan.size * plan.work > MOST_WORK:
        return
    vectors = math.prod(plan.row_shape[:-1]) * -(-neighbours // width)
    cycles = vectors * (plan.size * (plan.element_work + TURN_CYCLES * plan.num_phases) + plan.row_work)
    yield Candidate(ALGORITHM, cycles / (target.ghz * 1e9), lambda x: RowsAcross(x, target).schedule())


class RowsAcross:
    """Builds the nest of one group; `temporaries` are full-size until they are shrunk to a vector of rows."""

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.plan = RowPlan(x)
        self.width = vector_lanes(target, self.plan.terms)
        *self.outer, last = fresh_axes(self.plan.row_shape, "r")
        self.many, self.lane = Var("ro", -(-last.extent // self.width)), Var("rl", self.width)
        position = index.add(index.mul(self.many, self.width), self.lane)
        self.where: tuple[Expr, ...] = (*self.outer, position)
        self.inside = index.less(position, last.extent)
        self.temporaries: list[Buffer] = []

    def schedule(self) -> Tactic:
        phases = [self._phase(p) for p in range(self.plan.num_phases)]
        pairs = pairs_of_phases(phases, self.where)
        loops = [*self.outer, self.many]
        schedule = Schedule(nest(loops, fresh_loops(sequence(*phases))), self.temporaries)
        schedule.shrink_all([(b, "register") for b in self.temporaries], loops)
        schedule.steps.append(f"lanes({self.width}) across rows, {self.plan.num_phases} phases")
        distribute(schedule, loops, max(1.0, self.width * self.plan.size * self.plan.work / 4))
        return finished(schedule, "rows across", pairs)

    def _phase(self, phase: int) -> Stmt:
        """Return one pass over the elements, between values of the row that come before and after it."""
        x, plan = self.x, self.plan
        now = [m for m in x.group.members if plan.phase[m] == phase]
        reductions = [m for m in now if plan.is_reduction(m)]
        elements = [m for m in now if plan.is_element(m) and (x.stored(m) or plan.worth_keeping(m, phase))]
        parts = [self._keep(m, self.where, x.at(m, self.where)) for m in now if plan.is_row_value(m)]
        start, update, finish = (
            zip(*map(self._reduction, reductions), strict=True) if reductions else ((),) * 3
        )
        element = Var("j", plan.size)
        at = index.unflatten(element, plan.inner_shape)
        places = [(m, (*self.where, *at)) for m in elements]
        made = [self._keep(m, place, x.at(m, place)) for m, place in places]
        made += [step(at) for step in update]
        parts += start
        if made:
            parts.append(For(element, sequence(*made), "unroll"))
        parts += [end() for end in finish]
        x.forget()
        return sequence(*parts)

    def _keep(self, m: Node, where: tuple[Expr, ...], value: Expr) -> Stmt:
        """Put a value into a register, from where all else reads it, and store it if it is a result."""
        made = Buffer(f"t{len(self.temporaries)}", m.dtype, m.aval.ints)
        self.temporaries.append(made)
        stores = [Store(made, where, value)]
        if self.x.stored(m):
            stores.append(Store(self.x.buffer(m), where, made[where]))
        self.x.local[m] = made
        self.x.forget()
        return sequence(*map(self._across, stores))

    def _reduction(self, m: Node) -> tuple[Stmt, Callable[[tuple[Expr, ...]], Stmt], Callable[[], Stmt]]:
        """Return the start of a reduction, what an element does to it, and what follows the last."""
        compute, combiner = self.x.compute(m), self.x.combiner(m)
        dtypes, shape, known = compute.state_dtypes, self.plan.row_shape, len(self.temporaries)
        states = [Buffer(f"a{known + k}", d, shape) for k, d in enumerate(dtypes)]
        self.temporaries += states
        start = [Store(s, self.where, v) for s, v in zip(states, combiner.identity(dtypes), strict=True)]

        def update(at: tuple[Expr, ...]) -> Stmt:
            old = [s[self.where] for s in states]
            new = combiner.combine(old, self.x.terms(m, self.where, at))
            stmt, held = at_once([Store(s, self.where, v) for s, v in zip(states, new, strict=True)])
            self.temporaries += held
            return self._across(stmt)

        def finish() -> Stmt:
            return self._keep(m, self.where, cast(states[compute.result][self.where], m.dtype))

        return sequence(*map(self._across, start)), update, finish

    def _across(self, stmt: Stmt) -> Stmt:
        """Run a statement for a vector of rows."""
        return For(self.lane, guard_leaves(stmt, self.inside), "vector")
