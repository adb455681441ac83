"""Element-wise kernels: one nest, loops collapsed where memory allows, the unit-stride axis in vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Call, Const, Expr, Guard, Load, Var, row_major, walk
from stratal.loops.stmt import Stmt, Store, expressions, substitute_stmt
from stratal.schedule.expressions import GroupExpressions, by_stride, work
from stratal.schedule.primitives import Schedule, num_divisions, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import (
    FEW_CHUNKS,
    collapse,
    distribute,
    finished,
    in_place_pairs,
    nest,
    unit_axis,
    unroll_neighbours,
    vector_lanes,
    vectorize_inner,
)

KIND = "pointwise"

HEAVY = 24  # operations an element needs to be worth vectors of several registers: they run side by side
HEAVY_VECTORS = 2
SIDE_BY_SIDE = (2, 4)
LONG_PART = 32  # elements a part of a loop needs to be a loop of its own


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is so far."""
    yield Candidate("pointwise", 0.0, lambda x: schedule_pointwise(x, target))


def schedule_pointwise(x: GroupExpressions, target: Target) -> Tactic:
    """Return the scheduled nest of an element-wise group, its name, and pairs that may share memory."""
    results = x.results
    shape = results[0].aval.ints
    flat = Var("i", math.prod(shape))
    stores = _stores(x, results, index.unflatten(flat, shape))
    if _row_major(x, results) and not num_divisions(sequence(*stores)):
        loops = [flat]
    else:
        axes = fresh_axes(shape)
        stores = _stores(x, results, tuple(axes))
        loops = [v for v in by_stride(axes, x.buffer(results[0])) if v.extent != 1] or axes[:1]
        ones = {v: index.as_expr(0) for v in axes if v not in loops}
        stores, loops = _taken_apart([substitute_stmt(s, ones) for s in stores], loops)
        stores = _forward(stores, loops)
    body = sequence(*stores)
    reads = list(dict.fromkeys(e.buffer for e in walk(expressions(body)) if isinstance(e, Load)))
    pairs = in_place_pairs(body, reads, [x.buffer(r) for r in results])
    columns = _side_by_side(stores, loops, [*reads, *(x.buffer(r) for r in results)])
    if columns:
        stores, loops = _taken_apart(columns, loops[:-1])
        body = sequence(*stores)
    roots = list(expressions(body))
    schedule = Schedule(nest(loops, body))
    if not loops:
        return finished(schedule, "scalar", pairs)
    cost = 1 + work(roots)
    lanes = vector_lanes(target, roots) * (HEAVY_VECTORS if cost >= HEAVY else 1)
    if all(isinstance(s, Store) and _in_bytes(s.value) and s.buffer.dtype.itemsize == 1 for s in stores):
        lanes = target.lanes(1)
    loops = collapse(schedule, loops)
    across = _transposed(list(expressions(schedule.body)), loops)
    vector = loops.pop()
    outer = vectorize_inner(schedule, vector, lanes)
    if across is not None:
        # Read along another axis: blocks of it, so that both sides stay in their cache lines.
        many, few = schedule.split(across, lanes)
        rest = [v for v in loops if v is not across]
        chunked, inside = (many, outer) if many.extent >= outer.extent else (outer, many)
        schedule.reorder(*rest, chunked, inside, few)
        unroll_neighbours(schedule, few)
        block = cost * lanes * lanes * inside.extent
        if math.prod(v.extent for v in rest) >= FEW_CHUNKS:
            distribute(schedule, rest, block * chunked.extent)
        else:  # the loop inside is not among the chunks': its tail, which masks lanes, is cut off
            distribute(schedule, [*rest, chunked], block)
        return finished(schedule, "transpose", pairs)
    distribute(schedule, [*loops, outer], cost * lanes / 4)
    return finished(schedule, "sweep", pairs)


def _in_bytes(value: Expr) -> bool:
    """Return whether a value is made of bytes alone: a register holds a vector of as many as it has."""
    if value.dtype.itemsize != 1 or isinstance(value, Guard):
        return False
    return not isinstance(value, Call) or all(map(_in_bytes, value.args))


def _side_by_side(stores: list[Stmt], loops: list[Var], buffers: list[Buffer]) -> list[Stmt]:
    """Return the stores for each place of the last axis, where it has but two or four: vectors run along the
    one before, are turned in registers and written side by side. Nothing where that is too much work.
    """
    if len(loops) < 2 or loops[-1].extent not in SIDE_BY_SIDE or loops[-2].extent < LONG_PART:
        return []
    columns = [{loops[-1]: index.as_expr(k)} for k in range(loops[-1].extent)]
    found = [substitute_stmt(s, at) for s in stores for at in columns]
    light = work([e for s in found for e in expressions(s)]) < HEAVY
    return found if light and all(b.dtype.itemsize in (4, 8) for b in buffers) else []


def _stores(x: GroupExpressions, results: list[Node], where: tuple[Expr, ...]) -> list[Stmt]:
    return [Store(x.buffer(r), where, x.at(r, where)) for r in results]


def _row_major(x: GroupExpressions, results: list[Node]) -> bool:
    return all(x.buffer(r).strides == row_major(x.buffer(r).shape) for r in results)


def _transposed(roots: list[Expr], loops: list[Var]) -> Var | None:
    """Return the loop along which some operand is contiguous while it is strided along the vector loop.

    One that does not move along the vector loop, a scale of each row for instance, is read once for a vector.
    """
    for e in walk(roots):
        if isinstance(e, Load) and any(index.depends(i, loops[-1]) for i in e.indices):
            unit = unit_axis(e.buffer, e.indices, loops)
            if unit is not None and unit is not loops[-1] and unit.extent > 1:
                return unit
    return None


def _forward(stores: list[Stmt], loops: list[Var]) -> list[Stmt]:
    """Run a loop from its end where some operand is read backwards along it, and strided along the last."""
    for e in walk([e for s in stores for e in expressions(s)]):
        if isinstance(e, Load) and e.indices:
            where = index.place(e.buffer, e.indices)
            if index.stride_of(where, loops[-1]) in (-1, 0, 1):
                continue
            for var in loops[:-1]:
                if index.stride_of(where, var) == -1:
                    return [substitute_stmt(s, {var: index.sub(var.extent - 1, var)}) for s in stores]
    return stores


def _taken_apart(stores: list[Stmt], loops: list[Var]) -> tuple[list[Stmt], list[Var]]:
    """Make two loops of one that an operand repeats along, or reads in groups: no index then divides.

    The parts are whole, and long enough for vectors.
    """
    sizes: dict[Expr, set[int]] = {}
    for e in walk([e for s in stores for e in expressions(s)]):
        if isinstance(e, Call) and e.fn in ("floordiv", "mod") and isinstance(e.args[1], Const):
            sizes.setdefault(e.args[0], set()).add(int(e.args[1].value))
    found: list[Var] = []
    for var in loops:
        size, *others = sizes.get(var, {0})
        if others or not LONG_PART <= size < var.extent or var.extent % size:
            found.append(var)
            continue
        outer, inner = Var(f"{var.name}o", var.extent // size), Var(f"{var.name}i", size)
        whole = index.add(index.mul(outer, size), inner)
        stores = [substitute_stmt(s, {var: whole}) for s in stores]
        found += [outer, inner]
    return stores, found
