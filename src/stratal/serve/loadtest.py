"""An open-loop load test: requests are sent when they are due, whether or not earlier ones are answered.

A closed loop (send, wait, send) slows down with the server, and does not see how long those would have
waited who were due meanwhile: coordinated omission. Here the times of arrival are drawn beforehand, Poisson
or in bursts, and latency counts from the time a request was due, also where no connection was free.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import urllib.parse
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, StratalError
from stratal.serve.extra import clock, loop_factory
from stratal.serve.load_channels import Asked, Channels, Target
from stratal.serve.planning import LatencyTable, Session
from stratal.serve.planning_simulator import Traffic
from stratal.serve.protocol import DATATYPES


class LoadTestError(StratalError, OSError):
    """A server that cannot be tested."""

    advice = "stratal serve FOLDER starts one; its address is printed when it is ready"


def target(address: str, key: str = "", ca: Path | None = None) -> Target:
    """Return the server at an address such as `https://localhost:8000`.

    `ca` is a PEM file that its certificate is verified with, by default the system's. A key is sent to other
    machines by https alone. Raises: AttributeValueError.
    """
    try:
        parsed = urllib.parse.urlsplit(address)
        port = parsed.port
    except ValueError:
        parsed, port = urllib.parse.urlsplit(""), None
    if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.path not in ("", "/"):
        raise AttributeValueError("loadtest: an address such as http://127.0.0.1:8000", got=address[:100])
    if key and not (key.isascii() and key.isprintable()):
        raise AttributeValueError("loadtest: a key is of printable ASCII")
    if parsed.scheme == "http":
        if ca is not None:
            raise AttributeValueError("loadtest: a certificate is for an https address", got=address[:100])
        if key and parsed.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise AttributeValueError("loadtest: a key would travel in the clear", got=address[:100])
        return Target(parsed.hostname, port or 80, key)
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise AttributeValueError("loadtest: cannot read the certificate", got=f"{ca}: {error}") from error
    return Target(parsed.hostname, port or 443, key, context)


@dataclass(frozen=True)
class Load:
    """What is sent: rows of one model, each in a request of its own, for some seconds."""

    model: str
    rate: float
    seconds: float
    burst: float = 1.0
    sla: float = 1.0
    connections: int = 64
    seed: int = 1

    def arrivals(self) -> list[float]:
        """Return when requests are due, in seconds from the start."""
        session = Session(self.model, LatencyTable((1,), (1.0,)), self.rate, self.sla)
        return list(Traffic(session, self.burst).arrivals(self.seconds, random.Random(self.seed)))


@dataclass
class Results:
    """What became of the requests; times in seconds."""

    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer
    latencies: list[float] = field(
        default_factory=list
    )  # of those answered with 200, from when they were due
    service: list[float] = field(default_factory=list)  # the same from when they were sent
    lags: list[float] = field(default_factory=list)  # of all, of this client behind when they were due
    seconds: float = 0.0

    def note(self, asked: Asked) -> None:
        """Count a request that is over."""
        self.statuses[asked.status] += 1
        if asked.status == 200:
            self.latencies.append(asked.done - asked.due)
            self.service.append(asked.done - asked.sent)

    def to_json(self, sla: float) -> dict[str, Any]:
        """Return figures: rates, shares and quantiles of the latency in milliseconds."""
        offered = sum(self.statuses.values())
        in_time = sum(latency <= sla for latency in self.latencies)
        return {
            "offered": offered,
            "offered_per_second": offered / max(self.seconds, 1e-9),
            "answered": len(self.latencies),
            "statuses": {str(code): n for code, n in sorted(self.statuses.items())},
            "sla_ms": sla * 1e3,
            "in_time": in_time / max(1, offered),
            "goodput_per_second": in_time / max(self.seconds, 1e-9),
            "latency_ms": quantiles(self.latencies),
            "uncorrected_latency_ms": quantiles(self.service),
            "client_lag_ms": quantiles(self.lags),
        }


def quantiles(times: list[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the longest of some times, in milliseconds."""
    if not times:
        return {}
    values = np.quantile(times, (0.5, 0.99, 0.999, 1.0)) * 1e3
    return dict(zip(("p50", "p99", "p99.9", "max"), map(float, values), strict=True))


class Answer(NamedTuple):
    """What came back: `sent` is when the request was sent, `head_bytes` the length of JSON before bytes."""

    status: int
    body: bytes
    sent: float
    head_bytes: int | None


