"""From a schedule to kernels, one per statement at the top; and the run of them on the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.base.errors import DTypeError, ScheduleError, ShapeError, VerifyError
from stratal.loops.expr import Buffer
from stratal.loops.interpret import Array, run_kernel, undefined
from stratal.loops.stmt import Kernel, Stmt, loaded, stored
from stratal.loops.verify import verify_kernel
from stratal.schedule.language.dependence import private
from stratal.schedule.language.nest import touched
from stratal.schedule.language.schedule import LoopSchedule
from stratal.schedule.primitives import listed, sequence
from stratal.schedule.result import named_by_content


def kernels_of(schedule: LoopSchedule) -> list[Kernel]:
    """Return the kernels of a schedule in the order they run.

    Iterations of a parallel loop at the top are chunks that threads claim; a kernel starts when the one
    before has ended. Statements that hand values on in scratch or registers are one kernel.
    """
    return [_kernel(schedule, sequence(*part)) for part in _parted(schedule)]


def _parted(schedule: LoopSchedule) -> list[list[Stmt]]:
    """Return the statements at the top, together where a temporary of one chunk lives on between them."""
    groups = [[s] for s in listed(schedule.nest.body)]
    for b in schedule.nest.local:
        users = [k for k, part in enumerate(groups) if any(touched(s, b) for s in part)]
        alone = all(private(sequence(*groups[k]), b) for k in users)
        if b.space != "global" and len(users) > 1 and not alone:
            first, last = users[0], users[-1]
            groups[first : last + 1] = [[s for part in groups[first : last + 1] for s in part]]
    return groups


def _kernel(schedule: LoopSchedule, stmt: Stmt) -> Kernel:
    used = {*loaded(stmt), *stored(stmt)}
    own = [b for b in schedule.nest.local if b.space != "global" and b in used]
    writes = [b for b in schedule.nest.buffers if b in stored(stmt) and b.space == "global"]
    reads = [b for b in schedule.nest.buffers if b in used and b not in writes and b not in own]
    kernel = named_by_content(reads, writes, stmt, own)
    try:
        verify_kernel(kernel)
    except VerifyError as wrong:
        raise ScheduleError(f"kernels: {wrong.rule}", got=wrong.got, hint=str(wrong.hint)) from None
    return kernel


def interpret(schedule: LoopSchedule, *arrays: object) -> Array | tuple[Array, ...]:
    """Run a schedule's loops on the reference interpreter, one element at a time, in program order.

    Takes one array per placeholder, in the order of their making; returns the result, or a tuple of several.
    """
    given = checked_inputs(schedule, arrays)
    nest = schedule.nest
    held: dict[Buffer, Array] = dict(zip(nest.reads, given, strict=True))
    held |= {b: undefined(b) for b in (*nest.writes, *nest.local) if b.space == "global"}
    for kernel in kernels_of(schedule):
        run_kernel(kernel, {b: held[b] for b in kernel.parameters})
    return one_or_all([held[b] for b in nest.writes])


def checked_inputs(schedule: LoopSchedule, arrays: Sequence[object]) -> list[Array]:
    """Return one array per placeholder. Raises: ShapeError, DTypeError."""
    wanted = schedule.nest.reads
    if len(arrays) != len(wanted):
        got = f"{len(arrays)} for {', '.join(b.name for b in wanted) or 'none'}"
        raise ShapeError("te: one array per placeholder", got=got)
    found = []
    for b, x in zip(wanted, arrays, strict=True):
        array = np.asarray(x)
        if array.shape != b.shape:
            raise ShapeError(f"te: {b.name} has another shape", got=f"{array.shape} for {b.shape}")
        if array.dtype != b.dtype.np:
            raise DTypeError(
                f"te: {b.name} has another dtype",
                got=f"{array.dtype} for {b.dtype.name}",
                hint=f"x.astype({b.dtype.name!r})",
            )
        found.append(array)
    return found


def one_or_all(results: Sequence[Array]) -> Array | tuple[Array, ...]:
    return results[0] if len(results) == 1 else tuple(results)
