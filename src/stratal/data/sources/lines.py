"""Text files of a record a line: found by an index of where records begin, read by position."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from stratal.base.errors import IndexOutOfRangeError
from stratal.data.bad_rows import BadRowError
from stratal.data.sources.opening import Paths, paths_of
from stratal.data.sources.unchanged import UnchangedFile, unchanged_file

Array = np.ndarray[Any, Any]
_BLOCK: Final = 1 << 22  # bytes looked at at once
_THREADS: Final = 4
_BLANKS: Final = b" \t\r"
_NEWLINE, _QUOTE, _RETURN = b"\n"[0], b'"'[0], b"\r"[0]


class TextRecords:
    """The records of files, as bytes, by position; empty lines are none.

    With `quotes`, a line break within double quotes is part of its record, as in CSV; with `blanks`, lines of
    spaces and tabs alone are empty. Files are read once to find the records, 16 bytes each.
    Its reads raise: ChangedSourceError where a file is no longer what it was.
    """

    def __init__(
        self, what: str, paths: Paths, *, quotes: bool = False, blanks: bool = False, skip: int = 0
    ) -> None:
        self.paths = paths_of(what, paths)
        self._files: list[UnchangedFile] = []
        self._spans: list[Array] = []
        self._lines: dict[int, tuple[int, int]] = {}  # of each file: a record's first byte and its line
        self.heads: list[list[bytes]] = []  # the first `skip` records of each file, which are no rows
        for path in self.paths:
            file = unchanged_file(what, path)
            spans = _records(file, quotes)
            if blanks:
                spans = _inked(file, spans)
            self._files.append(file)
            self.heads.append(file.read(spans[:skip].tolist()))
            self._spans.append(spans[skip:])
        self._ends = np.cumsum([len(s) for s in self._spans], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, positions: Sequence[int] | Array) -> list[tuple[str, int, bytes]]:
        """Return the path, the row in it and the bytes of some records. Raises: IndexOutOfRangeError."""
        asked, count = np.asarray(positions, np.int64), len(self)
        if len(asked) and not (-count <= asked.min() and asked.max() < count):
            raise IndexOutOfRangeError(f"a row of {count}", got=f"{asked.min()} to {asked.max()}")
        asked = np.where(asked < 0, asked + count, asked)
        files = np.searchsorted(self._ends, asked, side="right")
        rows = asked - np.array([0, *self._ends.tolist()])[files]
        found: list[tuple[str, int, bytes]] = [("", 0, b"")] * len(asked)
        for file in np.unique(files).tolist():
            at = np.flatnonzero(files == file)
            records = self._files[file].read(self._spans[file][rows[at]].tolist())
            for k, row, record in zip(at.tolist(), rows[at].tolist(), records, strict=True):
                found[k] = (self.paths[file], row, record)
        return found

    def line(self, path: str, row: int) -> int:
        """Return the line of a file at which one of its records begins, from 1."""
        file = self.paths.index(path)
        end = int(self._spans[file][row, 0])
        known, line = self._lines.get(file, (0, 1))  # of the record that was asked for last
        known, line = (known, line) if known <= end else (0, 1)
        for start in range(known, end, _BLOCK):
            line += self._files[file].between(start, min(start + _BLOCK, end)).count(b"\n")
        self._lines[file] = end, line
        return line

    @property
    def sizes(self) -> list[int]:
        """How many records each file has."""
        return [len(spans) for spans in self._spans]

    def text(self, file: int, start: int, stop: int) -> bytes:
        """Return some of a file's records that follow each other as they lie there, with empty lines."""
        spans = self._spans[file]
        return self._files[file].between(int(spans[start, 0]), int(spans[stop - 1, 1]))

    def between(self, file: int, start: int, stop: int) -> list[bytes]:
        """Return the bytes of records of a file that follow each other."""
        text, spans = self.text(file, start, stop), self._spans[file][start:stop]
        return [text[a:b] for a, b in (spans - spans[0, 0]).tolist()]


class Rows:
    """A data set of rows by position, made of the records of text files."""

    records: TextRecords

    def row(self, path: str, number: int, record: bytes) -> Any:
        """Return the row of a record."""
        raise NotImplementedError

    def numbered(self, path: str, number: int, record: bytes) -> Any:
        """Return the row of a record. Raises: BadRowError with the line of the file."""
        try:
            return self.row(path, number, record)
        except BadRowError as error:
            line = self.records.line(path, number)
            raise BadRowError(path, number, error.column, error.reason, line) from None

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.numbered(*self.records.at([int(index)])[0])

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return several rows."""
        return [self.numbered(*record) for record in self.records.at(positions)]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))


def _scanned(file: UnchangedFile, quotes: bool) -> Iterator[_Block]:
    """Yield the line breaks of each block, which threads look for."""

    def scan(start: int) -> _Block:
        before = min(start, 1)  # the byte before the block may be a carriage return
        text = file.between(start - before, min(start + _BLOCK, file.size))
        block = np.frombuffer(text, np.uint8)
        found = np.flatnonzero(block[before:] == _NEWLINE)
        marks = np.flatnonzero(block[before:] == _QUOTE) if quotes else ()
        odd = np.searchsorted(marks, found) % 2 == 1 if len(marks) else np.zeros(len(found), np.bool_)
        return _Block(found + start, odd, block[found + before - 1] == _RETURN, len(marks))

    starts = range(0, file.size, _BLOCK)
    if len(starts) < 2:
        yield from map(scan, starts)
        return
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        yield from threads.map(scan, starts)


class _Block(NamedTuple):
    """Line breaks in a block of a file: whether quotes before each in it are odd, whether it follows a
    carriage return; and how many quotes the block has.
    """

    breaks: Array
    odd: Array
    returns: Array
    quotes: int


def _inked(file: UnchangedFile, spans: Array) -> Array:
    """Return the spans that have more than blanks."""
    suspects = []
    for start in range(0, file.size, _BLOCK):
        block = np.frombuffer(file.between(start, min(start + _BLOCK, file.size)), np.uint8)
        low, high = np.searchsorted(spans[:, 0], [start, start + len(block)]).tolist()
        first = block[spans[low:high, 0] - start]
        suspects += (low + np.flatnonzero(np.isin(first, np.frombuffer(_BLANKS, np.uint8)))).tolist()
    records = file.read(spans[suspects].tolist()) if suspects else []
    blank = [k for k, record in zip(suspects, records, strict=True) if not record.strip(_BLANKS)]
    return np.delete(spans, blank, 0)


def _records(file: UnchangedFile, quotes: bool) -> Array:
    """Return where each record begins and ends, int64[n, 2], without its line break."""
    breaks, returns, inside = [], [], 0  # whether a block begins within quotes
    for found in _scanned(file, quotes):
        breaks.append(found.breaks[found.odd == inside])
        returns.append(found.returns[found.odd == inside])
        inside = (inside + found.quotes) % 2
    head, tail = file.read([(0, min(3, file.size)), (max(0, file.size - 1), file.size)])
    ends = np.concatenate([*breaks, np.array([file.size])]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    ends = ends - (np.concatenate([*returns, [tail == b"\r"]]).astype(np.bool_) & (ends > begins))
    if head == b"\xef\xbb\xbf":  # the mark of UTF-8
        begins[0] = 3
    return np.stack([begins, ends], 1)[ends > begins]
