"""Plans against the machine: rates, capacity, pipelines as plain functions, and variants that help out."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import (
    FEATURES,
    Server,
    Slow,
    asked,
    by_turns,
    eventually,
    frozen,
    needs_server,
    network,
    rows,
    serving,
)

import stratal as st
from stratal import nn
from stratal.base.errors import ShapeError
from stratal.cli import main
from stratal.serve.client import Client, InferError
from stratal.serve.grpc_schema import messages
from stratal.serve.loadtest import Load, load_on, target
from stratal.serve.planning import LatencyTable
from stratal.serve.stages import freeze_stages

pytestmark = [needs_server, by_turns]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some 15 ms, two quick ones, and one of another output; `large` has variants."""
    folder = tmp_path_factory.mktemp("capacity") / "models"
    folder.mkdir()
    st.freeze(Slow(1_500_000), rows(4), batch_sizes=(1, 2), name="large").save(folder / "large.stratal")
    frozen(1, "first").save(folder / "first.stratal")
    frozen(2, "second").save(folder / "second.stratal")
    st.freeze(nn.Linear(FEATURES, 3), rows(4), batch_sizes=(1,), name="other").save(folder / "other.stratal")
    (folder / "large.toml").write_text('variants = ["other", "nobody", "first"]\n')
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    options = ["--workers", "1", "--sla", "20000", "--allow-load", "--log", str(folder.parent / "log")]
    if importlib.util.find_spec("grpc"):
        options += ["--grpc-port", "0"]
    with serving(folder, *options) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(server: Server, folder: Path) -> str:
    """The large model once more, without variants and with an SLA of its own."""
    os.link(folder / "large.stratal", folder / "hasty.stratal")
    (folder / "hasty.toml").write_text("sla_ms = 400\n")
    assert server.json("POST", "/v2/repository/models/hasty/load")[0] == 200
    return "hasty"


def table(server: Server, model: str) -> LatencyTable:
    found = next(m["latency_ms"] for m in server.status()["models"] if m["name"] == model)
    return LatencyTable.of({int(n): ms / 1e3 for n, ms in found.items()})


@pytest.mark.row("H8")
def test_a_pipeline_of_two_models_is_a_plain_function(server: Server) -> None:
    """Rows that the first model finds to be of class 0 or 1 go on to the second; the others are done."""

    async def query(client: Client, x: Any) -> Any:
        client = client.within(30)
        (scores,) = await client.infer("first", x)
        sure = scores.argmax(1) >= 2
        if sure.all():
            return scores
        (again,) = await client.infer("second", x[~sure])
        result = scores.copy()
        result[~sure] = again
        return result

    async def all_of_them() -> list[Any]:
        async with Client(f"http://127.0.0.1:{server.port}", connections=8) as client:
            return await asyncio.gather(*(query(client, rows(5, seed=k)) for k in range(40)))

    first, second = frozen(1), frozen(2)
    went_on = 0
    for k, found in enumerate(asyncio.run(all_of_them())):
        x = rows(5, seed=k)
        scores = np.asarray(first(x))
        sure = scores.argmax(1)[:, None] >= 2
        went_on += int((~sure).sum())
        np.testing.assert_allclose(found, np.where(sure, scores, np.asarray(second(x))), rtol=1e-5, atol=1e-6)
    assert 20 < went_on < 180


def test_a_query_has_one_deadline_and_errors_say_what_the_server_said(server: Server) -> None:
    async def measured() -> None:
        async with Client(f"http://127.0.0.1:{server.port}") as client:
            short = client.within(0.3)
            await short.infer("first", rows(1))
            await asyncio.sleep(0.35)
            with pytest.raises(InferError, match="cannot be in time") as late:
                await short.infer("first", rows(1))
            assert late.value.status == 429
            with pytest.raises(InferError, match="no such model") as unknown:
                await client.infer("nobody", rows(1))
            assert unknown.value.status == 404
            with pytest.raises(ShapeError, match="takes 1 inputs"):
                await client.infer("first", rows(1), rows(1))
            with pytest.raises(InferError, match="shape is"):
                await client.infer("first", np.zeros((1, FEATURES + 1)))
        async with Client("http://127.0.0.1:1") as nowhere:
            with pytest.raises(InferError, match="does not answer"):
                await nowhere.infer("first", rows(1))

    asyncio.run(measured())


