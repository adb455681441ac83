"""A server from start to drain: socket, service, uvicorn, signals."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.serve.access import Access, Tls
from stratal.serve.connections import Direct, Limits, protocol_class
from stratal.serve.extra import loop_factory, required
from stratal.serve.grpc_server import GrpcServer, address
from stratal.serve.request_log import RequestLog
from stratal.serve.service import Options, Service


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises: AttributeValueError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise AttributeValueError(
            "serve: cannot listen there", got=f"{host}:{port}: {error.strerror}"
        ) from error
    sock.listen(1024)
    return sock


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and for whom."""

    host: str = "127.0.0.1"
    port: int = 8000
    access: Access = field(default_factory=Access)
    tls: Tls | None = None
    limits: Limits = field(default_factory=Limits)
    log: Path | None = None  # of requests; `-` is standard error
    grpc_port: int | None = None


Started = Callable[[str, str, Service], None]


def serve(folder: Path, listening: Listening, options: Options, started: Started = lambda *_: None) -> None:
    """Serve the models of a folder until SIGTERM or SIGINT; `started` is told the addresses once it is ready.

    Raises: AttributeValueError where the folder, address or certificate is no good, MissingExtraError.
    """
    if not folder.is_dir():
        raise AttributeValueError("serve: a folder of artefacts", got=str(folder))
    uvicorn = required("uvicorn")
    required("httptools")
    if listening.grpc_port is not None:
        required("grpc.aio", "grpc")
    context = listening.tls.context() if listening.tls else None
    sock = bound(listening.host, listening.port)
    for warning in exposure(sock.getsockname()[0], listening):
        print(f"stratal: {warning}", file=sys.stderr)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(uvicorn, folder, sock, context, listening, options, started))


def exposure(address: str, listening: Listening) -> list[str]:
    """Return what is worth a warning of a server that other machines reach."""
    if ip_address(address.partition("%")[0]).is_loopback:
        return []
    found = []
    if not listening.access.keys:
        found.append(f"whoever reaches {address} may ask: --api-keys FILE wants a key")
    if listening.tls is None:
        found.append(
            f"requests{' and keys' * bool(listening.access.keys)} travel in the clear: see --tls-cert"
        )
    return found


async def _serve(
    uvicorn: Any, folder: Path, sock: socket.socket, context: ssl.SSLContext | None, listening: Listening,
    options: Options, started: Started,
) -> None:  # fmt: skip
    from stratal.serve.app import App, infer_target

    log = RequestLog(listening.log) if listening.log else None
    service, limits = Service(folder, options, log), listening.limits
    grpc = None if listening.grpc_port is None else GrpcServer(service, listening.access)
    app = App(service, listening.access)
    protocol = protocol_class(limits, Direct(infer_target, app.answer_directly, options.body_limit))
    config = uvicorn.Config(
        app, http=protocol, ws="none", log_level="warning", access_log=False,
        lifespan="off", server_header=False, timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=max(1, round(options.drain_seconds)),
    )  # fmt: skip

    class Server(uvicorn.Server):  # type: ignore[misc]
        """Uvicorn's, which answers that it is not ready before it stops listening, and ends with status 0."""

        def handle_exit(self, *_: Any) -> None:
            service.draining = True
            self.should_exit = True

        async def startup(self, sockets: Any = None) -> None:
            """Listen with limits on the handshake, too, which uvicorn's own start does not have."""
            await super().startup(sockets=[])
            handshake = None if context is None else limits.head_seconds

            def connection() -> Any:
                return protocol(config=config, server_state=self.server_state, app_state={})

            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                connection, sock=sock, backlog=1024, ssl=context, ssl_handshake_timeout=handshake
            )
            self.servers.append(server)

    try:
        await service.start()
        host, port = sock.getsockname()[:2]
        scheme = "http" if context is None else "https"
        other = await grpc.start(host, listening.grpc_port or 0, listening.tls, limits) if grpc else ""
        gc.collect()
        gc.freeze()  # what is there now stays: going through it took a third of a request's time
        started(f"{scheme}://{address(host, port)}", other, service)
        await Server(config).serve()
    finally:
        gc.unfreeze()
        if grpc:
            await grpc.stop(options.drain_seconds)
        await service.close()
        sock.close()
