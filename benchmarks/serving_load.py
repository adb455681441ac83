"""Servers of the serving benchmarks as child processes, and what asks them: in turn, at once, open loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.serving_models import KINDS
from stratal.serve.extra import loop_factory
from stratal.serve.loadtest import Load, Results, load_on, request_text, target
from stratal.serve.protocol import NAMES

ROOT: Final = Path(__file__).parents[1]
PATIENCE: Final = 400.0  # seconds for a server's start: it compiles, and measures every batch size
CONNECTIONS: Final = 24  # of each model in an open loop


@dataclass(frozen=True)
class Server:
    """A server that runs: where it listens, and its processes."""

    host: str
    port: int
    grpc: str
    pid: int
    workers: tuple[int, ...]
    control: Path

    def take(self, policy: str, slas: Mapping[str, float]) -> None:
        """Let an idle server have another policy and other SLAs. Raises: SystemExit where it does not."""
        self.control.write_text(json.dumps({"policy": policy, "slas": dict(slas)}))
        os.kill(self.pid, signal.SIGUSR2)
        end = time.monotonic() + 30
        while self.control.exists():
            if time.monotonic() > end:
                raise SystemExit(f"the server did not take the policy {policy}")
            time.sleep(0.01)

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def status(self) -> dict[str, Any]:
        """Return what the status page shows."""
        with socket.create_connection((self.host, self.port), timeout=60) as sock:
            sock.sendall(request_text(target(self.address), "/status"))
            found: dict[str, Any] = json.loads(_answer(sock)[1])
        return found

    def outputs(self, model: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a model's first output for some rows, by HTTP. Raises: SystemExit for any other answer."""
        tensor = {"name": input_name(self, model), "datatype": NAMES[x.dtype], "shape": list(x.shape),
                  "data": x.ravel().tolist()}  # fmt: skip
        body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 60_000_000}}).encode()
        with socket.create_connection((self.host, self.port), timeout=60) as sock:
            sock.sendall(request_text(target(self.address), f"/v2/models/{model}/infer", body))
            status, text, _ = _answer(sock)
        if status != 200:
            raise SystemExit(f"{model}: {text[:300]!r}")
        output = json.loads(text)["outputs"][0]
        return np.array(output["data"], np.float32).reshape(output["shape"])


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """Serve a folder for a block by `benchmarks.serving_server`; the server and its workers end with it.

    Raises: SystemExit with what the server wrote where it does not start.
    """
    report = folder.parent / f"ready-{time.monotonic_ns()}.json"
    log = report.with_suffix(".log")
    control = report.with_suffix(".control")
    command = [sys.executable, "-m", "benchmarks.serving_server", str(folder), "--json", str(report)]
    command += ["--control", str(control)]
    with open(log, "w") as output:
        process = subprocess.Popen(
            [*command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + PATIENCE
        while not report.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        told = json.loads(report.read_text())
        host, _, port = told["address"].removeprefix("http://").rpartition(":")
        yield Server(host, int(port), told["grpc"], told["pid"], tuple(told["workers"]), control)
    finally:
        process.send_signal(signal.SIGTERM)  # its workers end with it
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def infer_request(server: Server, model: str, rows: int = 1) -> bytes:
    """Return a request for some rows with binary tensors, whose deadline is far off: for closed loops."""
    x = KINDS[model].rows(rows)
    tensor = {"name": "input", "datatype": NAMES[x.dtype], "shape": list(x.shape),
              "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    name = input_name(server, model)
    parameters = {"binary_data_output": True, "timeout": 60_000_000}
    text = json.dumps({"inputs": [tensor | {"name": name}], "parameters": parameters}).encode()
    path = f"/v2/models/{model}/infer"
    return request_text(target(server.address), path, text + x.tobytes(), len(text))


def input_name(server: Server, model: str) -> str:
    """Return the name of a model's one input."""
    with socket.create_connection((server.host, server.port), timeout=60) as sock:
        sock.sendall(request_text(target(server.address), f"/v2/models/{model}"))
        name: str = json.loads(_answer(sock)[1])["inputs"][0]["name"]
    return name


def _answer(sock: socket.socket) -> tuple[int, bytes, int]:
    """Return status and body of the next answer, and its length, head and all.

    Raises: SystemExit where the connection ends.
    """
    data = b""
    while (end := data.find(b"\r\n\r\n") + 4) < 4:
        data += _received(sock)
    length = int(data[:end].lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    while len(data) < end + length:
        data += _received(sock)
    return int(data.split(b" ", 2)[1]), data[end:], len(data)


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise SystemExit("the server closed a connection")
    return data


def in_turn(server: Server, text: bytes, count: int, seconds: float, warm: int = 50) -> list[float]:
    """Return the seconds of requests one after another on one connection, after some that do not count."""
    took = []
    with socket.create_connection((server.host, server.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while len(took) < count + warm and time.monotonic() < end:
            begun = time.perf_counter()
            sock.sendall(text)
            status, body, _ = _answer(sock)
            took.append(time.perf_counter() - begun)
            if status != 200:
                raise SystemExit(f"status {status}: {body[:200]!r}")
    return took[warm:]


def grpc_in_turn(server: Server, model: str, count: int, seconds: float) -> list[float]:
    """Return the seconds of gRPC requests one after another, without the first fifty."""
    import grpc

    from stratal.serve.grpc_schema import messages

    x, schema = KINDS[model].rows(1), messages()
    tensor = {"name": input_name(server, model), "datatype": NAMES[x.dtype], "shape": list(x.shape)}
    request = schema["ModelInferRequest"](
        model_name=model, inputs=[tensor], raw_input_contents=[x.tobytes()]
    ).SerializeToString()
    took = []
    with grpc.insecure_channel(server.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        end = time.monotonic() + seconds
        while len(took) < count + 50 and time.monotonic() < end:
            begun = time.perf_counter()
            infer(request, timeout=60)
            took.append(time.perf_counter() - begun)
    return took[50:]


class Rate(NamedTuple):
    """Answers a second in a closed loop, and the share of a core that its client took."""

    a_second: float
    client_share: float


def at_once(server: Server, text: bytes, connections: int, seconds: float) -> Rate:
    """Return the answers a second to so many connections, each of which sends as soon as it has its answer.

    Answers must be as long as the first; a closed loop is right here, where the highest rate is asked for.
    Raises: SystemExit where an answer is no 200.
    """
    poll, socks, got = select.epoll(), {}, {}
    for _ in range(connections):
        sock = socket.create_connection((server.host, server.port), timeout=60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        socks[sock.fileno()], got[sock.fileno()] = sock, 0
        poll.register(sock.fileno(), select.EPOLLIN)
    try:
        first = next(iter(socks.values()))
        first.sendall(text)
        _, _, length = _answer(first)
        for sock in socks.values():
            sock.sendall(text)
        begun, done, counted_from, used = time.monotonic(), 0, 0.0, 0.0
        while (now := time.monotonic()) < begun + seconds:
            if not counted_from and now > begun + 0.2 * seconds:
                counted_from, done, used = now, 0, time.thread_time()  # the first fifth warms up
            for fd, _ in poll.poll(1.0):
                data = socks[fd].recv(1 << 16)
                if not data or (not got[fd] and not data.startswith(b"HTTP/1.1 200")):
                    raise SystemExit(f"no answer, or one of another status: {data[:200]!r}")
                got[fd] += len(data)
                if got[fd] >= length:
                    got[fd] = 0
                    done += 1
                    socks[fd].send(text)
        wall = time.monotonic() - counted_from
        return Rate(done / wall, (time.thread_time() - used) / wall)
    finally:
        poll.close()
        for sock in socks.values():
            sock.close()


@dataclass(frozen=True)
class Offered:
    """What became of a load of several models: counts of all requests, and of those that came in time."""

    seconds: float
    offered: int
    refused: int  # with 429, at arrival
    in_time: int
    of_model: Mapping[str, tuple[int, int]]  # offered, in time
    lag: float = 0.0  # seconds: the 99 % quantile of what the client itself was late by in sending

    @property
    def share(self) -> float:
        """In time, of all that was offered; refusals count as missed."""
        return self.in_time / max(1, self.offered)

    @property
    def admitted_share(self) -> float:
        """In time, of what was not refused at arrival; what was dropped later counts as missed."""
        return self.in_time / max(1, self.offered - self.refused)

    @property
    def goodput(self) -> float:
        """Requests a second that were answered in time."""
        return self.in_time / self.seconds


def offer(
    server: Server, rates: Mapping[str, float], slas: Mapping[str, float], seconds: float, burst: float = 1.0,
    seed: int = 1,
) -> Offered:  # fmt: skip
    """Send requests of one row of each model at its rate, open loop, and return what became of them.

    Latency counts from when a request was due, in this client, which shares the machine with the server.
    """

    async def all_of_them() -> list[Results]:
        at = target(server.address)
        loads = [
            Load(name, rate, seconds, burst, slas[name], CONNECTIONS, seed + k)
            for k, (name, rate) in enumerate(rates.items())
        ]
        return await asyncio.gather(*(load_on(at, load) for load in loads))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(all_of_them())
    of_model = {
        name: (sum(r.statuses.values()), sum(t <= slas[name] for t in r.latencies))
        for name, r in zip(rates, found, strict=True)
    }
    return Offered(
        seconds,
        sum(n for n, _ in of_model.values()),
        sum(r.statuses[429] for r in found),
        sum(n for _, n in of_model.values()),
        of_model,
        float(np.quantile([lag for r in found for lag in r.lags] or [0.0], 0.99)),
    )


_MEASURE: Final = """
import json, statistics, sys, time
from stratal.serve.measuring import sample_input
from stratal.serve.zygote import load_model

found = {}
for name in sys.argv[2:]:
    model = load_model(f"{sys.argv[1]}/{name}.stratal")
    rows, times = [sample_input(spec, 1) for spec in model.signature.inputs], []
    model.run_size(1, rows)
    while len(times) < 400 and sum(times) < 0.5:
        begun = time.perf_counter()
        model.run_size(1, rows)
        times.append(time.perf_counter() - begun)
    found[name] = statistics.median(times)
print(json.dumps(found))
"""


def own_seconds(folder: Path, names: Iterable[str]) -> dict[str, float]:
    """Return the median seconds of each model alone at one row, in a new process with one thread."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(folder), *names], cwd=ROOT, timeout=PATIENCE,
        env={**os.environ, "STRATAL_THREADS": "1"}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def private_bytes(pid: int) -> int:
    """Return the memory of a process that it shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def median_ms(times: list[float]) -> float:
    return 1e3 * float(np.median(times))
