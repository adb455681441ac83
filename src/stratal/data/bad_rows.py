"""Rows that cannot be read: which file, row and column, and why."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import FormatError


class BadRowError(FormatError):
    """A row of a source that cannot be read.

    `row` counts rows of the file from 0, without a header and empty lines; `line`, from 1 as in editors, is
    where the row begins in a text file, None elsewhere. `column` is None for all of them.
    """

    advice = 'Pipeline(source, on_error="skip") leaves such rows out, "collect" notes them in bad_rows'

    def __init__(
        self, file: str, row: int, column: str | None, reason: str, line: int | None = None
    ) -> None:
        where = f"row {row}" if column is None else f"row {row}, column {column!r}"
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {where} cannot be read", got=reason)
        self.file, self.row, self.column, self.reason, self.line = file, row, column, reason, line

    def __reduce__(self) -> Any:
        """Let a worker process hand the error over."""
        return type(self), (self.file, self.row, self.column, self.reason, self.line)
