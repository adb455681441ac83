"""The server over gRPC: the protocol's messages, typed and raw tensors, and errors as gRPC's codes."""

from __future__ import annotations

import importlib.util
import json
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import FEATURES, Server, by_turns, frozen, needs_server, rows, serving

import stratal as st
from stratal.cli import main
from stratal.formats.signature import Signature, TensorSpec
from stratal.serve.grpc_requests import Asked, Requests
from stratal.serve.grpc_schema import MESSAGES, METHODS, messages
from stratal.serve.protocol import RequestError

MISSING = [p for p in ("grpc", "google", "google.protobuf") if importlib.util.find_spec(p) is None]
pytestmark = [
    needs_server,
    by_turns,
    pytest.mark.skipif(bool(MISSING), reason="the extra [grpc] is not installed"),
]
TRITON = "tritonclient[grpc] is not installed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("grpc") / "models"
    folder.mkdir()
    frozen().save(folder / "digits.stratal")
    (folder / "broken.stratal").write_bytes(b"not an artefact")
    options = (
        "--workers",
        "1",
        "--sla",
        "30000",
        "--body-limit",
        "100000",
        "--allow-load",
        "--grpc-port",
        "0",
    )
    with serving(folder, *options) as running:
        yield running


class Client:
    """Calls by grpcio alone, with the messages of the private pool."""

    def __init__(self, server: Server) -> None:
        import grpc

        self.grpc = grpc
        self.channel = grpc.insecure_channel(server.grpc)
        self.messages = messages()

    def raw(
        self, name: str, data: bytes, *metadata: tuple[str, str], timeout: float = 60
    ) -> tuple[str, Any, Any]:
        """Return the code, the answer's bytes or the error's text, and the trailing metadata."""
        call = self.channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        try:
            answer, done = call.with_call(data, metadata=metadata, timeout=timeout)
        except self.grpc.RpcError as error:
            return error.code().name, error.details(), dict(error.trailing_metadata() or ())
        return "OK", answer, dict(done.trailing_metadata())

    def ask(self, method: str, **fields: Any) -> tuple[str, Any]:
        """Return the code, and the answer or the error's text."""
        code, answer, _ = self.raw(method, self.messages[f"{method}Request"](**fields).SerializeToString())
        return code, self.messages[f"{method}Response"].FromString(answer) if code == "OK" else answer


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.channel.close()


def tensor(x: Any, **more: Any) -> dict[str, Any]:
    return {"name": "input", "datatype": "FP32", "shape": list(x.shape)} | more


def values(answer: Any) -> Any:
    (raw,) = answer.raw_output_contents
    return np.frombuffer(raw, np.float32).reshape(tuple(answer.outputs[0].shape))


# -- answers -------------------------------------------------------------------------------------------------


def test_messages_are_those_of_the_official_client_in_the_same_process() -> None:
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2", reason=TRITON).DESCRIPTOR

    def fields(message: Any) -> set[Any]:
        return {
            (f.name, f.number, f.type, f.message_type and f.message_type.full_name,
             f.containing_oneof and f.containing_oneof.name)
            for f in message.fields
        }  # fmt: skip

    for name, own in messages().items():
        outer, *inner = name.split(".")
        found = theirs.message_types_by_name[outer]
        for part in inner:
            found = found.nested_types_by_name[part]
        assert fields(own.DESCRIPTOR) == fields(found), name
        assert own.DESCRIPTOR is not found
    offered = {m.name for m in theirs.services_by_name["GRPCInferenceService"].methods}
    assert set(METHODS) <= offered
    assert {f"{name}Request" for name in METHODS} <= set(MESSAGES)


