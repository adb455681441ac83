"""`stratal launch`: start the ranks of a job, each running the same script."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from stratal.base import settings
from stratal.base.errors import AttributeValueError, FormatError
from stratal.cli.report import add_json_option, run_script, seconds, whole, write_json
from stratal.distributed.launcher import (
    environment,
    has_fault_tolerance,
    mpirun_command,
    run_elastic,
    run_ranks,
)
from stratal.distributed.supervised import missing
from stratal.distributed.world import DEFAULT_TIMEOUT, preset

EPILOG: Final = """\
Options stand before the script; what follows it is the script's own. Every rank runs the script with a number
of its own, st.distributed.rank(). When one fails, all end, and its exit status is that of the launcher.
With --elastic one that is killed is left out, see docs/parallel.md."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_json_option(parser, "the exit status and the seconds it took")
    add = parser.add_argument
    add("-n", "--ranks", type=whole(1), default=1, metavar="N", help="how many ranks to start (1)")
    add("--hosts", default="", metavar="A:2,B:2", help="hosts, with how many ranks each takes (this one)")
    add("--timeout", type=seconds, default=DEFAULT_TIMEOUT, metavar="S",
        help=f"seconds a collective waits for other ranks ({DEFAULT_TIMEOUT:g})")  # fmt: skip
    add("--elastic", action="store_true",
        help="go on without ranks that die, or start all again where they cannot")
    add("--min-ranks", type=whole(1), default=1, metavar="N",
        help="with --elastic: start all again where fewer live (1)")
    add("--restarts", type=whole(0), default=10, metavar="N", help="with --elastic: how often at most (10)")
    add("--tag", action="store_true", help="put the number of the rank before each line it prints")
    add("script", type=Path, metavar="SCRIPT", help="the script to run")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    if not args.script.is_file():
        raise FormatError("launch: there is no such script", got=str(args.script),
                          hint="give the path of a Python file")  # fmt: skip
    began = time.monotonic()
    status = _run(args)
    write_json(args.json, {"ranks": args.ranks, "status": status, "seconds": time.monotonic() - began})
    return status


def _run(args: argparse.Namespace) -> int:
    if args.ranks == 1 and not args.hosts and not args.elastic:
        preset(args.timeout)
        return run_script(args.script, args.arguments)
    if args.hosts and args.ranks == 1:
        raise AttributeValueError("launch: with hosts, say how many ranks there are", got="-n 1")
    rank = [sys.executable, "-m", "stratal.cli.launched_rank"]
    script = [str(args.timeout), str(args.script), *args.arguments]
    env = environment(args.ranks, settings.threads.value)
    if not args.elastic:
        return run_ranks(mpirun_command(args.ranks, [*rank, *script], args.hosts, args.tag), env)
    lacks = "several hosts" if args.hosts else missing()
    if lacks:
        raise AttributeValueError(
            "launch --elastic: runs on one host, under Linux", got=lacks,
            hint="take snapshots (st.distributed.Snapshot), and start the job again when it fails",
        )  # fmt: skip
    tolerant = args.min_ranks < args.ranks and has_fault_tolerance()

    def command(address: str) -> list[str]:
        whole_rank = [*rank, "--report", address, *script]
        return mpirun_command(args.ranks, whole_rank, tag=args.tag, tolerant=tolerant)

    return run_elastic(command, env, args.ranks, args.min_ranks if tolerant else args.ranks, args.restarts)
