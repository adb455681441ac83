"""The ranks of a job: how many there are, which one this is, and the queue their collectives go through."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

from stratal.base.errors import AttributeValueError, CallOrderError, MissingExtraError, StratalError
from stratal.base.source import SourceLine, user_line
from stratal.distributed.algorithms import Rounds
from stratal.distributed.errors import RankLostError
from stratal.distributed.ledger import Ledger, shared_lines, unlink_segments
from stratal.distributed.link_records import link_for
from stratal.distributed.links import Link
from stratal.distributed.transport import TAGS, Counters, MpiTransport
from stratal.engine import Engine, EngineTimeoutError, Operation

DEFAULT_TIMEOUT: Final = 300.0  # seconds
SIZE_VARIABLES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")  # that launchers set
_GRACE_S: Final = 2.0  # beyond the time-out of a collective, for its error to be made
_DEFAULT: Final = Link()
# Over TCP Open MPI asks a receiver before it sends more than 64 KB, and either side answers when it polls
# next: behind kernels a bucket took 2.5 times as long as the link needs. So its part leaves at once.
_TCP: Final = {
    f"OMPI_MCA_btl_tcp_{name}": str(1 << 19)
    for name in ("eager_limit", "rndv_eager_limit", "max_send_size")
}


class World:
    """All ranks of a job. With one rank there is neither MPI nor a thread."""

    def __init__(
        self, rank: int, size: int, transport: MpiTransport | None, timeout: float, link: Link = _DEFAULT,
        hosts: int = 1,
    ) -> None:  # fmt: skip
        self.rank: Final = rank
        self.size: Final = size
        self.link: Final = link  # the same on all ranks
        self.hosts: Final = hosts
        self.timeout = timeout
        self.calls_mpi: Final = transport is not None and hosts == 1 and not is_elastic()
        self._transport: Final = transport
        self._engine: Final = Engine(1, "communication") if transport is not None else None
        self._network: Final = None if self._engine is None else self._engine.new_variable("network")
        self._counters: Final = Counters(1) if transport is None else transport.counters
        self._collectives = 0
        self._turn: Final = threading.Lock()  # of the thread that calls MPI
        self._here: int | None = None  # the thread that runs a collective itself
        self._queued: Operation | None = None  # the last one
        self.busy_s = 0.0  # in collectives
        self.closed = False
        self.lost = False  # whether a collective failed since a rank was lost
        self._apart = ""  # what this rank does without all the others

    @property
    def counters(self) -> Counters:
        return self._counters

    def start(
        self, make: Callable[[], Rounds], what: str, tag: int | None = None, now: bool = False
    ) -> Operation | None:
        """Queue rounds on the communication thread and return at once; None where they are through.

        `tag` names messages between two ranks; without one it is a collective, which all ranks make. `now`:
        the caller waits for it anyway, so it runs them itself where nothing is under way. For short messages
        the hand-over to the thread and back takes several times as long as they do.
        """
        if self._transport is None or self._engine is None or self._network is None:
            for _ in make():
                pass  # a rank has no messages for itself
            return None
        if self._here == threading.get_ident():  # it would wait for itself
            raise CallOrderError(
                f"{what}: made by a signal handler while a collective is under way", got="the same thread",
                hint="note the signal, and act behind the step",
            )  # fmt: skip
        number = 0
        if tag is None:
            self._check_joined(what)
            self._collectives += 1
            number = self._collectives
        line = user_line()
        if now and self._has_turn():
            self._here = threading.get_ident()
            self._transport.awaited = True
            try:
                self._run(self._transport, make, number, what, line, tag)
            finally:
                self._here = None
                self._turn.release()
            return None
        self._transport.awaited = now
        run = functools.partial(self._run, self._transport, make, number, what, line, tag)
        self._queued = self._engine.push(self._in_turn(run), mutates=[self._network], name=what)
        return self._queued

    def _run(
        self, transport: MpiTransport, make: Callable[[], Rounds], number: int, what: str,
        line: SourceLine | None, tag: int | None,
    ) -> None:  # fmt: skip
        began = time.monotonic()
        try:
            transport.run(make(), number, what, _text(line), None if tag is None else TAGS + tag)
        except StratalError as error:
            self.lost |= isinstance(error, RankLostError)
            raise error.at([line] if line else ()) from None
        self.busy_s += time.monotonic() - began

    def _in_turn(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return what calls MPI when no other thread does."""

        def in_turn() -> None:
            with self._turn:
                run()

        return in_turn

    def _has_turn(self) -> bool:
        """Take the turn for this thread, unless other rounds are under way, or have failed; return whether it
        did.
        """
        before = self._queued
        if before is not None and (not before.done or before.error is not None):
            return False
        return self._turn.acquire(False)

    @contextmanager
    def without_collectives(self, doing: str) -> Iterator[None]:
        """Refuse collectives in the block, in which other ranks do something else."""
        self._apart = doing
        try:
            yield
        finally:
            self._apart = ""

    def _check_joined(self, what: str) -> None:
        if self._apart:
            raise CallOrderError(
                f"{what}: a collective in {self._apart}", got="not all ranks come to it",
                hint="make it behind the step, on all ranks; SyncBatchNorm goes with data() and zero()",
            )  # fmt: skip

    def next_message(self, sources: Sequence[tuple[int, int]], what: str) -> tuple[int, int]:
        """Return the first of some (rank, tag) from which a message has come, for `start` to receive.

        Raises: what `MpiTransport.next_message` raises.
        """
        if self._transport is None or self._engine is None or self._network is None:
            raise CallOrderError(f"{what}: there are no other ranks", got="a job of one rank")
        line, transport, found = user_line(), self._transport, []  # type: Any, MpiTransport, list[Any]
        tagged = [(rank, TAGS + tag) for rank, tag in sources]

        def run() -> None:
            try:
                found.append(transport.next_message(tagged, what, str(line or "")))
            except StratalError as error:
                raise error.at([line] if line else ()) from None

        transport.awaited = True
        self._engine.push(self._in_turn(run), mutates=[self._network], name=what).wait()
        rank, tag = found[0]
        return rank, tag - TAGS

    def wait(self, operation: Operation | None) -> None:
        """Return once rounds are through. Raises: what `MpiTransport.run` raises."""
        if operation is not None and self._transport is not None:
            self._transport.awaited = True  # until more is queued
            operation.wait()

    def run(self, make: Callable[[], Rounds], what: str, tag: int | None = None) -> None:
        self.wait(self.start(make, what, tag, now=True))

    # -- after the death of a rank ---------------------------------------------------------------------------
    def agree(self, done: bool) -> bool:
        """Return whether every rank is there, and calls this with True: the same on all ranks that live.

        Raises: CollectiveTimeoutError.
        """
        if self._transport is None or self._engine is None:
            return done
        self._collectives += 1
        transport, number, found = self._transport, self._collectives, []  # type: MpiTransport, int, list[bool]
        transport.awaited = True
        agreeing = self._in_turn(lambda: found.append(transport.agree(done, number)))
        self._engine.push(agreeing, name="agreement").wait()
        return found[0]

    def without_dead(self) -> tuple[World, list[int]]:
        """Return the world of the ranks that live, and what numbers they had; all of them call it.

        It becomes that of this process. Raises: CollectiveTimeoutError where one does not come.
        """
        if self._transport is None or self._engine is None:
            return self, [self.rank]
        transport, found = self._transport, []  # type: MpiTransport, list[tuple[MpiTransport, list[int]]]
        shrink = self._in_turn(lambda: found.append(transport.without_dead()))
        shrinking = self._engine.push(shrink, name="shrinking")
        try:
            shrinking.wait(self.timeout)
        except EngineTimeoutError:
            raise transport.ledger.timed_out(
                0, "the search for ranks that live", range(self.size), self.timeout
            ) from None
        left, ranks = found[0]
        with suppress(StratalError):  # what was under way has failed
            self._engine.close(_GRACE_S)
        _WORLD[0] = World(left.rank, left.size, left, self.timeout, self.link, self.hosts)
        for function in _AT_JOIN:
            function(_WORLD[0])
        return _WORLD[0], ranks

    def close(self) -> None:
        """Let what is queued end, and tell the others that this rank makes no collective any more."""
        self.closed = True
        if self._engine is not None and self._transport is not None:
            try:
                self._engine.close(self.timeout + _GRACE_S)
            finally:
                self._transport.ledger.end()

    def abort(self, status: int) -> None:
        """End all ranks at once."""
        if self._transport is not None:
            self._transport.abort(status)


