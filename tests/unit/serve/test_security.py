"""Hostile requests, messages, artefacts and repositories: no crash, no leak between tenants, clear errors.

`pytest -n 0 -m slow tests/unit/serve/test_security.py` is the whole: 50,000 requests, 5,000 gRPC messages,
10,000 artefacts, in parts of a tenth (`-k "requests and 3"` is one). A small part of each runs by default.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import resource
import shutil
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import (
    HOSTILE,
    Wire,
    bent,
    good_request,
    hostile_message,
    hostile_request,
    mutated_json,
    request_bytes,
)
from serving import Server, asked, by_turns, frozen, needs_server, network, rows, serving

import stratal as st
from stratal.base.errors import FormatError, StratalError
from stratal.formats.artifact import content_hash
from stratal.formats.container import read_container, write_container
from stratal.formats.signature import signature_from_json
from stratal.serve.grpc_schema import METHODS, STREAM, messages

TENANTS = {"shop": b"shop-key-0123456789", "rival": b"rival-key-987654321"}
REFUSED = {400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503, 504}
pytestmark = [needs_server, by_turns]


def parts(default: int, long: int) -> Any:
    """Run a test with `default` cases and, slow, ten times with `long` ones; each with a seed of its own."""
    slow = [pytest.param(seed, long, marks=pytest.mark.slow, id=str(seed)) for seed in range(10)]
    return pytest.mark.parametrize(("seed", "count"), [pytest.param(10, default, id="short"), *slow])


def in_words(status: int, found: Any) -> bool:
    """Return whether a JSON answer says what is wrong, and nothing of the server's own affairs."""
    text = json.dumps(found)
    return status in REFUSED and bool(found["error"]) and "Traceback" not in text and "secret" not in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret-folder") / "models"
    folder.mkdir()
    frozen().save(folder / "digits.stratal")
    (folder.parent / "keys").write_text("".join(f"{name} {key.decode()}\n" for name, key in TENANTS.items()))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ["--workers", "1", "--sla", "30000", "--body-limit", "100000", "--head-seconds", "20"]
    options += ["--api-keys", str(folder.parent / "keys")]
    if importlib.util.find_spec("grpc"):
        options += ["--grpc-port", "0"]
    with serving(folder, *options, headers={"X-API-Key": TENANTS["shop"].decode()}) as running:
        yield running


@pytest.fixture(scope="module")
def wanted() -> Any:
    """The outputs of the rows that good requests have, [64, CLASSES]."""
    model = frozen()
    return np.concatenate([np.asarray(model(rows(1, seed=k))) for k in range(64)])


def is_answer(status: int, answer: bytes, y: Any) -> bool:
    """Return whether an answer has a row's outputs; its last bits depend on the batch it was in."""
    got = np.frombuffer(answer[-y.nbytes :], y.dtype)
    return status == 200 and np.allclose(got, y, rtol=1e-5, atol=1e-6)


def memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def fuzzed(server: Server, folder: Path, tenant: str, seed: int, count: int, wanted: Any) -> Counter[int]:
    """Send a tenant's share of requests, good ones among them; return the statuses of the hostile ones."""
    rng, wire, found = random.Random(f"{seed} {tenant}"), Wire(server.port), Counter[int]()
    (other,) = TENANTS.keys() - {tenant}
    secrets = [str(folder).encode(), TENANTS[other], b"Traceback"]
    for k in range(count):
        data, whole = hostile_request(rng, TENANTS[tenant])
        status, answer = wire.ask(data, whole)
        assert status == 200 or status in REFUSED or (status == 0 and not whole), (data[:500], answer[:500])
        assert not any(secret in answer for secret in secrets), (data[:500], answer[:500])
        head, _, body = answer.partition(b"\r\n\r\n")
        if status >= 400 and b"content-type: application/json" in head.lower():
            assert set(json.loads(body)) <= {"error", "id", "ready", "name"}, answer
        found[status] += 1
        if k % 25 == 0:  # a good one: its own row's answer, and no label for it from the other tenant
            row, identity = rng.randrange(64), f"{tenant}-{seed}-{k}".encode()
            status, answer = wire.ask(good_request(row, TENANTS[tenant], identity))
            assert is_answer(status, answer, wanted[row]), answer
            label = json.dumps({"id": identity.decode(), "label": 0}).encode()
            headers = [(b"X-API-Key", TENANTS[other])]
            path = b"/v2/models/digits/feedback"
            assert wire.ask(request_bytes(b"POST", path, headers, label))[0] == 404
            odd = json.dumps(mutated_json(rng, {"id": identity.decode(), "label": 0})).encode()
            status, answer = wire.ask(request_bytes(b"POST", path, [(b"X-API-Key", TENANTS[tenant])], odd))
            assert status in (200, 400, 404), answer
    wire.close()
    return found


