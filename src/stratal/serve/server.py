"""A server from start to drain: socket, service, uvicorn, signals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.serve.extra import required
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


def serve(
    folder: Path, host: str = "127.0.0.1", port: int = 8000, options: Options | None = None,
    started: Callable[[str, Service], None] = lambda *_: None,
) -> None:  # fmt: skip
    """Serve the models of a folder until SIGTERM or SIGINT; `started` is told the address once it is ready.

    Raises: AttributeValueError where the folder or address is no good, MissingExtraError.
    """
    if not folder.is_dir():
        raise AttributeValueError("serve: a folder of artefacts", got=str(folder))
    uvicorn = required("uvicorn")
    required("httptools")
    asyncio.run(_serve(uvicorn, folder, bound(host, port), options or Options(), started))


async def _serve(
    uvicorn: Any, folder: Path, sock: socket.socket, options: Options, started: Callable[[str, Service], None]
) -> None:
    from stratal.serve.app import App

    service = Service(folder, options)
    config = uvicorn.Config(
        App(service), http="httptools", log_level="warning", access_log=False, lifespan="off",
        server_header=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(options.drain_seconds)),
    )  # fmt: skip

    class Server(uvicorn.Server):  # type: ignore[misc]
        """Uvicorn's, which answers that it is not ready before it stops listening, and ends with status 0."""

        def handle_exit(self, *_: Any) -> None:
            service.draining = True
            self.should_exit = True

    try:
        await service.start()
        host, port = sock.getsockname()[:2]
        started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", service)
        await Server(config).serve(sockets=[sock])
    finally:
        await service.close()
        sock.close()