@functools.lru_cache(maxsize=1024)
def _text(line: SourceLine | None) -> str:
    return str(line or "")


# MPI is one per process, and so is the world.
_WORLD: Final[list[World]] = []
_SETTINGS: Final = {"timeout": DEFAULT_TIMEOUT, "elastic": 0.0}
_AT_JOIN: Final[list[Callable[[World], None]]] = []


def at_join(function: Callable[[World], None]) -> None:
    """Call a function with the world as soon as this process has joined it."""
    _AT_JOIN.append(function)


def preset(timeout: float, elastic: bool = False) -> None:
    """Set what `init` takes where it is not told, for the launcher.

    `elastic`: the launcher lets other ranks go on where one dies.
    """
    _SETTINGS.update(timeout=timeout, elastic=float(elastic))


def is_elastic() -> bool:
    """Return whether this job goes on without ranks that die."""
    return bool(_SETTINGS["elastic"])


def launched_size() -> int:
    """Return how many ranks the launcher of this process says there are; 1 without a launcher."""
    for name in SIZE_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    steps = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(steps) if steps.isdecimal() and "PMIX_RANK" in os.environ else 1


def init(timeout: float | None = None) -> None:
    """Join the ranks of this job, once; other functions do it where it was not called.

    `timeout`: seconds a collective waits for other ranks before it raises CollectiveTimeoutError (300).
    A process that no launcher started is a job of one rank, and needs no MPI.
    Raises: MissingExtraError where a launcher started several ranks and mpi4py is missing; CallOrderError for
    a second call with another time-out.
    """
    if timeout is not None and not timeout > 0:
        raise AttributeValueError("init: a time-out is more than 0 seconds", got=str(timeout))
    if _WORLD:
        if timeout is not None and timeout != _WORLD[0].timeout:
            raise CallOrderError("init: this process has joined its job already", got=f"timeout={timeout}",
                                 hint="call it once, before the first collective")  # fmt: skip
        return
    seconds = _SETTINGS["timeout"] if timeout is None else timeout
    _WORLD.append(World(0, 1, None, seconds) if launched_size() == 1 else _over_mpi(seconds))
    for function in _AT_JOIN:
        function(_WORLD[0])


