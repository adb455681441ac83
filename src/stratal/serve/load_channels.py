"""Connections of an open-loop load: requests leave when they are due, and wait only where none is free.

Protocols, not streams: the load shares its machine with the server more often than not, and what the client
takes of a core the server does not have. An answer counts from the call that delivers its last bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from stratal.serve.extra import clock

GIVE_UP: Final = 30.0  # seconds after which a request counts as lost


@dataclass(frozen=True)
class Target:
    """A server: where it is, the key it asks for, and how its certificate is verified (None: no TLS)."""

    host: str
    port: int
    key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(slots=True)
class Asked:
    """A request: when it was due, sent, answered (monotonic seconds); status 0 without an answer."""

    due: float
    sent: float = 0.0
    done: float = 0.0
    status: int = 0


class _Channel(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self, pool: Channels) -> None:
        self.transport: Any = None
        self.asked: Asked | None = None
        self._pool = pool
        self._data = bytearray()
        self._length = 0  # of the answer, head and all, once its head is there
        self._closes = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._pool.opened(self)

    def send(self, asked: Asked) -> None:
        self.asked, asked.sent = asked, clock()
        self.transport.write(self._pool.text)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._length and (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end]).lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            self._closes = b"\r\nconnection: close" in head
            self._length = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
        if self._length and len(self._data) >= self._length and self.asked is not None:
            asked, self.asked = self.asked, None
            asked.status, asked.done = int(self._data[9:12]), clock()
            self._data.clear()
            self._length = 0
            if self._closes:
                self.transport.close()
            self._pool.answered(self, asked, usable=not self._closes)

    def connection_lost(self, error: Exception | None) -> None:
        asked, self.asked = self.asked, None
        self._pool.lost(self, asked)


class Channels:
    """At most `most` connections to a server, all for one request's text; `done` is called once a request."""

    def __init__(self, server: Target, text: bytes, most: int, done: Callable[[Asked], None]) -> None:
        self.text = text
        self._server, self._most, self._done = server, most, done
        self._free: list[_Channel] = []
        self._open: set[_Channel] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[Asked] = deque()

    async def open(self) -> None:
        """Open the first connection. Raises: OSError."""
        await self._connect()

    def ask(self, due: float) -> None:
        """Send a request that is due, or let it wait for a connection."""
        self._waiting.append(Asked(due))
        self._feed()

    def opened(self, channel: _Channel) -> None:
        self._open.add(channel)
        self._free.append(channel)
        self._feed()

    def answered(self, channel: _Channel, asked: Asked, usable: bool) -> None:
        if usable:
            self._free.append(channel)
        self._done(asked)
        self._feed()

    def lost(self, channel: _Channel, asked: Asked | None) -> None:
        self._open.discard(channel)
        if channel in self._free:
            self._free.remove(channel)
        if asked is not None:
            self._done(asked)
        self._feed()

    def give_up(self) -> None:
        """Count what is out for too long as lost; its connection is of no more use."""
        before = clock() - GIVE_UP
        while self._waiting and self._waiting[0].due < before:
            self._done(self._waiting.popleft())
        for channel in [c for c in self._open if c.asked is not None and c.asked.sent < before]:
            channel.transport.abort()

    def close(self) -> None:
        for task in self._opening:
            task.cancel()
        for channel in list(self._open):
            channel.transport.abort()

    def _feed(self) -> None:
        while self._waiting and self._free:
            self._free.pop().send(self._waiting.popleft())
        if len(self._waiting) > len(self._opening) and len(self._open) + len(self._opening) < self._most:
            task = asyncio.get_running_loop().create_task(self._tried())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _tried(self) -> None:
        try:
            await self._connect()
        except OSError:
            if self._waiting:
                self._done(self._waiting.popleft())

    async def _connect(self) -> None:
        loop, server = asyncio.get_running_loop(), self._server
        await loop.create_connection(lambda: _Channel(self), server.host, server.port, ssl=server.tls)