@pytest.mark.sampled(4)
def test_the_official_client_is_answered(server: Server) -> None:
    client_of = pytest.importorskip("tritonclient.grpc", reason=TRITON)
    client = client_of.InferenceServerClient(server.grpc)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits")
    assert not client.is_model_ready("broken")
    assert client.get_server_metadata().name == "stratal"
    found = client.get_model_metadata("digits")
    assert (found.platform, found.inputs[0].datatype, list(found.inputs[0].shape)) == (
        "stratal",
        "FP32",
        [-1, 16],
    )
    x = client_of.InferInput("input", [3, 16], "FP32")
    x.set_data_from_numpy(rows(3))
    answer = client.infer("digits", [x], request_id="7", outputs=[client_of.InferRequestedOutput("output")])
    assert answer.as_numpy("output").tobytes() == np.asarray(frozen()(rows(3))).tobytes()
    assert answer.get_response().id == "7"
    client.unload_model("digits")
    with pytest.raises(client_of.InferenceServerException, match="no such model"):
        client.is_model_ready("digits")
    client.load_model("digits")
    states = {m.name: (m.version, m.state) for m in client.get_model_repository_index().models}
    assert states == {"digits": ("1", "READY"), "broken": ("", "UNAVAILABLE")}
    with pytest.raises(client_of.InferenceServerException, match="no such model") as refused:
        client.infer("nobody", [x])
    assert refused.value.status() == "StatusCode.NOT_FOUND"
    client.close()


@pytest.mark.parametrize("count", [1, 4, 11])
def test_raw_and_typed_tensors_give_the_frozen_models_bits(client: Client, count: int) -> None:
    x, wanted = rows(count), np.asarray(frozen()(rows(count)))
    raw = {"inputs": [tensor(x)], "raw_input_contents": [x.tobytes()]}
    typed = {"inputs": [tensor(x, contents={"fp32_contents": x.ravel()})]}
    for fields in (raw, typed):
        code, answer = client.ask("ModelInfer", model_name="digits", id="a", **fields)
        assert code == "OK", answer
        assert values(answer).tobytes() == wanted.tobytes()
        assert (answer.id, answer.model_name, answer.model_version) == ("a", "digits", "1")


def test_health_metadata_and_repository_say_what_http_says(client: Client, server: Server) -> None:
    assert client.ask("ServerLive")[1].live and client.ask("ServerReady")[1].ready
    assert client.ask("ModelReady", name="digits", version="1")[1].ready
    assert client.ask("ModelReady", name="digits", version="9")[0] == "NOT_FOUND"
    assert not client.ask("ModelReady", name="broken")[1].ready
    over_http = server.json("GET", "/v2/models/digits")[1]
    found = client.ask("ModelMetadata", name="digits")[1]
    assert [found.outputs[0].name, list(found.outputs[0].shape)] == [
        "output",
        over_http["outputs"][0]["shape"],
    ]
    ready = client.ask("RepositoryIndex", ready=True)[1]
    assert [m.name for m in ready.models] == ["digits"]
    assert len(client.ask("RepositoryIndex")[1].models) == 2


def test_ids_come_back_in_the_trailing_metadata(client: Client) -> None:
    request = client.messages["ModelInferRequest"](model_name="nobody")
    code, text, trailing = client.raw("ModelInfer", request.SerializeToString(), ("x-request-id", "trace/7"))
    assert (code, trailing["x-request-id"]) == ("NOT_FOUND", "trace/7")
    assert "no such model" in text
    x = rows(1)
    request = client.messages["ModelInferRequest"](
        model_name="digits", id="in-message", inputs=[tensor(x)], raw_input_contents=[x.tobytes()]
    )
    code, _, trailing = client.raw("ModelInfer", request.SerializeToString())
    assert (code, trailing["x-request-id"]) == ("OK", "in-message")


def test_a_stream_of_the_official_client_is_answered_in_order_and_outlives_errors(server: Server) -> None:
    client_of = pytest.importorskip("tritonclient.grpc", reason=TRITON)
    client, model = client_of.InferenceServerClient(server.grpc), frozen()
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for k in range(60):  # more than the server reads at once
        x = client_of.InferInput("input", [1 + k % 3, FEATURES], "FP32")
        x.set_data_from_numpy(rows(1 + k % 3, seed=k))
        client.async_stream_infer("nobody" if k % 10 == 7 else "digits", [x], request_id=f"r{k}")
    for k in range(60):
        result, error = answers.get(timeout=60)
        if k % 10 == 7:
            assert result is None and "no such model" in error.message()
            continue
        assert error is None and result.get_response().id == f"r{k}"
        assert result.get_response().parameters["triton_final_response"].bool_param
        wanted = np.asarray(model(rows(1 + k % 3, seed=k)))
        np.testing.assert_allclose(result.as_numpy("output"), wanted, rtol=1e-5, atol=1e-6)
    client.stop_stream()
    client.close()


