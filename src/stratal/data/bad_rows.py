"""Rows that cannot be read: which file, row and column, and why."""

from __future__ import annotations

from stratal.base.errors import FormatError


class BadRowError(FormatError):
    """A row of a source that cannot be read; rows are numbered from 0, `column` is None for all of them."""

    advice = 'Pipeline(source, on_error="skip") leaves such rows out, "collect" notes them in bad_rows'

    def __init__(self, file: str, row: int, column: str | None, reason: str) -> None:
        where = f"row {row}" if column is None else f"row {row}, column {column!r}"
        super().__init__(f"{file}: {where} cannot be read", got=reason)
        self.file, self.row, self.column, self.reason = file, row, column, reason