class Connections:
    """Connections to a server that are kept, at most so many; each carries one request at a time."""

    def __init__(self, server: Target, most: int) -> None:
        self._server = server
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._allowed = asyncio.Semaphore(most)

    async def request(self, text: bytes) -> Answer:
        """Send a request and return its answer. Raises: OSError, asyncio errors."""
        async with self._allowed:
            reader, writer = self._free.pop() if self._free else await self._open()
            try:
                sent = asyncio.get_running_loop().time()
                writer.write(text)
                status, headers, body = await _answer(reader)
            except BaseException:
                writer.close()
                raise
            if headers.get("connection", "").lower() != "close":
                self._free.append((reader, writer))
            else:
                writer.close()
            length = headers.get("inference-header-content-length")
            return Answer(status, body, sent, None if length is None else int(length))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._server.host, self._server.port, ssl=self._server.tls)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (lower case) and body of an answer with a content length."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(lines[0].split()[1]), headers, body


def request_text(server: Target, path: str, body: bytes = b"", header_bytes: int | None = None) -> bytes:
    """Return the bytes of a GET, or of a POST where there is a body."""
    method = "POST" if body else "GET"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {server.host}", f"Content-Length: {len(body)}"]
    if server.key:
        lines.append(f"X-API-Key: {server.key}")
    if header_bytes is not None:
        lines.append(f"Inference-Header-Content-Length: {header_bytes}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def infer_text(server: Target, metadata: dict[str, Any], seed: int) -> bytes:
    """Return a request for one row of random numbers (zeros for integers), with binary tensors."""
    rows, tail = [], b""
    for spec in metadata["inputs"]:
        dtype = DATATYPES[spec["datatype"]]
        shape = [1 if n == -1 else n for n in spec["shape"]]
        values = np.random.default_rng(seed).standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
        data = values.astype(dtype).tobytes()
        rows.append({"name": spec["name"], "datatype": spec["datatype"], "shape": shape,
                     "parameters": {"binary_data_size": len(data)}})  # fmt: skip
        tail += data
    head = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    return request_text(server, f"/v2/models/{metadata['name']}/infer", head + tail, len(head))


def loadtest(address: str, load: Load, *, key: str = "", ca: Path | None = None) -> Results:
    """Return what became of a load on the server at an address: see `target`.

    Raises: LoadTestError where there is no such server or model, AttributeValueError for another address.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(load_on(target(address, key, ca), load))


async def load_on(server: Target, load: Load) -> Results:
    """Return what became of a load on a server. Raises: LoadTestError."""
    connections = Connections(server, load.connections)
    try:
        path = f"/v2/models/{urllib.parse.quote(load.model, safe='')}"
        status, body, *_ = await connections.request(request_text(server, path))
    except (OSError, asyncio.IncompleteReadError) as error:
        raise LoadTestError(
            "loadtest: no server there", got=f"{server.host}:{server.port}: {error}"
        ) from error
    if status in (401, 403):
        raise LoadTestError("loadtest: the server asks for another key", got=body.decode()[:200])
    if status != 200:
        raise LoadTestError("loadtest: the server does not have this model", got=body.decode()[:200])
    text = infer_text(server, json.loads(body), load.seed)
    connections.close()
    return await _sent_when_due(server, text, load)


async def _sent_when_due(server: Target, text: bytes, load: Load) -> Results:
    results, loop, over = (
        Results(seconds=max(load.seconds, 1e-9)),
        asyncio.get_running_loop(),
        asyncio.Event(),
    )
    due = load.arrivals()

    def done(asked: Asked) -> None:
        results.note(asked)
        if sum(results.statuses.values()) == len(due):
            over.set()

    channels = Channels(server, text, load.connections, done)
    try:
        await channels.open()
    except OSError as error:
        raise LoadTestError(
            "loadtest: no server there", got=f"{server.host}:{server.port}: {error}"
        ) from error
    start, sent = clock() + 0.05, 0

    def send() -> None:
        nonlocal sent
        now = clock()
        while sent < len(due) and start + due[sent] <= now:
            results.lags.append(now - start - due[sent])
            channels.ask(start + due[sent])
            sent += 1
        if sent < len(due):  # a timer of uvloop's is of whole milliseconds, and may be early
            loop.call_later(max(1e-3, start + due[sent] - now), send)

    send()
    while due and not over.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 1.0)
        channels.give_up()
    channels.close()
    return results
