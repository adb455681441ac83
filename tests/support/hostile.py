"""Hostile requests and JSON, drawn from a seed: what a server, and a loader of files, may get."""

from __future__ import annotations

import copy
import gzip
import json
import random
import select
import socket
from typing import Any

from serving import asked, binary_request, rows

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 31, 1 << 62, 1 << 64, 10**400, 1e308, float("nan"), "", "..", "../../etc/passwd",
    "\0", "\ud800", "x" * 5000, [], {}, [[]], [0] * 3000, {"a": {}}, "-1", "FP64", "BYTES", "input",
)  # fmt: skip
PIECES = (
    "v2", "models", "digits", "digits", "infer", "repository", "load", "unload", "versions", "1", "health",
    "status", "..", ".", "", "%2e%2e", "%2f", "..%2f..%2fetc%2fpasswd", "%00", "%ff%fe", "etc", "passwd",
    "A" * 3000, "nobody", "feedback", "ready", "config", "metrics", "?x=1", "#", "*", "\\", "%", "%zz",
    "digits.toml", "digits.stratal",
)  # fmt: skip
HEADERS: dict[str, tuple[bytes, ...]] = {
    "Content-Length": (b"-1", b"1e3", b"0x10", b"9" * 30, b"", b"+5", b"5, 6", b"99999999999"),
    "Inference-Header-Content-Length": (b"-1", b"0", b"1", b"9" * 9, b"9" * 30, b"x", b"1 2"),
    "Transfer-Encoding": (b"chunked", b"gzip, chunked", b"chunked, chunked", b"identity", b"x"),
    "Content-Encoding": (b"gzip", b"deflate", b"br", b"gzip, gzip", b"\xff"),
    "X-Request-Id": (b"a" * 5000, b"\xff\xfe", b"a b", b"{}", b"", b"\\r\\nX: y", b"a\0b"),
    "Authorization": (b"Bearer", b"Bearer \xff\xff", b"Basic eA==", b"Bearer " + b"k" * 9000),
    "Expect": (b"100-continue", b"200-ok"),
    "Connection": (b"close", b"keep-alive, Upgrade", b"Upgrade"),
    "Upgrade": (b"websocket", b"h2c"),
    "Host": (b"", b"evil.example", b"a" * 4000),
    "Y" * 300: (b"z", b"z" * 20_000, b"z" * 70_000, b"\x01\x7f\xff", b"a\rb"),
}
PATIENCE = 0.05  # seconds for an answer to what may be only a part of a request


class Wire:
    """A client by bytes: sends anything, reads one answer, connects anew where the server closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._sock: socket.socket | None = None

    def ask(self, data: bytes, whole: bool = True) -> tuple[int, bytes]:
        """Return the status and all bytes of the answer; 0 where the server closed without one.

        Where what is not `whole` gets no answer at once, the stream ends: the server may wait for more of it.
        Raises: TimeoutError where nothing comes for 30 seconds.
        """
        sock = self._sock or socket.create_connection(("127.0.0.1", self.port), timeout=30)
        self._sock = None
        answer = b""
        try:
            sock.sendall(data)
            if not whole and not select.select([sock], [], [], PATIENCE)[0]:
                sock.shutdown(socket.SHUT_WR)
            answer, open_ = _answer(sock)
        except (BrokenPipeError, ConnectionResetError):
            open_ = False
        if whole and open_:
            self._sock = sock
        else:
            sock.close()
        return (int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0), answer

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()


def _answer(sock: socket.socket) -> tuple[bytes, bool]:
    """Return an answer, and whether the connection stays open after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = sock.recv(1 << 16)
        if not got:
            return data, False
        data += got
        if data.startswith(b"HTTP/1.1 100"):
            data = data.partition(b"\r\n\r\n")[2]
    head = data.partition(b"\r\n\r\n")[0].lower()
    length = next(
        (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), None
    )
    while length is not None and len(data) < len(head) + 4 + length:
        got = sock.recv(1 << 16)
        if not got:
            return data, False
        data += got
    more = length is not None and b"connection: close" not in head and len(data) == len(head) + 4 + length
    return data, more


