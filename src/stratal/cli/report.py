"""What the commands share: a `--json FILE` option, and how tables look."""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratal.base.errors import AttributeValueError, FormatError
from stratal.formats.files import write_atomically
from stratal.tensor.lazy import flushing


def add_json_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Give a command `--json FILE`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help=f"write {what} to FILE as JSON")


def whole(least: int) -> Callable[[str], int]:
    """Return what reads an option that is a whole number from `least` on."""

    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"takes a whole number from {least} on; got {text!r}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """Return an option that is a time."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0; got {text!r}")
    return found


def named(names: Collection[str], asked: Collection[str], what: str) -> list[str]:
    """Return the names that contain what is asked for, all where nothing is. Raises: AttributeValueError."""
    unknown = [part for part in asked if not any(part in name for name in names)]
    if unknown and names:
        raise AttributeValueError(
            f"there is no {what} whose name contains {' or '.join(map(repr, unknown))}",
            got=", ".join(sorted(set(names))[:8]) + (", .." if len(set(names)) > 8 else ""),
            hint="leave the name out to see them all",
        )
    return [name for name in names if not asked or any(part in name for part in asked)]


def write_json(path: Path | None, value: Any) -> None:
    """Write what `--json` asked for, if it did. Raises: FileWriteError."""
    if path is not None:
        write_atomically(path, [(json.dumps(value, indent=2) + "\n").encode()])


def table(title: str, *columns: str, right: tuple[int, ...] = ()) -> Table:
    """Return an empty table; the columns numbered in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for k, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if k in right else "left"
        made.add_column(column, justify=justify, header_style="dim", no_wrap=k in right)
    return made


def cell(text: str, style: str = "") -> Text:
    """Return text for a table, cut short where the terminal is narrow; numbers beside it stay whole."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def console() -> Console:
    """Return the console to print results on; plain, and as wide as needed, where it is no terminal."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=160)


NOTHING: Final = "The script compiled nothing: results are computed when they are read, as in print(loss)."


# -- scripts -------------------------------------------------------------------------------------------------
def check_script(script: Path) -> None:
    """Raise FormatError where there is no such script."""
    if not script.is_file():
        raise FormatError("there is no such script", got=str(script), hint="give the path of a Python file")


def run_script(script: Path, arguments: list[str], *, pending: bool = False) -> int:
    """Run a script as `python FILE.py` would; return its exit status. Its error is printed, not raised.

    With `pending`, results that its variables hold at the end and that it has not read are computed, too.
    Raises: FormatError when the file cannot be read; KeyboardInterrupt.
    """
    check_script(script)
    before: list[Any] = [sys.argv, sys.path, sys.stdout, sys.stderr]
    spare = [_copied(fd) for fd in (1, 2)]
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *sys.path]
    try:
        variables = runpy.run_path(str(script), run_name="__main__")
        if pending:
            flushing.flush_all()
        del variables
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        _print_trace(error, str(script))
        return 1  # what ran before it may tell why
    finally:
        sys.argv, sys.path, sys.stdout, sys.stderr = before
        sys.stdout, sys.stderr = map(_opened, (sys.stdout, sys.stderr), spare)
    return 0


def _copied(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError:  # closed before we started
        return os.open(os.devnull, os.O_WRONLY)


def _opened(stream: Any, spare: int) -> Any:
    """Return a stream, anew on a copy of its descriptor where the script closed it."""
    if stream is None or stream.closed:
        return os.fdopen(spare, "w")
    os.close(spare)
    return stream


def _print_trace(error: Exception, script: str) -> None:
    """Print a script's error as Python would have, without the frames that led into the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace or error.__traceback__))