@pytest.mark.sampled(5)
@parts(400, 5000)
def test_hostile_requests_of_two_tenants_get_errors_and_good_ones_between_them_their_own_answers(
    server: Server, folder: Path, wanted: Any, seed: int, count: int
) -> None:
    front, workers, before = server.process.pid, server.workers(), memory(server.process.pid)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(fuzzed, server, folder, name, seed, count // 2, wanted) for name in TENANTS]
        found = futures[0].result() + futures[1].result()
    print(f"part {seed}: {dict(found)}, memory {(memory(front) - before) / 1e6:+.1f} MB")
    assert found.total() == count
    assert found[200] > count / 100 and found[400] > count / 3 and found[404] > count / 50
    assert server.process.poll() is None and server.workers() == workers
    assert memory(front) - before < 40e6
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_slow_and_silent_clients_hold_up_nobody(server: Server, wanted: Any) -> None:
    """Two hundred connections that send a byte now and then, and large bodies that never come."""
    whole = good_request(0, TENANTS["shop"], b"slow")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(200)]
        for k, sock in enumerate(slow):
            sock.sendall(whole[: 10 + k])
        wire = Wire(server.port)
        for k in range(100):
            slow[k].sendall(whole[10 + k : 11 + k])
            status, answer = wire.ask(good_request(k % 64, TENANTS["rival"], b"quick"))
            assert is_answer(status, answer, wanted[k % 64]), answer
        wire.close()
    assert server.infer(rows(1))[0] == 200


@pytest.mark.sampled(5)
@parts(60, 500)
def test_hostile_grpc_messages_get_errors_and_the_server_goes_on(
    server: Server, seed: int, count: int
) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra [grpc] is not installed")
    rng, made, codes = random.Random(seed), messages(), Counter[str]()
    named = made["ModelReadyRequest"](name="digits", version="1")
    with grpc.insecure_channel(server.grpc) as channel:
        for k in range(count):
            name = rng.choice([*METHODS, "ModelInfer", "ModelInfer", STREAM])
            message = hostile_message(rng, made["ModelInferRequest"]) if "Infer" in name else named
            data = message.SerializeToString()
            data = bent(rng, data) if rng.random() < 0.5 else data
            metadata = [("x-api-key", TENANTS["shop"].decode()), ("x-odd-bin", rng.randbytes(9))]
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            try:
                call(data, metadata=metadata[rng.random() < 0.3 :], timeout=60)
                codes["OK"] += 1
            except grpc.RpcError as error:
                codes[error.code().name] += 1
                assert "Traceback" not in error.details()
            if k % 50 == 0:
                with socket.create_connection(("127.0.0.1", int(server.grpc.rsplit(":", 1)[1]))) as sock:
                    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * rng.randrange(2)
                    sock.sendall(preface + rng.randbytes(300))
    print(f"part {seed}: {dict(codes)}")
    assert min(codes["OK"], codes["INVALID_ARGUMENT"], codes["UNAUTHENTICATED"]) > count / 20
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND", "PERMISSION_DENIED",
                          "RESOURCE_EXHAUSTED"}, codes  # fmt: skip
    assert server.infer(rows(1))[0] == 200
    assert "Traceback" not in server.log.read_text()


# -- artefacts and repositories ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artefact") / "digits.stratal"
    st.freeze(network(), rows(4), batch_sizes=(1, 4), name="digits", training=rows(60)).save(path)
    return path


def hostile_artefact(rng: random.Random, whole: bytes, files: dict[str, bytes], path: Path) -> bool:
    """Write a mutation of an artefact; return whether its hash was made to fit."""
    if rng.random() < 0.2:
        cut = whole[: rng.randrange(len(whole))]
        path.write_bytes(rng.choice([bent(rng, whole), cut, cut + bytes(len(whole) - len(cut))]))
        return False
    changed, name = dict(files), rng.choice(sorted(files))
    if name.endswith(".json") and rng.random() < 0.8:
        changed[name] = json.dumps(mutated_json(rng, json.loads(files[name]))).encode()
    else:
        changed[name] = bent(rng, files[name])
    rehashed = rng.random() < 0.7
    if rehashed:  # whoever can write the file can compute its hash
        with contextlib.suppress(
            StratalError, ValueError, TypeError, KeyError, AttributeError, RecursionError
        ):
            head = json.loads(changed["artifact.json"])
            head["content"] = content_hash(
                {name: [data] for name, data in changed.items()}, signature_from_json(head["signature"])
            )
            changed["artifact.json"] = json.dumps(head).encode()
    write_container(path, {name: [data] for name, data in changed.items()})
    return rehashed