def request_bytes(method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    if not any(name == b"Content-Length" for name, _ in headers):
        headers = [*headers, (b"Content-Length", b"%d" % len(body))]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n" + body


def hostile_request(rng: random.Random, key: bytes) -> tuple[bytes, bool]:
    """Return the bytes of a hostile request, and whether it is surely whole."""
    known = [(b"X-API-Key", key)]
    kind = rng.choices(("body", "json", "path", "headers", "cut", "noise"), (30, 25, 18, 18, 7, 2))[0]
    path = b"/v2/models/digits/infer"
    if kind == "body":
        body, headers = _encoded(rng)
        return request_bytes(b"POST", path, known + headers, bent(rng, body)), True
    if kind == "json":
        good = asked(rows(1)) | {"id": "a", "outputs": [{"name": "output", "parameters": {}}]}
        loading = {"parameters": {"version": "1", "canary_share": 0.5}}
        path, tree = rng.choice(
            [(path, good)] * 3
            + [(b"/v2/models/digits/feedback", {"id": "a", "label": 0})]
            + [(b"/v2/repository/models/digits/load", loading)]
        )
        body = json.dumps(mutated_json(rng, tree)).encode()
        return request_bytes(b"POST", path, known, body), True
    if kind == "path":
        method = rng.choice([b"GET", b"POST", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE"])
        named = "/" + "/".join(rng.choices(PIECES, k=rng.randrange(1, 8)))
        return request_bytes(method, named.encode(), known * rng.randrange(2), b"{}"), method != b"HEAD"
    body, headers = _encoded(rng)
    if kind == "headers":
        chosen = rng.choices(tuple(HEADERS), k=rng.randrange(1, 4))
        odd = [(name.encode(), rng.choice(HEADERS[name])) for name in chosen]
        return request_bytes(b"POST", path, known + headers + odd, body), False
    whole = request_bytes(b"POST", path, known + headers, body)
    if kind == "cut":
        return whole[: rng.randrange(1, len(whole))], False
    return rng.choice(
        [rng.randbytes(rng.randrange(1, 600)), b"\x16\x03\x01" + rng.randbytes(200), whole[::-1]]
    ), False


def _encoded(rng: random.Random) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the body of a good request, and the headers that say how it is encoded."""
    if rng.random() < 0.5:
        body, named = binary_request(rows(1))
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
    else:
        body, headers = json.dumps(asked(rows(1))).encode(), []
    if rng.random() < 0.2:
        body, headers = gzip.compress(body, 1), [*headers, (b"Content-Encoding", b"gzip")]
    return body, headers


def hostile_message(rng: random.Random, made: Any) -> Any:
    """Return a ModelInferRequest (`made` makes one) with some of its fields hostile."""
    x = rows(1)

    def odd(good: Any, *bad: Any) -> Any:
        return rng.choice(bad) if rng.random() < 0.15 else good

    tensor = {
        "name": odd("input", "", "other", "x" * 5000), "datatype": odd("FP32", "", "FP64", "BYTES", "\0"),
        "shape": odd(list(x.shape), [], [-1, 16], [0, 16], [1 << 62, 4], [1, 16, 1], [1] * 3000),
    }  # fmt: skip
    raw = odd([x.tobytes()], [], [b""], [x.tobytes()[:-1]], [x.tobytes()] * 2, [bytes(90_000)])
    if rng.random() < 0.3:
        kinds = ["fp32_contents", "int64_contents", "bool_contents"]
        tensor["contents"] = {odd("fp32_contents", *kinds): odd([1] * x.size, [], [0] * 15)}
        raw = odd([], raw)
    number = {"int64_param": rng.choice([-1, 0, 1, 10**6, 1 << 62])}
    parameter = rng.choice([number, {"string_param": "x"}, {"bool_param": True}, {}])
    return made(
        model_name=odd("digits", "", "..", "nobody", "x" * 3000), model_version=odd("", "1", "-1", "9" * 50),
        id=odd("a", "\n", "x" * 2000), inputs=odd([tensor], [], [tensor] * 2), raw_input_contents=raw,
        parameters=odd({}, *({key: parameter} for key in ("timeout", "allow_variants", "y" * 99))),
        outputs=odd([], [{"name": "output"}], [{"name": "other"}], [{"name": "output"}] * 2),
    )  # fmt: skip


def bent(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few places changed, taken out or put in."""
    body = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(4):
            case 0 if at < len(body):
                body[at] = rng.randrange(256)
            case 1 if at < len(body):
                body[at] ^= 1 << rng.randrange(8)
            case 2:
                del body[at : at + rng.randrange(1, 40)]
            case _:
                body[at:at] = rng.choice(
                    [b"[" * 5000, b"9" * 400, b'"\\ud800"', b"NaN", b"null", b"\0", b"1e999", b"{"]
                )
    return bytes(body)


def mutated_json(rng: random.Random, tree: Any) -> Any:
    """Return a JSON value with one to three of its parts replaced, taken out, doubled or swapped."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randrange(1, 4)):
        places: list[tuple[Any, Any]] = []
        _places(tree, places)
        if not places:
            return rng.choice(HOSTILE)
        within, at = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del within[at]
            case 1:
                other, there = rng.choice(places)
                value = other[there] if (isinstance(other, dict) and there in other) else rng.choice(HOSTILE)
                within[at] = copy.deepcopy(value)
            case 2 if isinstance(within, list):
                within.insert(at, copy.deepcopy(within[at]))
            case 3 if type(within[at]) is int:
                within[at] += rng.choice([-1, 1, 7, 1 << 20, 1 << 40, -(1 << 33)])
            case 4 if isinstance(within, dict):
                within[str(rng.choice(HOSTILE))[:20]] = within.pop(at)
            case _:
                within[at] = copy.deepcopy(rng.choice(HOSTILE))
    return tree


def _places(tree: Any, found: list[tuple[Any, Any]]) -> None:
    """Collect where the parts of a value stand."""
    for at, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        found.append((tree, at))
        if isinstance(value, dict | list):
            _places(value, found)


def good_request(k: int, key: bytes, identity: bytes) -> bytes:
    """Return a request for a row of its own."""
    body, named = binary_request(rows(1, seed=k))
    headers = [(b"X-API-Key", key), (b"X-Request-Id", identity)]
    return request_bytes(b"POST", b"/v2/models/digits/infer", [*headers, *(
        (name.encode(), value.encode()) for name, value in named.items())], body)  # fmt: skip
