"""The small kernels of scans: read one row of a stacked value, write one row, fill with zeros."""

from __future__ import annotations

import math

from stratal.base.artifact import Value
from stratal.base.dtypes import int64
from stratal.loops.expr import Buffer, Var, const
from stratal.loops.stmt import For, Seq, Stmt, Store
from stratal.schedule.primitives import Schedule
from stratal.schedule.result import Scheduled, named_by_content
from stratal.schedule.tactics.common import cut_tails, vectorize_inner

LANES = 16


def row_kernel(stacked: Value, row: Value, *, read: bool, lanes: int = LANES) -> Scheduled:
    """Return the kernel that copies row number `counter` of a stacked value to `row`, or back."""
    size = math.prod(row.type.ints)
    dtype = row.type.dtype
    whole = Buffer("s", dtype, (stacked.type.ints[0], size))
    one = Buffer("r", dtype, (size,))
    counter = Buffer("c", int64, ())
    i = Var("i", size)
    at = counter[()]
    if read:
        body: Stmt = Store(one, (i,), whole[at, i])
        return _kernel([whole, counter], one, i, body, "read row", lanes)
    return _kernel([one, counter], whole, i, Store(whole, (at, i), one[i]), "write row", lanes)


def fill_kernel(target: Value, lanes: int = LANES) -> Scheduled:
    """Return the kernel that fills a value with zeros."""
    size = math.prod(target.type.ints)
    out = Buffer("r", target.type.dtype, (size,))
    i = Var("i", size)
    return _kernel([], out, i, Store(out, (i,), const(0, target.type.dtype)), "fill", lanes)


def _kernel(reads: list[Buffer], write: Buffer, i: Var, body: Stmt, tactic: str, lanes: int) -> Scheduled:
    schedule = Schedule(For(i, body))
    if i.extent > 1 and lanes > 1:
        vectorize_inner(schedule, i, lanes)
        cut_tails(schedule)
    elif i.extent == 1:
        schedule.peel(i)
    elif not i.extent:
        schedule.body = Seq(())
    kernel = named_by_content(reads, [write], schedule.body)
    return Scheduled(kernel, (), (), tactic, tuple(schedule.steps))
