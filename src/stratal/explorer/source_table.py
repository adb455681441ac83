"""Source lines as rows of a table: each line once, with the text of the files they are in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from stratal.base.errors import StratalError
from stratal.base.files import open_plain
from stratal.base.source import SourceLine

MOST_FILE_BYTES: Final = 400_000  # of one source file; a longer one is shown without its text
JSON = dict[str, Any]


class SourceTable:
    """Numbers source lines and their files in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._lines: Final[dict[SourceLine, int]] = {}
        self._files: Final[dict[str, int]] = {}

    def numbers(self, where: Iterable[SourceLine]) -> list[int]:
        """Return the rows of some lines."""
        return [self._number(line) for line in where]

    def _number(self, line: SourceLine) -> int:
        if line not in self._lines:
            self._files.setdefault(line.file, len(self._files))
            self._lines[line] = len(self._lines)
        return self._lines[line]

    def to_json(self, *, texts: bool = True) -> JSON:
        """Return the rows: `lines` are [file, line, function, scope], `files` have a name and their text.

        Without `texts` no file is read: of a plan that was saved, they may be others by now.
        """
        lines = [[self._files[n.file], n.line, n.function, list(n.scope)] for n in self._lines]
        return {"lines": lines, "files": [_file(name, texts) for name in self._files]}


def _file(name: str, texts: bool) -> JSON:
    """Return a file by its last name: where it lies on this machine is nobody else's business."""
    return {"name": Path(name).name, "text": _text(name) if texts else None}


def _text(name: str) -> str | None:
    try:
        file, status = open_plain(name, follow=True)
        with file:
            if status.st_size > MOST_FILE_BYTES:
                return None
            return file.read(MOST_FILE_BYTES).decode("utf-8")
    except (OSError, ValueError, StratalError):
        return None
