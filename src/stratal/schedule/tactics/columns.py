"""Column kernels: reductions that keep the contiguous axis, or whose reduced axes are not the last ones.

Vectors run along a kept axis where that is contiguous, several per pass; otherwise along the innermost
reduced axis, in lanes that are combined as a tree. Reductions over the same space share the loops; what
follows on the kept axes runs when they are done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Call, Const, Expr, Load, Var, cast, loads, walk
from stratal.loops.rebuild import substitute, transform
from stratal.loops.stmt import For, Stmt, Store, loaded, stored
from stratal.schedule.expressions import GroupExpressions, work
from stratal.schedule.primitives import Schedule, at_once, guard_leaves, listed, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import (
    cut_tails,
    distribute,
    finished,
    in_place_pairs,
    nest,
    reduction_order,
    unit_axis,
    vector_lanes,
)
from stratal.schedule.tactics.in_lanes import InLanes
from stratal.schedule.tactics.long_sums import LONG, Totals, adds_up, in_blocks

VECTORS = 4  # per pass along the kept axis: whole cache lines, and enough independent adds

MOST_TOGETHER = 32  # elements of a window that are read side by side
SHORT = 4  # steps that take less than the loop over them

KIND = "columns"


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is so far."""
    yield Candidate("columns", 0.0, lambda x: schedule_columns(x, target))


def schedule_columns(x: GroupExpressions, target: Target) -> Tactic:
    """Return the scheduled nest of a column group, its name, and pairs that may share memory."""
    columns = ColumnNest(x, target)
    schedule = columns.schedule()
    schedule.steps.append(reduction_order(columns.reduced))
    return finished(schedule, "columns", columns.in_place)