@pytest.mark.slow  # it compares with what the machine does meanwhile
@pytest.mark.row("H13")
def test_at_the_declared_rate_99_percent_are_in_time_on_the_machine(
    server: Server, hasty: str, tmp_path: Path
) -> None:
    """By tables measured here the plan admits three models on one worker; all are asked at once."""
    rates = {hasty: 0.25 * table(server, hasty).best_rate, "first": 50, "second": 40}
    models = [
        f'[[model]]\nname = "{name}"\nrate = {rate}\nburst = 2\n'
        f"latency_ms = {{ {', '.join(f'{n} = {s * 1e3}' for n, s in pairs(table(server, name)))} }}\n"
        for name, rate in rates.items()
    ]
    (tmp_path / "load.toml").write_text("".join(models))
    plan = ["plan-serving", str(tmp_path / "load.toml"), "--sla", "2000", "--workers", "1"]
    assert main(plan) == 0  # all are admitted

    async def asked(seed: int) -> list[Any]:
        at = target(f"http://127.0.0.1:{server.port}")
        loads = (Load(name, rate, 2, 2, sla=2.0, connections=16, seed=seed) for name, rate in rates.items())
        return await asyncio.gather(*(load_on(at, load) for load in loads))

    found = []
    for seed in range(3):  # others use this machine, too: one of three times it does not stall for seconds
        results = [r.to_json(2.0) for r in asyncio.run(asked(seed))]
        offered = sum(r["offered"] for r in results)
        assert offered > 80
        found.append(sum(r["in_time"] * r["offered"] for r in results) / offered)
        if found[-1] >= 0.99:
            break
    assert found[-1] >= 0.99, (found, results)


def pairs(table: LatencyTable) -> list[tuple[int, float]]:
    return list(zip(table.sizes, table.seconds, strict=True))


@pytest.mark.slow  # it compares with what the machine does meanwhile
@pytest.mark.row("H15")
def test_capacity_is_what_the_latency_table_says(server: Server, hasty: str) -> None:
    """Asked for twice what it can do, the server does what its table says, and refuses the rest."""
    before = table(server, hasty).best_rate
    load = Load(hasty, 2 * before, 2, sla=0.4, connections=64)
    found = asyncio.run(load_on(target(f"http://127.0.0.1:{server.port}"), load)).to_json(1.0)
    estimates = sorted((before, table(server, hasty).best_rate))  # it is refined by what runs
    measured = found["answered"] / (2 + 0.4)  # what waits at the end is answered within the SLA
    assert 0.4 * estimates[0] < measured < 1.5 * estimates[1], (estimates, found)
    assert found["statuses"].keys() <= {"200", "429", "504"} and found["statuses"]["429"] > 4
    assert found["in_time"] * found["offered"] >= 0.97 * found["answered"]


@pytest.mark.slow  # it compares with what the machine does meanwhile
@pytest.mark.row("H14")
def test_latency_is_predicted_within_10_percent_and_its_tail_known_alone_and_shared(
    server: Server, hasty: str
) -> None:
    """What the server predicts of a batch against what it takes; tails alone, and beside other models."""
    at, rate = target(f"http://127.0.0.1:{server.port}"), 0.3 * table(server, hasty).best_rate

    async def measured(seed: int, *beside: str) -> list[Any]:
        loads = [Load(hasty, rate, 8, sla=5.0, connections=16, seed=seed)]
        loads += [Load(name, 40, 8, burst=2, sla=5.0, connections=16, seed=seed) for name in beside]
        return await asyncio.gather(*(load_on(at, load) for load in loads))

    def tail(results: Any) -> dict[str, float]:
        report = results.to_json(5.0)
        assert report["in_time"] == 1.0, report
        return {name: report["latency_ms"][name] for name in ("p50", "p99", "p99.9")}

    found = []
    for seed in range(3):  # others use this machine, too: one of three times it does not stall for seconds
        before = server.metrics()
        alone = tail(asyncio.run(measured(seed))[0])
        right = share_predicted(before, server.metrics(), hasty)
        shared = tail(asyncio.run(measured(seed, "first", "second"))[0])
        found.append((right, alone, shared))
        print(f"predictions within 10 %: {right:.0%}; ms alone {alone}, shared {shared}")
        if right >= 0.5:
            break
    assert found[-1][0] >= 0.5, found  # of half of the batches at least


def share_predicted(before: dict[str, float], after: dict[str, float], model: str) -> float:
    """Return the share of the batches between two times whose latency was predicted within 10 %."""
    within, all_ = (
        f'stratal_prediction_error_bucket{{le="{bound}",model="{model}"}}' for bound in ("0.1", "+Inf")
    )
    return (after[within] - before.get(within, 0)) / (after[all_] - before.get(all_, 0))


def test_a_model_of_stages_is_served_like_any_other(server: Server, folder: Path) -> None:
    layers = list(network(5))
    freeze_stages([nn.Sequential(*layers[:2]), layers[2]], rows(4), batch_sizes=(1, 4)).save(
        folder / "staged"
    )
    assert server.json("POST", "/v2/repository/models/staged/load")[0] == 200
    for count in (1, 3, 11):
        status, y = server.infer(rows(count), "staged")
        assert status == 200, y
        np.testing.assert_allclose(y, np.asarray(network(5)(st.tensor(rows(count)))), rtol=1e-5, atol=1e-6)
    assert table(server, "staged").sizes == (1, 2, 4)


