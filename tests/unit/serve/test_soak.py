"""A long run under overload and faults: every request is answered, memory is flat, no process is left.

`TESTS_SOAK_SECONDS=1200 pytest -n 0 -m slow -s tests/unit/serve/test_soak.py` is the whole one; by default it
takes two minutes. Workers are killed and stopped, versions swapped, promoted and rolled back, models that are
none are loaded, clients go amid a request; in the first third the zygote is killed, too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, Slow, alive, asked, eventually, frozen, needs_server, rows, serving

import stratal as st

SECONDS = float(os.environ.get("TESTS_SOAK_SECONDS", "120"))
ASKING = 12  # threads, each with its own connections: more than two workers can answer
pytestmark = [needs_server, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]
ANSWERED = {200, 429, 503, 504}  # in time, refused for lack of time, its worker or model is gone, too late


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    models = tmp_path / "models"
    (models / "digits").mkdir(parents=True)
    for version in (1, 2):
        frozen(version).save(models / "digits" / f"{version}.stratal")
    st.freeze(Slow(), rows(4), batch_sizes=(1, 2), name="large").save(models / "large.stratal")
    (models / "large.toml").write_text("sla_ms = 40\n")
    (models / "bad.stratal").write_bytes(b"not an artefact")
    options = ("--workers", "2", "--sla", "5000", "--hang-seconds", "2", "--allow-load")
    with serving(models, *options, "--log", str(tmp_path / "log")) as running:
        yield running


class Soak:
    """What goes on beside the clients, and what was seen of processes and memory."""

    def __init__(self, server: Server, seed: int = 1) -> None:
        self.server, self.rng = server, random.Random(seed)
        self.seen: set[int] = set()
        self.memory: list[tuple[float, int, int]] = []  # seconds, bytes of the front end, of the zygote
        self.faults: Counter[str] = Counter()
        self.zygotes: set[int] = set()
        self.started = time.monotonic()

    def step(self) -> None:
        """Do one thing to the server, then load again what was quarantined for it."""
        status = self.server.status()
        workers = [w["pid"] for w in status["workers"]]
        self.seen |= {status["zygote"], *workers} - {0}
        self.zygotes |= {status["zygote"]} - {0}
        front, zygote = resident(self.server.process.pid), resident(status["zygote"])
        self.memory.append((time.monotonic() - self.started, front, zygote))
        actions: list[tuple[int, Callable[[list[int]], None]]] = [
            (4, self.kill), (3, self.stop), (6, self.swap), (2, self.bad), (4, self.leave),
            (int(self.memory[-1][0] < SECONDS / 3), self.end_zygote),
        ]  # fmt: skip
        action = self.rng.choices([a for _, a in actions], [n for n, _ in actions])[0]
        self.faults[action.__name__] += 1
        with contextlib.suppress(ProcessLookupError):
            action(workers)
        for model in status["models"]:
            if "quarantined" in model["why"]:
                self.faults["quarantined"] += 1
                self.server.json("POST", f"/v2/repository/models/{model['name']}/load")

    def kill(self, workers: list[int]) -> None:
        if workers:
            os.kill(self.rng.choice(workers), signal.SIGKILL)

    def stop(self, workers: list[int]) -> None:
        """Stop a worker: one that has a batch hangs, and is killed; one that waits is let go on."""
        if workers:
            pid = self.rng.choice(workers)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.1, 4))
            os.kill(pid, signal.SIGCONT)

    def end_zygote(self, workers: list[int]) -> None:
        for pid in filter(alive, self.zygotes):
            os.kill(pid, signal.SIGKILL)

    def swap(self, workers: list[int]) -> None:
        """Load a version, or try a canary and promote it or take it back."""
        change = self.rng.choice(["load", "canary"])
        parameters: dict[str, Any] = {"version": self.rng.choice("12")}
        if change == "canary":
            parameters["canary_share"] = 0.5
        self._post("digits/load", {"parameters": parameters})
        if change == "canary":
            self._post(self.rng.choice(["digits/promote", "digits/rollback"]))

    def bad(self, workers: list[int]) -> None:
        assert self._post("bad/load") == 400

    def leave(self, workers: list[int]) -> None:
        """Begin requests and go before the answer."""
        body = json.dumps(asked(rows(1))).encode()
        head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        for k in range(20):
            with socket.create_connection(("127.0.0.1", self.server.port)) as sock:
                sock.sendall((head + body)[: None if k % 2 else 200])

    def _post(self, what: str, body: Any = None) -> int:
        """Change the repository: done, or refused in words; 503 where kills had the model quarantined."""
        status, found = self.server.json("POST", f"/v2/repository/models/{what}", body)
        refused = status in (400, 404) or (status == 503 and "quarantined" in found["error"])
        assert status == 200 or refused, (what, body, status, found)
        return status


def resident(pid: int) -> int:
    """Return the resident bytes of a process, 0 where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def asking(server: Server, seed: int, ends: float, found: Counter[Any], wanted: list[list[Any]]) -> None:
    """Ask one thing after another on a connection; count statuses, and whatever is no answer."""
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while time.monotonic() < ends:
        model, row = rng.choice(["digits", "large", "large"]), rng.randrange(16)
        body = json.dumps(asked(rows(1, seed=row))).encode()
        try:
            connection.request("POST", f"/v2/models/{model}/infer", body)
            answer = connection.getresponse()
            data = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            found[f"lost: {type(error).__name__}: {error}"] += 1
            connection.close()
            continue
        found[answer.status] += 1
        if answer.status == 200 and model == "digits":
            y = np.array(data["outputs"][0]["data"], np.float32)
            right = wanted[int(data["model_version"]) - 1][row]
            found["wrong"] += not np.allclose(y, right, rtol=1e-5, atol=1e-6)
        elif answer.status != 200:
            assert set(data) == {"error", "id"}
            time.sleep(0.01)  # whoever is refused waits a little
    connection.close()


