"""What sources share: optional libraries, and files that are not there or are something else."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stratal.base.errors import AttributeValueError, FormatError, MissingExtraError, StratalError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class MissingSourceError(StratalError, FileNotFoundError):
    """A file or folder to read from that is not there."""

    advice = "look at the path; relative ones begin at os.getcwd()"


def required(module: str, extra: str) -> Any:
    """Return a module of an extra. Raises: MissingExtraError naming the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install 'stratal[{extra}]'"
        raise MissingExtraError(f"data: needs {module.split('.')[0]}", got=str(error), hint=hint) from error


@contextmanager
def opening(path: str, what: str, *damaged: type[Exception]) -> Iterator[None]:
    """Turn what opening a file raises into our errors. Raises: MissingSourceError, FormatError."""
    try:
        yield
    except FileNotFoundError:
        raise MissingSourceError(f"{what}: {path} is not there", got="no such file or folder") from None
    except StratalError:
        raise
    except damaged as error:
        raise FormatError(f"{what}: {path} cannot be read", got=str(error) or type(error).__name__) from error


def paths_of(what: str, paths: Paths) -> list[str]:
    """Return paths as texts. Raises: AttributeValueError where there is none."""
    found = [os.fspath(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not found:
        raise AttributeValueError(f"{what}: takes at least one path", got="none")
    return found


def checked_columns(
    what: str, wanted: Sequence[str] | None, there: Sequence[str], hint: str = ""
) -> list[str]:
    """Return the columns to read, all where none are named. Raises: AttributeValueError for others, and where
    two have one name.
    """
    if len(set(there)) < len(there):
        twice = next(name for name in there if list(there).count(name) > 1)
        raise AttributeValueError(f"{what}: columns have different names", got=f"two {twice!r}", hint=hint)
    if wanted is None:
        return list(there)
    if unknown := [name for name in wanted if name not in there]:
        raise AttributeValueError(f"{what}: has no column {unknown[0]!r}", got=", ".join(there) or "none",
                                  hint=hint or "columns=[...] takes those there are")  # fmt: skip
    return list(wanted)


def checked_encoding(what: str, encoding: str) -> str:
    """Return an encoding in which line breaks and quotes are ASCII's. Raises: AttributeValueError."""
    try:
        as_in_ascii = "\n,\"".encode(encoding) == b'\n,"'
    except LookupError:
        as_in_ascii = False
    if not as_in_ascii:
        raise AttributeValueError(
            f"{what}: takes encodings in which line breaks are ASCII's", got=repr(encoding),
            hint="utf-8, latin-1, cp1252",
        )  # fmt: skip
    return encoding
