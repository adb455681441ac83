"""`stratal view`: run a script, or read a saved plan, and write the explorer's page of what was compiled."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stratal.base.errors import FormatError
from stratal.cli.outputs import check_outputs
from stratal.cli.report import NOTHING, add_json_option, check_script, console, named, run_script, write_json
from stratal.explorer.page import Page
from stratal.explorer.saved import read_plans
from stratal.explorer.view import add_comparisons, view
from stratal.formats.files import write_atomically
from stratal.inspect.profiler import Profiler
from stratal.memory.render import format_bytes
from stratal.plan.record import Plan
from stratal.plan.text import plural
from stratal.tensor.lazy import program_cache

EPILOG = """\
The page is one file: it needs no server and no network, opens from disk and can be sent to somebody. It holds
the text of the source files that were compiled. Options stand before FILE; what follows a script is its own.
`stratal explain --json before.json SCRIPT` saves plans to compare with."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "what the page shows")
    add = parser.add_argument
    add("subject", type=Path, metavar="FILE", help="a script to run, or a plan saved as .json")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    add("-o", "--output", type=Path, metavar="PAGE", help="where to write; FILE.html here where left out")
    add("--only", metavar="NAME", default="", help="show only programs whose name contains NAME")
    add("--diff", type=Path, metavar="PLAN.json", help="compare with a plan that was saved before")
    add("--profile", action="store_true", help="time every kernel as the script runs, for the timeline")


def run(args: argparse.Namespace) -> int:
    if args.subject.suffix != ".json":
        check_script(args.subject)
    output = args.output or Path(args.subject.name).with_suffix(".html")
    check_outputs([output, *filter(None, [args.json])], filter(None, [args.subject, args.diff]))
    others = [] if args.diff is None else [_plan(row) for row in read_plans(args.diff)]
    status, rows = 0, []
    if args.subject.suffix == ".json":
        if args.profile or args.arguments:
            got = "--profile" if args.profile else " ".join(args.arguments)
            raise FormatError("view: a saved plan does not run", got=got, hint="options stand before FILE")
        rows = read_plans(args.subject)
        asked = named([str(r["name"]) for r in rows], [args.only], "program")
        rows = [r for r in rows if r["name"] in asked]
    else:
        status, rows = _ran(args)
    if not rows:
        console().print(f"{NOTHING} There is no page to write.")
        return status or 1
    add_comparisons(rows, others)
    write_json(args.json, rows)
    html = Page(rows).html.encode()
    write_atomically(output, [html])
    what = f"{plural(len(rows), 'program')}, {format_bytes(len(html))}"
    console().print(f"{output}: {what}; open it in a browser.")
    return status


def _ran(args: argparse.Namespace) -> tuple[int, list[dict[str, Any]]]:
    """Run the script; return its status and what the explorer shows of its programs, the largest first."""
    profile = None
    if args.profile:
        with Profiler(trace=True) as profiler:
            status = run_script(args.subject, args.arguments, pending=True)
        profile = profiler.profile()
    else:
        status = run_script(args.subject, args.arguments, pending=True)
    found = program_cache.remembered()
    asked = named([p.graph.name for p in found], [args.only], "program")
    shown = [p for p in found if p.graph.name in asked]
    shown.sort(key=lambda p: -p.plan.planned_peak_bytes)
    return status, view(shown, profile=profile).programs


def _plan(row: dict[str, Any]) -> Plan:
    return Plan({k: v for k, v in row["plan"].items() if k != "hash"})
