"""The command `stratal`: one module per subcommand, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from stratal.base.errors import StratalError
from stratal.base.version import VERSION

COMMANDS: Final = {
    "demo": "train a small network on real digits, save it, load it in a fresh process",
    "explain": "run a script and show the plan of every function it compiled",
    "profile": "run a script and say what its time goes into: the bottleneck first, then every kernel",
    "tune": "run a script, search for faster schedules of its kernels, keep the verdicts as records",
    "ops": "list the primitives: where each is, differentiable or not, compiled or not",
    "doctor": "show the machine, measured ceilings, the settings in force and the kernel cache",
}
INTERRUPTED: Final = 130  # what a shell reports for Ctrl-C


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser. Only the module of the command that is asked for is imported."""
    parser = argparse.ArgumentParser(
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
            module = importlib.import_module(f"stratal.cli.{name}")
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        importlib.import_module("stratal.base.settings")  # a bad variable is then told without a trace
        args = build_parser(given).parse_args(given)
        return int(args.run(args))
    except StratalError as error:
        print(f"stratal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstratal: interrupted; nothing was left half-written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
