"""Connections of the HTTP server, with limits that uvicorn does not have.

A connection is closed where the head of a request is not there in time or is too long, where nothing is asked
on it any more, or where the client does not read its answer. One connection too many is told so and closed.
(The body of a request has limits of its own: `stratal.serve.app.read_body`.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from stratal.serve.extra import required

MOST_HEAD_BYTES: Final = 1 << 16
MOST_JOINED_BYTES: Final = 1 << 16  # of a body: a longer one is not copied to stand behind its head


@dataclass(frozen=True)
class Limits:
    """Limits on connections; times in seconds."""

    connections: int = 512
    head_seconds: float = 10.0  # from the first byte, or from the connection's begin, to the end of a head
    idle_seconds: float = 30.0  # between an answer and the next request
    write_seconds: float = 30.0  # that a client may leave an answer unread


Header = tuple[bytes, bytes]
Target = tuple[str, str]  # model and version


class Reply(NamedTuple):
    """The whole answer to a request."""

    status: int
    headers: list[Header]
    body: bytes


Replied = Callable[[Reply], None]


@dataclass(frozen=True)
class Direct:
    """Requests that are answered without an ASGI application: those for a target, once they are there whole.

    A body that comes in several pieces, or without its length, a second request before the first is answered,
    and what `target` does not know go to the ASGI application, with the same answers.
    """

    target: Callable[[str], Target | None]  # of a path; where it is not None, `answer` knows what to do
    answer: Callable[[Target, list[Header], bytes, Replied], None]
    most_bytes: int  # of a body


class _Nobody:
    """Stands for the event of an ASGI application that waits for messages, where there is none."""

    def set(self) -> None:
        pass


class _DirectCycle:
    """A request that is answered directly, as uvicorn's connection sees it in the place of its own cycle."""

    __slots__ = ("body", "disconnected", "headers", "keep_alive", "response_complete", "target")
    message_event = _Nobody()

    def __init__(self, target: Target, headers: list[Header], keep_alive: bool) -> None:
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.disconnected = self.response_complete = False