class ColumnNest:
    """Builds the nest of one column group."""

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.reductions = [m for m in x.group.members if x.compute(m).combiner is not None]
        first = x.compute(self.reductions[0])
        self.reduced = fresh_axes((v.extent for v in first.reduce), "k")
        self._choose_kept(fresh_axes((v.extent for v in first.axes), "i"))
        roots = [t for ts in self.terms.values() for t in ts]
        self.width = vector_lanes(target, roots)
        self.work = 1 + work(roots)
        self.in_order = any(x.combiner(m).in_order for m in self.reductions)
        if not self.in_order:
            self.reduced = self._memory_order(roots, self.reduced)
        self.states: list[Buffer] = []
        self.in_place: list[tuple[Buffer, Buffer]] = []

    def _choose_kept(self, axes: Sequence[Var]) -> None:
        """Set the loops over kept axes, where results stand in terms of them, and the terms.

        An axis that operands read in runs, through a reshape, becomes two: over runs and within one.
        """
        self.kept: list[Var] = []
        values: dict[Var, Expr] = {}
        for v in axes:
            run = _run_length(self._terms(axes), v)
            if run is None:
                self.kept.append(v)
                continue
            many, one = Var(f"{v.name}o", v.extent // run), Var(f"{v.name}i", run)
            values[v] = index.add(index.mul(many, run), one)
            self.kept += [many, one]
        self.where = tuple(values.get(v, v) for v in axes)
        self.terms = {m: self.x.terms(m, self.where, tuple(self.reduced)) for m in self.reductions}

    def _terms(self, where: Sequence[Expr]) -> list[Expr]:
        return [t for m in self.reductions for t in self.x.terms(m, tuple(where), tuple(self.reduced))]

    def schedule(self) -> Schedule:
        along = self._unit(self.kept)
        inner = self._unit(self.reduced) if along is None else None
        last = self.reduced[-1] if self.reduced else None
        turned = self.in_order and inner is not None and inner is not last  # lanes would leave the order
        if inner is not None and (turned or inner.extent < 2 * self.width):
            along = self._nearest(self.kept)
        if turned:
            inner = None
        if along is not None or inner is None:
            return self._kept_vectors(self._outer(along), along)
        return self._reduced_vectors(inner)

    def _outer(self, along: Var | None) -> list[Var]:
        """Return the kept axes around the vectors.

        Where images lie innermost, rows of places come before channels: so convolutions write them, and lines
        that two processors have read are slow to write again.
        """
        outer = [v for v in self.kept if v is not along]
        images = along is not None and along is self.kept[0] and len(outer) > 2
        return [outer[1], outer[0], *outer[2:]] if images else outer

    def _nearest(self, axes: Sequence[Var]) -> Var | None:
        """Return the axis with a vector of windows that lie next to each other, where there is one: a vector
        along windows of a few elements would be empty for the most part.
        """
        reads = [e for e in loads([t for ts in self.terms.values() for t in ts]) if e.indices]
        offset = index.offset(max(reads, key=lambda e: e.buffer.size))
        steps = {v: index.stride_of(offset, v) or 0 for v in axes if v.extent >= self.width}
        near = {v: step for v, step in steps.items() if 0 < step <= 2 * self.width}
        return min(near, key=lambda v: near[v], default=None)

    def _unit(self, axes: Sequence[Var]) -> Var | None:
        """Return the axis along which the largest operand is contiguous."""
        roots = [t for ts in self.terms.values() for t in ts]
        reads = [e for e in walk(roots) if isinstance(e, Load)]
        for e in sorted(reads, key=lambda e: -e.buffer.size):
            found = unit_axis(e.buffer, e.indices, [v for v in axes if v.extent > 1])
            if found is not None:
                return found
        return None

    def _memory_order(self, roots: Sequence[Expr], axes: list[Var]) -> list[Var]:
        reads = [e for e in walk(roots) if isinstance(e, Load) and e.indices]
        if not reads:
            return axes
        main = max(reads, key=lambda e: e.buffer.size)
        places = list(zip(main.indices, main.buffer.strides, strict=True))
        steps = {v: sum(abs(index.stride_of(i, v) or 0) * s for i, s in places) for v in axes}
        return sorted(axes, key=lambda v: -steps[v])

    # -- vectors along a kept axis ---------------------------------------------------------------------------
    def _kept_vectors(self, outer: list[Var], along: Var | None) -> Schedule:
        apart = along is not None and self._unit([along]) is None
        most = max(1, VECTORS // 2) if apart else VECTORS
        vectors = min(most, -(-along.extent // self.width)) if along is not None else 1
        block = vectors * self.width if along is not None else 1
        tile = Var("c", -(-along.extent // block)) if along is not None else None
        loops = [*outer, *([tile] if tile is not None else [])]

        def tiled(build: object, condition: bool = True) -> Stmt:
            """Run a statement over the vectors of a tile, `build` taking the kept index."""
            copy, lane = Var("u", vectors), Var("l", self.width)
            if along is None or tile is None:
                return build((), {})  # type: ignore[operator,no-any-return]
            position = index.add(index.add(index.mul(tile, block), index.mul(copy, self.width)), lane)
            stmt = build((copy, lane), {along: position})  # type: ignore[operator]
            if condition:
                stmt = guard_leaves(stmt, index.less(position, along.extent))
            return For(copy, For(lane, stmt, "vector"), "unroll")

        shape = (vectors, self.width) if along is not None else ()
        states: dict[Node, list[Buffer]] = {}
        for m in self.reductions:
            dtypes, known = self.x.compute(m).state_dtypes, len(self.states)
            states[m] = [Buffer(f"a{known + k}", d, shape, space="register") for k, d in enumerate(dtypes)]
            self.states += states[m]
        sums = [s for m, own in states.items() if adds_up(self.x.combiner(m), own) for s in own]
        long = math.prod(v.extent for v in self.reduced) > LONG
        totals = Totals(sums if long else ())
        self.states += totals.of.values()

        def init(slot: tuple[Expr, ...], _: dict[Var, Expr]) -> Stmt:
            firsts = {m: self.x.combiner(m).identity([s.dtype for s in own]) for m, own in states.items()}
            return sequence(
                *(Store(s, slot, v) for m in states for s, v in zip(states[m], firsts[m], strict=True)),
                *totals.start(slot),
            )

        def step(slot: tuple[Expr, ...], at: dict[Var, Expr]) -> Stmt:
            parts: list[Stmt] = []
            for m, own in states.items():
                new = self.x.combiner(m).combine([s[slot] for s in own], substitute(self.terms[m], at))
                stmt, held = at_once([Store(s, slot, v) for s, v in zip(own, new, strict=True)])
                parts.append(stmt)
                self.states += held
            return sequence(*parts)

        def write(slot: tuple[Expr, ...], at: dict[Var, Expr]) -> Stmt:
            found = {m: own[self.x.compute(m).result] for m, own in states.items()}
            kept = {m: (s, totals.of.get(s)) for m, s in found.items()}
            return self._results(
                {m: s[slot] if t is None else cast(t[slot], s.dtype) for m, (s, t) in kept.items()}, at
            )

        def looped(axes: Sequence[Var], core: Stmt) -> Stmt:
            together = 1  # steps written out, so that neighbours in a window are read as such
            for v in reversed(axes):
                together *= v.extent
                core = For(v, core, "unroll" if together <= (MOST_TOGETHER if apart else SHORT) else "serial")
            return core

        core: Stmt = tiled(step)
        if totals.of:
            begin, end = (
                tiled(lambda slot, _, part=part: sequence(*part(slot)), condition=False)
                for part in (totals.begin, totals.end)
            )
            core = in_blocks(self.reduced, core, begin, end, inner=looped)
        else:
            core = looped(self.reduced, core)
        empty = any(v.extent == 0 for v in self.reduced)
        body = sequence(tiled(init, condition=False), *([] if empty else [core]), tiled(write))
        schedule = Schedule(nest(loops, body), self.states)
        schedule.steps.append(f"kept axis in {vectors} x {self.width} lanes")
        if loops:
            total = math.prod(v.extent for v in self.reduced) * self.work
            distribute(schedule, loops, max(1.0, total * block / 4))
        return schedule

    def _results(self, totals: dict[Node, Expr], at: dict[Var, Expr]) -> Stmt:
        """Store results of the reductions and of what follows them on the kept axes."""
        where = tuple(substitute(self.where, at))
        stand = {m: Buffer(f"s{k}", m.dtype, m.aval.ints) for k, m in enumerate(totals)}
        self.x.local.update(stand)
        self.x.forget()
        value_of = {stand[m]: cast(total, m.dtype) for m, total in totals.items()}
        parts: list[Stmt] = []
        plain = []
        for r in self.x.results:
            (value,) = transform(
                [self.x.at(r, where)], lambda e: value_of.get(e.buffer) if isinstance(e, Load) else None
            )
            parts.append(Store(self.x.buffer(r), where, value))
            plain.append(Store(self.x.buffer(r), where, self.x.at(r, where)))
        stmt = sequence(*plain)
        reduced = {e.buffer for ts in self.terms.values() for e in loads(ts)}
        self.in_place = in_place_pairs(stmt, [b for b in loaded(stmt) if b not in reduced], stored(stmt))
        return sequence(*parts)

    # -- vectors along a reduced axis ------------------------------------------------------------------------
    def _reduced_vectors(self, along: Var) -> Schedule:
        outer = [v for v in self.reduced if v is not along]
        block, lane = Var("kv", -(-along.extent // self.width)), Var("l", self.width)
        position = index.add(index.mul(block, self.width), lane)
        inside = index.less(position, along.extent)
        start: list[Stmt] = []
        update: list[Stmt] = []
        joins: list[Stmt] = []
        begin: list[Stmt] = []
        end: list[Stmt] = []
        totals: dict[Node, Expr] = {}
        long = math.prod(v.extent for v in (*outer, block)) > LONG
        for m in self.reductions:
            compute = self.x.compute(m)
            name = f"a{len(self.states)}"
            reduction = InLanes(self.x.combiner(m), compute.state_dtypes, self.width, name, long)
            update.append(reduction.update(lane, substitute(self.terms[m], {along: position}), inside))
            self.states += [*reduction.registers, *reduction.scratch]
            start.append(reduction.start)
            begin += listed(reduction.begin)
            end += listed(reduction.end)
            joins.append(reduction.join)
            totals[m] = reduction.totals[compute.result]
        vector, tail = For(lane, sequence(*update), "vector"), along.extent % self.width > 0

        def looped(axes: Sequence[Var], core: Stmt) -> Stmt:
            loop = Schedule(nest(axes, core))
            if tail and block in axes:
                loop.peel(block)
            return loop.body

        if end:
            loops = in_blocks(
                [*outer, block], vector, sequence(*begin), sequence(*end), tail=tail, inner=looped
            )
        else:
            loops = looped([*outer, block], vector)
        body = sequence(*start, loops, *joins, self._results(totals, {}))
        schedule = Schedule(nest(self.kept, body), self.states)
        schedule.steps.append(f"reduced axis {along} in {self.width} lanes")
        if self.kept:
            distribute(
                schedule, self.kept, max(1.0, math.prod(v.extent for v in self.reduced) * self.work / 4)
            )
        else:
            cut_tails(schedule)
        return schedule


def _run_length(terms: Sequence[Expr], v: Var) -> int | None:
    """Return the shortest run in which operands are read along an axis; None where they are read as one."""
    runs = [
        e.args[1].value
        for e in walk([i for t in loads(terms) for i in t.indices])
        if isinstance(e, Call) and e.fn == "mod" and e.args[0] is v and isinstance(e.args[1], Const)
    ]
    run = min(map(int, runs), default=0)
    return run if run > 1 and v.extent % run == 0 else None
