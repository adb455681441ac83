"""CSV files: rows by position, with types that are given, or found in the first rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stratal.base.errors import FormatError
from stratal.data.bad_rows import BadRowError
from stratal.data.sources.lines import Rows, TextRecords
from stratal.data.sources.opening import Paths, checked_columns, checked_encoding

Type = Callable[[str], Any]
_LOOKED_AT: Final = 1000  # rows that types are found in


class CSV(Rows):
    """The rows of CSV files (RFC 4180), as mappings of columns.

    The first line of each file names the columns, unless `names` does. `types` are functions of a cell's
    text, such as int, float and str; a column that is not named there has the first of int, float and str
    that takes all cells of the first 1,000 rows. Empty cells of floats are NaN.
    Raises: MissingSourceError, FormatError for no header or one that differs, BadRowError for a row with
    more or fewer cells, or a cell that its type does not take.
    """

    def __init__(
        self, paths: Paths, columns: Sequence[str] | None = None, *, names: Sequence[str] | None = None,
        types: Mapping[str, Type] | None = None, delimiter: str = ",", encoding: str = "utf-8",
    ) -> None:  # fmt: skip
        self._delimiter, self._encoding = delimiter, checked_encoding("CSV", encoding)
        self.records = TextRecords("CSV", paths, quotes=True, skip=0 if names is not None else 1)
        self._names = list(names) if names is not None else self._header()
        self.columns = checked_columns(self.records.paths[0], columns, self._names)
        self.types: dict[str, Type] = dict(types or {})
        checked_columns(self.records.paths[0], list(self.types), self._names)
        self.types |= self._found_types([c for c in self.columns if c not in self.types])

    def _header(self) -> list[str]:
        """Return the names of columns. Raises: FormatError where there are none, or files differ."""
        found: list[list[str]] = []
        for path, head in zip(self.records.paths, self.records.heads, strict=True):
            if not head:
                raise FormatError(f"CSV: {path} has a line that names its columns", got="an empty file",
                                  hint="names=[...] names them")  # fmt: skip
            try:
                found.append(self._cells(path, 0, head[0]))
            except BadRowError as error:
                raise FormatError(f"CSV: the header of {path} cannot be read", got=error.reason) from None
            shown = ", ".join(found[-1])
            if found[-1] != found[0]:
                raise FormatError(f"CSV: {path} has the columns of the files before", got=shown)
            if len(set(found[0])) < len(found[0]):
                raise FormatError("CSV: columns have different names", got=shown, hint="names=[...]")
        return found[0]

    def _found_types(self, columns: Sequence[str]) -> dict[str, Type]:
        """Return int, float or str for columns, by their first rows; rows that are bad do not count."""
        left = dict.fromkeys(columns, 0)
        kinds: list[Type] = [_whole, _number, str]
        for record in self.records.at(range(min(_LOOKED_AT, len(self.records)) if columns else 0)):
            try:
                cells = self._row_cells(*record)
            except BadRowError:
                continue
            for name in columns:
                while not _takes(kinds[left[name]], cells[name]):
                    left[name] += 1
        return {name: kinds[k] for name, k in left.items()}

    def _cells(self, path: str, number: int, record: bytes) -> list[str]:
        try:
            text = io.StringIO(record.decode(self._encoding), newline="")
            parsed = list(csv.reader(text, delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadRowError(path, number, None, str(error)) from None
        if len(parsed) != 1:
            raise BadRowError(path, number, None, "a double quote within a cell that has none around it")
        return parsed[0]

    def _row_cells(self, path: str, number: int, record: bytes) -> dict[str, str]:
        cells = self._cells(path, number, record)
        if len(cells) != len(self._names):
            raise BadRowError(path, number, None, f"{len(cells)} cells, {len(self._names)} columns")
        return dict(zip(self._names, cells, strict=True))

    def columns_at(self, positions: Sequence[int]) -> dict[str, list[Any]]:
        """Return the columns of some rows, parsed at once where that is safe. Raises: BadRowError."""
        records = self.records.at(positions)
        table = self._table([data for _, _, data in records])
        if table is not None:
            columns = dict(zip(self._names, zip(*table, strict=True), strict=True))
            try:
                return {name: list(map(self.types[name], columns[name])) for name in self.columns}
            except (ValueError, TypeError):
                pass  # the row says which cell
        rows = [self.row(*record) for record in records]
        return {name: [row[name] for row in rows] for name in self.columns}

    def _table(self, records: Sequence[bytes]) -> list[list[str]] | None:
        """Return the cells of records; None where they must be parsed one by one.

        Records without line breaks can only be joined by a stray quote, which shows in their number.
        """
        text = b"\n".join(records)
        if text.count(b"\n") != len(records) - 1 or b"\r" in text:
            return None
        try:
            lines = io.StringIO(text.decode(self._encoding), newline="")
            table = list(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError):
            return None
        return table if len(table) == len(records) and set(map(len, table)) == {len(self._names)} else None

    def row(self, path: str, number: int, record: bytes) -> dict[str, Any]:
        """Return the row of a record. Raises: BadRowError."""
        cells = self._row_cells(path, number, record)
        made = {}
        for name in self.columns:
            try:
                made[name] = self.types[name](cells[name])
            except (ValueError, TypeError) as error:
                raise BadRowError(path, number, name, str(error) or repr(cells[name])) from None
        return made


def _number(cell: str) -> float:
    """Return a cell as a float; NaN where it is empty."""
    if not cell.strip():
        return math.nan
    if "_" in cell:
        raise ValueError(f"{cell!r} is no number")
    return float(cell)


def _whole(cell: str) -> int:
    """Return a cell as an integer. Raises: ValueError, for `1_000`, too, which is Python's alone."""
    if "_" in cell:
        raise ValueError(f"{cell!r} is no integer")
    return int(cell)


def _takes(kind: Type, cell: str) -> bool:
    try:
        kind(cell)
    except ValueError:
        return False
    return True