def test_messages_of_a_stream_that_are_none_get_errors_and_a_client_may_go_amid_it(client: Client) -> None:
    stream = client.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    parse, x = client.messages["ModelStreamInferResponse"].FromString, rows(1)
    good = client.messages["ModelInferRequest"](
        model_name="digits", id="a", inputs=[tensor(x)], raw_input_contents=[x.tobytes()]
    ).SerializeToString()
    found = [parse(data) for data in stream(iter([b"\xff\xff no message", good, b""]), timeout=60)]
    assert [bool(answer.error_message) for answer in found] == [True, False, True]
    assert found[1].infer_response.id == "a"
    assert list(stream(iter(()), timeout=60)) == []
    going = stream(iter([good] * 100), timeout=60)
    assert parse(next(going)).infer_response.id == "a"
    going.cancel()
    assert client.ask("ServerReady")[1].ready


# -- refusals ------------------------------------------------------------------------------------------------

X = np.zeros((1, 16), np.float32)
RAW = {"raw_input_contents": [X.tobytes()]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "inputs of this model: input"), ({"inputs": [tensor(X)]}, "16 numbers in fp32_contents"),
        ({"inputs": [tensor(X)], "raw_input_contents": [b"1234"]}, "raw contents of 64 bytes"),
        ({"inputs": [tensor(X)], "raw_input_contents": RAW["raw_input_contents"] * 2}, "one for each input"),
        ({"inputs": [tensor(X, contents={"fp32_contents": X.ravel()})]} | RAW, "one is enough"),
        ({"inputs": [tensor(X, contents={"fp64_contents": X.ravel()})]}, "data comes in fp32_contents"),
        ({"inputs": [tensor(X, contents={"bytes_contents": [b"text"]})]}, "data comes in fp32_contents"),
        ({"inputs": [tensor(X, datatype="BYTES")]} | RAW, "datatype is FP32"),
        ({"inputs": [tensor(X, shape=[1, 15])]} | RAW, "shape is [-1, 16]"),
        ({"inputs": [tensor(X, shape=[1 << 40, 16])]} | RAW, "from 1 to"),
        ({"inputs": [tensor(X)] * 2, "raw_input_contents": RAW["raw_input_contents"] * 2}, "appears twice"),
        ({"inputs": [tensor(X)], "outputs": [{"name": "nothing"}]} | RAW, "outputs of this model"),
        ({"inputs": [tensor(X)], "parameters": {"timeout": {"int64_param": -3}}} | RAW, "timeout: micro"),
        ({"inputs": [tensor(X)], "parameters": {"timeout": {"string_param": "1"}}} | RAW, "timeout: micro"),
    ],
)  # fmt: skip
def test_requests_that_do_not_fit_are_refused_with_what_would(
    client: Client, fields: dict[str, Any], said: str
) -> None:
    code, text = client.ask("ModelInfer", model_name="digits", **fields)
    assert code == "INVALID_ARGUMENT"
    assert said in text


def test_errors_have_the_codes_of_grpc(client: Client) -> None:
    good = {"inputs": [tensor(X)]} | RAW
    late = {"parameters": {"timeout": {"int64_param": 1}}}
    large = {"raw_input_contents": [bytes(200_000)]}
    for code, name, fields in [
        ("NOT_FOUND", "ModelInfer", {"model_name": "nobody"} | good),
        ("NOT_FOUND", "ModelInfer", {"model_name": "digits", "model_version": "9"} | good),
        ("UNAVAILABLE", "ModelInfer", {"model_name": "broken"} | good),
        ("RESOURCE_EXHAUSTED", "ModelInfer", {"model_name": "digits"} | good | late),
        ("RESOURCE_EXHAUSTED", "ModelInfer", {"model_name": "digits"} | good | large),
        ("NOT_FOUND", "RepositoryModelUnload", {"model_name": "nobody"}),
        ("NOT_FOUND", "RepositoryModelLoad", {"model_name": "../../etc/passwd"}),
        ("INVALID_ARGUMENT", "RepositoryModelLoad", {"model_name": "broken"}),
        (
            "NOT_FOUND",
            "RepositoryModelLoad",
            {"model_name": "digits", "parameters": {"version": {"string_param": "9"}}},
        ),
        ("INVALID_ARGUMENT", "RepositoryModelLoad", {"model_name": "digits", "parameters": {"config": {}}}),
    ]:
        assert client.ask(name, **fields)[0] == code, (name, fields)
    assert client.raw("ModelStatistics", b"")[0] == "UNIMPLEMENTED"
    assert client.raw("ModelInfer", b"\xff\xff no message")[0] == "INVALID_ARGUMENT"
    assert client.ask("ModelInfer", model_name="digits", **good)[0] == "OK"


