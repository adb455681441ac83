"""The roofline of one command: how long it must take on this machine, and what stands in its way.

Arithmetic cannot be faster than operations over the peak of their dtype. Traffic cannot be faster than the
bytes that cross into a level of the caches over the bandwidth of the level behind it, for any level; levels
deliver at the same time, so the slowest counts, not their sum. Of what is swept again after D other bytes, a
level of C bytes has at most C / D still, whatever it replaces: the rest must cross (Belady's bound for cyclic
sweeps). What a kernel wrote just before lies in a cache, a weight read once per step does not.
See Williams, Waterman, Patterson, "Roofline" (CACM 2009); the cache-aware form is Ilic et al. (2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from stratal.base.artifact import Command, Copy, Host, Launch, Loop, Value, While, bodies
from stratal.base.dtypes import DType
from stratal.base.target import LAUNCH_SECONDS
from stratal.graph.node import Node
from stratal.inspect.machine import MachinePeaks
from stratal.memory.liveness import roots
from stratal.plan.work import anchored, flops, share_done, touched
from stratal.schedule.draft import Draft

Bound = Literal["compute", "memory", "overhead", "host"]


class Access(NamedTuple):
    """Bytes a command touches of one value, and all different bytes touched since that value was touched
    last, its own included; infinite where it was not.
    """

    nbytes: float
    distance: float
    writes: bool


class Floor(NamedTuple):
    """The least time one call of a command can take, and why."""

    compute_seconds: float
    memory_seconds: float
    bound: Bound

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)


class CommandWork(NamedTuple):
    """What one call of a command does: its nodes, operations by dtype, bytes by value.

    `share` of the nodes' operations is done by this command: see `plan.work.share_done`.
    """

    members: tuple[Node, ...]
    share: float
    tactic: str
    operations: Mapping[DType, float]
    accesses: tuple[Access, ...]

    @property
    def flops(self) -> float:
        return sum(self.operations.values())

    @property
    def read_bytes(self) -> float:
        return sum(a.nbytes for a in self.accesses if not a.writes)

    @property
    def written_bytes(self) -> float:
        return sum(a.nbytes for a in self.accesses if a.writes)

    @property
    def nbytes(self) -> float:
        return self.read_bytes + self.written_bytes

    def floor(self, peaks: MachinePeaks, *, host: bool = False) -> Floor:
        """Return the roofline on a machine. Work shorter than a launch is bound by the launch."""
        compute = sum(n / peaks.flops_of(dtype) for dtype, n in self.operations.items()) / 1e9
        memory = peaks.traffic_seconds([(a.nbytes, a.distance) for a in self.accesses])
        work = max(compute, memory)
        bound: Bound = "compute" if compute >= memory else "memory"
        if host or work < LAUNCH_SECONDS:
            bound = "host" if host else "overhead"
        return Floor(compute, memory, bound)


def command_work(
    draft: Draft, values: Sequence[Value], commands: Sequence[Command]
) -> dict[int, CommandWork]:
    """Return the work of every launch, copy and host call, by the command's id.

    Distances are those of a run that follows another run; in the body of a loop, those of a trip that follows
    another trip.
    """
    owner = roots(values)
    sizes = {id(c): list(_touched(draft, values, c)) for c in _leaves(commands)}
    recent: dict[int, float] = {}  # bytes of each value, that touched last at the end
    found: dict[int, CommandWork] = {}
    for command in (*_leaves(commands), *_leaves(commands)):  # the second time around is the run that counts
        rows = sizes[id(command)]
        total = sum(nbytes for _, nbytes, _ in rows)
        reused = _distances(recent, {owner[v] for v, _, _ in rows})
        accesses = tuple(Access(n, total + reused[owner[v]], writes) for v, n, writes in rows)
        for v, nbytes, _ in rows:
            recent[owner[v]] = max(recent.pop(owner[v], 0.0), nbytes)
        scheduled = draft.kernels[command.kernel] if isinstance(command, Launch) else None
        tactic = scheduled.tactic if scheduled else ""
        members = tuple(anchored(draft.group_of(command), tactic))
        share = share_done(members, scheduled.kernel) if scheduled else 1.0
        found[id(command)] = CommandWork(members, share, tactic, _operations(members, share), accesses)
    return found


def _leaves(commands: Iterable[Command]) -> Iterator[Launch | Copy | Host]:
    """Yield commands as a run makes them; the bodies of loops twice, as one trip after another."""
    for command in commands:
        if isinstance(command, (Launch, Copy, Host)):
            yield command
        for _ in range(2 if isinstance(command, (Loop, While)) else 1):
            for body in bodies(command).values():
                yield from _leaves(body)


def _distances(recent: Mapping[int, float], asked: set[int]) -> dict[int, float]:
    """Return the bytes of other values touched since each of some was touched; infinite where it was not."""
    found: dict[int, float] = {}
    passed = 0.0
    for value in reversed(recent):  # type: ignore[call-overload]  # a dict
        if len(found) == len(asked):
            break
        if value in asked:
            found[value] = passed
        else:
            passed += recent[value]
    return {value: found.get(value, math.inf) for value in asked}


def _touched(
    draft: Draft, values: Sequence[Value], command: Launch | Copy | Host
) -> Iterable[tuple[int, float, bool]]:
    """Yield (value, bytes, written) for what one call touches."""
    if not isinstance(command, Launch):
        for ids, writes in ((command.reads, False), (command.writes, True)):
            for v in dict.fromkeys(ids):
                yield v, float(values[v].nbytes), writes
        return
    kernel = draft.kernels[command.kernel].kernel
    value_of = dict(zip(kernel.parameters, (*command.reads, *command.writes), strict=True))
    for sizes, writes in zip(touched(kernel), (False, True), strict=True):
        for buffer, count in sizes.items():
            yield value_of[buffer], float(count * buffer.dtype.itemsize), writes


def _operations(members: Iterable[Node], share: float) -> dict[DType, float]:
    """Return operations by the dtype they are done in: that of the operands."""
    found: dict[DType, float] = {}
    for node in members:
        count = share * flops(node)
        if count:
            dtype = next((i.type.dtype for i in node.inputs if hasattr(i.type, "dtype")), None)
            dtype = dtype or node.aval.dtype
            found[dtype] = found.get(dtype, 0.0) + count
    return found
