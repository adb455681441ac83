"""Text files: the lines, by position."""

from __future__ import annotations

from stratal.data.bad_rows import BadRowError
from stratal.data.sources.lines import Rows, TextRecords
from stratal.data.sources.opening import Paths, checked_encoding


class TextLines(Rows):
    """The lines of text files, without their breaks; empty ones are left out.

    Raises: MissingSourceError; BadRowError for a line that is not of the encoding.
    """

    def __init__(self, paths: Paths, *, encoding: str = "utf-8") -> None:
        self.encoding = checked_encoding("TextLines", encoding)
        self.records = TextRecords("TextLines", paths)

    def row(self, path: str, number: int, record: bytes) -> str:
        """Return a line. Raises: BadRowError."""
        try:
            return record.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise BadRowError(path, number, None, str(error)) from None
