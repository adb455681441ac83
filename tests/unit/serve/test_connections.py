"""How answers leave a connection: a head goes out with its body, and none is held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serving import needs_server

from stratal.serve.connections import MOST_JOINED_BYTES, Limits, _Joined, protocol_class

pytestmark = needs_server


class Written:
    """A transport that notes what is written."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def close(self) -> None:
        self.closed = True


def test_a_head_is_written_with_its_body_unless_that_is_large() -> None:
    written = Written()
    joined = _Joined(written)
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    joined.write(b"head")
    joined.write(b"body")
    joined.write(b"more")
    assert written.pieces == [b"HTTP/1.1 100 Continue\r\n\r\n", b"headbody", b"more"]
    written = Written()
    joined = _Joined(written)
    joined.write(b"head")
    joined.write(bytes(MOST_JOINED_BYTES + 1))
    assert written.pieces[0] == b"head" and len(written.pieces) == 2


def test_a_head_without_a_body_is_written_before_the_connection_is_closed() -> None:
    written = Written()
    joined = _Joined(written)
    joined.write(b"head")
    joined.close()
    assert written.pieces == [b"head"] and written.closed


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the request's body, and with as many bytes as the path says."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    body = str(length).encode().ljust(int(scope["path"][1:]))
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def test_requests_that_are_pipelined_head_and_expect_are_all_answered() -> None:
    uvicorn: Any = pytest.importorskip("uvicorn")
    state: Any = pytest.importorskip("uvicorn.server").ServerState()

    async def talk() -> tuple[bytes, bytes]:
        config = uvicorn.Config(_application, http=protocol_class(Limits()), ws="none", lifespan="off")
        config.load()
        made = config.http_protocol_class
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: made(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 20)
        writer.write(
            b"HEAD /5 HTTP/1.1\r\nHost: x\r\n\r\nGET /7 HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /200000 HTTP/1.1\r\nHost: x\r\n\r\n"
            b"POST /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
        before = await reader.readuntil(b"100 Continue\r\n\r\n")
        writer.write(b"four")
        after = await reader.readuntil(b"4  ")
        writer.close()
        server.close()
        return before, after

    before, after = asyncio.run(asyncio.wait_for(talk(), 20))
    answers = before.split(b"HTTP/1.1 200 OK")
    assert len(answers) == 4 and answers[1].count(b"content-length: 5") == 1
    assert len(answers[1].partition(b"\r\n\r\n")[2]) == 0, "an answer to HEAD has no body"
    assert answers[2].endswith(b"\r\n\r\n0      ")
    assert len(answers[3].partition(b"\r\n\r\n")[2]) >= 200_000
    assert after.startswith(b"HTTP/1.1 200 OK")
