"""`stratal serve models/`: the artefacts of a folder over HTTP (KServe v2), each request with a deadline."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stratal.base.errors import AttributeValueError
from stratal.cli.report import add_json_option, seconds, whole, write_json
from stratal.serve.access import Access, Tls, read_keys
from stratal.serve.connections import Limits
from stratal.serve.server import Listening, serve
from stratal.serve.service import Options

_DEFAULT, _LIMITS = Options(), Limits()


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "address, process and models, once it is ready,")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="artefacts: what FrozenModel.save wrote")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; only this machine by default"
    )
    parser.add_argument("--port", type=whole(0), default=8000, help="port; 0 takes a free one")
    parser.add_argument(
        "--grpc-port", metavar="PORT", type=whole(0), help="speak gRPC there, too; 0: a free one"
    )
    parser.add_argument("--workers", type=whole(1), help="processes that compute; one a core by default")
    parser.add_argument("--sla", metavar="MS", type=seconds, default=_DEFAULT.sla * 1e3,
                        help="milliseconds for a request without its own timeout (%(default)g)")  # fmt: skip
    parser.add_argument("--body-limit", metavar="BYTES", type=whole(1), default=_DEFAULT.body_limit,
                        help="of a request, inflated (%(default)s)")  # fmt: skip
    parser.add_argument("--queue-limit", metavar="N", type=whole(1), default=_DEFAULT.queue_limit,
                        help="requests that may wait (%(default)s)")  # fmt: skip
    parser.add_argument("--hang-seconds", metavar="S", type=seconds, default=_DEFAULT.hang_seconds,
                        help="a worker that is silent for longer hangs (%(default)s)")  # fmt: skip
    parser.add_argument("--state", metavar="FILE", type=Path,
                        help="remember which versions and canaries were chosen, across restarts")  # fmt: skip
    parser.add_argument("--log", metavar="FILE", type=Path,
                        help="append a line of JSON for each request; - is standard error")  # fmt: skip
    _configure_access(parser)


def _configure_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api-keys", metavar="FILE", type=Path,
                        help="of lines: name, key, and `admin` where it may load models")  # fmt: skip
    parser.add_argument("--allow-load", action="store_true",
                        help="let everyone load and unload models, where there are no keys")  # fmt: skip
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="certificate and its chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="key of the certificate, PEM")
    parser.add_argument("--connections", metavar="N", type=whole(1), default=_LIMITS.connections,
                        help="that may be open (%(default)s)")  # fmt: skip
    parser.add_argument("--head-seconds", metavar="S", type=seconds, default=_LIMITS.head_seconds,
                        help="for a TLS handshake, and for the head of a request (%(default)g)")  # fmt: skip
    parser.add_argument("--idle-seconds", metavar="S", type=seconds, default=_LIMITS.idle_seconds,
                        help="that a connection may be silent between requests (%(default)g)")  # fmt: skip


def _listening(args: argparse.Namespace) -> Listening:
    if (args.tls_cert is None) != (args.tls_key is None):
        given = "--tls-cert" if args.tls_cert else "--tls-key"
        raise AttributeValueError("serve: TLS takes --tls-cert and --tls-key", got=f"only {given}")
    return Listening(
        args.host, args.port,
        Access(read_keys(args.api_keys) if args.api_keys else (), args.allow_load),
        Tls(args.tls_cert, args.tls_key) if args.tls_cert else None,
        Limits(args.connections, args.head_seconds, args.idle_seconds),
        args.log, args.grpc_port,
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    options = Options(
        workers=args.workers or len(os.sched_getaffinity(0)), sla=args.sla / 1e3, body_limit=args.body_limit,
        queue_limit=args.queue_limit, hang_seconds=args.hang_seconds, state=args.state,
    )  # fmt: skip

    def started(address: str, grpc: str, service: Any) -> None:
        models = service.registry.index()
        addresses = {"address": address} | ({"grpc": grpc} if grpc else {})
        write_json(args.json, addresses | {"pid": os.getpid(), "models": models})
        address += f", gRPC at {grpc}" if grpc else ""
        ready = sum(m["state"] == "READY" for m in models)
        print(f"{ready} of {len(models)} models ready at {address}, {options.workers} workers", flush=True)

    serve(args.folder, _listening(args), options, started)
    print("drained", flush=True)
    return 0
