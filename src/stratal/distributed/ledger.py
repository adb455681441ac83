"""Ledger of collectives: what each rank of a host is doing, in memory that all of them see.

    rank | started | finished | inside | ended | clock | pid | call | what                     | where
    0    | 12      | 11       | 1      | 0     | ..    | ..  | ..   | all_reduce of float32[8] | train.py:34
    1    | 11      | 11       | 0      | 0     | ..    | ..  | ..   | barrier                  | train.py:40

A line is written with stores alone, so it costs nothing to keep and can be read while its rank hangs, or is
stopped. Texts are stored only where they differ from the last ones; `call` is the checksum of `what`. The
file is unlinked as soon as every rank has mapped it: nothing is left behind by a kill.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from stratal.base.errors import StratalError
from stratal.distributed.errors import CollectiveTimeoutError, ProgramMismatchError, RankLostError

LINE: Final = np.dtype(
    [(name, "i8") for name in ("started", "finished", "inside", "ended", "clock", "pid", "call")]
    + [("what", "S160"), ("where", "S120")]
)
_STARTED, _FINISHED, _INSIDE, _, _CLOCK, _, _CALL = range(7)  # words of a line
_STATES: Final = {"T": "is stopped by a signal", "Z": "was killed", "X": "was killed"}


class Ledger:
    """The lines of all ranks; those of ranks on other hosts stay empty.

    `lines` is memory shared by the ranks of this host, or an array of one's own in tests; `of` are the ones
    that count, by default all.
    """

    def __init__(self, lines: np.ndarray[Any, Any], rank: int, of: Sequence[int] | None = None) -> None:
        self._memory: Final = lines
        self._of: Final = tuple(range(len(lines)) if of is None else of)
        self.lines: Final = tuple(lines[k] for k in self._of)  # each a view of its memory, by fields
        self.rank: Final = rank
        self._own: Final = self.lines[rank]
        self._own["pid"] = os.getpid()
        words = np.asarray(lines).view(np.int64).reshape(len(lines), -1)
        self._words: Final = memoryview(words[self._of[rank]])  # stores cost a third of those by field
        self._others: Final = [memoryview(words[k]) for r, k in enumerate(self._of) if r != rank]
        self._texts = "", ""

    def of(self, ranks: Sequence[int]) -> Ledger:
        """Return the ledger of the ranks that are left, numbered anew; this one begins to count from 0."""
        left = Ledger(self._memory, ranks.index(self.rank), [self._of[r] for r in ranks])
        for name in ("started", "finished", "inside"):
            left._own[name] = 0
        return left

    def start(self, number: int, what: str, where: str) -> None:
        """Note that this rank enters its collective `number`; 0 for messages between two ranks."""
        words = self._words
        if (what, where) != self._texts:
            self._texts = what, where
            self._own["what"], self._own["where"] = what.encode()[:160], where.encode()[:120]
            words[_CALL] = zlib.crc32(what.encode())
        words[_CLOCK], words[_INSIDE] = time.monotonic_ns(), 1
        if number:
            words[_STARTED] = number  # last: who sees the number sees the rest

    def finish(self, number: int) -> None:
        words = self._words
        words[_CLOCK], words[_INSIDE] = time.monotonic_ns(), 0
        if number:
            words[_FINISHED] = number

    def end(self) -> None:
        """Note that this rank makes no collective any more."""
        self._own["ended"] = 1

    # -- looking at others -----------------------------------------------------------------------------------
    def all_inside(self) -> bool:
        """Return whether every rank has come to the collective this one is in; of other hosts none does.

        A loop: a generator would take as long as the call that waits for it.
        """
        number, call = self._words[_STARTED], self._words[_CALL]
        for other in self._others:  # noqa: SIM110
            if other[_STARTED] != number or other[_CALL] != call:
                return False
        return True

    def ahead(self, number: int, what: str) -> StratalError | None:
        """Return an error where a rank has left a collective that takes all ranks, without this one."""
        for rank, line in enumerate(self.lines):
            if rank != self.rank and int(line["finished"]) >= number:
                return ProgramMismatchError(
                    f"ranks {self.rank} and {rank} make different collectives",
                    got=f"rank {self.rank}: {what} from {self.where(self.rank)}; {self.describe(rank)}",
                )
        return None

    def trouble(self, number: int, what: str, peers: Iterable[int]) -> StratalError | None:
        """Return why collective `number` of ranks `peers` can never complete, if that can be seen already.

        A rank in another collective of that number, one that has ended before it, and one that is dead.
        """
        for rank in peers:
            line = self.lines[rank]
            if rank == self.rank or not line["pid"]:
                continue
            started, other, ended = int(line["started"]), line["what"].decode(), bool(line["ended"])
            if number and int(self.lines[rank]["finished"]) >= number:  # it left: the text may be of the next
                continue
            if number and started == number and other != what.encode()[:160].decode():
                return ProgramMismatchError(
                    f"ranks {self.rank} and {rank} make different collectives",
                    got=f"rank {self.rank}: {what} from {self.where(self.rank)}; "
                    f"rank {rank}: {other} from {self.where(rank)}",
                )
            if ended and (not number or started < number):
                return RankLostError(
                    f"rank {rank} has ended, rank {self.rank} waits for it", got=self.describe(rank)
                )
            if _state(int(line["pid"])) in ("Z", "X", ""):
                return RankLostError(
                    f"rank {rank} was killed, rank {self.rank} waits for it", got=self.describe(rank)
                )
        return None

    def timed_out(self, number: int, what: str, peers: Sequence[int], seconds: float) -> StratalError:
        """Return an error that says who waits for whom, in what, from which line."""
        seen = [r for r in peers if self.lines[r]["pid"] and r != self.rank]
        absent = [r for r in seen if int(self.lines[r]["started"]) < number] if number else seen
        unseen = [r for r in peers if not self.lines[r]["pid"]]
        named = ", ".join(f"rank {r}" for r in absent)
        waits = f"for {named}" if absent else "for messages of ranks inside it"
        stopped = [r for r in range(len(self.lines)) if r not in seen and self._is_stopped(r)]
        told = [self.describe(r) for r in (*(absent or seen), *stopped)]  # the others may wait for those
        told += [f"rank {r} is on another host" for r in unseen]
        return CollectiveTimeoutError(
            f"rank {self.rank} waited {seconds:g} s in {what}{_numbered(number)} {waits}", got="; ".join(told)
        )

    def describe(self, rank: int) -> str:
        """Return in words what a rank is doing."""
        line = self.lines[rank]
        started, finished = int(line["started"]), int(line["finished"])
        since = (time.monotonic_ns() - int(line["clock"])) / 1e9
        state = _STATES.get(_state(int(line["pid"])), "")
        number = started if bool(line["inside"]) == (started > finished) else 0
        what = f"{line['what'].decode()}{_numbered(number)} from {self.where(rank)}"
        doing = f"is in {what} since {since:.1f} s" if line["inside"] else f"left {what} {since:.1f} s ago"
        if not line["what"]:
            doing = "has made no collective"
        return f"rank {rank} {doing}" + (f" and {state}" if state else " and has ended" * int(line["ended"]))

    def _is_stopped(self, rank: int) -> bool:
        pid = int(self.lines[rank]["pid"])
        return rank != self.rank and bool(pid) and _state(pid) == "T"

    def where(self, rank: int) -> str:
        """Return the line from which a rank makes its collective."""
        return self.lines[rank]["where"].decode() or "no line of a script"


def _numbered(number: int) -> str:
    return f" (number {number})" if number else ""


def _state(pid: int) -> str:
    """Return the letter of a process's state; empty where there is none any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "?"