def test_fuzzed_messages_get_an_error_or_an_answer_and_the_server_goes_on(
    client: Client, server: Server
) -> None:
    rng = random.Random(3)
    x = rows(1)
    typed = tensor(x, contents={"fp32_contents": x.ravel()})
    whole = [
        client.messages["ModelInferRequest"](model_name="digits", inputs=[typed]).SerializeToString(),
        client.messages["ModelInferRequest"](
            model_name="digits", inputs=[tensor(x)], raw_input_contents=[x.tobytes()]
        ).SerializeToString(),
    ]
    codes = set()
    for k in range(300):
        data = bytearray(whole[k % 2])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.7:
                data[at] = rng.randrange(256)
            else:
                del data[at : at + rng.randrange(1, 20)]
        codes.add(client.raw("ModelInfer", bytes(data))[0])
    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
    assert "OK" in codes and "INVALID_ARGUMENT" in codes
    assert client.ask("ModelInfer", model_name="digits", inputs=[typed])[0] == "OK"
    assert b"stratal_workers_lost_total{" not in server.request("GET", "/metrics")[2]


def test_without_the_extra_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "grpc.aio", None)
    assert main(["serve", str(tmp_path), "--grpc-port", "0"]) == 1
    error = capsys.readouterr().err
    assert "serve: needs grpc" in error and "pip install 'stratal[grpc]'" in error


def test_a_port_that_is_taken_is_refused(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.grpc.rsplit(":", 1)[1]
    assert main(["serve", str(tmp_path), "--port", "0", "--workers", "1", "--grpc-port", port]) == 1
    assert "cannot listen there" in capsys.readouterr().err
    assert json.loads(server.request("GET", "/v2/health/live")[2]) == {"live": True}


def test_a_known_message_is_the_request_that_parsing_gives() -> None:
    from google.protobuf.message import DecodeError

    made = messages()
    spec = TensorSpec("a", st.float32, (3,)), TensorSpec("b", st.int64, (2,))
    signature, requests = Signature(spec, (TensorSpec("y", st.float32, (2,)),), True), Requests(made)
    draw = random.Random(5)

    def inputs(asked: Asked) -> list[bytes]:
        return [bytes(x) for x in asked.request.inputs]

    def parsed(data: bytes) -> Asked | None:
        try:
            return Requests(made).fitted(Requests(made).parse(data), data, signature, 100)
        except (RequestError, DecodeError):
            return None

    hits = changed = 0
    for _ in range(60):
        rows, names = draw.randint(1, 20), draw.sample(["a", "b"], 2)
        bytes_of = {"a": 12 * rows, "b": 16 * rows}
        tensors = [
            {"name": n, "datatype": "FP32" if n == "a" else "INT64", "shape": [rows, 3 if n == "a" else 2]}
            for n in names
        ]
        fields = {"model_name": "m", "id": draw.choice(["", "x" * 7, "y" * 7]), "inputs": tensors}

        def message(fields: Any = fields, sizes: Any = tuple(bytes_of[n] for n in names)) -> bytes:
            raws = [draw.randbytes(size) for size in sizes]
            return bytes(made["ModelInferRequest"](**fields, raw_input_contents=raws).SerializeToString())

        data = message()
        first = requests.fitted(requests.parse(data), data, signature, 100)
        again = message()
        found = requests.known(again)
        assert found is not None and found.id == first.id == fields["id"]
        expected = parsed(again)
        assert expected is not None and inputs(found) == inputs(expected)
        assert found.request.rows == rows
        hits += 1
        for _ in range(40):  # bytes that change anywhere, lengths and tags among them
            bad = bytearray(again)
            for _ in range(draw.randint(1, 3)):
                bad[draw.randrange(len(bad))] = draw.choice([0, 1, 0x3A, 0x7F, 0xFF, draw.randrange(256)])
            text = bytes(bad)
            if (known := requests.known(text)) is not None:
                expected = parsed(text)
                assert expected is not None and inputs(known) == inputs(expected)
                assert (known.name, known.id) == (expected.name, expected.id)
                changed += 1
    assert hits == 60 and changed > 500
