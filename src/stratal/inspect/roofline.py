"""The roofline of one command: how long it must take on this machine, and what stands in its way.

Arithmetic cannot be faster than operations over the peak of their dtype. Traffic cannot be faster than bytes
over the bandwidth of the level they come from, which follows from how much else was touched since they were
touched last: what a kernel wrote just before lies in a cache, a weight read once per step does not.
See Williams, Waterman, Patterson, "Roofline" (CACM 2009); the cache-aware form is Ilic et al. (2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from stratal.base.artifact import Command, Copy, Host, Launch, Value, flat
from stratal.base.dtypes import DType
from stratal.base.target import LAUNCH_SECONDS
from stratal.graph.node import Node
from stratal.inspect.machine import MachinePeaks
from stratal.memory.liveness import roots
from stratal.plan.work import anchored, flops, share_done, touched
from stratal.schedule.draft import Draft

Bound = Literal["compute", "memory", "overhead", "host"]


class Access(NamedTuple):
    """Bytes a command touches of one value, and all bytes touched since that value was touched last."""

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
        memory = sum(a.nbytes / peaks.bandwidth(a.distance) for a in self.accesses) / 1e9
        work = max(compute, memory)
        bound: Bound = "compute" if compute >= memory else "memory"
        if host or work < LAUNCH_SECONDS:
            bound = "host" if host else "overhead"
        return Floor(compute, memory, bound)


def command_work(
    draft: Draft, values: Sequence[Value], commands: Sequence[Command]
) -> dict[int, CommandWork]:
    """Return the work of every launch, copy and host call, by the command's id.

    Distances are those of a run that follows another run, each loop's body gone through once.
    """
    owner = roots(values)
    leaves = [c for c in flat(tuple(commands)) if isinstance(c, (Launch, Copy, Host))]
    sizes = {id(c): list(_touched(draft, values, c)) for c in leaves}
    last: dict[int, float] = {}  # bytes touched in all when a value was touched last
    found: dict[int, CommandWork] = {}
    clock = 0.0
    for command in (*leaves, *leaves):  # the second time around is the run that counts
        rows = sizes[id(command)]
        total = sum(nbytes for _, nbytes, _ in rows)
        clock += total
        accesses = tuple(
            Access(nbytes, clock - last.get(owner[v], 0.0), writes) for v, nbytes, writes in rows
        )
        last.update((owner[v], clock - total) for v, _, _ in rows)
        scheduled = draft.kernels[command.kernel] if isinstance(command, Launch) else None
        tactic = scheduled.tactic if scheduled else ""
        members = tuple(anchored(draft.group_of(command), tactic))
        share = share_done(members, scheduled.kernel) if scheduled else 1.0
        found[id(command)] = CommandWork(members, share, tactic, _operations(members, share), accesses)
    return found


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