def world() -> World:
    """Return the world, joining it if need be."""
    if not _WORLD:
        init()
    return _WORLD[0]


def is_initialized() -> bool:
    """Return whether this process has joined the ranks of its job."""
    return bool(_WORLD)


def rank() -> int:
    """Return the number of this process among the ranks of the job, from 0."""
    return world().rank


def world_size() -> int:
    """Return how many ranks the job has."""
    return world().size


def _over_mpi(timeout: float) -> World:
    try:
        if is_elastic():
            import mpi4py

            mpi4py.rc.finalize = False  # where a rank has died the end of MPI may wait for it for ever
        for name, value in _TCP.items():
            os.environ.setdefault(name, value)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"distributed: {launched_size()} ranks were started, and MPI for Python is missing",
            got=str(error).splitlines()[0], hint="pip install 'stratal[parallel]'",
        ) from None  # fmt: skip
    comm = MPI.COMM_WORLD.Dup()  # messages of one's own never meet those of the user's
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    lines = shared_lines(
        comm.Get_size(), host.Get_rank() == 0, lambda path: str(host.bcast(path)), host.Barrier
    )
    ledger = Ledger(lines, comm.Get_rank())
    comm.Barrier()  # every line has its process
    unlink_segments(comm.Get_rank())
    hosts = int(comm.allreduce(int(host.Get_rank() == 0)))
    found = tuple(link_for(comm.Get_size(), hosts)) if comm.Get_rank() == 0 else None
    link = Link(*comm.bcast(found))  # rank 0's: of two models ranks would choose two algorithms
    transport = MpiTransport(MPI, comm, ledger, timeout)
    made = World(comm.Get_rank(), comm.Get_size(), transport, timeout, link, hosts)
    host.Free()
    atexit.register(leave)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        before(kind, error, trace)
        sys.stderr.flush()
        world().abort(1)  # the others would wait for this rank, here or in MPI's own end

    sys.excepthook = hook
    return made


def leave() -> None:
    """End what this rank has to do with others, once; a rank of an elastic job waits for them first."""
    if not _WORLD or _WORLD[0].closed:
        return
    try:
        if is_elastic():  # MPI's own end, which waits for all, is left out
            with suppress(StratalError):
                _WORLD[0].agree(True)  # who ended before would look as if it had died
        _WORLD[0].close()
    except BaseException as error:
        print(f"stratal: {error}", file=sys.stderr, flush=True)
        _WORLD[0].abort(1)
