"""The server over HTTP: right answers and clear refusals."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, asked, binary_request, frozen, needs_server, rows, serving, two_models

from stratal.cli import main
from stratal.serve import loadtest
from stratal.serve.app import read_body
from stratal.serve.loadtest import Load, Results, load_on
from stratal.serve.protocol import RequestError

pytestmark = needs_server
LOADED = {"name": "digits", "version": "1", "state": "READY", "reason": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = two_models(tmp_path_factory.mktemp("serving"))
    (folder / "broken.stratal").write_bytes(b"not an artefact")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(
        folder, "--workers", "1", "--body-limit", "100000", "--sla", "30000", "--allow-load"
    ) as running:
        yield running


# -- answers -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [1, 4, 11])
def test_binary_answers_have_the_frozen_models_bits(server: Server, count: int) -> None:
    assert server.binary(rows(count)) == np.asarray(frozen()(rows(count))).tobytes()
    assert server.binary(rows(count), "other") == np.asarray(frozen(2)(rows(count))).tobytes()


def test_json_answers_are_the_same_numbers(server: Server) -> None:
    status, y = server.infer(rows(3))
    assert status == 200
    assert y.tobytes() == np.asarray(frozen()(rows(3))).tobytes()


def test_nan_asked_for_as_json_is_the_clients_to_mend(server: Server) -> None:
    body, headers = binary_request(np.full_like(rows(1), np.nan), binary_output=False)
    status, _, said = server.request("POST", "/v2/models/digits/infer", body, headers)
    assert status == 400 and b"NaN or infinity" in said


def test_ids_versions_and_chosen_outputs_come_back(server: Server) -> None:
    request = asked(rows(1)) | {
        "id": "a-1",
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
    }
    status, headers, body = server.request(
        "POST", "/v2/models/digits/versions/1/infer", json.dumps(request).encode()
    )
    assert status == 200
    head = json.loads(body[: int(headers["inference-header-content-length"])])
    assert (head["id"], head["model_name"], head["model_version"]) == ("a-1", "digits", "1")
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 16}


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_are_inflated_within_the_limit(server: Server, encoding: str, pack: Any) -> None:
    body, headers = binary_request(rows(2), {"Content-Encoding": encoding})
    status, _, answer = server.request("POST", "/v2/models/digits/infer", pack(body), headers)
    assert status == 200
    assert answer.endswith(np.asarray(frozen()(rows(2))).tobytes())
    bomb = pack(bytes(10_000_000))
    assert len(bomb) < 100_000
    status, _, answer = server.request("POST", "/v2/models/digits/infer", bomb, headers)
    assert status == 413


def test_health_metadata_and_repository_say_what_is_there(server: Server) -> None:
    assert server.json("GET", "/v2/health/live")[0] == 200
    assert server.json("GET", "/v2/health/ready") == (200, {"ready": True})
    assert server.json("GET", "/v2")[1]["name"] == "stratal"
    status, found = server.json("GET", "/v2/models/digits")
    assert status == 200
    assert found["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 16]}]
    assert found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 4]}]
    assert server.json("GET", "/v2/models/digits/versions/1/ready")[0] == 200
    assert server.json("GET", "/v2/models/digits/versions/2/ready")[0] == 404
    assert server.json("GET", "/v2/models/digits/config")[1]["content"] == _content("digits", server)
    index = server.json("POST", "/v2/repository/index")[1]
    assert [row["name"] for row in index] == ["broken", "digits", "other"]
    assert index[1] == LOADED
    assert index[0]["state"] == "UNAVAILABLE"
    assert "not a model" in index[0]["reason"] or "model file" in index[0]["reason"]


def _content(name: str, server: Server) -> str:
    return next(m["content"] for m in server.status()["models"] if m["name"] == name)


def test_metrics_and_the_status_page_are_there(server: Server) -> None:
    server.infer(rows(1))
    status, headers, text = server.request("GET", "/metrics")
    assert status == 200
    assert b'stratal_requests_total{code="200",model="digits"}' in text
    assert b'stratal_model_ready{model="digits"} 1.0' in text
    status, headers, page = server.request("GET", "/")
    assert status == 200
    assert b"<title>Stratal</title>" in page
    assert "default-src 'self'" in headers["content-security-policy"]
    assert b"http://" not in page and b"https://" not in page  # nothing from elsewhere


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_shows_the_status_page_without_a_fault(server: Server, tmp_path: Path) -> None:
    flags = ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "dump-dom",
             "enable-logging=stderr", "virtual-time-budget=3000", f"user-data-dir={tmp_path}")  # fmt: skip
    address = f"http://127.0.0.1:{server.port}/"
    command = ["chromium", *(f"--{flag}" for flag in flags), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    assert "ready, 1 worker (" in done.stdout
    assert "<td>digits 1</td>" in done.stdout.replace(' class=""', "")
    assert "not loaded: " in done.stdout


def test_requests_that_wait_share_batches_and_each_gets_its_own_rows(server: Server) -> None:
    model = frozen()
    with ThreadPoolExecutor(24) as pool:  # one worker is busy with one while others come
        answers = list(pool.map(lambda k: server.infer(rows(1 + k % 3, seed=k)), range(150)))
    for k, (status, y) in enumerate(answers):
        assert status == 200
        np.testing.assert_allclose(y, np.asarray(model(rows(1 + k % 3, seed=k))), rtol=1e-5, atol=1e-6)
    values = server.metrics()
    served = (
        values['stratal_batch_rows_sum{model="digits"}'] / values['stratal_batch_rows_count{model="digits"}']
    )
    assert served > 1.2


def test_the_official_client_is_answered(server: Server) -> None:
    client_of = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed")
    client = client_of.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_ready() and client.is_model_ready("digits")
    assert client.get_model_metadata("digits")["platform"] == "stratal"
    assert LOADED in client.get_model_repository_index()
    for binary in (True, False):
        x = client_of.InferInput("input", [2, 16], "FP32")
        x.set_data_from_numpy(rows(2), binary_data=binary)
        wanted = client_of.InferRequestedOutput("output", binary_data=binary)
        answer = client.infer("digits", [x], outputs=[wanted], request_id="7")
        assert answer.as_numpy("output").tobytes() == np.asarray(frozen()(rows(2))).tobytes()
        assert answer.get_response()["id"] == "7"
    with pytest.raises(Exception, match="there is no such model"):
        client.infer("nobody", [x])


# -- refusals ------------------------------------------------------------------------------------------------

_GOOD = asked(np.zeros((1, 16), np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": []}, "inputs of this model: input"),
        ({"inputs": {"input": 1}}, "a list of objects"),
        ({"inputs": _GOOD["inputs"] * 2}, "appears twice"),
        ({"inputs": [_GOOD["inputs"][0] | {"datatype": "FP64"}]}, "datatype is FP32"),
        ({"inputs": [_GOOD["inputs"][0] | {"shape": [1, 15]}]}, "shape is [-1, 16]"),
        ({"inputs": [_GOOD["inputs"][0] | {"shape": [0, 16]}]}, "from 1 to"),
        ({"inputs": [_GOOD["inputs"][0] | {"shape": [1 << 60, 16]}]}, "from 1 to"),
        ({"inputs": [_GOOD["inputs"][0] | {"shape": [True, 16]}]}, "shape is"),
        ({"inputs": [_GOOD["inputs"][0] | {"data": [0.0] * 15}]}, "data has 16 numbers"),
        ({"inputs": [_GOOD["inputs"][0] | {"data": ["1"] * 16}]}, "data has 16 numbers"),
        ({"inputs": [_GOOD["inputs"][0] | {"data": [[1], 2]}]}, "data has 16 numbers"),
        ({"inputs": [_GOOD["inputs"][0] | {"parameters": {"binary_data_size": 64}}]}, "binary_data_size"),
        ({"outputs": [{"name": "nothing"}]}, "outputs of this model"),
        ({"outputs": [{"name": "output", "parameters": {"classification": 3}}]}, "classification"),
        ({"parameters": {"timeout": -3}}, "timeout: microseconds"),
        ({"surprise": 1}, "a request has"),
        ({"id": 7}, "id is a text"),
    ],
)  # fmt: skip
def test_requests_that_do_not_fit_are_refused_with_what_would(
    server: Server, change: dict[str, Any], said: str
) -> None:
    status, found = server.json("POST", "/v2/models/digits/infer", _GOOD | change)
    assert status == 400
    assert said in found["error"]


def test_half_a_surrogate_pair_is_repeated_in_the_error_as_it_came(server: Server) -> None:
    status, found = server.json("POST", "/v2/models/digits/feedback", {"id": "\ud800", "label": 0})
    assert status == 404 and "\ud800" in found["error"]


def test_paths_names_and_sizes_from_anywhere_are_refused(server: Server) -> None:
    for path, wanted in [
        ("/v2/models/nobody/infer", 404), ("/v2/models/broken/infer", 503), ("/v2/models/../infer", 404),
        ("/v2/models/%2e%2e%2fetc/infer", 404), ("/v2/repository/models/..%2f..%2fetc%2fpasswd/load", 404),
        ("/v2/models/digits/versions/9/infer", 404), ("/v2/logging", 404), ("/status/", 404),
        ("/v2/repository/models/broken/load", 400), ("/v2/repository/models/nobody/unload", 404),
    ]:  # fmt: skip
        status, found = server.json("POST", path, _GOOD)
        assert (status, set(found)) == (wanted, {"error", "id"}), path
    big = {"Content-Length": "99999999999"}
    assert server.request("POST", "/v2/models/digits/infer", b"x", big)[0] == 413
    assert server.request("POST", "/v2/models/digits/infer", bytes(100_001))[0] == 413
    assert server.request("POST", "/v2/models/digits/infer", b"{}", {"X": "a" * 70_000})[0] in (400, 431)
    odd = {"Inference-Header-Content-Length": "-1"}
    assert server.request("POST", "/v2/models/digits/infer", b"{}", odd)[0] == 400


def test_a_request_that_cannot_be_in_time_is_refused_at_once(server: Server) -> None:
    status, error = server.infer(rows(1), timeout=1)
    assert status == 429
    assert "cannot be in time" in error


def test_fuzzed_bodies_get_an_error_or_an_answer_and_the_server_goes_on(server: Server) -> None:
    rng = random.Random(5)
    whole, headers = binary_request(rows(1))
    connection_errors = 0
    for k in range(400):
        body = bytearray(whole if k % 2 else json.dumps(_GOOD).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[at] = rng.randrange(256)
                case 1:
                    del body[at : at + rng.randrange(1, 30)]
                case _:
                    body[at:at] = rng.choice([b"[" * 5000, b"9" * 400, b'"\\ud800"', b"NaN", b"null", b"\0"])
            if not body:
                break
        status, _, answer = server.request(
            "POST", "/v2/models/digits/infer", bytes(body), headers if k % 2 else {}
        )
        assert status in (200, 400), answer
        if status == 400:
            assert set(json.loads(answer)) == {"error", "id"}
        connection_errors += status == 400
    assert connection_errors > 100
    assert server.binary(rows(2)) == np.asarray(frozen()(rows(2))).tobytes()
    assert b"stratal_workers_lost_total{" not in server.request("GET", "/metrics")[2]


def test_a_body_that_stalls_ends_and_one_that_goes_on_is_cut_off() -> None:
    async def stalls() -> Any:
        await asyncio.sleep(10)

    async def goes_on() -> Any:
        return {"type": "http.request", "body": bytes(100), "more_body": True}

    for receive, status in ((stalls, 408), (goes_on, 413)):
        with pytest.raises(RequestError) as refused:
            asyncio.run(read_body({}, receive, 1000, 0.05))
        assert refused.value.status == status


@pytest.mark.sampled(4)
def test_a_load_test_counts_from_when_requests_were_due(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"http://127.0.0.1:{server.port}"
    options = ["--rate", "60", "--seconds", "2", "--burst", "3", "--sla", "20000", "--connections", "8"]
    assert main(["loadtest", address, "digits", *options, "--json", str(tmp_path / "l.json")]) == 0
    report = json.loads((tmp_path / "l.json").read_text())
    assert report["statuses"] == {"200": report["offered"]}
    assert 60 < report["offered"] < 240
    assert report["in_time"] == 1.0
    assert report["latency_ms"]["p50"] >= report["uncorrected_latency_ms"]["p50"]
    assert "from when due" in capsys.readouterr().out
    assert main(["loadtest", address, "nobody"]) == 1
    assert "does not have this model" in capsys.readouterr().err
    assert main(["loadtest", "http://127.0.0.1:1", "digits"]) == 1
    assert "no server there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("digits", "an address such as"), ("ftp://127.0.0.1", "an address such as"),
        ("http://127.0.0.1:many", "an address such as"), ("http://127.0.0.1/v2", "an address such as"),
    ],
)  # fmt: skip
def test_a_load_test_takes_addresses_of_servers_alone(
    path: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loadtest", path, "digits"]) == 1
    assert said in capsys.readouterr().err


def test_a_stalled_server_costs_an_open_loop_every_request_that_was_due() -> None:
    """One connection, a server that stalls for 0.5 s on its first request: those behind it waited, too."""

    async def stalling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal stalled
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
            await reader.readexactly(length)
            body = json.dumps({"name": "m", "inputs": []}).encode() if head.startswith(b"GET") else b"{}"
            if not head.startswith(b"GET") and not stalled:
                stalled = True
                await asyncio.sleep(0.5)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async def measured() -> Results:
        server = await asyncio.start_server(stalling, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        load = Load("m", rate=100, seconds=1, connections=1)
        results = await asyncio.wait_for(load_on(loadtest.target(f"http://127.0.0.1:{port}"), load), 30)
        server.close()
        return results

    stalled = False
    results = asyncio.run(measured())
    assert sum(latency > 0.1 for latency in results.latencies) > 20
    assert sum(latency > 0.1 for latency in results.service) < 10


def test_nothing_listens_beyond_this_machine_unless_asked(server: Server) -> None:
    # the table of listening sockets: local address, port, state 0A
    tables = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    mine = [row[1] for row in tables if row[3] == "0A" and int(row[1].split(":")[1], 16) == server.port]
    assert mine == [f"0100007F:{server.port:04X}"]


def test_without_the_extra_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "serve: needs uvicorn" in error
    assert "pip install 'stratal[serve]'" in error
    assert main(["serve", str(tmp_path / "nowhere")]) == 1
    assert "a folder of artefacts" in capsys.readouterr().err