def shared_lines(
    size: int, first: bool, pass_path: Callable[[str], str], together: Callable[[], object]
) -> np.ndarray[Any, Any]:
    """Return lines that all ranks of this host share.

    The `first` rank of the host makes the file, `pass_path` hands its path to the others, `together` is their
    barrier.
    """
    path = ""
    if first:
        path = f"{_folder()}/stratal-ledger-{os.getpid()}-{time.monotonic_ns()}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.ftruncate(descriptor, size * LINE.itemsize)
        os.close(descriptor)
    path = pass_path(path)
    lines = np.memmap(path, LINE, "r+", shape=(size,))
    together()
    if first:
        os.unlink(path)
    return lines


def _folder() -> str:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else os.environ.get("TMPDIR", "/tmp")


def unlink_lines_of(pid: int) -> None:
    """Remove the file of lines that a rank made which was killed before all had opened it."""
    for path in Path(_folder()).glob(f"stratal-ledger-{pid}-*"):
        path.unlink(missing_ok=True)


def unlink_segments(rank: int) -> None:
    """Remove the name of the memory through which Open MPI's ranks on this host send messages.

    All have mapped it when MPI has started; what has no name does not outlive a kill.
    """
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = Path(line.rpartition(" ")[2])
            if path.name.startswith("sm_segment.") and path.name.endswith(f".{rank}"):
                path.unlink(missing_ok=True)
