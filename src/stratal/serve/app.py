"""Routes of the server: the infer route is a raw ASGI endpoint, all others are starlette's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from stratal.base.errors import StratalError
from stratal.base.version import VERSION
from stratal.serve import protocol
from stratal.serve.access import Access, Key
from stratal.serve.connections import MOST_HEAD_BYTES, Header, Replied, Reply
from stratal.serve.dispatcher import Answered
from stratal.serve.extra import clock, required
from stratal.serve.fleet import FleetError
from stratal.serve.protocol import Bytes, RequestError, load_parameters
from stratal.serve.registry import metadata
from stratal.serve.request_log import MOST_TEXT, Call, chosen_id
from stratal.serve.service import Options, Service
from stratal.serve.status_page import PAGE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LEAST_RATE = 1 << 14  # bytes a second at which a body must come, after a while
MOST_PARAMETERS = 1 << 16  # bytes of a body that is no inference
PUBLIC = {"/", "/v2", "/v2/health/live", "/v2/health/ready"}  # paths that are answered without a key
_BOUNDS = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "+Inf")


class App:
    """The ASGI application of a service, for those who have access."""

    def __init__(self, service: Service, access: Access) -> None:
        self.service = service
        self.access = access
        self._others = _routes(service, access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = _infer_target(scope)
        given = dict(scope["headers"])
        call = Call(chosen_id(given.get(b"x-request-id", b"").decode("latin-1")))
        if target is not None:
            call.model, call.version = target
            await self._infer(call, scope, receive, send)
            return
        scope["call"], scope["caller"] = call, None
        send = _noting(call, send)
        try:
            if scope["path"] not in PUBLIC:
                scope["caller"] = self._known(call, _headers(scope))
        except RequestError as error:
            await send_error(send, error.status, error.summary, call.id)
        else:
            await self._others(scope, receive, send)
        if self.service.log is not None and (scope["method"] != "GET" or call.status >= 400):
            asked = {"request": f"{scope['method']} {scope['path']}"[:MOST_TEXT]}
            self.service.log.write(call.to_json() | asked)

    def _known(self, call: Call, headers: dict[bytes, bytes]) -> Key | None:
        """Return whose key a request has, and note the name. Raises: RequestError."""
        caller = self.access.caller(headers)
        call.caller = caller.name if caller else ""
        return caller

    async def _infer(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        options = self.service.options
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            headers = _headers(scope)
            self._check(call, headers)  # refuse before anything is read
            body = await read_body(headers, receive, options.body_limit, options.read_seconds)
        except RequestError as error:
            waiting.set_result(self._refused(call, error))
        else:
            self._start(call, headers, body, partial(_set, waiting))
        reply = await waiting
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})
        self.service.answered(call, str(call.status))

    def answer_directly(
        self, target: tuple[str, str], given: list[Header], body: bytes, reply: Replied
    ) -> None:
        """Answer an inference request that is there as a whole: `reply` is called once, maybe at once.

        What is done is what the ASGI application does, without a task, messages and futures for each request.
        """
        headers = dict(given)
        call = Call(chosen_id(headers.get(b"x-request-id", b"").decode("latin-1")))
        call.model, call.version = target

        def replied(found: Reply) -> None:
            reply(found)
            self.service.answered(call, str(call.status))

        try:
            self._check(call, headers)
        except RequestError as error:
            replied(self._refused(call, error))
        else:
            self._start(call, headers, body, replied)

    def _check(self, call: Call, headers: dict[bytes, bytes]) -> None:
        """Return where a request may be read. Raises: RequestError."""
        self._known(call, headers)
        if self.service.draining:
            raise RequestError(503, "the server is shutting down")
        self.service.registry.ready(call.model, call.version)

    def _start(self, call: Call, headers: dict[bytes, bytes], body: bytes, replied: Replied) -> None:
        """Give a request to its model; `replied` is called once with what is answered, whatever that is."""
        name, version, options = call.model, call.version, self.service.options
        registry = self.service.registry
        try:
            encoding = headers.get(b"content-encoding", b"").decode("latin-1").lower()
            body = protocol.inflated(body, encoding, options.body_limit)
            length = _number(headers, b"inference-header-content-length")
            model = registry.ready(name, version)  # another may have taken over meanwhile
            request = model.heads.parse(body, length, options.most_rows)
            call.id = chosen_id(headers.get(b"x-request-id", b"").decode("latin-1"), request.id, call.id)
            model = registry.routed(name, version, call.id)

            def done(found: Answered | RequestError) -> None:
                try:
                    if isinstance(found, RequestError):
                        raise found
                    pieces, head_bytes = protocol.answer(
                        request, model.signature, model.name, model.version, found.outputs, call.variant
                    )
                    reply = _answer(pieces, head_bytes, call.id)
                except Exception as error:
                    reply = self._refused(call, error)
                replied(reply)

            self.service.submit(model, request, call, done)
        except Exception as error:
            replied(self._refused(call, error))

    def _refused(self, call: Call, error: Exception) -> Reply:
        """Note in a call what went wrong, and return what its client is told."""
        if isinstance(error, RequestError):
            call.failed(error.status, error.summary)
        else:
            self.service.fault(call)
        return _error(call.status, call.error, call.id)


def _set(waiting: asyncio.Future[Reply], reply: Reply) -> None:
    if not waiting.done():  # who waited may be gone
        waiting.set_result(reply)


def _infer_target(scope: Scope) -> tuple[str, str] | None:
    """Return model and version where a request is for the infer route."""
    return infer_target(scope["path"]) if scope["method"] == "POST" else None


def infer_target(path: str) -> tuple[str, str] | None:
    """Return model and version of a path where it is that of the infer route."""
    parts = path.split("/")
    if parts[:3] == ["", "v2", "models"] and parts[-1] == "infer":
        if len(parts) == 5:
            return parts[3], ""
        if len(parts) == 7 and parts[4] == "versions":
            return parts[3], parts[5]
    return None


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name. Raises: RequestError where they are too long."""
    if sum(len(k) + len(v) for k, v in scope["headers"]) > MOST_HEAD_BYTES:
        raise RequestError(431, f"the headers have more than {MOST_HEAD_BYTES} bytes")
    return dict(scope["headers"])


