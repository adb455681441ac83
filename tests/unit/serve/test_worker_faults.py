"""Workers whose end costs nobody else's answer, models that come and go, and servers that end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import (
    Server,
    alive,
    by_turns,
    eventually,
    frozen,
    needs_server,
    network,
    rows,
    serving,
    two_models,
)

import stratal as st

pytestmark = [needs_server, by_turns]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = two_models(tmp_path_factory.mktemp("mortal"))
    os.symlink(folder / "digits.stratal", folder / "swap.stratal")
    return folder


MORTAL = ("--workers", "1", "--allow-load", "--sla", "50000", "--hang-seconds", "2")


@pytest.fixture(scope="module")
def mortal(changing: Path) -> Iterator[Server]:
    with serving(changing, *MORTAL) as running:
        yield running


@pytest.fixture
def ending(changing: Path, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "models").mkdir()
    os.symlink(changing / "digits.stratal", tmp_path / "models" / "digits.stratal")
    with serving(tmp_path / "models", *MORTAL) as running:
        yield running


def killed_while_it_runs(server: Server, model: str, pool: ThreadPoolExecutor, hang: bool = False) -> Any:
    """Return the answer to a request whose worker is stopped before it gets it, and then killed, or left."""
    (worker,) = server.workers()
    os.kill(worker, signal.SIGSTOP)
    answer = pool.submit(server.infer, rows(1), model)
    assert eventually(lambda: any(w["busy"] for w in server.status()["workers"]))
    if not hang:
        os.kill(worker, signal.SIGKILL)
    found = answer.result(60)
    assert eventually(lambda: not alive(worker))  # its sockets close before it is gone
    assert eventually(lambda: len(server.workers()) == 1)
    return found


@pytest.mark.sampled(5, among="worker faults")
def test_the_requests_of_a_killed_worker_go_to_another_until_the_model_is_quarantined(mortal: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        status, y = killed_while_it_runs(mortal, "digits", pool)
        assert status == 200
        np.testing.assert_allclose(y, np.asarray(frozen()(rows(1))), rtol=1e-5)
        status, error = killed_while_it_runs(mortal, "digits", pool)
    assert status == 503
    assert "quarantined" in error
    assert mortal.infer(rows(1))[0] == 503
    assert mortal.infer(rows(1), "other")[0] == 200  # the others go on
    assert [m["state"] for m in mortal.status()["models"]] == ["UNAVAILABLE", "READY", "READY"]
    assert mortal.json("POST", "/v2/repository/models/digits/load")[0] == 200
    assert mortal.infer(rows(1))[0] == 200


@pytest.mark.sampled(5, among="worker faults")
def test_a_worker_that_hangs_is_killed_and_its_request_answered_by_another(mortal: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        status, _ = killed_while_it_runs(mortal, "other", pool, hang=True)
    assert status == 200
    assert b'stratal_workers_lost_total{how="hung"}' in mortal.request("GET", "/metrics")[2]


@pytest.mark.sampled(5, among="worker faults")
def test_idle_workers_and_the_zygote_are_replaced(mortal: Server) -> None:
    assert eventually(lambda: len(mortal.workers()) == 1)  # what another test ended may be leaving still
    (worker,) = mortal.workers()
    os.kill(worker, signal.SIGKILL)
    assert eventually(lambda: mortal.workers() not in ([], [worker]))
    zygote, *old = mortal.processes()
    os.kill(zygote, signal.SIGKILL)
    assert eventually(lambda: mortal.status()["zygote"] not in (0, zygote) and mortal.workers())
    assert eventually(lambda: not any(map(alive, [zygote, *old])))
    assert mortal.infer(rows(1))[0] == 200
    assert mortal.infer(rows(1), "other")[0] == 200


@pytest.mark.sampled(4)
def test_no_model_is_to_blame_for_a_zygote_that_ends_and_one_that_cannot_come_back_takes_no_other_along(
    mortal: Server, changing: Path
) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):  # as often as would have a model quarantined
            assert mortal.infer(rows(1))[0] == 200  # the worker is whole: it ends with its parent
            zygote, worker = mortal.processes()
            os.kill(worker, signal.SIGSTOP)
            answer = pool.submit(mortal.infer, rows(1), "other")
            assert eventually(lambda: any(w["busy"] for w in mortal.status()["workers"]))
            (changing / "swap.stratal").unlink(missing_ok=True)
            os.kill(zygote, signal.SIGKILL)
            status, y = answer.result(60)
            assert status == 200, y
            assert eventually(lambda: len(mortal.workers()) == 1)
    assert mortal.infer(rows(1))[0] == 200
    status, error = mortal.infer(rows(1), "swap")
    assert status == 503 and "load it again" in error
    os.symlink(changing / "digits.stratal", changing / "swap.stratal")
    assert mortal.json("POST", "/v2/repository/models/swap/load")[0] == 200
    assert mortal.infer(rows(1), "swap")[0] == 200


def test_models_are_swapped_unloaded_and_loaded_while_requests_go_on(mortal: Server, changing: Path) -> None:
    statuses: list[int] = []

    def ask(_: int) -> None:
        statuses.append(mortal.infer(rows(1), "swap")[0])

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, k) for k in range(100)]
        os.unlink(changing / "swap.stratal")
        (changing / "swap").mkdir()
        frozen(1).save(changing / "swap" / "1.stratal")
        frozen(7).save(changing / "swap" / "3.stratal")
        assert mortal.json("POST", "/v2/repository/models/swap/load")[0] == 200
        asking += [pool.submit(ask, k) for k in range(20)]
        for future in asking:
            future.result(60)
    assert set(statuses) == {200}
    assert mortal.json("GET", "/v2/models/swap")[1]["versions"] == ["3"]
    assert mortal.binary(rows(2), "swap") == np.asarray(frozen(7)(rows(2))).tobytes()
    assert mortal.json("POST", "/v2/repository/models/swap/unload")[0] == 200
    assert mortal.infer(rows(1), "swap")[0] == 404
    assert mortal.infer(rows(1), "other")[0] == 200
    assert mortal.json("POST", "/v2/repository/models/swap/load")[0] == 200
    assert mortal.infer(rows(1), "swap")[0] == 200


@pytest.mark.sampled(5, among="worker faults")
def test_on_sigterm_what_is_under_way_is_answered_and_nothing_is_left(ending: Server) -> None:
    processes = ending.processes()
    (worker,) = ending.workers()
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ending.infer, rows(1))
        assert eventually(lambda: any(w["busy"] for w in ending.status()["workers"]))
        ending.process.send_signal(signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        assert answer.result(60)[0] == 200
    assert ending.process.wait(40) == 0
    assert eventually(lambda: not any(map(alive, processes)))
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", ending.port), timeout=2):
        pass


@pytest.mark.sampled(5, among="worker faults")
def test_no_process_outlives_a_front_end_that_is_killed(ending: Server) -> None:
    processes = ending.processes()
    os.kill(processes[1], signal.SIGSTOP)  # not even a worker that does nothing any more
    ending.process.kill()
    assert eventually(lambda: not any(map(alive, processes)), 20)


@pytest.mark.sampled(5, among="worker faults")
def test_a_folder_without_models_serves_none_and_is_ready(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with serving(tmp_path / "none", "--workers", "1", "--allow-load") as server:
        assert server.json("POST", "/v2/repository/index") == (200, [])
        st.freeze(network(), rows(2), batch_sizes=None).save(tmp_path / "none" / "fixed.stratal")
        assert server.json("POST", "/v2/repository/models/fixed/load")[0] == 200
        assert server.json("GET", "/v2/models/fixed")[1]["inputs"][0]["shape"] == [2, 16]
        status, y = server.infer(rows(2), "fixed")
        assert status == 200
        assert y.shape == (2, 4)
        assert server.infer(rows(1), "fixed")[0] == 400
