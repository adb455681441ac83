"""JSON lines: a JSON value on each line, by position."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stratal.data.bad_rows import BadRowError
from stratal.data.sources.columns import array_of
from stratal.data.sources.lines import Rows, TextRecords
from stratal.data.sources.opening import Paths


class JSONLines(Rows):
    """The values of JSON lines files; with `columns`, objects with these alone. Blank lines are none.

    Lists of numbers in objects are arrays: int64, or float64 where one is no whole number.

    Raises: MissingSourceError; BadRowError for a line that is no JSON, or an object without a column.
    """

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        self.records = TextRecords("JSONLines", paths, blanks=True)
        self.columns = None if columns is None else list(columns)

    def row(self, path: str, number: int, record: bytes) -> Any:
        """Return the value of a line. Raises: BadRowError."""
        try:
            value = json.loads(record.decode("utf-8", "surrogatepass"))  # else it guesses UTF-16 and -32
        except (ValueError, RecursionError) as error:
            raise BadRowError(path, number, None, str(error)) from None
        if self.columns is None:
            return array_of(value) if isinstance(value, dict) else value  # a list is a row without names
        for name in self.columns:
            if not isinstance(value, dict) or name not in value:
                raise BadRowError(path, number, name, "the line is no object with this column")
        return {name: array_of(value[name]) for name in self.columns}
