"""Supervision of an elastic job's ranks by its launcher: who has joined, is done, has failed or is dead.

    rank      -- "rank 2", "joined", "done" | "failed 1" | "lost 1" -->  launcher     a socket without a name
    launcher  a descriptor of each rank's process becomes readable when that dies

    verdict:  wait      ranks train, with some dead or not
              complete  every rank that lives is done
              again     too few live, one died before all had joined, or ranks cannot go on without it
              failed    a rank failed by itself: its status is the job's

mpirun's own status is 0 though ranks were killed, and it may stay when all have ended: what ranks said
decides.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratal.base.errors import StratalError
from stratal.distributed.ledger import unlink_lines_of

GRACE_S: Final = 0.3  # in which the death that made a rank fail becomes known
_PATIENCE_S: Final = 10.0  # of a rank that failed, until the launcher ends it


class State(NamedTuple):
    """What is known of a rank: started, joined, done, failed, lost (failed for another's death) or dead."""

    name: str
    status: int = 0  # of one that failed


class Verdict(NamedTuple):
    """What becomes of a job: wait, complete, again or failed."""

    name: str
    status: int = 0
    why: str = ""


def verdict(states: Mapping[int, State], size: int, least: int) -> Verdict:
    """Return what becomes of a job of `size` ranks, which goes on while `least` of them live."""
    dead = sorted(r for r, s in states.items() if s.name == "dead")
    failed = [s for s in states.values() if s.name in ("failed", "lost")]
    named = f"rank {', '.join(map(str, dead))} died"
    if failed and (dead or any(s.name == "lost" for s in failed)):
        return Verdict("again", failed[0].status, f"{named}, and the others could not go on without it")
    if failed:
        return Verdict("failed", failed[0].status)
    living = [s.name for r, s in states.items() if r not in dead]
    if dead and ("started" in living or len(states) < size):
        return Verdict("again", 137, f"{named} before all had joined")
    if dead and size - len(dead) < max(1, least):
        return Verdict("again", 137, f"{named}, {size - len(dead)} are left")
    if living and len(states) == size and set(living) == {"done"}:
        return Verdict("complete")
    return Verdict("wait")


class Supervisor:
    """The launcher's side: reads what ranks say, and notices their deaths. Linux only."""

    def __init__(self, size: int, least: int) -> None:
        self.size: Final = size
        self.least: Final = least
        self.states: dict[int, State] = {}
        self._processes: dict[int, int] = {}  # descriptors of ranks' processes
        self._selector: Final = selectors.DefaultSelector()
        self._listener: Final = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.address: Final = f"stratal-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener.bind("\0" + self.address)
        self._listener.listen(size)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", asked)
        if user != os.geteuid():
            connection.close()
            return
        connection.settimeout(2.0)
        with suppress(OSError, ValueError):
            rank = int(connection.recv(64).split()[1])
            self.states[rank] = State("started")
            process = os.pidfd_open(pid)  # after the rank spoke: it is that one
            self._processes[rank] = process
            self._selector.register(process, selectors.EVENT_READ, lambda: self._died(rank, pid, connection))
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(rank, connection))
            return
        connection.close()  # it died meanwhile

    def _read(self, rank: int, connection: socket.socket) -> None:
        words: list[bytes] = []
        with suppress(OSError):
            words = connection.recv(64).split()
        if not words:  # it has ended, and all it said is read
            with suppress(KeyError, ValueError):
                self._selector.unregister(connection)
            connection.close()
        elif self.states[rank].name not in ("dead", "failed", "lost"):
            self.states[rank] = State(words[0].decode(), int(words[1]) if words[1:] else 0)

    def _died(self, rank: int, pid: int, connection: socket.socket) -> None:
        unlink_lines_of(pid)
        if connection.fileno() >= 0:  # what it said before counts; a child of it may hold the other end
            connection.settimeout(0.0)
        while connection.fileno() >= 0:
            self._read(rank, connection)
        self._selector.unregister(self._processes[rank])
        os.close(self._processes.pop(rank))
        if self.states[rank].name in ("started", "joined"):
            self.states[rank] = State("dead")

    def look(self, seconds: float) -> None:
        """Take in what happens within some seconds, at least what has happened."""
        events = self._selector.select(seconds)
        for key, _ in events:
            key.data()  # a connection that was closed by one before it has nothing to read

    def misses_one(self, mpirun: int) -> bool:
        """Return whether a rank died before it reported, for which the others wait in MPI's beginning.

        mpirun starts all of them at once, much faster than the first can report.
        """
        if not self.states or len(self.states) == self.size:
            return False
        alive = set(children(mpirun))
        self.look(0.0)  # one that reported meanwhile is known
        absent = self.size - len(self.states)
        return absent > 0 and len(alive) < absent + len(self._processes)

    def judged(self) -> Verdict:
        """Return what becomes of the job, after a while in which a death explains a failure."""
        found = verdict(self.states, self.size, self.least)
        end = time.monotonic() + GRACE_S
        while found.name == "failed" and time.monotonic() < end:
            self.look(0.05)
            found = verdict(self.states, self.size, self.least)
        return found

    def wait(self, seconds: float) -> None:
        """Let ranks that are done end by themselves."""
        end = time.monotonic() + seconds
        while self._processes and time.monotonic() < end:
            self.look(0.05)

    def kill(self) -> None:
        """Kill the ranks that are left, stopped ones too."""
        for descriptor in self._processes.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._processes.clear()

    def close(self) -> None:
        self.kill()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Supervised:
    """A rank's side. Raises: StratalError where there is no launcher at the address."""

    def __init__(self, address: str, rank: int) -> None:
        self._socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect("\0" + address)
        except OSError as error:
            raise StratalError("launch: no launcher of an elastic job is there", got=str(error)) from None
        self.say(f"rank {rank}")

    def say(self, text: str) -> None:
        """Let the launcher know something; one that has ended ends this process, too."""
        with suppress(OSError):
            self._socket.send(text.encode())

    def fail(self, status: int, lost: bool) -> None:
        """Let the launcher end the job: what it does with it depends on deaths it knows of."""
        self.say(f"{'lost' if lost else 'failed'} {status}")
        self._socket.settimeout(_PATIENCE_S)
        with suppress(OSError):
            self._socket.recv(64)  # nothing comes: the launcher kills this process


def children(parent: int) -> list[int]:
    """Return the processes that live and were started by another one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, above = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if int(above) == parent and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def missing() -> str:
    """Return what this system lacks for elastic jobs; empty where nothing."""
    wanted: dict[str, Any] = {"pidfd_open": os, "pidfd_send_signal": signal}
    lacks = [name for name, module in wanted.items() if not hasattr(module, name)]
    return ", ".join(lacks)
