"""The communication thread: it owns MPI, runs rounds of messages, and counts what it sends.

MPI makes no progress by itself, so somebody has to call it: this thread posts a round with Isend and Irecv
and polls. Where the rank waits for the round it spins for as long as messages in shared memory take, then
yields, then sleeps. Where kernels go on meanwhile it sleeps between polls, the longer the longer it waits: a
poll takes time from a kernel on the same core.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import CallOrderError, StratalError
from stratal.distributed.algorithms import Round, Rounds, Whole
from stratal.distributed.errors import ProgramMismatchError, RankLostError
from stratal.distributed.ledger import Ledger
from stratal.distributed.own_call import OwnCall

TAGS: Final = 30_000  # of collectives; messages between two ranks have those above
_SPIN_NS: Final = 50_000
_YIELD_NS: Final = 500_000
_LOOK_NS: Final = 50_000_000  # between looks at what others are doing
_SLEEP_S: Final = 50e-6
_SLEEP_SHARE: Final = 0.125  # of what was waited, while kernels go on
_MOST_SLEEP_S: Final = 0.25e-3  # a socket takes in what a slow link brings in that time


class Counters:
    """Messages and bytes this rank sent to, and received from, each rank; and MPI's own all-reduces, of which
    messages are not seen, with the bytes that they reduced.
    """

    def __init__(self, size: int) -> None:
        self.sent_messages = np.zeros(size, np.int64)
        self.sent_bytes = np.zeros(size, np.int64)
        self.received_messages = np.zeros(size, np.int64)
        self.received_bytes = np.zeros(size, np.int64)
        self.mpi_calls = [0]
        self.mpi_bytes = [0]

    def count(self, messages: Round) -> None:
        for peer, data in messages.sends:
            self.sent_messages[peer] += 1
            self.sent_bytes[peer] += data.nbytes
        for peer, data in messages.receives:
            self.received_messages[peer] += 1
            self.received_bytes[peer] += data.nbytes


class MpiTransport:
    """Rounds over one communicator of mpi4py; one thread at a time calls it."""

    def __init__(self, mpi: Any, comm: Any, ledger: Ledger, timeout: float) -> None:
        self.counters = Counters(comm.Get_size())
        self.ledger: Final = ledger
        self.timeout = timeout  # seconds without progress
        self.awaited = True  # whether the rank does nothing until the collective under way is through
        self._mpi: Final = mpi
        self._comm: Final = comm
        self._lost: list[Any] = []  # what messages that never came would be written to: it must live on
        self._broken: StratalError | None = None
        self._own_call: OwnCall | None = None

    @property
    def rank(self) -> int:
        return int(self._comm.Get_rank())

    @property
    def size(self) -> int:
        return int(self._comm.Get_size())

    def abort(self, status: int) -> None:
        """End all ranks at once, from any thread; never returns."""
        self._comm.Abort(status)

    def run(self, rounds: Rounds, number: int, what: str, where: str, tag: int | None) -> None:
        """Run a collective: `number` counts those of this rank, from 1; 0 for messages between two
        ranks, which have a `tag`.

        Raises: CollectiveTimeoutError, ProgramMismatchError, RankLostError; afterwards CallOrderError, since
        messages of the lost collective may still be under way.
        """
        if self._broken is not None:
            self._check_unbroken(what)
        self.ledger.start(number, what, where)
        try:
            for messages in rounds:
                if isinstance(messages, Whole):
                    self._whole(messages, number, what)
                elif messages.sends or messages.receives:
                    if tag is None:
                        tag = collective_tag(number, what)
                    self._round(messages, number, what, tag)
        except BaseException as error:  # an interrupt, too: others wait for the rounds that are left
            if self._broken is None:
                self._broken = StratalError(f"{what}: broken off", got=type(error).__name__)
            raise
        self.ledger.finish(number)

    def next_message(self, sources: Sequence[tuple[int, int]], what: str, where: str) -> tuple[int, int]:
        """Return the first of some (peer, tag) from which a message has come; it is not received yet.

        Raises: RankLostError where all of these peers have ended; CollectiveTimeoutError.
        """
        self._check_unbroken(what)
        self.ledger.start(0, what, where)
        peers = sorted({peer for peer, _ in sources})
        found: list[tuple[int, int]] = []

        def test() -> bool:
            found.extend([source for source in sources if self._comm.Iprobe(*source)][:1])
            return bool(found)

        def trouble() -> StratalError | None:
            seen = [self.ledger.trouble(0, what, [peer]) for peer in peers]
            return seen[0] if all(seen) else None

        self._poll(test, trouble, lambda: self.ledger.timed_out(0, what, peers, self.timeout))
        self.ledger.finish(0)
        return found[0]

    def _check_unbroken(self, what: str) -> None:
        if self._broken is not None:
            raise CallOrderError(
                f"{what}: an earlier collective of this rank failed", got=self._broken.rule,
                hint="start the job again; a failed collective leaves messages under way",
            )  # fmt: skip

    def _round(self, messages: Round, number: int, what: str, tag: int) -> None:
        mpi, comm = self._mpi, self._comm
        requests: list[Any] = []
        statuses = [mpi.Status() for part in messages for _ in part]
        others = range(comm.Get_size()) if number else [peer for part in messages for peer, _ in part]
        try:
            for peer, a in messages.receives:
                requests.append(comm.Irecv((_bytes(a), mpi.BYTE), peer, tag))
            for peer, a in messages.sends:
                requests.append(comm.Isend((_bytes(a), mpi.BYTE), peer, tag))
            self._poll(
                lambda: bool(mpi.Request.Testall(requests, statuses)),
                lambda: self.ledger.trouble(number, what, others),
                lambda: self.ledger.timed_out(number, what, others, self.timeout),
            )
        except mpi.Exception as error:
            self._lost += [requests, messages]
            self._broken = self._lost_rank(what) or ProgramMismatchError(
                f"{what}: a message of another length came", got=str(error)
            )
            raise self._broken from None
        except BaseException as error:
            self._lost += [requests, messages]
            self._broken = error if isinstance(error, StratalError) else None
            raise
        for (peer, wanted), status in zip(messages.receives, statuses, strict=False):
            if (count := status.Get_count(mpi.BYTE)) != wanted.nbytes:
                self._broken = ProgramMismatchError(
                    f"{what}: rank {peer} sent a message of another length",
                    got=f"{count} bytes for {wanted.nbytes}",
                )
                raise self._broken
        self.counters.count(messages)

    def _whole(self, whole: Whole, number: int, what: str) -> None:
        """Let MPI make a reduction by itself, once all ranks have come to it."""
        mpi, ledger = self._mpi, self.ledger
        if not ledger.all_inside():
            others = range(self.size)
            self._poll(
                ledger.all_inside,
                lambda: ledger.trouble(number, what, others) or ledger.ahead(number, what),
                lambda: ledger.timed_out(number, what, others, self.timeout),
            )
        if self._own_call is None:
            self._own_call = OwnCall(mpi, self._comm, ledger)
            self._own_call.watch(self.timeout, self.abort)
        try:
            self._own_call.run(whole, number, what)
        except mpi.Exception as error:
            self._broken = StratalError(f"{what}: MPI's own call failed", got=str(error))
            raise self._broken from None
        self.counters.mpi_calls[0] += 1
        self.counters.mpi_bytes[0] += whole.buffer.nbytes

    # -- after the death of a rank, where MPI tolerates it ---------------------------------------------------
    def _lost_rank(self, what: str) -> RankLostError | None:
        """Return what says that a rank of the communicator is dead, or that others found one to be."""
        mpi, comm = self._mpi, self._comm
        try:
            failed, revoked = comm.Get_failed(), comm.Is_revoked()
        except (NotImplementedError, mpi.Exception):  # an MPI without fault tolerance
            return None
        ranks = mpi.Group.Translate_ranks(failed, range(failed.Get_size()), comm.Get_group())
        dead = ", ".join(self.ledger.describe(r) for r in ranks)
        return RankLostError(f"{what}: a rank was killed", got=dead) if dead or revoked else None

    def agree(self, done: bool, number: int) -> bool:
        """Return whether every rank is there, and calls this with True: the same on all that live.

        A rank that is not done lets others not wait for its messages. Raises: CollectiveTimeoutError.
        """
        mpi, comm, what = self._mpi, self._comm, "agreement on a step"
        self.ledger.start(number, what, "")
        flag = np.array([done], np.int32)
        others = range(comm.Get_size())
        try:
            if not done and not comm.Is_revoked():
                comm.Revoke()
            request = comm.Iagree(flag)
            self._poll(
                lambda: bool(request.Test()), lambda: None,
                lambda: self.ledger.timed_out(number, what, others, self.timeout),
            )  # fmt: skip
        except mpi.Exception:  # a rank is dead: all others get this, too
            return False
        self.ledger.finish(number)
        return bool(flag[0])

    def without_dead(self) -> tuple[MpiTransport, list[int]]:
        """Return the transport of the ranks that live, and what numbers they had; all of them call it.

        It waits for ranks without end: the caller limits that.
        """
        mpi, comm, ledger = self._mpi, self._comm, self.ledger
        ranks = list(range(comm.Get_size()))
        while True:
            left = comm.Shrink()
            left.Set_errhandler(mpi.ERRORS_RETURN)
            known = mpi.Group.Translate_ranks(left.Get_group(), range(left.Get_size()), comm.Get_group())
            ranks, ledger, comm = [ranks[r] for r in known], ledger.of(known), left
            try:
                comm.Agree(1)  # every line counts from 0
            except mpi.Exception:
                continue  # another one died meanwhile
            made = MpiTransport(mpi, comm, ledger, self.timeout)
            made._lost.append(self._lost)
            return made, ranks

    def _poll(
        self, test: Callable[[], bool], trouble: Callable[[], StratalError | None],
        timed_out: Callable[[], StratalError],
    ) -> None:  # fmt: skip
        """Return once `test` holds. Raises: what `trouble` returns twice, `timed_out` after the time-out."""
        began = time.monotonic_ns()
        looked, suspected = began, False
        while not test():
            now = time.monotonic_ns()
            waited = now - began
            if not self.awaited:
                time.sleep(min(max(_SLEEP_SHARE * waited / 1e9, _SLEEP_S), _MOST_SLEEP_S))
            elif waited > _YIELD_NS:
                time.sleep(_SLEEP_S)
            elif waited > _SPIN_NS:
                time.sleep(0)
            if now - looked > _LOOK_NS:
                looked = now
                found = trouble()
                if found is not None and not suspected:  # what it sent before it ended may still arrive
                    found, suspected = None, True
                if found is None and waited > self.timeout * 1e9:
                    found = timed_out()
                if found is not None:
                    raise found


def collective_tag(number: int, what: str) -> int:
    """Return the tag of a collective's messages: those of another one, made by mistake, are never taken."""
    return zlib.crc32(f"{number} {what}".encode()) % TAGS


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)