def test_a_server_under_overload_and_faults_loses_no_request_no_memory_and_no_process(server: Server) -> None:
    versions = [frozen(1), frozen(2)]
    wanted = [[np.asarray(model(rows(1, seed=k)))[0] for k in range(16)] for model in versions]
    soak, ends, found = Soak(server), time.monotonic() + SECONDS, [Counter[Any]() for _ in range(ASKING)]
    threads = [
        threading.Thread(target=asking, args=(server, k, ends, found[k], wanted), daemon=True)
        for k in range(ASKING)
    ]
    for thread in threads:
        thread.start()
    while time.monotonic() < ends:
        soak.step()
        time.sleep(soak.rng.uniform(0.2, 1.5))
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    answers = sum(found, Counter[Any]())
    half = [m for m in soak.memory if m[0] > SECONDS / 2]
    print(f"\n{SECONDS:g} s: {dict(answers)}\nfaults {dict(soak.faults)}, {len(soak.seen)} processes")
    shown = soak.memory[:: max(1, len(soak.memory) // 12)]
    print("MB front end, zygote: " + ", ".join(f"{m[1] / 1e6:.0f} {m[2] / 1e6:.0f}" for m in shown))
    assert set(answers) <= ANSWERED | {"wrong"} and not answers["wrong"], answers
    assert answers[200] > 2 * SECONDS and answers[429] + answers[504] > 0
    for process in (1, 2):
        sizes = [m[process] for m in half if m[process]]
        assert max(sizes) < 1.1 * min(sizes) + 8e6, sizes
    assert eventually(lambda: len(server.workers()) == 2)
    version = {"parameters": {"version": "1"}}
    assert server.json("POST", "/v2/repository/models/digits/load", version)[0] == 200
    assert server.infer(rows(1))[0] == 200
    soak.seen |= set(server.processes())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert eventually(lambda: not any(map(alive, soak.seen)), 20)
