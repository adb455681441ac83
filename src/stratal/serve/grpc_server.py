"""KServe v2 over gRPC: the same models, queue, keys and limits as over HTTP. Needs the extra `[grpc]`.

What HTTP says by a status has its gRPC code in `CODES`. The id of a request is its metadata `x-request-id`,
else its `id`; it is in the trailing metadata of every answer and error.

A stream (`ModelStreamInfer`) is answered in the order of its requests; some of them run at once. What is
wrong with a request is its answer's `error_message`, and the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from stratal.base.errors import AttributeValueError
from stratal.base.version import VERSION
from stratal.serve import protocol
from stratal.serve.access import Access, Key, Tls
from stratal.serve.connections import Limits
from stratal.serve.extra import required
from stratal.serve.fleet import FleetError
from stratal.serve.grpc_requests import Requests, parameters
from stratal.serve.grpc_schema import METHODS, PACKAGE, SERVICE, STREAM, messages
from stratal.serve.protocol import RequestError
from stratal.serve.registry import metadata
from stratal.serve.request_log import Call, chosen_id
from stratal.serve.service import Service

CODES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
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
        self._requests = Requests(self._messages)
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
        answer = self._infer if name == "ModelInfer" else self._by_messages(name)

        async def handled(data: bytes, context: Any) -> bytes:
            headers = _headers(context)
            call = Call(chosen_id(_request_id(headers)))
            reply = b""
            try:
                caller = None if name in PUBLIC else self._caller(call, headers)
                if name in CHANGES:
                    self.access.check_change(caller)
                reply = await answer(data, call, context, _request_id(headers))
            except Exception as error:
                self._failed(call, error, name)
            context.set_trailing_metadata((("x-request-id", call.id),))
            self._noted(name, call)
            if call.status != 200:
                code = CODES.get(call.status, "INVALID_ARGUMENT")
                await context.abort(self._grpc.StatusCode[code], call.error)
            return reply

        return handled

    def _by_messages(self, name: str) -> Callable[[bytes, Call, Any, str], Awaitable[bytes]]:
        """Return what answers a method's calls, by the messages of its request and its response."""
        parse = self._messages[f"{name}Request"].FromString
        answer = {
            "ServerLive": self._live, "ServerReady": self._ready, "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready, "ModelMetadata": self._model_metadata,
            "RepositoryIndex": self._index, "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }[name]  # fmt: skip

        async def answered(data: bytes, call: Call, _: Any, __: str) -> bytes:
            reply: bytes = (await answer(parse(data), call)).SerializeToString()
            return reply

        return answered

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
        call = Call(chosen_id())
        call.caller = caller
        reply = self._messages["ModelStreamInferResponse"]()
        found = reply.infer_response
        try:
            found.ParseFromString(await self._infer(data, call, context, ""))
            found.parameters["triton_final_response"].bool_param = True  # a request has one answer
        except Exception as error:
            self._failed(call, error, "ModelInfer")
            reply.error_message = call.error
            with suppress(self._decode_error):
                found.id = self._requests.parse(data).id
        self._noted("ModelInfer", call)
        answer: bytes = reply.SerializeToString()
        return answer

    # -- methods ---------------------------------------------------------------------------------------------

    async def _live(self, _: Any, __: Call) -> Any:
        return self._messages["ServerLiveResponse"](live=True)

    async def _ready(self, _: Any, __: Call) -> Any:
        return self._messages["ServerReadyResponse"](ready=self.service.ready)

    async def _server_metadata(self, _: Any, __: Call) -> Any:
        return self._messages["ServerMetadataResponse"](
            name="stratal", version=VERSION, extensions=EXTENSIONS
        )

    async def _model_ready(self, request: Any, call: Call) -> Any:
        call.model, call.version = request.name, request.version
        try:
            self.service.registry.ready(request.name, request.version)
        except RequestError as error:
            if error.status != 503:
                raise
            return self._messages["ModelReadyResponse"](ready=False)
        return self._messages["ModelReadyResponse"](ready=self.service.ready)

    async def _model_metadata(self, request: Any, call: Call) -> Any:
        call.model, call.version = request.name, request.version
        registry = self.service.registry
        found = registry.ready(request.name, request.version)
        return self._messages["ModelMetadataResponse"](**metadata(found, registry.versions(found.name)))

    async def _index(self, request: Any, _: Call) -> Any:
        rows = self.service.registry.index()
        rows = [row for row in rows if row["state"] == "READY"] if request.ready else rows
        return self._messages["RepositoryIndexResponse"](models=rows)

    async def _load(self, request: Any, call: Call) -> Any:
        call.model = request.model_name
        version, share = protocol.load_parameters({"parameters": parameters(request)})
        await self.service.load(request.model_name, version, share)
        return self._messages["RepositoryModelLoadResponse"]()

    async def _unload(self, request: Any, call: Call) -> Any:
        call.model = request.model_name
        await self.service.unload(request.model_name)
        return self._messages["RepositoryModelUnloadResponse"]()

    async def _infer(self, data: bytes, call: Call, context: Any, given_id: str) -> bytes:
        requests, registry, options = self._requests, self.service.registry, self.service.options
        asked, message = requests.known(data), None
        if asked is None:
            message = requests.parse(data)
            call.model, call.version = message.model_name, message.model_version
        else:
            call.model, call.version = asked.name, asked.version
        if self.service.draining:
            raise RequestError(503, "the server is shutting down")
        name, version = call.model, call.version
        model = registry.ready(name, version)
        if asked is None or asked.signature is not model.signature:  # of what answered before
            message = requests.parse(data) if message is None else message
            asked = requests.fitted(message, data, model.signature, options.most_rows)
        call.id = chosen_id(given_id, asked.id, call.id)
        model = registry.routed(name, version, call.id)
        request, left = asked.request, context.time_remaining()
        if left is not None:
            sla = options.sla if request.timeout is None else request.timeout
            request.timeout = max(0.0, min(left, sla))
        outputs = await self.service.infer(model, request, call)
        return requests.answer(asked, model.name, model.version, outputs, call.variant)


def _headers(context: Any) -> dict[bytes, bytes]:
    """Return the metadata of a call as HTTP's headers are."""
    pairs = context.invocation_metadata() or ()
    return {k.encode(): v if isinstance(v, bytes) else v.encode() for k, v in pairs}


def _request_id(headers: dict[bytes, bytes]) -> str:
    return headers.get(b"x-request-id", b"").decode("latin-1")
