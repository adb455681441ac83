"""Collectives on tensors and arrays, as calls: each returns a new value of the kind it was given.

Every rank makes the same collectives in the same order. With `wait=False` a call returns a `Pending` at once
and the communication thread carries on; its `value()` waits.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.distributed import algorithms
from stratal.distributed.errors import ProgramMismatchError
from stratal.distributed.links import choose
from stratal.distributed.own_call import takes
from stratal.distributed.served_programs import OFFSET, message_of
from stratal.distributed.world import World, world
from stratal.engine import Operation
from stratal.tensor.tensor import Tensor, tensor

Array = np.ndarray[Any, Any]
REDUCTIONS: Final = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class Pending:
    """The result of a collective that is under way."""

    def __init__(self, within: World, operation: Operation | None, finish: Callable[[], Any]) -> None:
        self._world, self._operation, self._finish = within, operation, finish

    @property
    def done(self) -> bool:
        """Whether `value` returns at once."""
        return self._operation is None or self._operation.done

    def value(self) -> Any:
        """Return the result once it is there. Raises: CollectiveTimeoutError, ProgramMismatchError,
        RankLostError.
        """
        self._world.wait(self._operation)
        return self._finish()


def _taken(x: Any, name: str) -> tuple[Array, bool]:
    """Return a copy of a value's elements, and whether it is a tensor. Raises: DTypeError."""
    is_tensor = isinstance(x, Tensor)
    array = np.array(x.detach() if is_tensor else x, order="C")
    if array.dtype.hasobject:
        raise DTypeError(f"{name}: takes tensors, arrays and numbers", got=type(x).__name__)
    return array, is_tensor


def _given(array: Array, is_tensor: bool) -> Any:
    return tensor(array) if is_tensor else array


def said(kind: str, array: Array, detail: str = "") -> str:
    """Return what a collective of an array is in the ledger and in messages."""
    return _in_words(kind + detail, array.dtype, array.shape)


