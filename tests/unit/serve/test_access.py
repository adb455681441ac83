"""API keys, TLS, limits on connections, and the log: who is answered, who is told why not, what is noted."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, asked, by_turns, eventually, frozen, needs_server, rows, serving

from stratal.base.errors import AttributeValueError, FormatError
from stratal.cli import main
from stratal.serve.access import Access, Tls, read_keys
from stratal.serve.app import read_body
from stratal.serve.connections import Limits, protocol_class
from stratal.serve.grpc_schema import METHODS, STREAM, messages
from stratal.serve.loadtest import target
from stratal.serve.protocol import RequestError
from stratal.serve.request_log import RequestLog
from stratal.serve.server import Listening, exposure

pytestmark = [
    needs_server,
    by_turns,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificates"),
]
SHOP, OPS = "shop-key-0123456789", "ops-key-0123456789abcdef"
KEYS = f"# who may ask\nshop {SHOP}\nops  {OPS}  admin  # changes models\n"
ADMIN = {"Authorization": f"Bearer {OPS}"}
INFER = "/v2/models/digits/infer"
GUARDED = (
    ("POST", INFER), ("GET", "/v2/models/digits"), ("GET", "/v2/models/digits/ready"), ("GET", "/metrics"),
    ("GET", "/status"), ("POST", "/v2/repository/index"), ("POST", "/v2/repository/models/digits/load"),
    ("POST", "/v2/repository/models/digits/unload"), ("POST", "/v2/repository/models/digits/promote"),
    ("POST", "/v2/repository/models/digits/rollback"),
    ("POST", "/v2/models/digits/feedback"), ("GET", "/v2/health/live/"),
    ("GET", "//v2/models/digits"), ("GET", "/v2/models/../../status"), ("GET", "/nowhere"),
    ("POST", "/v2/models/nobody/infer"),
)  # fmt: skip


def certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Return a certificate of localhost and its key, made now."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
               "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
               "-keyout", str(key), "-out", str(cert), *(options or ("-nodes",))]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "models").mkdir()
    frozen().save(folder / "models" / "digits.stratal")
    (folder / "keys").write_text(KEYS)
    certificate(folder, "own")
    return folder


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    tls = ssl.create_default_context(cafile=str(folder / "own.crt"))
    options = {
        "workers": 1, "sla": 30000, "api-keys": folder / "keys", "tls-cert": folder / "own.crt",
        "tls-key": folder / "own.key", "connections": 6, "head-seconds": 2, "idle-seconds": 2,
        "log": folder / "log",
    }  # fmt: skip
    if importlib.util.find_spec("grpc"):
        options["grpc-port"] = 0
    given = [str(text) for name, value in options.items() for text in (f"--{name}", value)]
    with serving(folder / "models", *given, headers=ADMIN, tls=tls) as running:
        yield running


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_a_known_key_nothing_but_health_is_told(guarded: Server, method: str, path: str) -> None:
    for headers in (
        {}, {"X-API-Key": ""}, {"X-API-Key": SHOP[:-1]}, {"Authorization": f"Basic {OPS}"},
        {"Authorization": "Bearer "}, {"X-API-Key": "ops"},
    ):  # fmt: skip
        status, names, body = guarded.request(method, path, b"", headers)
        assert status == 401, body
        assert names["www-authenticate"] == "Bearer"
        assert b"an API key" in body and b"digits" not in body


@pytest.mark.sampled(4)
def test_a_load_test_brings_its_key_and_verifies_the_certificate(
    guarded: Server, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(f"{SHOP}\n")
    (tmp_path / "wrong").write_text("another-key-0123456789")
    (tmp_path / "two").write_text("a b")
    address, ca = f"https://localhost:{guarded.port}", ["--ca", str(folder / "own.crt")]
    command = ["loadtest", address, "digits", "--rate", "50", "--seconds", "0.5", "--connections", "2", *ca]
    report = tmp_path / "l.json"
    assert main([*command, "--key-file", str(tmp_path / "key"), "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["statuses"] == {"200": found["offered"]} and found["offered"] > 5
    for name, said in [("wrong", "asks for another key"), ("two", "a key and nothing else"),
                       ("none", "cannot read the key")]:  # fmt: skip
        assert main([*command, "--key-file", str(tmp_path / name)]) == 1
        assert said in (error := capsys.readouterr().err) and "another-key" not in error
    assert main(command) == 1
    assert "asks for another key" in capsys.readouterr().err
    assert main(["loadtest", address, "digits", "--key-file", str(tmp_path / "key")]) == 1  # no --ca
    assert "certificate" in capsys.readouterr().err


def test_a_load_test_sends_no_key_to_other_machines_in_the_clear(folder: Path) -> None:
    with pytest.raises(AttributeValueError, match="in the clear"):
        target("http://example.org:8000", SHOP)
    with pytest.raises(AttributeValueError, match="printable ASCII"):
        target("https://localhost", "key\r\nX-Admin: 1")
    with pytest.raises(AttributeValueError, match="for an https address"):
        target("http://127.0.0.1", "", folder / "own.crt")
    with pytest.raises(AttributeValueError, match="cannot read the certificate"):
        target("https://localhost", "", folder / "keys")
    assert SHOP not in repr(target("http://127.0.0.1", SHOP))


def test_health_is_told_to_all_and_answers_to_keys(guarded: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2", "/"):
        assert guarded.request("GET", path, b"", {})[0] == 200
    for headers in ({"X-API-Key": SHOP}, {"Authorization": f"bearer {SHOP}"}, ADMIN):
        assert guarded.request("GET", "/v2/models/digits", b"", headers)[0] == 200
    assert guarded.binary(rows(2), headers={"X-API-Key": SHOP}) == np.asarray(frozen()(rows(2))).tobytes()


def test_models_are_changed_by_admins_alone(guarded: Server) -> None:
    for change, done in {"promote": 404, "rollback": 404, "unload": 200, "load": 200}.items():
        path = f"/v2/repository/models/digits/{change}"
        status, _, body = guarded.request("POST", path, b"", {"X-API-Key": SHOP})
        assert status == 403
        assert b"not marked admin; got shop" in body
        assert guarded.request("POST", path)[0] == done
    assert guarded.infer(rows(1))[0] == 200


def test_without_keys_models_are_changed_only_where_that_is_allowed() -> None:
    with pytest.raises(RequestError, match="--allow-load") as refused:
        Access().check_change(Access().caller({}))
    assert refused.value.status == 403
    Access(allow_load=True).check_change(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has none"), ("# nobody yet\n", "has none"), (f"shop {SHOP}\nops\n", "line 2"),
        (f"shop {SHOP} owner", "line 1"), (f"shop {SHOP} admin admin", "line 1"), ("shop short", "line 1"),
        (f"a {SHOP}\nb {SHOP}", "twice"), (f"a {SHOP}\na {OPS}", "twice"), (f"a/b {SHOP}", "line 1"),
    ],
)  # fmt: skip
def test_a_file_of_keys_that_is_wrong_is_refused_without_saying_a_key(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(FormatError) as refused:
        read_keys(tmp_path / "keys")
    assert said in refused.value.summary
    assert SHOP not in repr(refused.value) + str(refused.value) + refused.value.summary


def test_keys_are_not_kept_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEYS)
    keys = read_keys(tmp_path / "keys")
    assert [(key.name, key.admin) for key in keys] == [("shop", False), ("ops", True)]
    assert SHOP not in repr(keys)
    with pytest.raises(RequestError) as refused:
        Access(keys).caller({b"x-api-key": SHOP.encode() + b"x"})
    assert SHOP not in refused.value.summary


# -- TLS -----------------------------------------------------------------------------------------------------


def test_over_tls_the_server_is_who_it_says_and_plain_http_is_not_spoken(guarded: Server) -> None:
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        socket.create_connection(("localhost", guarded.port)) as raw,
    ):
        ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), socket.create_connection(("localhost", guarded.port)) as raw:
        old.wrap_socket(raw)
    with socket.create_connection(("localhost", guarded.port), timeout=20) as raw:
        raw.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in raw.recv(1000)
    assert guarded.infer(rows(1))[0] == 200


def test_files_that_are_no_certificate_and_key_are_refused_in_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, key = folder / "own.crt", folder / "own.key"
    certificate(tmp_path, "other")
    certificate(tmp_path, "locked", "-passout", "pass:secret")
    (tmp_path / "text").write_text("no certificate")
    for options, said in [
        ([cert, tmp_path / "nowhere"], "No such file"), ([tmp_path, key], "Is a directory"),
        ([cert, tmp_path / "other.key"], "not that of the certificate"), ([tmp_path / "text", key], "in PEM"),
        ([tmp_path / "locked.crt", tmp_path / "locked.key"], "without a password"), ([key, cert], "in PEM"),
    ]:  # fmt: skip
        given = ["serve", str(folder / "models"), "--tls-cert", str(options[0]), "--tls-key", str(options[1])]
        assert main(given) == 1
        assert said in capsys.readouterr().err
    assert main(["serve", str(folder / "models"), "--tls-cert", str(cert)]) == 1
    assert "only --tls-cert" in capsys.readouterr().err
    assert main(["serve", str(folder / "models"), "--api-keys", str(tmp_path / "nowhere")]) == 1
    assert "api keys: cannot read the file" in capsys.readouterr().err


def test_a_server_that_others_reach_without_keys_or_tls_is_warned_of(folder: Path) -> None:
    keys, tls = read_keys(folder / "keys"), Tls(folder / "own.crt", folder / "own.key")
    assert exposure("127.0.0.1", Listening()) == exposure("::1", Listening()) == []
    assert exposure("0.0.0.0", Listening(access=Access(keys), tls=tls)) == []
    open_to_all, in_the_clear = exposure("0.0.0.0", Listening())
    assert "--api-keys" in open_to_all and "--tls-cert" in in_the_clear
    assert "and keys" in exposure("::", Listening(access=Access(keys)))[0]


def test_grpc_asks_for_the_same_keys_over_the_same_tls(guarded: Server, folder: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra [grpc] is not installed")
    made = messages()

    def ask(method: str, credentials: Any, *keys: tuple[str, str], **fields: Any) -> str:
        with grpc.secure_channel(guarded.grpc, credentials) as channel:
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            try:
                message = made[f"{method.replace('Stream', '')}Request"]
                call(message(**fields).SerializeToString(), metadata=keys, timeout=30)
            except grpc.RpcError as error:
                assert error.code().name == "UNAVAILABLE" or dict(error.trailing_metadata())["x-request-id"]
                return str(error.code().name)
            return "OK"

    own = grpc.ssl_channel_credentials((folder / "own.crt").read_bytes())
    shop, ops = ("x-api-key", SHOP), ("authorization", f"Bearer {OPS}")
    assert ask("ServerLive", grpc.ssl_channel_credentials()) == "UNAVAILABLE"  # not a certificate it knows
    assert ask("ServerLive", own) == ask("ModelReady", own, shop, name="digits") == "OK"
    for name in {*METHODS, STREAM} - {"ServerLive", "ServerReady", "ServerMetadata"}:
        assert ask(name, own) == ask(name, own, ("x-api-key", "guess")) == "UNAUTHENTICATED"
    for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        assert ask(name, own, shop, model_name="digits") == "PERMISSION_DENIED"
    assert ask("RepositoryModelLoad", own, ops, model_name="digits") == "OK"


# -- connections ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connected(server: Server, text: bytes = b"") -> Iterator[socket.socket]:
    """Connect, and send some bytes."""
    raw = socket.create_connection(("localhost", server.port), timeout=20)
    assert server.tls is not None
    with raw, server.tls.wrap_socket(raw, server_hostname="localhost") as sock:
        sock.sendall(text)
        yield sock


def everything(sock: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.sampled(4)
def test_connections_that_are_silent_or_slow_are_closed_and_told_so(guarded: Server) -> None:
    """Those that never end a head, and those that ask nothing more after an answer."""
    asked_once = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = (b"", b"GET /v2/health", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: ", asked_once, asked_once)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(guarded, text)) for text in sent]
        time.sleep(0.2)
        opened[-1].sendall(b"\r\n")  # what is no request does not keep it open
        answers = list(map(everything, opened))
    for answer in answers[:3]:
        assert b" 408 " in answer and b"no whole head of a request within 2 s" in answer
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers[3:])


@pytest.mark.sampled(4)
def test_a_head_byte_by_byte_does_not_keep_a_connection_open(guarded: Server) -> None:
    begun = time.monotonic()
    with connected(guarded, b"GET /v2/health/live HTTP/1.1\r\n") as sock, contextlib.suppress(OSError):
        while time.monotonic() - begun < 60:
            sock.sendall(b"X")
            time.sleep(0.1)
    assert time.monotonic() - begun < 50


def test_a_head_without_an_end_is_cut_off(guarded: Server) -> None:
    with connected(guarded, b"GET / HTTP/1.1\r\n") as sock:
        with contextlib.suppress(OSError):
            for _ in range(100):
                sock.sendall(b"X-Long: " + b"x" * 5000 + b"\r\n")
        assert b" 431 " in everything(sock)
    with connected(guarded, f"POST {INFER} HTTP/1.1\r\nContent-Length: 5\r\n\r\n".encode()) as sock:
        with contextlib.suppress(OSError):  # behind a request that is under way, too
            sock.sendall(b"12345" + b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000)
        everything(sock)
    assert guarded.infer(rows(1))[0] == 200


def test_one_connection_too_many_is_told_so_and_the_others_go_on(guarded: Server) -> None:
    def refused() -> bool:
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(connected(guarded)) for _ in range(6)]
            with connected(guarded) as sock:
                answer = everything(sock)
            opened[-1].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            fine = opened[-1].recv(1000).startswith(b"HTTP/1.1 200 ")
        return fine and b" 503 " in answer and b"too many connections; got more than 6" in answer

    assert eventually(refused)  # where the machine is slow, the first are closed before the last is opened
    assert eventually(lambda: guarded.infer(rows(1))[0] == 200)


def test_a_client_that_does_not_read_its_answer_is_let_go() -> None:
    uvicorn = pytest.importorskip("uvicorn")

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(1 << 26)})

    async def served() -> float:
        protocol = protocol_class(Limits(write_seconds=0.3))
        config = uvicorn.Config(large, http=protocol, lifespan="off", log_level="critical")
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            begun = loop.time()
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not state.connections:
                await asyncio.sleep(0.01)
            while state.connections:
                await asyncio.sleep(0.01)
            server.close()
            return loop.time() - begun

    assert 0.2 < asyncio.run(asyncio.wait_for(served(), 30)) < 10


def test_a_body_in_drops_is_given_up() -> None:
    async def drop() -> dict[str, object]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    begun = time.monotonic()
    with pytest.raises(RequestError, match="too slowly") as refused:
        asyncio.run(read_body({}, drop, 1000, 0.2))
    assert refused.value.status == 408
    assert time.monotonic() - begun < 5


# -- the log -------------------------------------------------------------------------------------------------


def logged(folder: Path, identity: str) -> dict[str, Any]:
    """Return the one line of the log with an id."""
    found: list[dict[str, Any]] = []

    def written() -> bool:
        lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
        found[:] = [line for line in lines if line["id"] == identity]
        return bool(found)

    assert eventually(written, 20)
    (line,) = found
    return line


def asking(guarded: Server, body: Any, **names: str) -> tuple[int, dict[str, str], Any]:
    headers = ADMIN | {name.replace("_", "-"): value for name, value in names.items()}
    status, answered, text = guarded.request("POST", INFER, json.dumps(body).encode(), headers)
    return status, answered, json.loads(text)


def test_each_request_is_a_line_with_its_id_and_where_its_time_went(guarded: Server, folder: Path) -> None:
    status, names, _ = asking(guarded, asked(rows(3)) | {"id": "in-body"}, X_Request_Id="trace/7")
    assert (status, names["x-request-id"]) == (200, "trace/7")
    line = logged(folder, "trace/7")
    said = {key: line[key] for key in ("caller", "model", "version", "rows", "status")}
    assert said == {"caller": "ops", "model": "digits", "version": "1", "rows": 3, "status": 200}
    assert 0 < line["compute_ms"] < line["queue_ms"] + line["compute_ms"] < line["total_ms"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    status, names, _ = asking(guarded, asked(rows(1)) | {"id": "in-body"})
    assert (status, names["x-request-id"]) == (200, "in-body")
    assert logged(folder, "in-body")["rows"] == 1


def test_every_error_has_the_id_that_the_log_has(guarded: Server, folder: Path) -> None:
    status, names, found = asking(guarded, {}, X_Request_Id="wrong-1")
    assert (status, names["x-request-id"], found["id"]) == (400, "wrong-1", "wrong-1")
    line = logged(folder, "wrong-1")
    assert (line["status"], line["error"], line["model"]) == (400, found["error"], "digits")
    status, names, text = guarded.request("GET", "/nowhere", b"", {"X-API-Key": "guess"})
    line = logged(folder, names["x-request-id"])
    assert json.loads(text)["id"] == line["id"]
    assert (line["status"], line["request"], "caller" in line) == (401, "GET /nowhere", False)
    status, names, text = guarded.request("POST", "/v2/repository/models/nobody/load")
    line = logged(folder, names["x-request-id"])
    assert (status, line["status"], line["caller"]) == (404, 404, "ops")
    assert json.loads(text) == {"error": line["error"], "id": line["id"]}


@pytest.mark.parametrize(
    "identity", ['a\n{"id": "forged"}', "x" * 129, "", "a b", 'a"b', "\u2028\x1b[2J", "caf\u00e9", "\ud800"]
)
def test_ids_that_are_no_ids_are_replaced_and_forge_no_line(
    guarded: Server, folder: Path, identity: str
) -> None:
    status, names, found = asking(guarded, asked(rows(1)) | {"id": identity})
    assert status == 200
    assert found.get("id", "") == identity  # the protocol's own is the client's
    assert re.fullmatch("[0-9a-f]{24}", names["x-request-id"])
    logged(folder, names["x-request-id"])
    if "\n" not in identity and identity.isascii():
        _, names, _ = asking(guarded, asked(rows(1)), X_Request_Id=identity)
        assert re.fullmatch("[0-9a-f]{24}", names["x-request-id"])
    assert "forged" not in (folder / "log").read_text()


def test_a_path_cannot_forge_a_line_of_the_log(guarded: Server, folder: Path) -> None:
    path = "/v2/models/%0a%7b%22id%22:%22forged%22%7d/infer"
    status, names, _ = guarded.request("POST", path, b"{}")
    assert status == 404
    assert logged(folder, names["x-request-id"])["model"] == '\n{"id":"forged"}'
    assert all(json.loads(line)["id"] != "forged" for line in (folder / "log").read_text().splitlines())


def test_a_log_that_cannot_be_written_as_fast_drops_lines_and_says_how_many(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = RequestLog(tmp_path / "pipe")
    for k in range(30_000):  # a pipe takes 64 KiB, and nobody reads
        log.write({"id": f"{k:060}"})
    assert log.dropped > 0
    closing = threading.Thread(target=log.close, args=(60.0,))
    closing.start()
    os.set_blocking(reader, True)
    with open(reader, encoding="ascii") as file:
        lines = [json.loads(line) for line in file]
    closing.join(60)
    assert sum(line.get("dropped", 1) for line in lines) == 30_000
    with pytest.raises(AttributeValueError, match="cannot write the log"):
        RequestLog(tmp_path / "nowhere" / "log")


def test_no_key_is_in_what_the_server_writes(guarded: Server, folder: Path) -> None:
    guarded.request("POST", INFER, b"{}", {"X-API-Key": SHOP})
    guarded.json("POST", INFER, asked(rows(1)))
    written = (
        guarded.log.read_text()
        + (folder / "log").read_text()
        + guarded.request("GET", "/metrics")[2].decode()
    )
    assert SHOP not in written and OPS not in written
