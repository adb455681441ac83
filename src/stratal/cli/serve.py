"""`stratal serve models/`: the artefacts of a folder over HTTP (KServe v2), each request with a deadline."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stratal.cli.report import add_json_option, seconds, whole, write_json
from stratal.serve.server import serve
from stratal.serve.service import Options

_DEFAULT = Options()


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "address, process and models, once it is ready,")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="artefacts: what FrozenModel.save wrote")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; only this machine by default"
    )
    parser.add_argument("--port", type=whole(0), default=8000, help="port; 0 takes a free one")
    parser.add_argument("--workers", type=whole(1), help="processes that compute; one a core by default")
    parser.add_argument("--sla", metavar="MS", type=seconds, default=_DEFAULT.sla * 1e3,
                        help="milliseconds for a request without its own timeout (%(default)g)")  # fmt: skip
    parser.add_argument("--body-limit", metavar="BYTES", type=whole(1), default=_DEFAULT.body_limit,
                        help="of a request, inflated (%(default)s)")  # fmt: skip
    parser.add_argument("--queue-limit", metavar="N", type=whole(1), default=_DEFAULT.queue_limit,
                        help="requests that may wait (%(default)s)")  # fmt: skip
    parser.add_argument("--hang-seconds", metavar="S", type=seconds, default=_DEFAULT.hang_seconds,
                        help="a worker that is silent for longer hangs (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    options = Options(
        workers=args.workers or len(os.sched_getaffinity(0)), sla=args.sla / 1e3, body_limit=args.body_limit,
        queue_limit=args.queue_limit, hang_seconds=args.hang_seconds,
    )  # fmt: skip

    def started(address: str, service: Any) -> None:
        models = service.registry.index()
        write_json(args.json, {"address": address, "pid": os.getpid(), "models": models})
        ready = sum(m["state"] == "READY" for m in models)
        print(f"{ready} of {len(models)} models ready at {address}, {options.workers} workers", flush=True)

    serve(args.folder, args.host, args.port, options, started)
    print("drained", flush=True)
    return 0
