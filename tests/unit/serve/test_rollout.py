"""Versions of a model: a canary's share, promotion and rollback, and no request lost between them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Server, asked, by_turns, eventually, frozen, needs_server, rows, serving

import stratal as st
from stratal import nn
from stratal.base.errors import FormatError
from stratal.serve.protocol import RequestError, load_parameters
from stratal.serve.rollout_state import Chosen, Rollout, read_rollouts, write_rollouts

pytestmark = [needs_server, by_turns]
REPOSITORY = "/v2/repository/models/digits/"
SHARE = {"parameters": {"version": "2", "canary_share": 0.25}}


@functools.cache
def wanted(version: str) -> Any:
    """Return a version's outputs for twelve inputs."""
    model = frozen(int(version))
    return [np.asarray(model(rows(1, seed=k)))[0] for k in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with version 1, and beside it versions that tests put there."""
    folder = tmp_path_factory.mktemp("rollout")
    (folder / "models" / "digits").mkdir(parents=True)
    for version in (1, 2):
        frozen(version).save(folder / f"{version}.stratal")
        wanted(str(version))  # before threads ask: seeds are of the process
    st.manual_seed(3)
    st.freeze(nn.Linear(16, 3), rows(4), batch_sizes=(1, 2), name="digits").save(folder / "3.stratal")
    os.link(folder / "1.stratal", folder / "models" / "digits" / "1.stratal")
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    options = ("--workers", "1", "--sla", "50000", "--hang-seconds", "60", "--allow-load")
    with serving(folder / "models", *options, "--log", str(folder / "log")) as running:
        for version in ("2", "3"):
            os.link(folder / f"{version}.stratal", folder / "models" / "digits" / f"{version}.stratal")
        yield running


@pytest.fixture
def server(running: Server) -> Server:
    """The server, with version 1 answering all."""
    status, found = running.json("POST", REPOSITORY + "load", {"parameters": {"version": "1"}})
    assert status == 200, found
    assert running.json("GET", "/v2/models/digits")[1]["versions"] == ["1"]
    return running


def version_of(server: Server, identity: str = "", path: str = "/v2/models/digits/infer") -> str:
    """Ask for a row; return the version that answered, whose bits the answer has."""
    seed = len(identity) % 12
    x = rows(1, seed=seed)
    status, found = server.json("POST", path, asked(x) | {"id": identity})
    assert status == 200, found
    y = np.array(found["outputs"][0]["data"], np.float32)
    version: str = found["model_version"]
    np.testing.assert_allclose(y, wanted(version)[seed], rtol=1e-5, atol=1e-6)
    return version


def only_worker(server: Server) -> int:
    """Return the process of the worker, once those it replaced are gone."""
    assert eventually(lambda: len(server.workers()) == 1)
    return server.workers()[0]


@pytest.mark.sampled(5)
def test_a_canary_answers_its_share_and_an_id_always_goes_to_one_version(
    server: Server, folder: Path
) -> None:
    before = server.metrics()
    assert server.json("POST", REPOSITORY + "load", SHARE)[0] == 200
    names = [f"request-{k}" for k in range(200)]
    went = [version_of(server, name) for name in names]
    assert 20 < went.count("2") < 85  # 50, give or take six standard deviations
    assert [version_of(server, name) for name in names[:30]] == went[:30]
    assert version_of(server, path="/v2/models/digits/versions/1/infer") == "1"
    assert version_of(server, path="/v2/models/digits/versions/2/infer") == "2"
    assert server.json("GET", "/v2/models/digits")[1]["versions"] == ["1", "2"]
    index = {row["version"]: row["reason"] for row in server.json("POST", "/v2/repository/index")[1]}
    assert index == {"1": "", "2": "canary: 0.25 of the requests"}
    assert server.status()["models"][0]["canary"] == {"version": "2", "share": 0.25, "state": "READY"}
    now = server.metrics()
    counted = {
        version: now[key] - before.get(key, 0)
        for version in "12"
        if (key := f'stratal_version_requests_total{{code="200",model="digits",version="{version}"}}')
    }
    more = Counter(went[:30])
    assert counted == {v: went.count(v) + more[v] + 1 for v in "12"}
    assert now['stratal_canary_share{model="digits"}'] == 0.25

    def logged() -> dict[str, str]:
        lines = map(json.loads, (folder / "log").read_text().splitlines())
        return {line["id"]: line["version"] for line in lines if line["id"].startswith("request-")}

    assert eventually(lambda: logged() == dict(zip(names, went, strict=True)), 20)


def test_promotion_and_rollback_are_one_call_each(server: Server) -> None:
    def all_by(version: str) -> bool:
        return {version_of(server, f"{k}") for k in range(12)} == {version}

    for change, answering in (("rollback", "1"), ("promote", "2")):
        assert server.json("POST", REPOSITORY + "load", SHARE)[0] == 200
        assert server.json("POST", REPOSITORY + change)[0] == 200
        assert all_by(answering)
    assert server.json("GET", "/v2/models/digits")[1]["versions"] == ["2"]
    assert server.json("POST", REPOSITORY + "rollback")[0] == 200
    assert all_by("1")
    status, found = server.json("POST", REPOSITORY + "rollback")
    assert status == 404
    assert "no version answered before" in found["error"]
    assert server.metrics()['stratal_canary_share{model="digits"}'] == 0


def test_requests_end_on_the_version_they_began_on(server: Server) -> None:
    assert server.json("POST", REPOSITORY + "load", SHARE)[0] == 200
    for change, begun in (("rollback", "2"), ("load", "1")):
        worker = only_worker(server)
        os.kill(worker, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(2) as pool:
                path = f"/v2/models/digits/versions/{begun}/infer"
                answers = [pool.submit(version_of, server, "a" * k, path) for k in range(2)]
                assert eventually(lambda: _one_runs_and_one_waits(server.status()))
                assert server.json("POST", REPOSITORY + change, _version(change))[0] == 200
                os.kill(worker, signal.SIGCONT)
                assert [answer.result(60) for answer in answers] == [begun, begun]
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ends after its last batch
                os.kill(worker, signal.SIGCONT)
    assert version_of(server) == "2"


def _one_runs_and_one_waits(status: Any) -> bool:
    return any(w["busy"] for w in status["workers"]) and status["queued"] == 1


def _version(change: str) -> Any:
    return {"parameters": {"version": "2"}} if change == "load" else {}


def test_no_request_is_lost_while_versions_come_and_go(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(version_of, server, "x" * (k % 7)) for k in range(160)]
        for change, body in (
            ("load", SHARE), ("promote", {}), ("rollback", {}), ("load", {"parameters": {"version": "2"}}),
            ("rollback", {}),
        ):  # fmt: skip
            assert server.json("POST", REPOSITORY + change, body)[0] == 200
        asking += [pool.submit(version_of, server) for _ in range(8)]
        went = [future.result(60) for future in asking]  # each has the bits of its version
    assert set(went) <= {"1", "2"}
    assert set(went[-4:]) == {"1"}


def test_a_canary_that_brings_down_workers_is_quarantined_and_the_other_answers(server: Server) -> None:
    assert server.json("POST", REPOSITORY + "load", SHARE)[0] == 200
    path = "/v2/models/digits/versions/2/infer"
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            worker = only_worker(server)
            os.kill(worker, signal.SIGSTOP)
            answer = pool.submit(server.json, "POST", path, asked(rows(1)))
            assert eventually(lambda: any(w["busy"] for w in server.status()["workers"]))
            os.kill(worker, signal.SIGKILL)
            status, found = answer.result(60)
            assert eventually(lambda old=worker: server.workers() not in ([], [old]))
    assert status == 503
    assert "quarantined" in found["error"]
    assert {version_of(server, f"{k}") for k in range(40)} == {"1"}
    assert server.json("POST", REPOSITORY + "promote")[0] == 503
    assert server.metrics()['stratal_model_ready{model="digits"}'] == 1


def test_what_is_no_canary_is_refused_and_changes_nothing(server: Server) -> None:
    for body, wanted, said in [
        ({"version": "1", "canary_share": 0.5}, 400, "another version"),
        ({"version": "9"}, 404, "versions 1, 2, 3"), ({"version": "../1"}, 404, "versions 1, 2, 3"),
        ({"version": "3", "canary_share": 0.5}, 400, "inputs and outputs of version 1"),
        ({"version": "2", "canary_share": 1}, 400, "above 0 and below 1"),
        ({"config": "{}"}, 400, "parameters"),
    ]:  # fmt: skip
        status, found = server.json("POST", REPOSITORY + "load", {"parameters": body})
        assert (status, said in found["error"]) == (wanted, True), found
    assert server.request("POST", REPOSITORY + "load", b"[1]")[0] == 400
    assert server.request("POST", REPOSITORY + "load", b"{")[0] == 400
    assert server.json("POST", REPOSITORY + "promote")[0] == 404
    assert server.json("POST", "/v2/repository/models/nobody/rollback")[0] == 404
    assert server.json("GET", "/v2/models/digits")[1]["versions"] == ["1"]
    assert version_of(server) == "1"


@pytest.mark.parametrize("share", [0, 1, -0.5, 2, "many", True, [0.5], float("nan"), 10**400])
def test_a_share_is_a_number_between_nothing_and_all(share: Any) -> None:
    with pytest.raises(RequestError, match="canary share"):
        load_parameters({"parameters": {"canary_share": share}})
    assert load_parameters({"parameters": {"canary_share": "0.1", "version": "2"}}) == ("2", 0.1)


# -- across restarts -----------------------------------------------------------------------------------------


@pytest.mark.sampled(7)
def test_a_server_that_starts_again_goes_on_with_what_was_chosen(folder: Path, tmp_path: Path) -> None:
    models, state = tmp_path / "models", tmp_path / "state.json"
    (models / "digits").mkdir(parents=True)
    for version in (1, 2):
        os.link(folder / f"{version}.stratal", models / "digits" / f"{version}.stratal")
    options = ("--workers", "1", "--sla", "50000", "--allow-load", "--state", str(state))

    def versions(server: Server) -> Any:
        return server.json("GET", "/v2/models/digits")[1]["versions"]

    with serving(models, *options) as server:
        assert versions(server) == ["2"] and not state.exists()  # nothing was chosen: the newest
        assert server.json("POST", REPOSITORY + "load", {"parameters": {"version": "1"}})[0] == 200
        assert server.json("POST", REPOSITORY + "load", SHARE)[0] == 200
        went = [version_of(server, f"r{k}") for k in range(40)]
        server.process.send_signal(signal.SIGKILL)  # not asked to end: it is written already
    with serving(models, *options) as server:
        assert versions(server) == ["1", "2"]
        assert server.status()["models"][0]["canary"] == {"version": "2", "share": 0.25, "state": "READY"}
        assert [version_of(server, f"r{k}") for k in range(40)] == went
        assert server.json("POST", REPOSITORY + "promote")[0] == 200
    with serving(models, *options) as server:
        assert versions(server) == ["2"]
        assert server.json("POST", REPOSITORY + "rollback")[0] == 200
        assert {version_of(server, f"{k}") for k in range(12)} == {"1"}
    os.replace(folder / "3.stratal", models / "digits" / "1.stratal")  # another artefact: it was not chosen
    with serving(models, *options) as server:
        assert versions(server) == ["2"]
        assert "the artefact is another" in server.log.read_text()
        assert server.json("POST", REPOSITORY + "load")[0] == 200  # the newest: no version is chosen any more
        assert json.loads(state.read_text())["models"] == {}


_ONE = {"version": "1", "content": "c"}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"version": 2}, {"models": []}, {"models": {"m": {}}}, {"more": 1},
        {"models": {"m": {"answers": None, "canary": None, "previous": None}}},
        {"models": {"m": {"answers": _ONE, "canary": _ONE, "previous": None}}},
        {"models": {"m": {"answers": _ONE, "canary": _ONE | {"share": 1.0}, "previous": None}}},
        {"models": {"m": {"answers": _ONE | {"version": 1}, "canary": None, "previous": None}}},
    ],
)  # fmt: skip
def test_a_state_that_is_damaged_is_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "state.json"
    whole = {"m": Rollout(Chosen("1", "c"), Chosen("2", "d", 0.5), Chosen("1", "e"))}
    assert read_rollouts(path) == {}
    write_rollouts(path, whole)
    assert read_rollouts(path) == whole
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=r"state\.json"):
        read_rollouts(path)
    path.write_text("{")
    with pytest.raises(FormatError):
        read_rollouts(path)
