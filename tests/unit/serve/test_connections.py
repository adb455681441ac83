"""How requests are read and answers leave a connection: which way they take, and that none is held back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from serving import needs_server

import stratal as st
from stratal.formats.signature import Signature, TensorSpec
from stratal.serve.connections import MOST_JOINED_BYTES, Direct, Limits, Reply, _Joined, protocol_class
from stratal.serve.protocol import KnownHeads, RequestError, answer

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


_NO_OTHER = Limits()


async def _answers(
    pieces: list[bytes], direct: Direct | None, stop: bytes = b"", limits: Limits = _NO_OTHER
) -> bytes:
    """Return all that a connection answers to these pieces, until `stop`, or until it is closed."""
    uvicorn: Any = pytest.importorskip("uvicorn")
    state: Any = pytest.importorskip("uvicorn.server").ServerState()
    config = uvicorn.Config(_application, http=protocol_class(limits, direct), ws="none", lifespan="off")
    config.load()
    made = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: made(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 20)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.03)
    found = await (reader.readuntil(stop) if stop else reader.read())
    writer.close()
    server.close()
    return found


def _post(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def _direct() -> Direct:
    """Return what answers `/7` and `/9` with the body's length, later, and refuses an empty body at once."""

    def begun(target: Any, headers: Any, body: bytes, replied: Any) -> None:
        if not body:
            replied(Reply(400, [(b"content-length", b"0"), (b"connection", b"close")], b""))
            return
        text = b"direct %d" % len(body)
        reply = Reply(200, [(b"content-length", b"%d" % len(text))], text)
        asyncio.get_running_loop().call_later(0.02, replied, reply)

    return Direct(lambda path: ("m", "1") if path in ("/7", "/9") else None, begun, most_bytes=100)


def test_a_request_that_is_there_whole_is_answered_directly_and_all_others_by_the_application() -> None:
    whole = _post("/7", b"four")
    chunked = b"POST /7 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n"
    both = chunked.replace(b"Host: x\r\n", b"Host: x\r\nContent-Length: 4\r\n")
    ways = {
        "direct 4": [[whole], [whole[:9], whole[9:]], [whole.replace(b"four", b"fou\0")]],
        "4      ": [
            [whole[:-2], whole[-2:]], [chunked], [_post("/7?x=1", b"four")], [_post("/%37", b"four")],
            [whole.replace(b"1.1", b"1.0", 1)], [_post("/07", b"four")],
        ],
        "101    ": [[_post("/7", bytes(101))]],
    }  # fmt: skip

    async def talk() -> None:
        for stop, requests in ways.items():
            for pieces in requests:
                found = await _answers(pieces, _direct(), stop.encode())
                assert found.startswith(b"HTTP/1.1 200 OK\r\n"), pieces
        assert (await _answers([both], _direct())).startswith(b"HTTP/1.1 400")

    asyncio.run(asyncio.wait_for(talk(), 30))


def test_answers_keep_the_order_of_requests_and_close_where_they_say_so() -> None:
    many = _post("/7", b"a") + _post("/9", b"bb") + _post("/5", b"ccc") + _post("/7", b"", "X: y")

    async def talk() -> tuple[bytes, bytes, bytes]:
        closing = [_post("/9", b"four", "Connection: close"), _post("/9", b"later")]
        refused = [_post("/9", b"") + _post("/9", b"four")]
        return (
            await _answers([many], _direct(), b"0      "),
            await _answers(closing, _direct()),
            await _answers(refused, _direct()),
        )

    ordered, closed, refused = asyncio.run(asyncio.wait_for(talk(), 20))
    bodies = [part.partition(b"\r\n\r\n")[2].strip() for part in ordered.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"direct 1", b"2", b"3", b"0"], "what waits behind another goes to the application"
    assert closed.count(b"HTTP/1.1") == 1 and closed.endswith(b"connection: close\r\n\r\ndirect 4")
    assert refused.count(b"HTTP/1.1") == 1 and refused.count(b"connection: close") == 1


def test_a_connection_whose_requests_are_answered_at_once_is_idle_and_not_late() -> None:
    def at_once(target: Any, headers: Any, body: bytes, replied: Any) -> None:
        replied(Reply(404, [(b"content-length", b"0")], b""))

    async def talk() -> tuple[bytes, bytes]:
        direct, limits = Direct(lambda _: ("m", "1"), at_once, most_bytes=100), Limits(head_seconds=0.05)
        requests = [_post("/7", b"a"), b"", b"", b"", b"", _post("/7", b"b", "Connection: close")]
        return await _answers(requests, direct, limits=limits), await _answers(
            [b"\r\n"], direct, limits=limits
        )

    asked, silent = asyncio.run(asyncio.wait_for(talk(), 20))
    assert asked.count(b"HTTP/1.1 404") == 2 and b"408" not in asked
    assert silent.startswith(b"HTTP/1.1 408")


def test_a_client_that_is_gone_before_its_answer_harms_nobody() -> None:
    replies: list[Any] = []
    direct = Direct(lambda _: ("m", "1"), lambda *given: replies.append(given[3]), most_bytes=100)

    async def talk() -> None:
        going = asyncio.ensure_future(_answers([_post("/7", b"four")], direct))
        while not replies:
            await asyncio.sleep(0.01)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        await asyncio.sleep(0.05)
        replies[0](Reply(200, [], b"late"))

    asyncio.run(asyncio.wait_for(talk(), 20))


def test_a_head_that_is_known_is_read_as_one_that_is_not() -> None:
    spec = st.float32
    pair = tuple(TensorSpec(name, spec, (2,), batched=True) for name in "ab")
    signature = Signature(pair, pair[:1], batched=True)
    heads = KnownHeads(signature)

    def request(rows: int, order: str = "ba", **more: Any) -> tuple[bytes, int]:
        size = {"binary_data_size": 8 * rows}
        tensors = [{"name": n, "datatype": "FP32", "shape": [rows, 2], "parameters": size} for n in order]
        text = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True} | more}).encode()
        return text, len(text)

    text, length = request(1)
    for tail in (b"11111111aaaaaaaa", b"22222222bbbbbbbb"):
        found = heads.parse(text + tail, length, 8)
        assert [bytes(x) for x in found.inputs] == [tail[8:], tail[:8]] and found.rows == 1
        pieces, head_bytes = answer(found, signature, "m", "1", [memoryview(tail[:8])])
        assert json.loads(pieces[0])["model_name"] == "m" and head_bytes == len(pieces[0])
        assert pieces[1] == tail[:8]
    other, _ = answer(found, signature, "m", "2", [memoryview(tail[:8])], "small")
    assert json.loads(other[0])["model_version"] == "2" and b"small" in other[0]
    for wrong in (b"1" * 15, b"1" * 17, b""):
        with pytest.raises(RequestError, match=r"binary_data_size|goes on after"):
            heads.parse(text + wrong, length, 8)
    for k in range(200):
        text, length = request(2, timeout=1000 + k)
        found = heads.parse(text + bytes(32), length, 8)
        assert (found.rows, found.timeout) == (2, (1000 + k) / 1e6)
    assert len(heads) <= 64


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
