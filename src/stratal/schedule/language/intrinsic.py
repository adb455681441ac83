"""Intrinsics: what a block of hardware or hand-scheduled loops computes, declared by a tensor expression.

An intrinsic is an algorithm of one tensor and a schedule for it. The algorithm says which loops it may take
the place of; the schedule is the code that then stands there. On a machine that has the block as an
instruction, a code generator finds it by its name, the unit loop around the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer
from stratal.loops.stmt import Stmt
from stratal.loops.te.algorithm import Algorithm, axis_names
from stratal.loops.te.tensor import Computed, lower_tensor
from stratal.schedule.language.default import default_nest, update_nest
from stratal.schedule.language.nest import Nest
from stratal.schedule.language.schedule import LoopSchedule
from stratal.schedule.tactics.common import nest


class Intrinsic(NamedTuple):
    """A named block. `declared` are the loops it stands for; `body` computes the same, in its own way."""

    name: str
    schedule: LoopSchedule
    declared: Stmt
    accumulate: bool

    @property
    def body(self) -> Nest:
        return self.schedule.nest

    def __str__(self) -> str:
        does = "adds to" if self.accumulate else "computes"
        head = f"intrinsic {self.name} {does} {self.body.writes[0].name}:"
        return f"{head}\n{self.schedule}\n\n{self.schedule.loops}"


INTRINSICS: Final[dict[str, Intrinsic]] = {}


def intrinsic(name: str, result: Computed, steps: str = "", *, accumulate: bool = False) -> Intrinsic:
    """Declare a block of code by what it computes, and by the schedule that is its code.

    With `accumulate`, a reduction adds to what the tensor holds instead of starting anew. Declaring an equal
    block again is the same block. Raises: ScheduleError for a name that another block has.
    """
    algorithm = Algorithm(result)
    if len(algorithm.stages) != 1 or not name.isidentifier():
        raise ScheduleError("intrinsic: one computed tensor and a name", got=f"{name!r}, {algorithm}")
    plain = _update_only(algorithm, result) if accumulate else default_nest(algorithm)
    made = Intrinsic(name, LoopSchedule(algorithm, plain).replay(steps), plain.body, accumulate)
    known = INTRINSICS.setdefault(name, made)
    if str(known) != str(made):
        raise ScheduleError(
            f"intrinsic: {name} is declared otherwise already", got=str(algorithm), hint="choose another name"
        )
    return known


def _update_only(algorithm: Algorithm, result: Computed) -> Nest:
    """Return the loops that add a reduction's terms to its result."""
    names = axis_names(result, set(algorithm.names.values()))
    buffers = {t: Buffer(algorithm.names[t], t.dtype, t.shape) for t in algorithm.tensors}
    compute = lower_tensor(result, buffers, names)
    out = buffers[result]
    if compute.combiner is None or compute.state_dtypes[0] is not out.dtype:
        raise ScheduleError(
            "intrinsic: only a reduction in its result's own dtype accumulates", got=str(algorithm)
        )
    body = nest(compute.axes, update_nest(compute, out))
    return Nest(tuple(buffers[p] for p in algorithm.placeholders), (out,), body)
