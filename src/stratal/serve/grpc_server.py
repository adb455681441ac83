"""KServe v2 over gRPC: the same models, queue, keys and limits as over HTTP. Needs the extra `[grpc]`.

Tensors come typed (`contents`) or raw (`raw_input_contents`, one for each input in order), not both; they
leave raw, as clients expect. What HTTP says by a status has its gRPC code in `CODES`. The id of a request is
its metadata `x-request-id`, else its `id`; it is in the trailing metadata of every answer and error.

A stream (`ModelStreamInfer`) is answered in the order of its requests; some of them run at once. What is
wrong with a request is its answer's `error_message`, and the stream goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.base.version import VERSION
from stratal.formats.signature import TensorSpec
from stratal.serve import protocol
from stratal.serve.access import Access, Key, Tls
from stratal.serve.connections import Limits
from stratal.serve.extra import required
from stratal.serve.fleet import FleetError
from stratal.serve.grpc_schema import METHODS, PACKAGE, SERVICE, STREAM, messages
from stratal.serve.protocol import Bytes, RequestError
from stratal.serve.registry import metadata
from stratal.serve.request_log import Call, chosen_id
from stratal.serve.service import Service

CODES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
PUBLIC: Final = {"ServerLive", "ServerReady", "ServerMetadata"}  # answered without a key
CHANGES: Final = {"RepositoryModelLoad", "RepositoryModelUnload"}
OLDEST_SECONDS: Final = 600.0  # of a connection: a client opens a new one, a slow one comes to an end
WINDOW: Final = 32  # requests of a stream that wait or run at once; more are not read meanwhile
EXTENSIONS: Final = ("model_repository", "model_repository(unload_dependents)")


def address(host: str, port: int) -> str:
    """Return a host and port as URLs have them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class GrpcServer:
    """The gRPC side of a service, for those who have access."""

    def __init__(self, service: Service, access: Access) -> None:
        self.service = service
        self.access = access
        self._grpc = required("grpc", "grpc")
        self._aio = required("grpc.aio", "grpc")
        self._messages = messages()
        self._decode_error = required("google.protobuf.message", "grpc").DecodeError
        self._server: Any = None

    async def start(self, host: str, port: int, tls: Tls | None, limits: Limits) -> str:
        """Listen, and return the address. Raises: AttributeValueError where that cannot be."""
        options, grpc = self.service.options, self._grpc
        seconds = {
            "grpc.server_handshake_timeout_ms": limits.head_seconds,
            "grpc.max_connection_idle_ms": limits.idle_seconds,
            "grpc.max_connection_age_ms": OLDEST_SECONDS,
            "grpc.max_connection_age_grace_ms": options.most_seconds,
        }
        bounds = {
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": options.body_limit,
            "grpc.max_send_message_length": -1,
            "grpc.max_allowed_incoming_connections": limits.connections,
        }
        given = [*bounds.items(), *((name, int(1e3 * value)) for name, value in seconds.items())]
        server = self._aio.server(options=given, maximum_concurrent_rpcs=2 * options.queue_limit)
        handlers = {name: grpc.unary_unary_rpc_method_handler(self._handler(name)) for name in METHODS}
        handlers[STREAM] = grpc.stream_stream_rpc_method_handler(self._streamed)
        service = grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers)
        server.add_generic_rpc_handlers((service,))
        try:
            if tls is None:
                port = server.add_insecure_port(address(host, port))
            else:
                port = server.add_secure_port(address(host, port), grpc.ssl_server_credentials([tls.pem()]))
        except RuntimeError as error:
            raise AttributeValueError("serve: cannot listen there", got=f"gRPC, {host}:{port}") from error
        await server.start()
        self._server = server
        return address(host, port)

    async def stop(self, seconds: float) -> None:
        """Take no more, and give what is under way some time."""
        if self._server is not None:
            await self._server.stop(seconds)

    # -- one call --------------------------------------------------------------------------------------------

    def _handler(self, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Return what answers a method's calls: bytes to bytes, so that no byte is read before the key."""
        parse = self._messages[f"{name}Request"].FromString
        answer = {
            "ServerLive": self._live, "ServerReady": self._ready, "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready, "ModelMetadata": self._model_metadata, "ModelInfer": self._infer,
            "RepositoryIndex": self._index, "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }[name]  # fmt: skip

        async def handled(data: bytes, context: Any) -> bytes:
            headers = _headers(context)
            call = Call(chosen_id(_request_id(headers)))
            reply = b""
            try:
                caller = None if name in PUBLIC else self._caller(call, headers)
                if name in CHANGES:
                    self.access.check_change(caller)
                reply = (await answer(parse(data), call, context)).SerializeToString()
            except Exception as error:
                self._failed(call, error, name)
            context.set_trailing_metadata((("x-request-id", call.id),))
            self._noted(name, call)
            if call.status != 200:
                code = CODES.get(call.status, "INVALID_ARGUMENT")
                await context.abort(self._grpc.StatusCode[code], call.error)
            return reply

        return handled

    def _failed(self, call: Call, error: Exception, name: str) -> None:
        """Note in a call what an exception, which is being handled, says to its client."""
        if isinstance(error, self._decode_error):
            call.failed(400, f"the message is not a {name}Request")
        elif isinstance(error, (RequestError, FleetError)):
            call.failed(error.status, error.summary)
        else:
            self.service.fault(call)

    def _caller(self, call: Call, headers: dict[bytes, bytes]) -> Key | None:
        caller = self.access.caller(headers)
        call.caller = caller.name if caller else ""
        return caller

    def _noted(self, name: str, call: Call) -> None:
        if name == "ModelInfer":
            self.service.answered(call, str(call.status))
        elif self.service.log is not None and (name in CHANGES or call.status != 200):
            self.service.log.write(call.to_json() | {"request": f"gRPC {name}"})

    # -- a stream of inferences ------------------------------------------------------------------------------

    async def _streamed(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer the requests of a stream, in their order."""
        headers = _headers(context)
        call = Call(chosen_id(_request_id(headers)))
        context.set_trailing_metadata((("x-request-id", call.id),))
        try:
            self._caller(call, headers)
        except RequestError as error:
            call.failed(error.status, error.summary)
            self._noted(STREAM, call)
            await context.abort(self._grpc.StatusCode[CODES[call.status]], call.error)
        begun: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WINDOW)
        tasks: set[asyncio.Task[Any]] = set()

        def spawn(work: Any) -> Any:
            task = asyncio.ensure_future(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        async def read() -> None:
            try:
                async for data in requests:
                    await begun.put(spawn(self._one(data, call.caller, context)))
            except Exception:
                self.service.fault(call)
            await begun.put(None)

        spawn(read())
        try:
            while (answer := await begun.get()) is not None:
                yield await answer
        finally:  # also where the client is gone
            for task in list(tasks):
                task.cancel()

    async def _one(self, data: bytes, caller: str, context: Any) -> bytes:
        """Return the answer to one request of a stream."""
        call, request = Call(chosen_id()), None
        call.caller = caller
        reply = self._messages["ModelStreamInferResponse"]()
        try:
            request = self._messages["ModelInferRequest"].FromString(data)
            found = await self._infer(request, call, context, "")
            found.parameters["triton_final_response"].bool_param = True  # a request has one answer
            reply.infer_response.CopyFrom(found)
        except Exception as error:
            self._failed(call, error, "ModelInfer")
            reply.error_message = call.error
            if request is not None:
                reply.infer_response.id = request.id
        self._noted("ModelInfer", call)
        answer: bytes = reply.SerializeToString()
        return answer

    # -- methods ---------------------------------------------------------------------------------------------

    async def _live(self, _: Any, __: Call, ___: Any) -> Any:
        return self._messages["ServerLiveResponse"](live=True)

    async def _ready(self, _: Any, __: Call, ___: Any) -> Any:
        return self._messages["ServerReadyResponse"](ready=self.service.ready)

    async def _server_metadata(self, _: Any, __: Call, ___: Any) -> Any:
        return self._messages["ServerMetadataResponse"](
            name="stratal", version=VERSION, extensions=EXTENSIONS
        )

    async def _model_ready(self, request: Any, call: Call, _: Any) -> Any:
        call.model, call.version = request.name, request.version
        try:
            self.service.registry.ready(request.name, request.version)
        except RequestError as error:
            if error.status != 503:
                raise
            return self._messages["ModelReadyResponse"](ready=False)
        return self._messages["ModelReadyResponse"](ready=self.service.ready)

    async def _model_metadata(self, request: Any, call: Call, _: Any) -> Any:
        call.model, call.version = request.name, request.version
        registry = self.service.registry
        found = registry.ready(request.name, request.version)
        return self._messages["ModelMetadataResponse"](**metadata(found, registry.versions(found.name)))

    async def _index(self, request: Any, _: Call, __: Any) -> Any:
        rows = self.service.registry.index()
        rows = [row for row in rows if row["state"] == "READY"] if request.ready else rows
        return self._messages["RepositoryIndexResponse"](models=rows)

    async def _load(self, request: Any, call: Call, _: Any) -> Any:
        call.model = request.model_name
        version, share = protocol.load_parameters({"parameters": _parameters(request)})
        await self.service.load(request.model_name, version, share)
        return self._messages["RepositoryModelLoadResponse"]()

    async def _unload(self, request: Any, call: Call, _: Any) -> Any:
        call.model = request.model_name
        await self.service.unload(request.model_name)
        return self._messages["RepositoryModelUnloadResponse"]()

    async def _infer(self, request: Any, call: Call, context: Any, given_id: str | None = None) -> Any:
        call.model, call.version = request.model_name, request.model_version
        if self.service.draining:
            raise RequestError(503, "the server is shutting down")
        model = self.service.registry.ready(request.model_name, request.model_version)
        asked = fitted(request, model.signature, self.service.options.most_rows)
        given_id = _request_id(_headers(context)) if given_id is None else given_id
        call.id = chosen_id(given_id, asked.id, call.id)
        model = self.service.registry.routed(request.model_name, request.model_version, call.id)
        left = context.time_remaining()
        if left is not None:
            sla = self.service.options.sla if asked.timeout is None else asked.timeout
            asked.timeout = max(0.0, min(left, sla))
        outputs = await self.service.infer(model, asked, call)
        reply = self._messages["ModelInferResponse"](
            model_name=model.name, model_version=model.version, id=request.id
        )
        if call.variant:
            reply.parameters["variant"].string_param = call.variant
        for spec, data in zip(model.signature.outputs, outputs, strict=True):
            if spec.name in asked.binary:
                shape = [asked.rows if n == -1 else n for n in spec.full_shape]
                reply.outputs.add(name=spec.name, datatype=protocol.datatype(spec), shape=shape)
                reply.raw_output_contents.append(bytes(data))
        return reply


def _headers(context: Any) -> dict[bytes, bytes]:
    """Return the metadata of a call as HTTP's headers are."""
    pairs = context.invocation_metadata() or ()
    return {k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in pairs}


def _request_id(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"x-request-id", b"").decode("latin-1")


def fitted(request: Any, signature: Any, most_rows: int) -> protocol.InferRequest:
    """Return a ModelInferRequest that fits a model. Raises: RequestError for all that does not."""
    raws = list(request.raw_input_contents)
    if raws and len(raws) != len(request.inputs):
        got = f"{len(raws)} for {len(request.inputs)} inputs"
        raise RequestError(400, "raw_input_contents: one for each input, or none", got=got)
    head = {
        "id": request.id, "parameters": _parameters(request),
        "inputs": [
            {"name": x.name, "datatype": x.datatype, "shape": list(x.shape), "parameters": _parameters(x),
             "contents": x.contents if x.HasField("contents") else None, "raw": raws[k] if raws else None}
            for k, x in enumerate(request.inputs)
        ],
        "outputs": [{"name": x.name, "parameters": _parameters(x)} for x in request.outputs],
    }  # fmt: skip
    return protocol.fitted(head, signature, most_rows, _taken)


def _parameters(message: Any) -> dict[str, Any]:
    """Return the parameters of a message by name; None for one without a value."""
    choices = {
        name: (value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()
    }
    return {name: getattr(value, which) if which else None for name, (value, which) in choices.items()}


def _taken(row: Mapping[str, Any], spec: TensorSpec, shape: Sequence[int]) -> Bytes:
    """Return the bytes of an input, from raw or typed contents. Raises: RequestError."""
    raw, contents, nbytes = row["raw"], row["contents"], math.prod(shape) * spec.dtype.itemsize
    if raw is not None and contents is not None:
        raise RequestError(400, f"{spec.name}: contents and raw_input_contents; one is enough")
    if raw is not None:
        if len(raw) != nbytes:
            raise RequestError(400, f"{spec.name}: raw contents of {nbytes} bytes", got=str(len(raw)))
        data: bytes = raw
        return data
    kind = CONTENTS.get(protocol.datatype(spec))
    if kind is None:
        raise RequestError(400, f"{spec.name}: {protocol.datatype(spec)} comes in raw_input_contents")
    given = [] if contents is None else [field.name for field, _ in contents.ListFields()]
    if given not in ([kind], []):
        raise RequestError(400, f"{spec.name}: data comes in {kind}", got=", ".join(given))
    values = np.array(getattr(contents, kind) if given else [], None if given else spec.dtype.np)
    if values.size != math.prod(shape):
        raise RequestError(400, f"{spec.name}: {math.prod(shape)} numbers in {kind}", got=str(values.size))
    made = values.astype(spec.dtype.np)
    if spec.dtype.is_integer and not np.array_equal(made, values):
        raise RequestError(400, f"{spec.name}: a number does not fit {protocol.datatype(spec)}")
    return made.tobytes()
