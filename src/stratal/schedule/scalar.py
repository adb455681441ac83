"""Scalar loops: a group's results one by one, each in plain loops over its axes, on one thread.

What a group falls back to whose tactic or generated code fails: no vectors, no tiles, no chunks.
"""

from __future__ import annotations

from stratal.graph.node import Node
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, cast
from stratal.loops.stmt import For, Stmt, Store, map_parts
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import at_once, sequence
from stratal.schedule.result import Tactic, of_stages
from stratal.schedule.tactics.common import nest

NAME = "scalar loops"


def scalar_loops(x: GroupExpressions) -> Tactic:
    """Return the loops of a group whose stored members are computed one after another."""
    registers: list[Buffer] = []
    return Tactic(sequence(*(_loops(x, m, registers) for m in x.results)), tuple(registers), NAME, ())


def _loops(x: GroupExpressions, node: Node, registers: list[Buffer]) -> Stmt:
    axes = fresh_axes(node.aval.ints)
    compute = x.compute(node)
    if compute.combiner is None:
        return nest(axes, Store(x.buffer(node), axes, x.at(node, tuple(axes))))
    reduced = fresh_axes((v.extent for v in compute.reduce), "k")
    dtypes = compute.state_dtypes
    states = [Buffer(f"a{len(registers) + k}", d, (), space="register") for k, d in enumerate(dtypes)]
    start = [Store(s, (), i) for s, i in zip(states, compute.combiner.identity(dtypes), strict=True)]
    terms = x.terms(node, tuple(axes), tuple(reduced))
    new = compute.combiner.combine([s[()] for s in states], terms)
    update, held = at_once([Store(s, (), v) for s, v in zip(states, new, strict=True)])
    registers += [*states, *held]
    steps = [] if any(v.extent == 0 for v in reduced) else [nest(reduced, update)]
    result = Store(x.buffer(node), axes, cast(states[compute.result][()], node.dtype))
    return nest(axes, sequence(*start, *steps, result))


def serial_body(found: object) -> Tactic:
    """Return the kernel, or one per stage, of what a loop body's `build` returned, its loops as they are."""
    return of_stages(found, NAME, _serial)


def _serial(stmt: Stmt) -> Stmt:
    """Return a statement whose parallel loops run in order."""
    if isinstance(stmt, For) and stmt.kind == "parallel":
        stmt = For(stmt.var, stmt.body)
    return map_parts(stmt, _serial)
