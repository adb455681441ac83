"""`stratal loadtest URL MODEL`: an open-loop load on a server, with latencies that count the waiting."""

from __future__ import annotations

import argparse
from pathlib import Path

from stratal.base.errors import FormatError
from stratal.cli.report import add_json_option, console, seconds, table, whole, write_json
from stratal.serve.loadtest import Load, loadtest


def configure(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser, "the figures")
    parser.add_argument("address", metavar="URL", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("model", metavar="MODEL", help="the model that is asked")
    parser.add_argument("--rate", type=seconds, default=100.0, help="requests a second (%(default)g)")
    parser.add_argument("--seconds", type=seconds, default=10.0, help="how long (%(default)g)")
    parser.add_argument(
        "--burst", type=seconds, default=1.0, help="requests that are due at once, on average (%(default)g)"
    )
    parser.add_argument("--sla", metavar="MS", type=seconds, default=100.0, help="milliseconds (%(default)g)")
    parser.add_argument("--key-file", metavar="FILE", type=Path,
                        help="the API key, and nothing else")  # fmt: skip
    parser.add_argument("--ca", metavar="FILE", type=Path,
                        help="what an https server's certificate is verified with, PEM")  # fmt: skip
    parser.add_argument("--connections", type=whole(1), default=64, help="at most (%(default)s)")


def _key(path: Path | None) -> str:
    """Return the API key of a file. Raises: FormatError, which does not say what the file holds."""
    if path is None:
        return ""
    try:
        words = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        raise FormatError("loadtest: cannot read the key", got=str(path)) from None
    if len(words) != 1:
        raise FormatError("loadtest: the file has a key and nothing else", got=f"{path}: {len(words)} words")
    return words[0]


def run(args: argparse.Namespace) -> int:
    load = Load(args.model, args.rate, args.seconds, max(1.0, args.burst), args.sla / 1e3, args.connections)
    report = loadtest(args.address, load, key=_key(args.key_file), ca=args.ca).to_json(load.sla)
    write_json(args.json, report)
    out = console()
    codes = ", ".join(
        f"{n} x {code if code != '0' else 'no answer'}" for code, n in report["statuses"].items()
    )
    out.print(
        f"{report['offered']} requests, {report['offered_per_second']:.1f}/s: {codes or 'none was due'}"
    )
    out.print(f"{report['in_time']:.2%} within {args.sla:g} ms: {report['goodput_per_second']:.1f}/s in time")
    rows = table("latency in ms", "", "p50", "p99", "p99.9", "max", right=(1, 2, 3, 4))
    for name, key in (("from when due", "latency_ms"), ("from when sent", "uncorrected_latency_ms")):
        if report[key]:
            rows.add_row(name, *(f"{report[key][q]:.2f}" for q in ("p50", "p99", "p99.9", "max")))
    out.print(rows)
    return 0 if report["answered"] else 1
