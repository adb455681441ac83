"""Row kernels: element-wise stages and reductions over the trailing axes, one row at a time, the row staying
in cache.

A row passes through phases; a reduction ends one. Elements a later phase needs are recomputed when cheap,
else kept: in their own result if they have one, in a per-worker scratch row otherwise. Reductions run in
lanes that are combined as a tree, so the order depends on the shape and the target alone. A long row takes
vectors of several registers: independent work that hides the latency of each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Expr, Var, cast, loads
from stratal.loops.stmt import For, Prefetch, Stmt, Store, expressions, loaded, stored
from stratal.schedule.expressions import GroupExpressions, work
from stratal.schedule.primitives import Schedule, guard_leaves, listed, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import distribute, finished, in_place_pairs, lies, vector_lanes
from stratal.schedule.tactics.in_lanes import InLanes
from stratal.schedule.tactics.long_sums import LONG, in_blocks

CHEAP = 4  # operations below which recomputing an element beats keeping it
UNROLL = 4  # registers per vector of a long row
SUM_CYCLES = 12.0  # to combine the lanes of a vector, and
ROW_CYCLES = 4.0  # for an operation on a value of the row, which waits for the one before it
AHEAD_BYTES = 4096  # from where an operand is fetched: the processor looks no further ahead than a page


class RowPlan:
    """Which member runs in which phase, and where its values are kept."""

    def __init__(self, x: GroupExpressions) -> None:
        self.x = x
        self.space = tuple(int(n) for n in x.group.space)
        self.num_rows = x.group.num_rows
        self.row_shape = self.space[: self.num_rows]
        self.inner_shape = self.space[self.num_rows :]
        self.size = math.prod(self.inner_shape)
        self.terms = [t for m in x.group.members for t in x.compute(m).terms]
        self.work = 1 + work(self.terms)
        self.phase: dict[Node, int] = {}
        self.ready: dict[Node, int] = {}
        for m in x.group.members:
            phase = max((self.ready.get(v, 0) for v in self._operands(m)), default=0)
            self.phase[m] = phase
            self.ready[m] = phase + 1 if self.is_reduction(m) else phase
        self.num_phases = 1 + max(self.ready.values(), default=0)

    def is_reduction(self, m: Node) -> bool:
        return self.x.compute(m).combiner is not None

    def is_element(self, m: Node) -> bool:
        return not self.is_reduction(m) and len(m.shape) == len(self.space)

    def is_row_value(self, m: Node) -> bool:
        """Return whether there is one for each row; other members are computed where they are read."""
        other = self.is_element(m) or self.is_reduction(m)
        return not other and tuple(m.aval.ints) == self.row_shape

    def _operands(self, m: Node) -> list[Node]:
        """Return members a member depends on, through views."""
        found, stack = [], list(m.inputs)
        while stack:
            v = stack.pop()
            if v in self.ready:
                found.append(v)
            elif v not in self.x.members and not self.x.stored(v):
                stack.extend(v.inputs)
        return found

    def readers(self, m: Node) -> list[Node]:
        return [u for u in self.x.group.members if m in self._operands(u)]

    def worth_keeping(self, m: Node, phase: int) -> bool:
        """Return whether a later phase reads an element that takes longer to compute again."""
        if all(self.phase[u] == phase for u in self.readers(m)):
            return False
        element = index.unflatten(Var("j", self.size), self.inner_shape)
        return work([self.x.at(m, (*fresh_axes(self.row_shape), *element))]) > CHEAP

    @property
    def row_work(self) -> int:
        """Operations on values of the row, of which there is one."""
        members = [m for m in self.x.group.members if not self.is_element(m) and not self.is_reduction(m)]
        return work([t for m in members for t in self.x.compute(m).terms])

    @property
    def element_work(self) -> int:
        """Operations per element."""
        return self.work - self.row_work

    @property
    def num_reductions(self) -> int:
        return sum(map(self.is_reduction, self.x.group.members))


KIND = "rows"


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is along rows."""
    plan = RowPlan(x)
    vectors = -(-plan.size // vector_lanes(target, plan.terms))
    each = vectors * plan.element_work + SUM_CYCLES * plan.num_reductions + ROW_CYCLES * plan.row_work
    seconds = math.prod(plan.row_shape) * each / (target.ghz * 1e9)
    yield Candidate("rows", seconds, lambda x: RowNest(x, target).schedule())


class RowNest:
    """Builds the nest of one row group.

    `local` holds its temporaries, full-size until they are shrunk to one row.
    """

    def __init__(self, x: GroupExpressions, target: Target) -> None:
        self.x = x
        self.plan = RowPlan(x)
        self.size = self.plan.size
        self.row = Var("r", math.prod(self.plan.row_shape))
        self.where = index.unflatten(self.row, self.plan.row_shape)
        self.work = self.plan.work
        self.width = vector_lanes(target, self.plan.terms)
        if self.size >= 4 * UNROLL * self.width:
            self.width *= UNROLL
        self.registers: list[Buffer] = []
        self.rows: list[Buffer] = []
        self.scratch: list[Buffer] = []
        self.target = target
        self.fetched: set[Buffer] = set()

    def schedule(self) -> Tactic:
        phases = [self._phase(p) for p in range(self.plan.num_phases)]
        pairs = pairs_of_phases(phases, self.where)
        body = sequence(*phases)
        schedule = Schedule(For(self.row, body), [*self.registers, *self.rows, *self.scratch])
        spaces = [(b, "register") for b in self.registers] + [(b, "scratch") for b in self.rows]
        schedule.shrink_all(spaces, [self.row])
        schedule.steps.append(f"lanes({self.width}), {self.plan.num_phases} phases")
        distribute(schedule, [self.row], max(1.0, self.size * self.work / 4))
        return finished(schedule, "rows", pairs)

    def _phase(self, phase: int) -> Stmt:
        """Return one pass over a row: row values, the loop over elements, then what its accumulators give."""
        x, plan = self.x, self.plan
        now = [m for m in x.group.members if plan.phase[m] == phase]
        values = [m for m in now if plan.is_row_value(m)]
        parts = [self._row_value(m) for m in values]
        keep = [m for m in now if plan.is_element(m) and (x.stored(m) or plan.worth_keeping(m, phase))]
        reductions = [m for m in now if plan.is_reduction(m)]
        if keep or reductions:
            parts.append(self._vector_pass(keep, reductions))
        x.forget()
        parts += [Store(x.buffer(m), self.where, x.at(m, self.where)) for m in reductions if x.stored(m)]
        return sequence(*parts)

    def _row_value(self, m: Node) -> Stmt:
        """Compute a value of the row once and remember it in a register."""
        value = self.x.at(m, self.where)
        scalar = self._temporary(m, self.registers)
        parts: list[Stmt] = [Store(scalar, self.where, value)]
        if self.x.stored(m):
            parts.append(Store(self.x.buffer(m), self.where, scalar[self.where]))
        self.x.local[m] = scalar
        self.x.forget()
        return sequence(*parts)

    def _element(self, position: Expr) -> tuple[Expr, ...]:
        return (*self.where, *index.unflatten(position, self.plan.inner_shape))

    def _temporary(self, m: Node, kind: list[Buffer]) -> Buffer:
        made = Buffer(f"t{len(self.registers) + len(self.rows)}", m.dtype, m.aval.ints)
        kind.append(made)
        return made

    def _vector_pass(self, keep: Sequence[Node], reductions: Sequence[Node]) -> Stmt:
        """Return one loop over the row in vectors that stores `keep` and feeds `reductions`, and their final
        combination.
        """
        x = self.x
        outer, lane = Var("jo", -(-self.size // self.width)), Var("jl", self.width)
        position = index.add(index.mul(outer, self.width), lane)
        inside = index.less(position, self.size)
        element = self._element(position)
        kept = {m: x.buffer(m) if x.stored(m) else self._temporary(m, self.rows) for m in keep}
        alone = self.size == 1  # an element that is no vector: all lanes would store to one place
        at = self._element(index.as_expr(0)) if alone else element
        stores = sequence(*(Store(b, at, x.at(m, at)) for m, b in kept.items()))
        body: list[Stmt] = []
        before: list[Stmt] = []
        after: list[Stmt] = []
        begin: list[Stmt] = []
        end: list[Stmt] = []
        for m in reductions:
            compute = x.compute(m)
            name = f"a{len(self.registers)}"
            reduction = InLanes(x.combiner(m), compute.state_dtypes, self.width, name, outer.extent > LONG)
            terms = x.terms(m, self.where, element[len(self.where) :])
            body.append(reduction.update(lane, terms, inside))
            self.registers += reduction.registers
            self.scratch += reduction.scratch
            before.append(reduction.start)
            begin += listed(reduction.begin)
            end += listed(reduction.end)
            after += [reduction.join, self._finish(m, reduction.totals[compute.result])]
        fetches = self._fetches([*expressions(sequence(*body, stores))], lane)
        body[:0] = [guard_leaves(f, inside) for f in fetches]
        if kept and not alone:  # together and last: they may overwrite what the element is computed from
            body.append(guard_leaves(stores, inside))
        vector, tail = For(lane, sequence(*body), "vector"), self.size % self.width > 0
        if end:
            loops = in_blocks([outer], vector, sequence(*begin), sequence(*end), tail=tail)
        else:
            loop = Schedule(For(outer, vector))
            if tail:
                loop.peel(outer)
            loops = loop.body
        x.local.update(kept)
        x.forget()
        return sequence(*before, loops, *([stores] if alone else []), *after)

    def _fetches(self, roots: Sequence[Expr], lane: Var) -> list[Prefetch]:
        """Return what brings near, in time, the arrays that no cache holds and whose rows follow one another.

        What one pass over a row has read is near for the next.
        """
        found: list[Prefetch] = []
        for e in loads(roots):
            large = e.buffer.nbytes > self.target.l3_bytes
            if not large or e.buffer in self.fetched or e.buffer in self.rows:
                continue
            steps = [index.stride_of(index.offset(e), v) for v in (lane, self.row)]
            if steps == [1, self.size]:
                self.fetched.add(e.buffer)
                found.append(Prefetch(e.buffer, e.indices, AHEAD_BYTES // e.buffer.dtype.itemsize))
        return found

    def _finish(self, m: Node, total: Expr) -> Stmt:
        """Keep what a reduction gives, rounded once to its dtype."""
        scalar = self._temporary(m, self.registers)
        self.x.local[m] = scalar
        return Store(scalar, self.where, cast(total, m.dtype))


def pairs_of_phases(phases: Sequence[Stmt], where: tuple[Expr, ...]) -> list[tuple[Buffer, Buffer]]:
    """Return what may be overwritten: values of the row that `where` names, read before the phase of the
    write, or in it each element where it is written, and never after.
    """
    read = [loaded(p) for p in phases]
    written = [stored(p) for p in phases]
    last_read = {b: k for k, buffers in enumerate(read) for b in buffers}
    last_written = {b: k for k, buffers in enumerate(written) for b in buffers}
    first_written = {b: k for k, buffers in reversed([*enumerate(written)]) for b in buffers}
    pairs = []
    foreign: set[Buffer] = set()  # of which another row was read in a phase before
    done: dict[object, list[Buffer]] = {}  # what no phase from this one on reads, by how it lies
    for k, phase in enumerate(phases):
        found = in_place_pairs(phase, [b for b in read[k] if last_read[b] == k], written[k])
        found += [(r, w) for w in written[k] for r in done.get(lies(w), ())]
        for r, w in found:
            alone = first_written[w] == last_written[w] == k and last_read.get(w, k) <= k
            if alone and r not in foreign:
                pairs.append((r, w))
        foreign |= {e.buffer for e in loads(expressions(phase)) if e.indices[: len(where)] != where}
        for r in read[k]:
            if last_read[r] == k:
                done.setdefault(lies(r), []).append(r)
    return pairs
