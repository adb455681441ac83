"""Cheaper variants: they answer where a model would refuse for lack of time, and everybody can see that."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serving import Server, asked, eventually, frozen, network, rows, serving

import stratal as st
from stratal import nn
from stratal.serve.grpc_schema import messages

EXTRA = ("starlette", "uvicorn", "httptools", "prometheus_client")
MISSING = [package for package in EXTRA if importlib.util.find_spec(package) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the extra [serve] is not installed: no {', '.join(MISSING)}"
)
WORK = 1_500_000  # numbers a row: some 15 ms on one core


class Slow(nn.Module):
    """The small network behind much work that changes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, input: Any) -> Any:
        wide = (input.unsqueeze(-1) + st.arange(WORK, dtype=st.float32) / WORK).tanh()
        return self.net(wide.mean(-1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("variants") / "models"
    folder.mkdir()
    st.freeze(Slow(), rows(4), batch_sizes=(1,), name="large").save(folder / "large.stratal")
    frozen(1, "small").save(folder / "small.stratal")
    st.freeze(nn.Linear(16, 3), rows(4), batch_sizes=(1,), name="other").save(folder / "other.stratal")
    (folder / "large.toml").write_text('variants = ["other", "nobody", "small"]\n')
    options = ["--workers", "1", "--sla", "20000", "--log", str(folder.parent / "log")]
    if importlib.util.find_spec("grpc"):
        options += ["--grpc-port", "0"]
    with serving(folder, *options) as running:
        yield running


def latency(server: Server) -> float:
    """Return the seconds that the server believes the large model takes for a row."""
    return float(next(m["latency_ms"]["1"] for m in server.status()["models"] if m["name"] == "large")) / 1e3


def answer(server: Server, seed: int, identity: str, **parameters: Any) -> tuple[int, Any]:
    body = asked(rows(1, seed=seed), **parameters) | {"id": identity}
    return server.json("POST", "/v2/models/large/infer", body)


def switched(server: Server) -> float:
    found = next(m["variants"] for m in server.status()["models"] if m["name"] == "large")
    assert set(found) == {"other", "nobody", "small"} and not found["other"] + found["nobody"]
    return float(found["small"])


@pytest.mark.row("H7")
def test_under_load_a_cheaper_variant_answers_what_would_be_refused_and_each_switch_is_logged(
    server: Server,
) -> None:
    timeout = int(8e6 * latency(server))
    before = switched(server)

    def burst(name: str, **parameters: Any) -> list[tuple[int, Any]]:
        with ThreadPoolExecutor(32) as pool:
            return list(
                pool.map(lambda k: answer(server, k, f"{name}-{k}", timeout=timeout, **parameters), range(32))
            )

    refused = Counter(status for status, _ in burst("large", allow_variants=False))
    assert refused[429] >= 8
    assert switched(server) == before
    answers = burst("any")
    statuses = Counter(status for status, _ in answers)
    assert statuses[200] >= refused[200] + 8
    by = Counter(found["parameters"]["variant"] for status, found in answers if status == 200)
    assert by["small"] >= 8 and by["large"] >= 1
    large, small = Slow(), network()
    for k, (status, found) in enumerate(answers):
        if status == 200:
            assert (found["model_name"], found["id"]) == ("large", f"any-{k}")
            model = small if found["parameters"]["variant"] == "small" else large
            if model is small or k < 4:
                y = np.asarray(model(st.tensor(rows(1, seed=k))))
                np.testing.assert_allclose(found["outputs"][0]["data"], y[0], rtol=1e-3, atol=1e-4)
    assert switched(server) - before == by["small"]
    ids = {
        f"any-{k}" for k, (s, f) in enumerate(answers) if s == 200 and f["parameters"]["variant"] == "small"
    }

    def logged() -> set[str]:
        lines = map(json.loads, (server.log.parent / "log").read_text().splitlines())
        return {line["id"] for line in lines if line.get("switched_to") == "small" and line["why"]}

    assert eventually(lambda: ids <= logged(), 20)
    text = server.request("GET", "/metrics")[2].decode()
    assert f'stratal_variant_requests_total{{model="large",variant="small"}} {before + by["small"]}' in text


def test_a_request_without_time_for_the_model_gets_the_variant_that_fits(server: Server) -> None:
    def small() -> bool:
        timeout = int(0.5e6 * latency(server))
        status, found = answer(server, 1, "short", timeout=timeout)
        return status == 200 and found["parameters"] == {"variant": "small"}

    assert eventually(small)  # a machine that stalls for some milliseconds is no fault
    status, found = answer(server, 1, "short", timeout=int(0.5e6 * latency(server)), allow_variants=False)
    assert status == 429 and "large: cannot be in time" in found["error"]
    status, found = answer(server, 1, "long")
    assert (status, found["parameters"]) == (200, {"variant": "large"})
    status, found = server.json("POST", "/v2/models/small/infer", asked(rows(1)))
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
                return bool(infer(request, timeout=60).parameters["variant"].string_param == "small")
            except grpc.RpcError:
                return False

        assert eventually(small)
