"""Files that a command writes: never one that it reads, and no two of them the same."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from stratal.base.errors import AttributeValueError

OUTPUTS: Final = ("json", "output", "out", "svg", "dot", "trace", "roofline", "save", "log", "state", "db")
INPUTS: Final = ("script", "arguments", "subject", "config", "model", "file", "folder", "diff", "rules",
                 "key_file", "ca", "api_keys", "tls_cert", "tls_key")  # fmt: skip


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Check that no output would replace an input or another output, by whatever names and links.

    What is written as it comes, such as a pipe or /dev/null, replaces nothing. Raises: AttributeValueError.
    """
    read = [path for path in inputs if _is_file(path)]
    for k, output in enumerate(outputs):
        if (taken := next((path for path in read if _same(output, path)), None)) is not None:
            raise AttributeValueError(
                "an output would replace a file that is read", got=f"{output}, which is {taken}",
                hint="write to another file; nothing was run, nothing was written",
            )  # fmt: skip
        if any(_same(output, other) for other in outputs[:k]):
            raise AttributeValueError("two outputs would be one file", got=str(output),
                                      hint="give each a name of its own")  # fmt: skip


def check_arguments(args: argparse.Namespace) -> None:
    """Check the outputs of a command line; a script's own arguments count as files that it reads.

    Raises: AttributeValueError.
    """
    given = vars(args)
    inputs: list[Path] = []
    for name in INPUTS:
        value = given.get(name)
        inputs += map(Path, value) if isinstance(value, list) else [value] if isinstance(value, Path) else []
    check_outputs([given[name] for name in OUTPUTS if isinstance(given.get(name), Path)], inputs)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # an argument that is no path: too long, or with a NUL
        return False


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths name one file; without one there, whether they would."""
    try:
        if one.exists() and other.exists():
            return one.samefile(other) and (one.is_file() or one.is_dir())
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):
        return False