def _number(headers: dict[bytes, bytes], name: bytes) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise RequestError(400, f"{name.decode()}: a number of bytes", got=repr(text)[:80])
    return int(text)


async def read_body(headers: dict[bytes, bytes], receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the body. Raises: RequestError, 413 as soon as it is too long, 408 where it stalls."""
    declared = _number(headers, b"content-length")
    if declared is not None and declared > limit:
        raise RequestError(413, f"the body has more than {limit} bytes", got=str(declared))
    parts, size, more = [], 0, True
    started = clock()
    while more:
        try:  # a client that sends a byte now and then is no better than one that is silent
            left = started + seconds + size / LEAST_RATE - clock()
            async with asyncio.timeout(min(seconds, left)):  # unlike wait_for, without a task of its own
                message = await receive()
        except TimeoutError:
            text = f"the body comes too slowly: silent for {seconds:g} s, or under {LEAST_RATE} bytes/s"
            raise RequestError(408, text) from None
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the client is gone")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RequestError(413, f"the body has more than {limit} bytes")
        parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _noting(call: Call, send: Send) -> Send:
    """Return a `send` that notes the status of an answer, and puts the request's id into its headers."""

    async def noting(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            call.status = message["status"]
            names = {name for name, _ in message["headers"]}
            if b"x-request-id" not in names:
                message["headers"] = [*message["headers"], (b"x-request-id", call.id.encode())]
        await send(message)

    return noting


def _error(status: int, text: str, request_id: str) -> Reply:
    """Return an error as the protocol has it; a connection whose body is unread is not used again."""
    body = json.dumps({"error": text, "id": request_id}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers.append((b"x-request-id", request_id.encode()))
    if status in (401, 408, 413):
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Reply(status, headers, body)


async def send_error(send: Send, status: int, text: str, request_id: str) -> None:
    """Answer with an error."""
    reply = _error(status, text, request_id)
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    await send({"type": "http.response.body", "body": reply.body})


def _answer(pieces: list[Bytes], head_bytes: int | None, request_id: str) -> Reply:
    body = b"".join(pieces)
    kind = b"application/json" if head_bytes is None else b"application/octet-stream"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    headers.append((b"x-request-id", request_id.encode()))
    if head_bytes is not None:
        headers.append((b"inference-header-content-length", b"%d" % head_bytes))
    return Reply(200, headers, body)


def _routes(service: Service, access: Access) -> Any:
    """Return the starlette application of all routes but infer."""
    routing, responses = required("starlette.routing"), required("starlette.responses")
    text_response, registry = responses.Response, service.registry

    class AsciiJson(responses.JSONResponse):  # type: ignore[misc, name-defined]
        """Starlette's, in ASCII: UTF-8 has no half of a surrogate pair, which a client's JSON may hold."""

        def render(self, content: Any) -> bytes:
            return json.dumps(content, allow_nan=False).encode()

    json_response = AsciiJson

    async def server(_: Any) -> Any:
        extensions = ["model_repository", "model_repository(unload_dependents)", "binary_tensor_data"]
        return json_response({"name": "stratal", "version": VERSION, "extensions": extensions})

    async def live(_: Any) -> Any:
        return json_response({"live": True})

    async def ready(_: Any) -> Any:
        return json_response({"ready": service.ready}, 200 if service.ready else 503)

    async def model(request: Any) -> Any:
        found = _known(request)
        return json_response(metadata(found, registry.versions(found.name)))

    async def model_ready(request: Any) -> Any:
        found = registry.ready(request.path_params["name"], request.path_params.get("version", ""))
        return json_response({"name": found.name, "ready": service.ready}, 200 if service.ready else 503)

    async def config(request: Any) -> Any:
        found = _known(request)
        return json_response(
            metadata(found, registry.versions(found.name))
            | {"max_batch_size": found.table.sizes[-1]}
            | found.facts
        )

    async def index(_: Any) -> Any:
        return json_response(registry.index())

    async def load(request: Any) -> Any:
        access.check_change(request.scope["caller"])
        version, share = load_parameters(await _object(request, service.options))
        await service.load(request.path_params["name"], version, share)
        return json_response({})

    async def promote(request: Any) -> Any:
        access.check_change(request.scope["caller"])
        await service.promote(request.path_params["name"])
        return json_response({})

    async def rollback(request: Any) -> Any:
        access.check_change(request.scope["caller"])
        await service.rollback(request.path_params["name"])
        return json_response({})

    async def unload(request: Any) -> Any:
        access.check_change(request.scope["caller"])
        await service.unload(request.path_params["name"])
        return json_response({})

    async def feedback(request: Any) -> Any:
        caller, name = request.scope["caller"], request.path_params["name"]
        registry.ready(name)
        request.scope["call"].model = name
        body = await _object(request, service.options)
        return json_response(service.monitoring.labelled(name, caller.name if caller else "", body))

    async def metrics(_: Any) -> Any:
        await service.monitoring.refresh()
        return text_response(service.metrics.text(), media_type=service.metrics.content_type)

    async def status(_: Any) -> Any:
        await service.monitoring.refresh()
        return json_response(status_of(service))

    async def page(_: Any) -> Any:
        policy = {"content-security-policy": "default-src 'self' 'unsafe-inline' data:"}
        return responses.HTMLResponse(PAGE, headers=policy)

    def _known(request: Any) -> Any:
        name, version = request.path_params["name"], request.path_params.get("version", "")
        found = registry.models.get(name)
        return registry.ready(name, version) if found is None or version else found

    by_name = [("", model), ("/ready", model_ready), ("/config", config)]
    route = routing.Route
    routes = [
        route("/", page),
        route("/status", status),
        route("/metrics", metrics),
        route("/v2", server),
        route("/v2/health/live", live),
        route("/v2/health/ready", ready),
        *(route(f"/v2/models/{{name}}{end}", handler) for end, handler in by_name),
        *(route(f"/v2/models/{{name}}/versions/{{version}}{end}", handler) for end, handler in by_name),
        route("/v2/models/{name}/feedback", feedback, methods=["POST"]),
        route("/v2/repository/index", index, methods=["POST"]),
        route("/v2/repository/models/{name}/load", load, methods=["POST"]),
        route("/v2/repository/models/{name}/unload", unload, methods=["POST"]),
        route("/v2/repository/models/{name}/promote", promote, methods=["POST"]),
        route("/v2/repository/models/{name}/rollback", rollback, methods=["POST"]),
    ]
    return _starlette(routes, json_response)


async def _object(request: Any, options: Options) -> dict[str, Any]:
    """Return the JSON object of a request's body; none is an empty one. Raises: RequestError."""
    limit = min(options.body_limit, MOST_PARAMETERS)
    body = await read_body(_headers(request.scope), request.receive, limit, options.read_seconds)
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the body is not JSON", got=str(error)) from None
    if not isinstance(found, dict):
        raise RequestError(400, "the body is a JSON object", got=repr(found)[:80])
    return found


def _starlette(routes: list[Any], json_response: Any) -> Any:
    starlette = required("starlette.applications").Starlette
    http_error = required("starlette.exceptions").HTTPException

    async def refused(request: Any, error: Any) -> Any:
        call = request.scope["call"]
        if isinstance(error, (RequestError, FleetError)):
            call.failed(error.status, error.summary)
        elif isinstance(error, StratalError):
            call.failed(500, error.rule)
        else:
            call.failed(error.status_code, str(error.detail))
        return json_response({"error": call.error, "id": call.id}, call.status)

    handlers = {RequestError: refused, FleetError: refused, StratalError: refused, http_error: refused}
    app = starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    return app


def _canary_of(service: Service, name: str) -> dict[str, Any] | None:
    canary = service.registry.canaries.get(name)
    if canary is None:
        return None
    return {"version": canary.model.version, "share": canary.share, "state": canary.model.state}


def _variants_of(service: Service, name: str) -> dict[str, float]:
    """Return how many requests each variant of a model answered in its place."""
    sample, variants = service.metrics.registry.get_sample_value, service.registry.config(name).variants
    pairs = [(v, {"model": name, "variant": v}) for v in variants]
    return {v: sample("stratal_variant_requests_total", labels) or 0.0 for v, labels in pairs}


def status_of(service: Service) -> dict[str, Any]:
    """Return what the status page shows."""
    dispatcher, sample = service.dispatcher, service.metrics.registry.get_sample_value
    rows = []
    for name, model in sorted(service.registry.models.items()):
        counts = {"model": name}
        table = dispatcher.queue.table(model.key) if model.state == "READY" else model.table
        buckets = [
            (bound, sample("stratal_request_seconds_bucket", counts | {"le": bound}) or 0.0)
            for bound in _BOUNDS
        ]
        rows.append({
            "name": name, "version": model.version, "state": model.state, "why": model.why,
            "rows": sample("stratal_rows_total", counts) or 0.0,
            "requests": sample("stratal_request_seconds_count", counts) or 0.0,
            "late": sample("stratal_late_total", counts) or 0.0,
            "waiting": dispatcher.queue.waiting(model.key),
            "latency_ms": {str(n): 1e3 * s for n, s in zip(table.sizes, table.seconds, strict=True)},
            "histogram": buckets, **model.facts, "canary": _canary_of(service, name),
            "variants": _variants_of(service, name), "monitoring": service.monitoring.to_json(name),
        })  # fmt: skip
    return {
        "version": VERSION,
        "ready": service.ready,
        "queued": len(dispatcher.queue),
        "zygote": service.fleet.pid,
        "workers": [{"pid": w.pid, "busy": w.busy, "retiring": w.retiring} for w in dispatcher.workers],
        "models": rows,
        "failed": service.registry.failed,
    }