@pytest.mark.sampled(5)
@parts(100, 1000)
def test_hostile_artefacts_are_refused_or_are_whole(
    artefact: Path, tmp_path: Path, seed: int, count: int
) -> None:
    rng, whole = random.Random(seed), artefact.read_bytes()
    files = {name: bytes(data) for name, data in read_container(artefact).items()}
    expected = np.asarray(frozen()(rows(2))).tobytes()
    path, refused = tmp_path / "m.stratal", 0
    for _ in range(count):
        rehashed = hostile_artefact(rng, whole, files, path)
        try:
            loaded = st.load(path)
        except FormatError:
            refused += 1
            continue
        if not rehashed:  # with its hash made to fit it is another model, and its author's affair
            assert np.asarray(loaded(rows(2))).tobytes() == expected
    print(f"part {seed}: {refused} of {count} refused")
    assert count / 2 < refused < count


@pytest.fixture(scope="module")
def repository(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models anyone may load; its models have 4 GB of address space."""
    folder = tmp_path_factory.mktemp("secret-repository") / "models"
    folder.mkdir()
    shutil.copy(artefact, folder)
    with serving(folder, "--workers", "1", "--sla", "30000", "--allow-load") as running:
        resource.prlimit(running.status()["zygote"], resource.RLIMIT_AS, (4 << 30, 4 << 30))
        yield running


def hostile_model(rng: random.Random, folder: Path, name: str, whole: bytes, files: dict[str, bytes]) -> None:
    """Put a hostile model into a repository: an artefact, versions, stages, or what is promised of it."""
    kind = rng.choice(["artefact"] * 5 + ["versions", "stages", "stages", "promised", "link", "folder"])
    path = folder / f"{name}.stratal"
    if kind in ("versions", "stages"):
        (folder / name).mkdir()
        path = folder / name / ("stage-1.stratal" if kind == "stages" else f"{rng.choice('12')}.stratal")
    if kind == "link":
        path.symlink_to(rng.choice([path.name, "../../..", "/dev/zero", "digits.stratal", "nothing"]))
    elif kind == "folder":
        path.mkdir()
        (path / "manifest.json").write_bytes(bent(rng, whole[:200]))
    elif kind in ("stages", "promised") and rng.random() < 0.7:
        path.write_bytes(whole)
    else:
        hostile_artefact(rng, whole, files, path)
    if kind == "stages":
        content = json.loads(files["artifact.json"])["content"]
        head = {"format": "stratal-stages", "version": 1, "name": name, "stages": [content]}
        head = mutated_json(rng, head) if rng.random() < 0.7 else head
        (folder / name / "stages.json").write_text(json.dumps(head))
    if kind == "promised":
        value = json.dumps(rng.choice([0, 1, 50, ["digits"], ["digits"] * 9, *HOSTILE]))
        key = rng.choice(
            ["sla_ms", "objective", "variants", "drift_psi", "least_accuracy", "most_error", "x"]
        )
        line = f"{key} = {value}\n".encode()
        (folder / f"{name}.toml").write_bytes(bent(rng, line) if rng.random() < 0.2 else line)


@pytest.mark.sampled(5)
@parts(8, 40)
def test_a_server_refuses_hostile_models_or_runs_them_and_the_others_go_on(
    repository: Server, artefact: Path, seed: int, count: int
) -> None:
    server, rng, whole = repository, random.Random(seed), artefact.read_bytes()
    folder, outcomes = Path(server.log.parent / "models"), Counter[str]()
    files = {name: bytes(data) for name, data in read_container(artefact).items()}
    zygote, expected = server.status()["zygote"], np.asarray(frozen()(rows(1)))
    for k in range(count):
        hostile_model(rng, folder, "hostile", whole, files)
        status, found = server.json("POST", "/v2/repository/models/hostile/load")
        assert status == 200 or in_words(status, found), found
        outcomes["refused" if status != 200 else "loaded"] += 1
        if status == 200:
            status, found = server.json("POST", "/v2/models/hostile/infer", asked(rows(1)))
            assert status == 200 or in_words(status, found), found
            outcomes[f"answers {status}"] += 1
            assert server.json("POST", "/v2/repository/models/hostile/unload")[0] == 200
        for path in folder.glob("hostile*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if k % 4 == 0:
            status, y = server.infer(rows(1))
            assert status == 200 and np.allclose(y, expected, rtol=1e-5, atol=1e-6)
    print(f"part {seed}: {dict(outcomes)}")
    assert outcomes["refused"] and outcomes["loaded"]
    assert server.status()["zygote"] == zygote and server.process.poll() is None
