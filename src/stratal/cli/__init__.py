"""The command `stratal`: one module per subcommand, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import IO, Final

from stratal.base.errors import StratalError
from stratal.base.version import VERSION
from stratal.cli.outputs import check_arguments

COMMANDS: Final = {
    "demo": "train a small network on real digits, save it, load it in a fresh process",
    "train": "train what a TOML file says, without code: a table, images or texts",
    "predict": "say what a model of `stratal train` predicts for the rows of another file, as CSV",
    "explain": "run a script and say what it compiled: a summary, one kernel, or all plans and decisions",
    "view": "run a script and write one HTML page that shows how it was compiled, kernel by kernel",
    "profile": "run a script and say what its time goes into: the bottleneck first, then every kernel",
    "memory": "run a script and say what memory its programs take, and whether a budget suffices",
    "tune": "run a script, search for faster schedules of its kernels, keep the verdicts as records",
    "discover": "find rewrites from the records of ops and prove them, or prove those that ship again",
    "launch": "start several ranks of a script, which train together",
    "ops": "list the primitives: where each is, differentiable or not, compiled or not",
    "inspect": "show what an artefact of a frozen model holds: signature, content hash, plans",
    "plan-serving": "say how many workers a load of requests needs under its SLAs, and why",
    "serve": "serve the frozen models of a folder over HTTP, each request with a deadline",
    "loadtest": "put a load on a server, open loop, and show latencies and the share in time",
    "doctor": "show the machine, measured ceilings, settings and the kernel cache; with --cluster the links",
}
INTERRUPTED: Final = 130  # what a shell reports for Ctrl-C


class Parser(argparse.ArgumentParser):
    """A parser whose help is written, or fails to be: argparse drops the error."""

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        print(message, end="", file=file or sys.stderr)


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser. Only the module of the command that is asked for is imported."""
    parser = Parser(
        prog="stratal",
        description="Deep learning, the whole stack in Python.",
        epilog="`stratal COMMAND --help` says what a command takes. Start with `stratal demo`.",
    )
    parser.add_argument("--version", action="version", version=f"stratal {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((a for a in arguments if not a.startswith("-")), "")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            module = importlib.import_module(f"stratal.cli.{name.replace('-', '_')}")
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        importlib.import_module("stratal.base.settings")  # a bad variable is then told without a trace
        try:
            args = build_parser(given).parse_args(given)
            check_arguments(args)
            return int(args.run(args))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at exit, it is too late to say what is wrong
    except StratalError as error:
        if error.hint == error.advice and error.hint.startswith("help()"):  # that is for those in Python
            command = next((a for a in given if a in COMMANDS), "COMMAND")
            error.hint = f"`stratal {command} --help` says what it takes"
        error.where = tuple(line for line in error.where if not _started_us(line.file))
        print(f"stratal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstratal: interrupted; nothing was left half-written", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left to be written
        if not isinstance(error, BrokenPipeError):  # else the reader, `head` say, has seen enough
            what = error.filename or "cannot write the output"
            print(f"stratal: {what}: {error.strerror}", file=sys.stderr)
        return 1


def _started_us(file: str) -> bool:
    """Return whether a file is the script `stratal` that an installation makes, whose line tells nothing."""
    return os.path.realpath(file) == os.path.realpath(sys.argv[0])
