"""What the commands share: a `--json FILE` option, and how tables look."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratal.formats.files import write_atomically


def add_json_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Give a command `--json FILE`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help=f"write {what} to FILE as JSON")


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
