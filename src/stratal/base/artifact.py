"""The artifact: what code generation hands down and the runtime runs.

Plain data, serialisable without pickle.

    Executable := kernels, values, commands, arena_bytes, scratch_bytes
    Command    := Launch(kernel, buffers) | Copy(source, target) | Host(call, reads, writes)
                | CopyStart(source, target) | CopyDone(source, target)
                | Loop(body, trips, counter) | While(condition commands, predicate, body)
                | Branch(predicate, then, otherwise) | Once(body)

Kernel ABI: `void k(const Frame*, int64 chunk, int32 worker)` with

    Frame := { ptr* buffers, int64* ints, double* floats, ptr scratch, int64 scratch_stride, int64* error }

`buffers[j]` points at element 0 of parameter j. Worker w owns `scratch + w*scratch_stride`, 64-byte aligned.
A kernel that finds an index out of range writes a non-zero code to `*error` and returns; the driver then
stops before the next command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Union

from stratal.base.source import SourceLine
from stratal.base.types import TensorType

Home = Literal["arena", "persistent", "input", "output", "const"]


@dataclass(frozen=True, slots=True)
class KernelObject:
    """A compiled kernel: native object code that defines `symbol` with the kernel ABI."""

    symbol: str
    code: bytes
    key: str


@dataclass(slots=True)
class Value:
    """A buffer of the program. `strides` count elements; `align` counts bytes.

    `home` and `index` say where it lives: at byte `offset` of the arena or of the memory that is kept from
    run to run, in the caller's input number `index` (states are inputs written in place), in output number
    `index`, or in constant number `index`. `alias` names a value whose memory this one shares; with `row`,
    an int64 scalar, this is one row of that one, the one whose number `row` holds. The counter of a loop
    around every access is what `row` may be.
    """

    id: int
    type: TensorType
    strides: tuple[int, ...]
    home: Home = "arena"
    index: int = -1
    offset: int = -1
    alias: int | None = None
    label: str = ""
    where: tuple[SourceLine, ...] = ()
    row: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, gaps of the strides included."""
        if 0 in self.type.ints:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.type.ints, self.strides, strict=True))
        return (1 + last) * self.type.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel over its chunks. Buffers are value ids in Frame order: reads first, then writes.

    `group` numbers the fused group of the draft that it computes. `in_place` are pairs of positions, among
    the reads and among the writes, of buffers that may share memory.
    """

    kernel: str  # symbol
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    chunks: int
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    scratch_bytes: int = 0  # per worker
    label: str = ""
    where: tuple[SourceLine, ...] = ()
    may_fail: str = ""  # message of the index check this kernel makes, if any
    group: int = -1
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def in_place_values(self) -> list[tuple[int, int]]:
        """The pairs of values, read and written, that may share memory."""
        return [(self.reads[r], self.writes[w]) for r, w in self.in_place]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one dense value onto another of equal size, at byte offsets."""

    source: int
    target: int
    label: str = ""

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class CopyStart(Copy):
    """Begin to copy an input in another memory space to the arena, or back; kernels go on.

    Inputs that such a command names are accessed by these commands alone. `CopyDone` with the same two values
    ends it: until then the source stays as it is and nobody looks at the target.
    """


@dataclass(frozen=True, slots=True)
class CopyDone(Copy):
    """Wait until what `CopyStart` began with these values is done."""

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source, self.target)

    @property
    def writes(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Host:
    """Call `Executable.calls[call]` on the calling thread with read-only NumPy views.

    Its results are copied to `writes`. `group` numbers the group of the draft that it computes.
    """

    call: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    label: str = ""
    where: tuple[SourceLine, ...] = ()
    group: int = -1


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` `trips` times, the int64 scalar `counter` counting; at most `trips_value` where given.

    `reverse` counts from trips-1 down to 0.
    """

    body: tuple[Command, ...]
    trips: int
    counter: int
    trips_value: int | None = None
    reverse: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class While:
    """Run `condition`, then, while the bool scalar `predicate` holds, `body` and `condition` again."""

    condition: tuple[Command, ...]
    predicate: int
    body: tuple[Command, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """Run `then` where the bool scalar `predicate` holds, else `otherwise`."""

    predicate: int
    then: tuple[Command, ...]
    otherwise: tuple[Command, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Once:
    """Run `body` in the first run, and again where a frozen input has changed since it ran last."""

    body: tuple[Command, ...]


Command = Union[Launch, Copy, Host, Loop, While, Branch, Once]  # CopyStart and CopyDone are copies


def bodies(command: Command) -> dict[str, tuple[Command, ...]]:
    """Return the nested command lists of a command by name, in the order they run."""
    if isinstance(command, (Loop, Once)):
        return {"body": command.body}
    if isinstance(command, While):
        return {"condition": command.condition, "body": command.body}
    return {"then": command.then, "otherwise": command.otherwise} if isinstance(command, Branch) else {}


def own_reads(command: Command) -> tuple[int, ...]:
    """Return what a command itself reads, its nested lists apart."""
    if isinstance(command, Loop):
        return () if command.trips_value is None else (command.trips_value,)
    if isinstance(command, (While, Branch)):
        return (command.predicate,)
    return () if isinstance(command, Once) else command.reads


def own_writes(command: Command) -> tuple[int, ...]:
    """Return what a command itself writes, its nested lists apart."""
    if isinstance(command, Loop):
        return (command.counter,)
    return () if isinstance(command, (While, Branch, Once)) else command.writes


def flat(commands: tuple[Command, ...]) -> Iterator[Command]:
    """Yield every command, nested ones after the command that holds them."""
    for command in commands:
        yield command
        for body in bodies(command).values():
            yield from flat(body)


def all_reads(command: Command) -> list[int]:
    """Return what a command and all that it holds read."""
    return [v for c in flat((command,)) for v in own_reads(c)]


def all_writes(command: Command) -> list[int]:
    """Return what a command and all that it holds write."""
    return [v for c in flat((command,)) for v in own_writes(c)]


def offloaded(commands: tuple[Command, ...], inputs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the positions of the inputs that lie in another memory space while these commands run."""
    moved = {v for c in flat(commands) if isinstance(c, CopyStart) for v in (c.source, c.target)}
    return tuple(k for k, id_ in enumerate(inputs) if id_ in moved)


@dataclass(slots=True)
class Executable:
    """A whole program, ready for a runtime to load.

    `calls` are the host calls, which only live in this process. What a command `Once` makes is kept in
    `persistent_bytes` of memory, and decided by the inputs at the positions `frozen`.
    """

    name: str
    kernels: dict[str, KernelObject]
    values: list[Value]
    commands: tuple[Command, ...]
    inputs: tuple[int, ...]  # value ids, in the order of the graph's inputs
    outputs: tuple[int, ...]  # value ids, in the order of the graph's outputs
    states: tuple[int, ...]  # positions among the inputs that the program writes
    constants: list[bytes]
    arena_bytes: int
    scratch_bytes: int
    threads: int
    calls: list[object] = field(default_factory=list)
    plan: dict[str, object] = field(default_factory=dict)  # the JSON plan
    persistent_bytes: int = 0
    frozen: tuple[int, ...] = ()
