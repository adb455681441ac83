"""A server in a process of its own for tests, and a client; whatever happens, no process is left over."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal import nn

FEATURES, CLASSES = 16, 4
EXTRA = ("starlette", "uvicorn", "httptools", "prometheus_client")
MISSING = [package for package in EXTRA if importlib.util.find_spec(package) is None]
needs_server = pytest.mark.skipif(
    bool(MISSING), reason=f"the extra [serve] is not installed: no {', '.join(MISSING)}"
)
by_turns = pytest.mark.sampled(2, among="servers", by_file=True)  # a server starts in some five seconds


def network(seed: int = 1) -> Any:
    st.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


class Slow(nn.Module):
    """The small network behind much work, some 10 ms a row on one core, which batches do not make less."""

    def __init__(self, work: int = 1_000_000) -> None:
        super().__init__()
        self.net = network()
        self.work = work

    def forward(self, input: Any) -> Any:
        wide = (input.unsqueeze(-1) + st.arange(self.work, dtype=st.float32) / self.work).tanh()
        return self.net(wide.mean(-1))


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(np.float32)


def frozen(seed: int = 1, name: str = "digits") -> Any:
    return st.freeze(network(seed), rows(4), batch_sizes=(1, 4), name=name)


def two_models(parent: Path) -> Path:
    """Return a new folder with the models `digits` and `other`, one as a file and one as a folder."""
    folder = parent / "models"
    folder.mkdir()
    frozen().save(folder / "digits.stratal")
    frozen(2, "other").save(folder / "other")
    return folder


class Server:
    """A running server: its address, its processes, and requests to it."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        address: str,
        headers: dict[str, str],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.process = process
        self.port = int(address.rsplit(":", 1)[1])
        self.headers = headers  # of every request that has none of its own
        self.tls = tls
        self.grpc = ""
        self.log = Path()

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (lower case) and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if self.tls is not None:
            connection = http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.tls)
        with contextlib.closing(connection):
            connection.request(method, path, body, self.headers if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def json(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, _, data = self.request(method, path, b"" if body is None else json.dumps(body).encode())
        return status, json.loads(data) if data else None

    def infer(self, x: Any, model: str = "digits", **parameters: Any) -> tuple[int, Any]:
        """Ask with a JSON request; return the status and the outputs' array, or the error."""
        status, found = self.json("POST", f"/v2/models/{model}/infer", asked(x, **parameters))
        if status != 200:
            return status, found["error"]
        output = found["outputs"][0]
        return status, np.array(output["data"], np.float32).reshape(output["shape"])

    def binary(self, x: Any, model: str = "digits", headers: dict[str, str] | None = None) -> bytes:
        """Ask with binary tensors; return the bytes of the one output."""
        status, names, body = self.request("POST", f"/v2/models/{model}/infer", *binary_request(x, headers))
        assert status == 200, body
        return body[int(names["inference-header-content-length"]) :]

    def status(self) -> Any:
        return self.json("GET", "/status")[1]

    def metrics(self) -> dict[str, float]:
        """Return Prometheus' figures by name and labels."""
        lines = self.request("GET", "/metrics")[2].decode().splitlines()
        return {k: float(v) for k, _, v in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def workers(self) -> list[int]:
        return [w["pid"] for w in self.status()["workers"]]

    def processes(self) -> list[int]:
        return [self.status()["zygote"], *self.workers()]


def asked(x: Any, **parameters: Any) -> Any:
    """Return a request for some rows with JSON data."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return {"inputs": [tensor]} | ({"parameters": parameters} if parameters else {})


def binary_request(
    x: Any, headers: dict[str, str] | None = None, binary_output: bool = True
) -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape),
              "parameters": {"binary_data_size": x.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary_output}}).encode()
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))} | (headers or {})


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], object], seconds: float = 40.0) -> bool:
    """Return whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return True
        time.sleep(0.02)
    return False


@contextlib.contextmanager
def serving(
    folder: Path, *options: str, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Server]:
    """Serve a folder for a block; every process of it is killed afterwards."""
    report, log = folder.parent / f"{folder.name}.json", folder.parent / f"{folder.name}.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "stratal", "serve", folder, "--port", "0", "--json", report, *options]
    with open(log, "w") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    left: list[int] = []
    try:
        assert eventually(lambda: report.exists() or process.poll() is not None, 150)
        assert process.poll() is None, log.read_text()
        told = json.loads(report.read_text())
        server = Server(process, told["address"], headers or {}, tls)
        server.log, server.grpc = log, told.get("grpc", "")
        left = server.processes()
        yield server
        if process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                left = [*left, *server.processes()]
    finally:
        process.kill()
        process.wait(10)
        gone = eventually(lambda: not any(map(alive, left)), 20)
        for pid in filter(alive, left):
            os.kill(pid, signal.SIGKILL)
    assert gone, f"processes outlived the server: {left}"
