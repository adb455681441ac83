"""What each command does: operations, bytes it touches, and the time a roofline gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stratal.base.artifact import Command, Copy, Host, Launch, Loop, Value, bodies
from stratal.base.cost import Cost
from stratal.base.target import Target
from stratal.base.types import TupleType
from stratal.graph.node import Node
from stratal.graph.partition import Group
from stratal.loops.count import operations
from stratal.loops.expr import Buffer, Expr, Load, Var, walk
from stratal.loops.stmt import Kernel, Store, expressions, statements
from stratal.schedule.draft import Draft

Touched = Mapping[Buffer, int]


class Work:
    """The cost of the commands of one program; kernels are looked into once each.

    `similar`: of a program with the same kernels.
    """

    def __init__(self, draft: Draft, values: Sequence[Value], similar: Work | None = None) -> None:
        self.draft = draft
        self.values = values
        self._kernels: dict[str, Cost] = similar._kernels if similar is not None else {}

    def of(self, command: Command) -> Cost:
        """Return what one run of a command costs, commands nested in it left out."""
        if isinstance(command, Launch):
            return self._launch(command)
        if isinstance(command, (Copy, Host)):
            read = sum(self.values[v].nbytes for v in dict.fromkeys(command.reads))
            written = sum(self.values[v].nbytes for v in command.writes)
            group = self.draft.group_of(command)
            return Cost(sum(map(flops, group.members)) if group else 0.0, float(read), float(written))
        return Cost()

    def seconds(self, command: Command, target: Target, threads: int) -> float:
        """Return the estimated time of a command, with all that it holds as often as it runs."""
        return sum(target.seconds(self.of(c), threads) * times for c, times in _turns(command))

    def _launch(self, launch: Launch) -> Cost:
        scheduled = self.draft.kernels[launch.kernel]
        kernel = self._kernels.get(launch.kernel)
        if kernel is None:
            read, written = (
                float(sum(n * b.dtype.itemsize for b, n in sizes.items()))
                for sizes in touched(scheduled.kernel)
            )
            kernel = Cost(float(operations(scheduled.kernel.body)), read, written)
            self._kernels[launch.kernel] = kernel
        recorded = sum(map(flops, anchored(self.draft.group_of(launch), scheduled.tactic)))
        return kernel._replace(flops=min(recorded, kernel.flops))


def _turns(command: Command, times: int = 1) -> list[tuple[Command, int]]:
    """Return a command and those in it with how often each runs."""
    found = [(command, times)]
    more = times * max(command.trips, 1) if isinstance(command, Loop) else times
    for body in bodies(command).values():
        found += [pair for c in body for pair in _turns(c, more)]
    return found


def anchored(group: Group | None, tactic: str) -> Sequence[Node]:
    """Return the nodes a kernel computes: those of its group, unless it only packs an operand for it."""
    return () if group is None or tactic == "pack" else group.members


def flops(node: Node) -> float:
    """Return the operations of one node, as its record estimates them."""
    types = [i.type for i in node.inputs]
    if any(isinstance(t, TupleType) for t in types):
        return 0.0
    return float(node.op.cost(*types).flops)  # type: ignore[arg-type]


def share_done(members: Sequence[Node], kernel: Kernel) -> float:
    """Return the share of its nodes' operations that a kernel does, at most 1.

    Winograd's algorithm does fewer than the convolution has, and of a sum in two kernels each does a part.
    """
    recorded = sum(map(flops, members))
    return min(1.0, operations(kernel.body) / recorded) if recorded else 1.0


def touched(kernel: Kernel) -> tuple[Touched, Touched]:
    """Return how many elements of each parameter a kernel reads and writes, each element counted once.

    An access in loops of extents m and n that its index depends on touches at most m*n elements, and no more
    than the buffer has.
    """
    parameters = frozenset(kernel.parameters)
    reads = {(e.buffer, e.indices) for e in walk(expressions(kernel.body)) if isinstance(e, Load)}
    writes = {(s.buffer, s.indices) for s in statements(kernel.body) if isinstance(s, Store)}

    def counted(accesses: set[tuple[Buffer, tuple[Expr, ...]]]) -> Touched:
        found: dict[Buffer, int] = {}
        for buffer, indices in accesses:
            if buffer in parameters:
                axes = {e for e in walk(indices) if isinstance(e, Var)}
                found[buffer] = found.get(buffer, 0) + math.prod(v.extent for v in axes)
        return {b: min(n, math.prod(b.shape)) for b, n in found.items()}

    return counted(reads), counted(writes)