@functools.lru_cache(maxsize=4096)
def _in_words(made: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{made} of {dtype}[{','.join(map(str, shape))}]"


def _through(make: Callable[[], algorithms.Rounds], what: str, finish: Callable[[], Any], wait: bool,
             tag: int | None = None) -> Any:  # fmt: skip
    within = world()
    pending = Pending(within, within.start(make, what, tag, now=wait), finish)
    return pending.value() if wait else pending


def reduction(op: str, name: str) -> np.ufunc:
    """Return the ufunc of a reduction. Raises: AttributeValueError."""
    if op not in REDUCTIONS:
        raise AttributeValueError(f"{name}: no such reduction", got=repr(op),
                                  hint=f"there are {', '.join(REDUCTIONS)}")  # fmt: skip
    return REDUCTIONS[op]


def divide_for_mean(array: Array, op: str, size: int) -> None:
    """Make a sum over ranks their mean, in place."""
    if op == "mean":
        np.divide(array, np.asarray(size, array.dtype), out=array)


def _check_mean(array: Array, op: str, name: str) -> None:
    if op == "mean" and array.dtype.kind in "biu":
        raise DTypeError(f"{name}: a mean is of floats", got=str(array.dtype), hint="op='sum', or x.float()")


# -- reductions ----------------------------------------------------------------------------------------------
def all_reduce(x: Any, op: str = "sum", *, algorithm: str = "", wait: bool = True) -> Any:
    """Return the reduction of every rank's `x`, the same bits on all ranks. Shapes: as x on every rank.

    `op`: sum, mean, prod, max or min. `algorithm`: ring, halving_doubling, doubling (the last two for powers
    of two), all_to_all, tree, or mpi: MPI's own call, for sums, means and products of 32 and 64 bits by ranks
    of one host that is no elastic job. By default the one with the least estimate for this size. Algorithms
    add in other orders; that of mpi is MPI's.
    """
    pending = start_all_reduce(x, op, algorithm, now=wait)
    return pending.value() if wait else pending


def start_all_reduce(x: Any, op: str, algorithm: str, now: bool = False) -> Pending:
    """Begin an all-reduce. `now`: as `World.start` takes it."""
    combine, within = reduction(op, "all_reduce"), world()
    buffer, is_tensor = _taken(x, "all_reduce")
    _check_mean(buffer, op, "all_reduce")
    chosen = all_reduce_algorithm(within, buffer, combine, algorithm)
    make = algorithms.all_reduce_by(chosen)

    def finish() -> Any:
        divide_for_mean(buffer, op, within.size)
        return _given(buffer, is_tensor)

    what = said("all_reduce", buffer, f" {op} by {chosen}")
    rounds = functools.partial(make, buffer.reshape(-1), within.rank, within.size, combine)
    return Pending(within, within.start(rounds, what, now=now), finish)


def all_reduce_algorithm(within: World, array: Array, combine: np.ufunc, algorithm: str) -> str:
    """Return the algorithm of an all-reduce: the given one, or the one with the least estimate.

    Raises: AttributeValueError.
    """
    mpi = within.calls_mpi and takes(combine, array.dtype)
    return choose("all_reduce", array.nbytes, within.size, within.link, algorithm, mpi)


def reduce_scatter(x: Any, op: str = "sum", *, algorithm: str = "", wait: bool = True) -> Any:
    """Return this rank's part of the reduction of every rank's `x`.

    Shapes: [n, ...] -> [n / world_size, ...]. Raises: ShapeError where n is not divisible.
    """
    pending = start_reduce_scatter(x, op, algorithm, now=wait)
    return pending.value() if wait else pending


def start_reduce_scatter(x: Any, op: str, algorithm: str, now: bool = False) -> Pending:
    """Begin a reduce-scatter. `now`: as `World.start` takes it."""
    combine, within = reduction(op, "reduce_scatter"), world()
    buffer, is_tensor = _taken(x, "reduce_scatter")
    _check_mean(buffer, op, "reduce_scatter")
    _check_divisible(buffer, within.size, "reduce_scatter")
    chosen = choose("reduce_scatter", buffer.nbytes, within.size, within.link, algorithm)
    make = algorithms.REDUCE_SCATTER[chosen]

    def finish() -> Any:
        part = np.split(buffer, within.size)[within.rank].copy()
        divide_for_mean(part, op, within.size)
        return _given(part, is_tensor)

    what = said("reduce_scatter", buffer, f" {op} by {chosen}")
    rounds = functools.partial(make, buffer.reshape(-1), within.rank, within.size, combine)
    return Pending(within, within.start(rounds, what, now=now), finish)


# -- moving --------------------------------------------------------------------------------------------------
def all_gather(x: Any, *, algorithm: str = "", wait: bool = True) -> Any:
    """Return every rank's `x`, one after another. Shapes: [n, ...] -> [world_size * n, ...]."""
    pending = start_all_gather(x, algorithm, now=wait)
    return pending.value() if wait else pending


def start_all_gather(x: Any, algorithm: str, now: bool = False) -> Pending:
    """Begin an all-gather. `now`: as `World.start` takes it."""
    within = world()
    own, is_tensor = _taken(x, "all_gather")
    if not own.ndim:
        own = own.reshape(1)
    buffer = np.empty((within.size, *own.shape), own.dtype)
    buffer[within.rank] = own
    chosen = choose("all_gather", buffer.nbytes, within.size, within.link, algorithm)
    rounds = functools.partial(algorithms.ALL_GATHER[chosen], buffer.reshape(-1), within.rank, within.size)
    what = said("all_gather", own, f" by {chosen}")
    return Pending(
        within, within.start(rounds, what, now=now),
        lambda: _given(buffer.reshape(-1, *own.shape[1:]), is_tensor),
    )  # fmt: skip


def all_to_all(x: Any, *, wait: bool = True) -> Any:
    """Return part `rank` of every rank's `x`, one after another. Shapes: [n, ...] -> [n, ...].

    Raises: ShapeError where n is not divisible by the number of ranks.
    """
    within = world()
    source, is_tensor = _taken(x, "all_to_all")
    _check_divisible(source, within.size, "all_to_all")
    buffer = np.empty_like(source)
    return _through(
        lambda: algorithms.all_to_all(source.reshape(-1), buffer.reshape(-1), within.rank, within.size),
        said("all_to_all", source), lambda: _given(buffer, is_tensor), wait,
    )  # fmt: skip


def broadcast(x: Any, root: int = 0, *, wait: bool = True) -> Any:
    """Return the `x` of rank `root`. Shapes: as x, which has one type on every rank."""
    within = world()
    _check_rank(root, within.size, "broadcast", "root")
    buffer, is_tensor = _taken(x, "broadcast")
    return _through(
        lambda: algorithms.tree_broadcast(buffer.reshape(-1), within.rank, within.size, root),
        said("broadcast", buffer, f" from rank {root}"), lambda: _given(buffer, is_tensor), wait,
    )  # fmt: skip


def permute(x: Any, pairs: Iterable[tuple[int, int]], *, wait: bool = True) -> Any:
    """Return the `x` of the rank that is paired with this one, zeros where there is none.

    `pairs` are (from, to), the same on every rank; each rank stands at most once on either side.
    """
    within, chosen = world(), sorted((int(a), int(b)) for a, b in pairs)
    for side, name in ((0, "from"), (1, "to")):
        for pair in chosen:
            _check_rank(pair[side], within.size, "permute", name)
        if len({pair[side] for pair in chosen}) < len(chosen):
            raise AttributeValueError(f"permute: a rank stands twice on the side '{name}'", got=str(chosen))
    source, is_tensor = _taken(x, "permute")
    buffer = np.empty_like(source)
    return _through(
        lambda: algorithms.permute(source.reshape(-1), buffer.reshape(-1), within.rank, chosen),
        said("permute", source, f" along {chosen}"), lambda: _given(buffer, is_tensor), wait,
    )  # fmt: skip


def send(x: Any, to: int, *, tag: int = 0, wait: bool = True) -> Any:
    """Send `x` to rank `to`, which calls `receive`; return None once it may be overwritten."""
    within = world()
    _check_peer(to, within, "send", tag)
    source, _ = _taken(x, "send")
    rounds = [algorithms.Round([(to, source.reshape(-1))], [])]
    return _through(lambda: iter(rounds), said("send", source, f" to rank {to}"), lambda: None, wait, tag)


def receive(like: Any, source: int, *, tag: int = 0, wait: bool = True) -> Any:
    """Return what rank `source` sends, of the shape and dtype of `like`."""
    within = world()
    _check_peer(source, within, "receive", tag)
    buffer, is_tensor = _taken(like, "receive")
    rounds = [algorithms.Round([], [(source, buffer.reshape(-1))])]
    what = said("receive", buffer, f" from rank {source}")
    return _through(lambda: iter(rounds), what, lambda: _given(buffer, is_tensor), wait, tag)


class Exchanges:
    """Arrays sent to servers over one channel, and received back, of the same shapes and dtypes.

    What is sent leaves at once. What comes back is received when the first value is asked for, all of it in
    one round: a server that sends it early never waits for one that sends it late.
    """

    def __init__(self, channel: int) -> None:
        self.channel: Final = channel
        self.started = 0
        self._awaited: list[tuple[int, Array]] = []
        self._programs: Final[dict[int, str]] = {}  # told to each server

    def start(self, x: Any, server: int, program: str) -> Pending:
        """Begin to send `x`, which a program made; the value is what that server sends back."""
        buffer, is_tensor = _taken(x, "exchange")
        flat, within = buffer.reshape(-1), world()
        self.started += 1
        if self._programs.get(server) != program:
            self._programs[server] = program
            told = [algorithms.Round([(server, message_of(program))], [])]
            within.start(lambda: iter(told), f"program for rank {server}", self.channel + OFFSET)
        self._awaited.append((server, flat))
        there = [algorithms.Round([(server, flat)], [])]
        what = said("push", buffer, f" to rank {server}")

        def finish() -> Any:
            self._receive(within)
            return _given(buffer, is_tensor)

        return Pending(within, within.start(lambda: iter(there), what, self.channel), finish)

    def _receive(self, within: World) -> None:
        back, self._awaited = self._awaited, []
        if back:
            servers = ", ".join(map(str, dict.fromkeys(server for server, _ in back)))
            rounds = [algorithms.Round([], back)]
            within.run(lambda: iter(rounds), f"pull of {len(back)} arrays from rank {servers}", self.channel)


def barrier() -> None:
    """Return once every rank has come here."""
    within = world()
    within.run(lambda: algorithms.barrier(within.rank, within.size), "barrier")


# -- agreement -----------------------------------------------------------------------------------------------
def check_same(value: str, what: str) -> None:
    """Return if every rank calls this with the same text; `what` names it in messages.

    Raises: ProgramMismatchError on every rank, naming the ranks that differ.
    """
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8)
    found = [row.tobytes().hex()[:12] for row in np.split(all_gather(digest), world().size)]
    if len(set(found)) > 1:
        groups = {d: [r for r, other in enumerate(found) if other == d] for d in dict.fromkeys(found)}
        raise ProgramMismatchError(
            f"ranks have different {what}",
            got="; ".join(f"{d} on rank {', '.join(map(str, ranks))}" for d, ranks in groups.items()),
        )


