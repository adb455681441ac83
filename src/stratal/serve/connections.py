"""Connections of the HTTP server, with limits that uvicorn does not have.

A connection is closed where the head of a request is not there in time or is too long, where nothing is asked
on it any more, or where the client does not read its answer. One connection too many is told so and closed.
(The body of a request has limits of its own: `stratal.serve.app.read_body`.)
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

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


def protocol_class(limits: Limits) -> Any:
    """Return uvicorn's protocol of a connection, within limits."""
    base = required("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol

    class Limited(base):  # type: ignore[misc, valid-type]
        """A connection: `_due` ends it unless a head is whole before, `_stalled` unless the client reads."""

        _due: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None
        _in_head = False
        _head_bytes = 0

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
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES:
                    self._refuse(431, f"the head of a request has at most {MOST_HEAD_BYTES} bytes")
            elif self.cycle is None or self.cycle.response_complete:
                self._await_head()  # whatever comes between requests does not keep a connection open

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._await_head()

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._head_is_whole()
            before = self.cycle
            super().on_headers_complete()
            if self.cycle is not before and self.scope["method"] != "HEAD":  # whose head no body follows
                self.cycle.transport = _Joined(self.transport)

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
