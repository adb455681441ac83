"""Collectives inside of programs: what the records of `ops/collective.py` reach when they run.

Also on tensors: functions that put a start and a wait per bucket into what is being built, be it a capture or
pending work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stratal.distributed.collectives import Exchanges, Pending
from stratal.distributed.program_collectives import Begun, ProgramCollectives
from stratal.distributed.records import ShardStart, ShardWait
from stratal.distributed.world import World, at_join, world
from stratal.graph.node import Node, make
from stratal.graph.op import Op
from stratal.ops.collective import COMMUNICATORS, AllReduceStart, AllReduceWait
from stratal.tensor.build import where_now
from stratal.tensor.lazy import flushing
from stratal.tensor.tensor import Tensor, wrap
from stratal.tensor.values.binding import node_of
from stratal.tensor.values.handle import CONSTANT
from stratal.tensor.values.state import MODE

Array = np.ndarray[Any, Any]
AXIS: Final = "data"


class Overlapped:
    """The communicator of an axis: collectives under way by token, and how long was waited for them."""

    def __init__(self, within: World) -> None:
        self.size: Final = within.size
        self.channels = 0  # handed out to optimizers
        self._exchanges: Final[dict[int, Exchanges]] = {}  # by channel
        self.waited_s = 0.0  # spent in `finish`, by the thread that runs programs
        self._collectives: Final = ProgramCollectives(within)
        self._under_way: dict[int, Begun | Pending] = {}
        self._last = 0

    def start(self, array: Array, op: str, algorithm: str, program: str) -> int:
        return self._begun(self._collectives.all_reduce(array, op, algorithm, program))

    def start_reduce_scatter(self, array: Array, op: str, algorithm: str, program: str) -> int:
        return self._begun(self._collectives.reduce_scatter(array, op, algorithm, program))

    def start_all_gather(self, array: Array, algorithm: str, program: str) -> int:
        return self._begun(self._collectives.all_gather(array, algorithm, program))

    def start_exchange(self, array: Array, server: int, channel: int, program: str) -> int:
        return self._begun(self.exchanges(channel).start(array, server, program))

    def exchanges(self, channel: int) -> Exchanges:
        """Return what goes to servers and back over a channel."""
        return self._exchanges.setdefault(channel, Exchanges(channel))

    def _begun(self, begun: Begun | Pending) -> int:
        self._last += 1
        self._under_way[self._last] = begun
        return self._last

    def finish(self, token: int, array: Array) -> Array:
        asked = time.monotonic()
        begun = self._under_way.pop(token)
        found: Array = begun.value() if isinstance(begun, Pending) else self._collectives.finish(begun, array)
        self.waited_s += time.monotonic() - asked
        return found


def communicator() -> Overlapped:
    """Return the communicator of all ranks, known to programs as the axis "data"."""
    found = COMMUNICATORS.get(AXIS)
    if not isinstance(found, Overlapped):
        found = COMMUNICATORS[AXIS] = Overlapped(world())
    return found


def _join(within: World) -> None:
    COMMUNICATORS[AXIS] = Overlapped(within)


at_join(_join)  # layers know nothing of this package: `nn.SyncBatchNorm` finds ranks by their axis


def overlap(reset: bool = False) -> dict[str, float]:
    """Return how much of the communication of programs was hidden behind their kernels.

    `communicating_s`: seconds in which the communication thread was in collectives, of programs or not.
    `waited_s`: seconds programs waited for theirs. `hidden`: the share that was not waited for. With `reset`,
    count from 0 again.
    """
    mine, within = communicator(), world()
    busy, waited = within.busy_s, mine.waited_s
    if reset:
        within.busy_s = mine.waited_s = 0.0
    hidden = max(0.0, 1 - waited / busy) if busy else 0.0
    return {"communicating_s": busy, "waited_s": waited, "hidden": hidden}


def all_reduce_in_buckets(flats: Sequence[Tensor], op: str, algorithm: str, program: str) -> list[Tensor]:
    """Return the reductions over ranks of one-dimensional tensors, as nodes of the program being built.

    `program` is a digest of what computes them: ranks whose digests differ do not exchange messages.
    """
    size = communicator().size
    start = AllReduceStart(AXIS, size, op, algorithm, program)
    return _overlapped(flats, [start] * len(flats), AllReduceWait(AXIS, size, op, algorithm))


def reduce_scatter_in_buckets(
    flats: Sequence[Tensor], op: str, algorithm: str, program: str
) -> list[Tensor]:
    """Return this rank's parts of reductions, as `all_reduce_in_buckets` does. Shapes: [n] -> [n / ranks]."""
    size = communicator().size
    start = ShardStart(AXIS, size, "reduce_scatter", op, algorithm, program)
    wait = ShardWait(AXIS, size, "reduce_scatter", op, algorithm)
    return _overlapped(flats, [start] * len(flats), wait)


def all_gather_in_buckets(flats: Sequence[Tensor], algorithm: str) -> list[Tensor]:
    """Return what ranks have of each tensor, end to end. Shapes: [n] -> [n * ranks]."""
    size = communicator().size
    start = ShardStart(AXIS, size, "all_gather", algorithm=algorithm)
    wait = ShardWait(AXIS, size, "all_gather", algorithm=algorithm)
    return _overlapped(flats, [start] * len(flats), wait)


def exchange_in_buckets(
    flats: Sequence[Tensor], servers: Sequence[int], channel: int, program: str
) -> list[Tensor]:
    """Return what servers send back for each one-dimensional tensor; `servers` are the ranks each goes to.

    `program` as for `all_reduce_in_buckets`: servers refuse workers whose digests differ.
    """
    size = communicator().size
    starts = [
        ShardStart(AXIS, size, "exchange", program=program, server=rank, channel=channel) for rank in servers
    ]
    return _overlapped(flats, starts, ShardWait(AXIS, size, "exchange"))


def _overlapped(flats: Sequence[Tensor], starts: Sequence[Op], wait: Op) -> list[Tensor]:
    """Return the results of one collective per tensor.

    Every start is put behind the one before it, which is the order on all ranks, and every wait behind all
    starts, so that what is computed for later ones runs while earlier ones are under way.
    """
    where = where_now()
    tokens: list[Node] = []
    nodes = [node_of(x) for x in flats]
    for node, start in zip(nodes, starts, strict=True):
        tokens.append(make(start, *tokens[-1:], node, where=where))
    pairs = zip(tokens, nodes, strict=True)
    found = [wrap(make(wait, tokens[-1], own, node, where=where), CONSTANT) for own, node in pairs]
    if MODE.trace is None:
        flushing.flush(found)
    elif tokens:  # no `calls_back`: collectives read nothing that a replay writes behind its program
        MODE.trace.tokens.append(tokens[-1])
    return found