# -- variants -----------------------------------------------------------------------------------------------


def latency(server: Server) -> float:
    """Return the seconds that the server believes the large model takes for a row."""
    return table(server, "large").at(1)


def answer(server: Server, seed: int, identity: str, **parameters: Any) -> tuple[int, Any]:
    body = asked(rows(1, seed=seed), **parameters) | {"id": identity}
    return server.json("POST", "/v2/models/large/infer", body)


def switched(server: Server) -> float:
    found = next(m["variants"] for m in server.status()["models"] if m["name"] == "large")
    assert set(found) == {"other", "nobody", "first"} and not found["other"] + found["nobody"]
    return float(found["first"])


@pytest.mark.row("H7")
def test_under_load_a_cheaper_variant_answers_what_would_be_refused_and_each_switch_is_logged(
    server: Server,
) -> None:
    timeout = int(6e6 * latency(server))
    before = switched(server)

    def burst(name: str, **parameters: Any) -> list[tuple[int, Any]]:
        with ThreadPoolExecutor(32) as pool:
            return list(
                pool.map(lambda k: answer(server, k, f"{name}-{k}", timeout=timeout, **parameters), range(32))
            )

    refused = Counter(status for status, _ in burst("large", allow_variants=False))
    assert refused[429] >= 4
    assert switched(server) == before
    answers = burst("any")
    statuses = Counter(status for status, _ in answers)
    assert statuses[200] > refused[200]
    by = Counter(found["parameters"]["variant"] for status, found in answers if status == 200)
    assert by["first"] >= 1 and by["large"] >= 1
    large, small = Slow(1_500_000), network()
    for k, (status, found) in enumerate(answers):
        if status == 200:
            assert (found["model_name"], found["id"]) == ("large", f"any-{k}")
            model = small if found["parameters"]["variant"] == "first" else large
            if model is small or k < 4:
                y = np.asarray(model(st.tensor(rows(1, seed=k))))
                np.testing.assert_allclose(found["outputs"][0]["data"], y[0], rtol=1e-3, atol=1e-4)
    assert switched(server) - before == by["first"]
    ids = {
        f"any-{k}" for k, (s, f) in enumerate(answers) if s == 200 and f["parameters"]["variant"] == "first"
    }

    def logged() -> set[str]:
        lines = map(json.loads, (server.log.parent / "log").read_text().splitlines())
        return {line["id"] for line in lines if line.get("switched_to") == "first" and line["why"]}

    assert eventually(lambda: ids <= logged(), 20)
    text = server.request("GET", "/metrics")[2].decode()
    assert f'stratal_variant_requests_total{{model="large",variant="first"}} {before + by["first"]}' in text


def test_a_request_without_time_for_the_model_gets_the_variant_that_fits(server: Server) -> None:
    def small() -> bool:
        timeout = int(0.5e6 * latency(server))
        status, found = answer(server, 1, "short", timeout=timeout)
        return status == 200 and found["parameters"] == {"variant": "first"}

    assert eventually(small)  # a machine that stalls for some milliseconds is no fault
    status, found = answer(server, 1, "short", timeout=int(0.5e6 * latency(server)), allow_variants=False)
    assert status == 429 and "large: cannot be in time" in found["error"]
    status, found = answer(server, 1, "long")
    assert (status, found["parameters"]) == (200, {"variant": "large"})
    status, found = server.json("POST", "/v2/models/first/infer", asked(rows(1)))
    assert status == 200 and "parameters" not in found


def test_variants_that_cannot_answer_are_told_of_and_odd_wishes_refused(server: Server) -> None:
    log = server.log.read_text()
    assert "its variant other does not answer for it: it takes or returns something else" in log
    assert "its variant nobody does not answer for it: it is not loaded" in log
    for wish in ("yes", 0, [], {}):
        status, found = answer(server, 1, "odd", allow_variants=wish)
        assert (status, "allow_variants" in found["error"]) == (400, True)


def test_grpc_says_which_variant_answered(server: Server) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra [grpc] is not installed")
    found = messages()
    request = found["ModelInferRequest"](model_name="large", raw_input_contents=[rows(1).tobytes()])
    request.inputs.add(name="input", datatype="FP32", shape=[1, 16])
    with grpc.insecure_channel(server.grpc) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda r: r.SerializeToString(),
            response_deserializer=found["ModelInferResponse"].FromString,
        )
        assert infer(request, timeout=60).parameters["variant"].string_param == "large"

        def small() -> bool:
            request.parameters["timeout"].int64_param = int(0.5e6 * latency(server))
            try:
                return bool(infer(request, timeout=60).parameters["variant"].string_param == "first")
            except grpc.RpcError:
                return False

        assert eventually(small)
