"""Index checks: small kernels that test computed indices before anything reads or writes there.

Records declare what must hold (`loops.compute.Check`); what an index expression proves by itself is not
checked again. Checks also come before any state is written: see `schedule.program`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from stratal.base import fallback
from stratal.base.dtypes import DType, bool_, int64
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import Check, Compute, LoopBody, fresh_axes
from stratal.loops.expr import Call, Const, Expr, Guard, Load, Var, call, cast, index_const
from stratal.loops.stmt import Fail
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, num_divisions
from stratal.schedule.result import Scheduled, Tactic
from stratal.schedule.select import Memory, Problem, finish
from stratal.schedule.tactics.common import distribute, finished, nest, vectorize_inner

TACTIC = "index check"


class IndexCheck(NamedTuple):
    """A check of a node's operand: its kernel reads `scheduled.reads` and stops the run with `message`."""

    node: Node
    scheduled: Scheduled
    message: str


def index_checks(problem: Problem) -> list[IndexCheck]:
    """Return the checks the members of a group ask for and the index does not pass by construction."""
    found: list[IndexCheck] = []
    for node in problem.group.members:
        lowered = problem.lower_of(node)
        for check in lowered.checks if isinstance(lowered, (Compute, LoopBody)) else ():
            memory = Memory(problem.strides_of)
            x = problem.expressions(memory)
            tactic = _schedule(x, node.inputs[check.arg], check, problem.target)
            if tactic is not None:
                found.append(IndexCheck(node, finish(memory, tactic), check.message))
    return found


def _schedule(x: GroupExpressions, operand: Node, check: Check, target: Target) -> Tactic | None:
    """Return the loop over all indices of an operand; None where each is in range for sure."""
    shape = operand.aval.ints
    if 0 in shape:
        return None
    flat = Var("i", math.prod(shape))
    loops = [flat] if flat.extent > 1 else []
    at = cast(x.at(operand, index.unflatten(flat if loops else 0, shape)), int64)
    if num_divisions(_fail(at, check.bound)):
        axes = fresh_axes(shape)
        at = cast(x.at(operand, tuple(v if v.extent > 1 else index.as_expr(0) for v in axes)), int64)
        loops = [v for v in axes if index.depends(at, v)]  # what is repeated is looked at once
    low, high = value_range(at)
    if low >= 0 and high < check.bound:
        return None
    schedule = Schedule(nest(loops, _fail(at, check.bound)))
    if loops and not fallback.scalar(x.group.members):
        lanes = max(1, target.vector_bits // int64.bits)
        outer = vectorize_inner(schedule, loops[-1], lanes)
        distribute(schedule, [*loops[:-1], outer], lanes)
    return finished(schedule, TACTIC)


def _fail(at: Expr, bound: int) -> Fail:
    """Return what writes an index i outside of [0, bound) to the error cell: as i + 1, or i - 1 below 0."""
    over = call("select", at >= bound, at + 1, index_const(0))
    return Fail(call("select", at < 0, at - 1, over))


def value_range(e: Expr) -> tuple[int, int]:
    """Return bounds of an integer expression, those of its dtype where nothing better is known."""
    widest = dtype_range(e.dtype)
    if isinstance(e, Call) and e.fn == "cast" and (e.args[0].dtype.is_integer or e.args[0].dtype.is_bool):
        low, high = value_range(e.args[0])
    elif isinstance(e, Guard) or (isinstance(e, Call) and e.fn == "select"):
        condition, *arms = (e.condition, e.value, e.otherwise) if isinstance(e, Guard) else e.args
        ranges = [value_range(arm) for arm, taken in zip(arms, _possible(condition), strict=True) if taken]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    elif isinstance(e, Call) and e.fn in ("min", "max"):
        (a, b), (c, d) = value_range(e.args[0]), value_range(e.args[1])
        low, high = (min(a, c), min(b, d)) if e.fn == "min" else (max(a, c), max(b, d))
    elif isinstance(e, Const):
        low = high = int(e.value)
    elif isinstance(e, Load) or e.dtype is not int64:
        return widest
    else:
        low, high = index.bounds(e)
    return (low, high) if widest[0] <= low and high <= widest[1] else widest  # outside of its dtype it wraps


def _possible(condition: Expr) -> tuple[bool, bool]:
    """Return whether a condition can hold, and whether it can fail."""
    if isinstance(condition, Const):
        return bool(condition.value), not condition.value
    if not (isinstance(condition, Call) and condition.fn == "lt" and condition.args[0].dtype.is_integer):
        return True, True
    (a, b), (c, d) = map(value_range, condition.args)
    return a < d, b >= c


def dtype_range(dtype: DType) -> tuple[int, int]:
    """Return the least and greatest value of an integer or bool dtype."""
    if dtype is bool_:
        return 0, 1
    info = np.iinfo(dtype.np)
    return int(info.min), int(info.max)