def traffic(reset: bool = False) -> dict[str, list[int]]:
    """Return the messages and bytes this rank has sent and received, a number per other rank; with `reset`,
    count from 0 again. Units: bytes.

    `mpi_calls`, `mpi_bytes`: all-reduces that MPI's own call made, and the bytes of their buffers; what it
    sent for them is not seen.
    """
    counters: dict[str, Any] = vars(world().counters)
    found = {name: [int(n) for n in values] for name, values in counters.items()}
    if reset:
        for values in counters.values():
            values[:] = [0] * len(values)
    return found


# -- checks --------------------------------------------------------------------------------------------------
def _check_divisible(array: Array, size: int, name: str) -> None:
    if not array.ndim or array.shape[0] % size:
        raise ShapeError(f"{name}: the first axis is divisible by the number of ranks",
                         got=f"{list(array.shape)} over {size} ranks")  # fmt: skip


def _check_rank(rank: int, size: int, name: str, what: str) -> None:
    if not 0 <= rank < size:
        raise AttributeValueError(f"{name}: {what} is no rank of this job", got=f"{rank} of {size}")


def _check_peer(rank: int, within: World, name: str, tag: int) -> None:
    _check_rank(rank, within.size, name, "the other one")
    if rank == within.rank:
        raise AttributeValueError(f"{name}: a rank has no messages for itself", got=f"rank {rank}")
    if not 0 <= tag < 1000:
        raise AttributeValueError(f"{name}: a tag lies in [0, 1000)", got=str(tag))
