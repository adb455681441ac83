"""Schedules as native functions on arrays: kernels compiled as they are, launched in order."""

from __future__ import annotations

from typing import Final

import numpy as np

from stratal.base import settings
from stratal.base.artifact import Executable, Launch, Value
from stratal.base.errors import ScheduleError, VerifyError
from stratal.base.types import TensorType
from stratal.compiler import driver_object, generate
from stratal.loops import index
from stratal.loops.expr import Buffer
from stratal.loops.interpret import Array
from stratal.loops.stmt import Kernel
from stratal.memory.plan import plan_arena
from stratal.plan.host import runnable_target
from stratal.runtime.program import LoadedProgram
from stratal.runtime.storage import Storage
from stratal.schedule.draft import Draft
from stratal.schedule.language.kernels import checked_inputs, kernels_of, one_or_all
from stratal.schedule.language.schedule import LoopSchedule
from stratal.schedule.result import Scheduled


class NativeSchedule:
    """A compiled schedule: called with one array per placeholder, it returns the result, or a tuple."""

    def __init__(self, schedule: LoopSchedule) -> None:
        self.schedule: Final = schedule
        self.kernels: Final[list[Kernel]] = kernels_of(schedule)
        target = runnable_target()
        draft = _draft(schedule, self.kernels)
        try:
            objects, _ = generate(draft, target)
        except VerifyError as wrong:
            raise ScheduleError(
                f"te.build: the code generator cannot run these loops: {wrong.rule}",
                got=wrong.got,
                hint="register tiles are indexed by unrolled loops or the vector loop alone; "
                "scratch tiles by anything",
            ) from None
        index.forget()
        arena = plan_arena(draft.values, draft.commands, outputs=draft.outputs)
        scratch = max((k.scratch_bytes for k in self.kernels), default=0)
        executable = Executable(
            "te",
            objects,
            draft.values,
            draft.commands,
            draft.inputs,
            draft.outputs,
            (),
            [],
            arena,
            scratch,
            settings.threads.value,
        )
        self.loaded: Final = LoadedProgram(executable, driver_object(target))

    def __call__(self, *arrays: object) -> Array | tuple[Array, ...]:
        """Run once. Raises: ShapeError, DTypeError for arrays of other types than the placeholders'."""
        inputs = []
        for b, x in zip(self.schedule.nest.reads, checked_inputs(self.schedule, arrays), strict=True):
            inputs.append(Storage(TensorType(b.dtype, b.shape), np.ascontiguousarray(x).reshape(b.shape)))
        results = [np.array(s.array) for s in self.loaded.run(inputs)]
        return one_or_all(results)

    def __repr__(self) -> str:
        return f"<native {', '.join(str(b) for b in self.schedule.nest.writes)}: {len(self.kernels)} kernels>"


def build(schedule: LoopSchedule) -> NativeSchedule:
    """Compile a schedule for the current target. Raises: ScheduleError for loops no code can be made of."""
    return NativeSchedule(schedule)


def _draft(schedule: LoopSchedule, kernels: list[Kernel]) -> Draft:
    """Return the program: a value per tensor and workspace, a launch per kernel."""
    draft = Draft()
    of: dict[Buffer, int] = {}
    nest = schedule.nest

    def add(b: Buffer, **where: object) -> None:
        of[b] = len(draft.values)
        type_ = TensorType(b.dtype, b.shape)
        draft.values.append(Value(of[b], type_, b.strides, label=b.name, **where))  # type: ignore[arg-type]

    for k, b in enumerate(nest.reads):
        add(b, home="input", index=k)
    for k, b in enumerate(nest.writes):
        add(b, home="output", index=k)
    for b in nest.local:
        if b.space == "global":
            add(b)
    commands = []
    for kernel in kernels:
        draft.kernels.setdefault(
            kernel.name, Scheduled(kernel, (), (), "te", tuple(map(str, schedule.steps)))
        )
        reads, writes = tuple(of[b] for b in kernel.reads), tuple(of[b] for b in kernel.writes)
        commands.append(
            Launch(
                kernel.name, reads, writes, kernel.num_chunks, scratch_bytes=kernel.scratch_bytes, label="te"
            )
        )
    draft.commands = tuple(commands)
    draft.inputs = tuple(of[b] for b in nest.reads)
    draft.outputs = tuple(of[b] for b in nest.writes)
    return draft
