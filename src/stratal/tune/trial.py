"""One kernel as a program of its own, so that another process can compile, run and time it."""

from __future__ import annotations

from typing import Final, NamedTuple

from stratal.base import settings
from stratal.base.artifact import Executable, KernelObject, Launch, Value, flat
from stratal.base.target import Target
from stratal.base.types import TensorType
from stratal.codegen.module import kernel_module
from stratal.compiler import prepared_from
from stratal.graph.node import Node
from stratal.loops.expr import Buffer, Load, walk
from stratal.loops.stmt import Kernel, expressions
from stratal.memory.plan import plan_arena, plan_home
from stratal.runtime.pack import pack
from stratal.schedule.draft import Draft
from stratal.schedule.result import Candidate, Operand, Scheduled
from stratal.schedule.select import Problem

MOST_TEXT: Final = 1 << 20  # bytes of generated code worth compiling for one kernel


class Trial(NamedTuple):
    """A kernel to measure.

    `program` is a packed Executable whose kernels hold LLVM text in place of object code: whoever measures
    compiles it, so that a compiler that fails or hangs does no harm here. `indices` are inputs that
    choose elements; `workspace_bytes` is the memory beside operands and results.
    """

    program: bytes
    indices: tuple[int, ...]
    workspace_bytes: int
    text_bytes: int


def trial_of(problem: Problem, candidate: Candidate, threads: int | None = None) -> Trial:
    """Return the kernel a candidate makes, with what packs its operands, as a program.

    It runs on as many threads as are set unless told. Inputs and outputs come in the same order for all
    candidates of a problem.
    """
    threads = settings.threads.value if threads is None else threads
    scheduled = problem.schedule(candidate)
    parts = [*scheduled.before, scheduled]
    values = _Values({w for part in parts for w in part.writes})
    buffers = {operand: b for part in parts for operand, b in _operands(part)}
    for node in problem.nodes:
        if node in buffers:
            values.at(node, buffers[node])
    commands = tuple(_launch(part, values) for part in parts)
    draft = Draft(values.made, commands, {part.kernel.name: part for part in parts})
    draft.inputs, draft.outputs = tuple(values.inputs), tuple(values.outputs)
    return trial_program(draft, problem.target, threads)


def trial_program(draft: Draft, target: Target, threads: int) -> Trial:
    """Return a program as a trial. It calls nothing on the host, and has no states."""
    kernels = {name: s.kernel for name, s in draft.kernels.items()}
    texts = {name: kernel_module(kernel, target).encode() for name, kernel in kernels.items()}
    objects = {name: KernelObject(name, text, name) for name, text in texts.items()}
    arena = plan_arena(draft.values, draft.commands, outputs=draft.outputs)
    scratch = max((k.scratch_bytes for k in kernels.values()), default=0)
    executable = Executable(
        "trial", objects, draft.values, draft.commands, draft.inputs, draft.outputs, (), draft.constants,
        arena, scratch, threads, persistent_bytes=plan_home(draft.values, "persistent"),
        frozen=prepared_from(draft),
    )  # fmt: skip
    used = set()
    for launch in (c for c in flat(draft.commands) if isinstance(c, Launch)):
        kernel = kernels[launch.kernel]
        operands = zip((*launch.reads, *launch.writes), kernel.parameters, strict=True)
        choosing = _indexing(kernel)
        used |= {value for value, buffer in operands if buffer in choosing}
    indices = tuple(k for k, value in enumerate(draft.inputs) if value in used)
    return Trial(pack(executable), indices, arena + scratch * threads, sum(map(len, texts.values())))


def _indexing(kernel: Kernel) -> set[Buffer]:
    """Return the parameters whose elements say where others are read."""
    loads = [e for e in walk(expressions(kernel.body)) if isinstance(e, Load)]
    return {e.buffer for load in loads for e in walk(list(load.indices)) if isinstance(e, Load)}


def _operands(part: Scheduled) -> list[tuple[Operand, Buffer]]:
    return list(zip((*part.reads, *part.writes), part.kernel.parameters, strict=True))


class _Values:
    """The values of the program: what kernels write is an output or a workspace, the rest are inputs."""

    def __init__(self, written: set[Operand]) -> None:
        self.written = written
        self.made: list[Value] = []
        self.of: dict[Operand, int] = {}
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def at(self, operand: Operand, buffer: Buffer) -> int:
        if operand not in self.of:
            type_ = TensorType(buffer.dtype, buffer.shape)
            value = Value(len(self.made), type_, buffer.strides)
            if isinstance(operand, Node):
                listed = self.outputs if operand in self.written else self.inputs
                value.home = "output" if operand in self.written else "input"
                value.index = len(listed)
                listed.append(value.id)
            self.of[operand] = value.id
            self.made.append(value)
        return self.of[operand]


def _launch(part: Scheduled, values: _Values) -> Launch:
    at = [values.at(operand, buffer) for operand, buffer in _operands(part)]
    count, kernel = len(part.reads), part.kernel
    return Launch(
        kernel.name, tuple(at[:count]), tuple(at[count:]), kernel.num_chunks,
        scratch_bytes=kernel.scratch_bytes, label=part.tactic,
    )  # fmt: skip