_STATUS_LINES: Final = {s.value: b"HTTP/1.1 %d %s\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}


def _written(reply: Reply, keep_alive: bool) -> bytes:
    """Return an answer as it is sent."""
    lines = [b"%s: %s\r\n" % header for header in reply.headers]
    said = keep_alive or (b"connection", b"close") in reply.headers
    end = b"\r\n" if said else b"connection: close\r\n\r\n"
    return b"".join([_STATUS_LINES[reply.status], *lines, end, reply.body])


class _Joined:
    """A transport that sends the head of an answer together with its body.

    Uvicorn writes them one by one: a system call more, and a client that wakes up for a head alone.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head: bytes | None = None  # that waits for the body
        self._begun = False

    def write(self, data: bytes) -> None:
        if not self._begun and not data.startswith(b"HTTP/1.1 100"):
            self._begun, self._head = True, data
        elif self._head is not None and len(data) <= MOST_JOINED_BYTES:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._flush()
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def protocol_class(limits: Limits, direct: Direct | None = None) -> Any:
    """Return uvicorn's protocol of a connection, within limits; `direct` answers what it can by itself."""
    base = required("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol

    class Limited(base):  # type: ignore[misc, valid-type]
        """A connection: `_due` ends it unless a head is whole before, `_stalled` unless the client reads."""

        cycle: Any
        _due: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None
        _in_head = False
        _head_bytes = 0
        _heads = 0  # that were whole, of all requests so far
        _arriving: _DirectCycle | None = None  # whose body is not there yet

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self._refuse(503, f"too many connections; got more than {limits.connections}")
            else:
                self._await_head()

        def connection_lost(self, error: Exception | None) -> None:
            self._head_is_whole()
            self.resume_writing()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            heads = self._heads
            super().data_received(data)
            if self._arriving is not None and not self.transport.is_closing():
                self._leave_to_application()
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES:
                    self._refuse(431, f"the head of a request has at most {MOST_HEAD_BYTES} bytes")
                else:
                    self._await_head()  # one that comes whole needs no timer
            elif self._heads == heads and (self.cycle is None or self.cycle.response_complete):
                self._await_head()  # whatever comes between requests does not keep a connection open

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._heads += 1
            self._head_is_whole()
            self._arriving = None if direct is None else self._direct_cycle(direct)
            if self._arriving is None:
                self._begin_application()

        def _begin_application(self) -> None:
            before = self.cycle
            super().on_headers_complete()
            if self.cycle is not before and self.scope["method"] != "HEAD":  # whose head no body follows
                self.cycle.transport = _Joined(self.transport)

        def _direct_cycle(self, direct: Direct) -> _DirectCycle | None:
            """Return the request whose head is there, where it can be answered directly."""
            parser, headers = self.parser, self.headers
            idle = self.cycle is None or self.cycle.response_complete
            if not idle or self.flow.write_paused or self.expect_100_continue:
                return None
            if (
                parser.get_method() != b"POST"
                or parser.get_http_version() != "1.1"
                or parser.should_upgrade()
            ):
                return None
            lengths = [v for name, v in headers if name in (b"content-length", b"transfer-encoding")]
            if len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0]) > direct.most_bytes:
                return None
            if not self.url.isascii() or b"%" in self.url or b"?" in self.url or b"#" in self.url:
                return None
            if (target := direct.target(self.url.decode())) is None:
                return None
            return _DirectCycle(target, headers, parser.should_keep_alive())

        def on_body(self, body: bytes) -> None:
            if self._arriving is None:
                super().on_body(body)
            else:
                self._arriving.body.append(body)

        def on_message_complete(self) -> None:
            cycle, self._arriving = self._arriving, None
            if cycle is None or direct is None:
                super().on_message_complete()
            elif not self.transport.is_closing():
                self.cycle = cycle
                body = cycle.body[0] if len(cycle.body) == 1 else b"".join(cycle.body)
                direct.answer(cycle.target, cycle.headers, body, partial(self._reply, cycle))

        def _reply(self, cycle: _DirectCycle, reply: Reply) -> None:
            """Send the answer to a request, unless its client is gone."""
            if cycle.disconnected or self.transport.is_closing():
                return
            cycle.response_complete = True
            keep_alive = cycle.keep_alive and (b"connection", b"close") not in reply.headers
            self.transport.write(_written(reply, keep_alive))
            if not keep_alive:
                self.transport.close()
            self.on_response_complete()

        def _leave_to_application(self) -> None:
            """Let the ASGI application read on where the body is not there as a whole."""
            parts = self._arriving.body if self._arriving is not None else []
            self._arriving = None
            self._begin_application()
            for part in parts:
                super().on_body(part)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._abort_later()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._abort_later()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self._abort_later()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _await_head(self) -> None:
            if self._due is None:
                self._due = self.loop.call_later(limits.head_seconds, self._late)

        def _head_is_whole(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

        def _late(self) -> None:
            self._due = None
            self._refuse(408, f"no whole head of a request within {limits.head_seconds:g} s")

        def _refuse(self, status: int, text: str) -> None:
            """Say why, and close: at once where nothing else is being answered on the connection."""
            if self.cycle is None or self.cycle.response_complete:
                body = json.dumps({"error": text}).encode()
                self.transport.write(
                    b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                    b"connection: close\r\n\r\n%s"
                    % (status, HTTPStatus(status).phrase.encode(), len(body), body)
                )
            self.transport.close()
            self._abort_later()

        def _abort_later(self) -> asyncio.TimerHandle:
            """End the connection after a while even where the client reads nothing of what is left."""
            handle: asyncio.TimerHandle = self.loop.call_later(limits.write_seconds, self.transport.abort)
            return handle

    return Limited
