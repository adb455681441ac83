"""CSV files: rows by position, with types that are given, or found in the first rows."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import FormatError
from stratal.data.bad_rows import BadRowError
from stratal.data.shuffle import span_of
from stratal.data.sources.columns import CACHE_BYTES, Column, ColumnGroups, checked_positions
from stratal.data.sources.csv_columns import (
    FLOATS,
    REFUSALS,
    Type,
    arrow_columns,
    cell_columns,
    cells_of,
    found_type,
    text_cells,
    truth,
)
from stratal.data.sources.lines import Rows, TextRecords
from stratal.data.sources.opening import Paths, checked_columns, checked_encoding

_LOOKED_AT: Final = 1000  # rows that types are found in
_AHEAD: Final = 3  # groups that threads parse while others are read
_GROUP: Final = 1 << 14  # rows that are parsed at once


class _ByRowsError(Exception):
    """A group has a row that cannot be parsed with the others."""


class CSV(Rows):
    """The rows of CSV files (RFC 4180), as mappings of columns.

    The first line of each file names the columns, unless `names` does. `types` are functions of a cell's
    text, such as int, float and str; bool reads true and false, 1 and 0. A column that is not named there has
    the first of int, float and str that takes all cells of the first 1,000 rows. Empty cells of floats are
    NaN; whole numbers beside empty cells are floats, too, and refused where those would round them.
    Batches of columns are parsed by groups of rows, which stay in memory up to `cache_bytes`.
    Raises: MissingSourceError, FormatError for no header or one that differs, BadRowError for a row with
    more or fewer cells, or a cell that its type does not take.
    """

    def __init__(
        self, paths: Paths, columns: Sequence[str] | None = None, *, names: Sequence[str] | None = None,
        types: Mapping[str, Type] | None = None, delimiter: str = ",", encoding: str = "utf-8",
        cache_bytes: int = CACHE_BYTES,
    ) -> None:  # fmt: skip
        self._delimiter, self._encoding = delimiter, checked_encoding("CSV", encoding)
        self.records = TextRecords("CSV", paths, quotes=True, skip=0 if names is not None else 1)
        self._names = list(names) if names is not None else self._header()
        self._advice = _delimited_otherwise(self._names, delimiter)
        self.columns = checked_columns(self.records.paths[0], columns, self._names, self._advice)
        given = {name: truth if kind in (bool, np.bool_) else kind for name, kind in (types or {}).items()}
        self.types: dict[str, Type] = given  # bool("False") is True
        checked_columns(self.records.paths[0], list(self.types), self._names, self._advice)
        self._found = self._found_types([c for c in self.columns if c not in self.types])
        self.types |= self._found
        chosen = {name: self.types[name] for name in self.columns}
        self._parser = _Parser(self.records, self._names, chosen, delimiter, encoding)
        row_bytes = sum(4 if kind in FLOATS else 64 for kind in chosen.values())
        self._fits = row_bytes * len(self) <= cache_bytes
        self._cache_bytes = cache_bytes
        self._groups, self._float = self._grouped(), as_dtype(float)

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
        records = self.records.at(range(min(_LOOKED_AT, len(self.records)) if columns else 0))
        texts = [data for _, _, data in records]
        cells = cells_of(texts, len(self._names), self._delimiter, self._encoding)
        if cells is None:
            table = []
            for record in records:
                with suppress(BadRowError):
                    table.append(self._row_cells(*record))
            return {name: found_type([row[name] for row in table]) for name in columns}
        by_name = dict(zip(self._names, cells, strict=True))
        return {name: found_type(by_name[name]) for name in columns}

    def _cells(self, path: str, number: int, record: bytes) -> list[str]:
        try:
            text = io.StringIO(record.decode(self._encoding), newline="")
            parsed = list(csv.reader(text, delimiter=self._delimiter, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadRowError(path, number, None, str(error)) from None
        if len(parsed) != 1:
            told = "a double quote within a cell that has none around it"
            if '"' not in text.getvalue():
                told = "a carriage return alone, which ends no line: lines end in LF or CR LF"
            raise BadRowError(path, number, None, told)
        return parsed[0]

    def _row_cells(self, path: str, number: int, record: bytes) -> dict[str, str]:
        cells = self._cells(path, number, record)
        if len(cells) != len(self._names):
            told = f"{len(cells)} cells, {len(self._names)} columns"
            raise BadRowError(path, number, None, f"{told}; {self._advice}" if self._advice else told)
        return dict(zip(self._names, cells, strict=True))

    def columns_at(self, positions: Sequence[int]) -> dict[str, Column]:
        """Return the columns of some rows, as batches have them. Raises: BadRowError.

        Text is parsed in groups of rows that stay in memory. Scattered rows of a file that does not fit there
        are parsed one batch at a time.
        """
        asked = checked_positions(positions, len(self))
        if self._float is not (now := as_dtype(float)):  # of columns that are in memory
            self._groups, self._float = self._grouped(), now
        if self._fits or (len(asked) > 1 and span_of(asked) is not None):
            try:
                return self._groups.columns_at(asked)
            except _ByRowsError:
                pass
        records = self.records.at(asked)
        found = self._parser.columns([data for _, _, data in records])
        if found is not None:
            return found
        rows = [self.numbered(*record) for record in records]
        return {name: [row[name] for row in rows] for name in self.columns}

    def _grouped(self) -> ColumnGroups:
        """Return the rows in groups of one file each, which are parsed at once."""
        spans = [
            (file, start, min(start + _GROUP, count))
            for file, count in enumerate(self.records.sizes)
            for start in range(0, count, _GROUP)
        ]
        parser, by_rows = self._parser, set[int]()  # nothing here refers to `self`: no cycle

        def read(group: int) -> Mapping[str, Column]:
            if group not in by_rows:
                if (found := parser.span(*spans[group])) is not None:
                    return found
                by_rows.add(group)
            raise _ByRowsError

        sizes, cores = [stop - start for _, start, stop in spans], os.cpu_count() or 1
        ahead = min(_AHEAD, cores) if cores > 1 else 0  # one is parsed while another's columns are made
        return ColumnGroups(read, sizes, self.columns, self._cache_bytes, ahead)

    def row(self, path: str, number: int, record: bytes) -> dict[str, Any]:
        """Return the row of a record. Raises: BadRowError."""
        cells = self._row_cells(path, number, record)
        made = {}
        for name in self.columns:
            try:
                made[name] = self.types[name](cells[name])
            except REFUSALS as error:
                told = str(error)
                reason = told if repr(cells[name]) in told else f"{cells[name]!r}: {told}"
                if name in self._found:
                    reason += f"; the first {_LOOKED_AT:,} rows are numbers: types={{{name!r}: function}}"
                raise BadRowError(path, number, name, reason) from None
        return made


def _delimited_otherwise(names: Sequence[str], delimiter: str) -> str:
    """Return what to do about a header that looks delimited by something else; else nothing."""
    found = [mark for mark in ";\t|," if mark != delimiter and mark in names[0]] if len(names) == 1 else []
    return f"the header has {found[0]!r}: delimiter={found[0]!r}" if found else ""


class _Parser(NamedTuple):
    """Parses records at once, into the columns that have types; None where they are read one by one."""

    records: TextRecords
    names: list[str]
    types: dict[str, Type]
    delimiter: str
    encoding: str

    def span(self, file: int, start: int, stop: int) -> dict[str, Column] | None:
        """Return the columns of rows of a file that follow each other."""
        text = self.records.text(file, start, stop)
        if b'"' in text:
            return self.columns(self.records.between(file, start, stop))
        if b"\r" in text and b"\r" in (text := text.replace(b"\r\n", b"\n")):
            return None
        if codecs.lookup(self.encoding).name in ("utf-8", "ascii"):
            found = arrow_columns(text, stop - start, self.names, self.types, self.delimiter)
            if found is not None:
                return found
        return self._typed(text_cells(text, stop - start, len(self.names), self.delimiter, self.encoding))

    def columns(self, records: Sequence[bytes]) -> dict[str, Column] | None:
        """Return the columns of records."""
        return self._typed(cells_of(records, len(self.names), self.delimiter, self.encoding))

    def _typed(self, cells: Sequence[Sequence[str]] | None) -> dict[str, Column] | None:
        return None if cells is None else cell_columns(dict(zip(self.names, cells, strict=True)), self.types)
