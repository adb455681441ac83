"""Databases by any DBAPI connection: the rows of a table by position, or those of a query in order."""

from __future__ import annotations

import marshal
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError
from stratal.data.bad_rows import BadRowError
from stratal.data.shuffle import span_of
from stratal.data.sources.columns import Column, ColumnGroups, checked_positions

Connect = Callable[[], Any]
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")
_AT_ONCE: Final = 500  # rows of one statement: databases limit their parameters
_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":p{}"}
_AHEAD: Final = 1 << 11  # rows that are read at once by who reads rows in order
_AHEAD_BYTES: Final = 1 << 25  # of such rows that stay in memory


class _ChangedError(Exception):
    """Rows have other keys than there were: those asked for are read by themselves, and named."""


class SQLTable:
    """The rows of a table by position, in the order of `key`, a column without equal or missing values.

    `connect()` returns a DBAPI connection; each thread calls it once. The keys are read at once, rows when
    they are asked for. What `paramstyle` a connection has is asked of its module.
    Raises: AttributeValueError for names that are none, keys that are equal or missing; BadRowError for a row
    that is gone.
    """

    def __init__(
        self, connect: Connect, table: str, key: str, columns: Sequence[str] | None = None, *,
        paramstyle: str | None = None,
    ) -> None:  # fmt: skip
        for name in (table, key, *(columns or ())):
            if not _NAME.fullmatch(name):
                raise AttributeValueError("SQLTable: takes names of tables and columns", got=repr(name))
        self.table, self.key = table, key
        self.columns = None if columns is None else list(columns)
        self._connect, self._local = connect, threading.local()
        self._paramstyle = paramstyle or _paramstyle(self._connection())
        if self._paramstyle not in _MARKS:
            raise AttributeValueError("SQLTable: paramstyle is one of DBAPI's", got=repr(self._paramstyle))
        self._keys = self._all_keys()
        wanted = f"{table}.*" if self.columns is None else ", ".join(self.columns)
        names = _fetched(self._connection(), f"SELECT {wanted} FROM {table} WHERE 1 = 0", ())[0]
        self._names = names if self.columns is None else self.columns
        self._key_at = self._names.index(key) if key in self._names else len(self._names)
        self._wanted = wanted if key in self._names else f"{wanted}, {key}"
        starts = range(0, len(self), _AHEAD)
        sizes = [min(_AHEAD, len(self) - start) for start in starts]
        self._groups = ColumnGroups(self._group, sizes, list(dict.fromkeys(self._names)), _AHEAD_BYTES)
        self._follows = 0  # the position after the rows that were read last

    def _all_keys(self) -> Sequence[Any]:
        """Return all keys in order; where they are whole numbers without gaps, without reading each.

        What is taken for such shows when rows are read: their keys are compared.
        """
        asked = f"SELECT COUNT(*), COUNT({self.key}), MIN({self.key}), MAX({self.key}) FROM {self.table}"
        ((count, known, least, greatest),) = _fetched(self._connection(), asked, ())[1]
        if type(least) is type(greatest) is int and count == known == greatest - least + 1:
            return range(least, greatest + 1)
        rows = _fetched(self._connection(), f"SELECT {self.key} FROM {self.table} ORDER BY {self.key}", ())[1]
        keys = [key for (key,) in rows]
        missing = keys.count(None)
        if missing or len(set(keys)) < len(keys):
            raise AttributeValueError(
                f"SQLTable: {self.key} tells rows apart",
                got=f"{missing} missing" if missing else "equal values",
                hint="key= names another column, such as the primary key",
            )
        return keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for k in range(0, len(self), _AT_ONCE)
                for row in self.__getitems__(range(k, min(k + _AT_ONCE, len(self)))))  # fmt: skip

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows. Raises: BadRowError for one that is no longer there."""
        return [dict(zip(self._names, row, strict=False)) for row in self._rows(positions)]

    def columns_at(self, positions: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Return the columns of some rows, floats as batches have them; those that follow rows that were read
        before are read several thousand at a time. Raises: BadRowError for one that is no longer there.
        """
        span = span_of(asked := checked_positions(positions, len(self)))
        follows, self._follows = self._follows, -1 if span is None else span.stop
        if span is not None and span.start == follows:
            try:
                found = self._groups.columns_at(asked)
                dtype = as_dtype(float).np
                with np.errstate(over="ignore"):
                    return {n: c.astype(dtype) if _is_float(c) else c for n, c in found.items()}
            except _ChangedError:
                pass
        columns = zip(*rows, strict=True) if (rows := self._rows(positions)) else [()] * len(self._names)
        return dict(zip(self._names, columns, strict=False))

    def _group(self, number: int) -> dict[str, Column]:
        """Return the columns of rows that are read ahead. Raises: _ChangedError for other keys."""
        keys = self._keys[number * _AHEAD : (number + 1) * _AHEAD]
        rows = self._selected("BETWEEN {} AND {}", (keys[0], keys[-1]))
        if len(rows) != len(keys):
            raise _ChangedError
        columns = _packed(rows) or [_numbers(column) for column in zip(*rows, strict=True)]
        found = columns[self._key_at]
        if (found.tolist() if isinstance(found, np.ndarray) else list(found)) != list(keys):
            raise _ChangedError
        return dict(zip(self._names, columns, strict=False))

    def _rows(self, positions: Sequence[int]) -> list[Sequence[Any]]:
        """Return rows, with their key at the end where it is no column. Raises: BadRowError."""
        asked, at = checked_positions(positions, len(self)), self._key_at
        if (span := span_of(asked)) is not None and len(asked) > 1:
            keys = list(self._keys[span])
            rows = self._selected("BETWEEN {} AND {}", (keys[0], keys[-1]))
            if [row[at] for row in rows] == keys:
                return rows
        keys = [self._keys[k] for k in asked.tolist()]
        found: dict[Any, Sequence[Any]] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            found |= {row[at]: row for row in self._selected(f"IN ({', '.join(['{}'] * len(some))})", some)}
        for position, key in zip(asked.tolist(), keys, strict=True):
            if key not in found:
                raise BadRowError(self.table, position, self.key, f"no row has {key!r} any more")
        return [found[key] for key in keys]

    def _selected(self, condition: str, keys: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the rows whose key meets a condition, in the order of keys."""
        marked = condition.format(*(_MARKS[self._paramstyle].format(k) for k in range(1, len(keys) + 1)))
        query = f"SELECT {self._wanted} FROM {self.table} WHERE {self.key} {marked} ORDER BY {self.key}"
        named = {f"p{k}": key for k, key in enumerate(keys, 1)}
        parameters = named if self._paramstyle == "named" else list(keys)
        return _fetched(self._connection(), query, parameters)[1]

    def _connection(self) -> Any:
        """Return the connection of this thread."""
        if not hasattr(self._local, "connection"):
            self._local.connection = self._connect()
        return self._local.connection


class SQLQuery:
    """The rows of a query, in its order, for pipelines and loaders: an iterable.

    Each pass calls `connect()`, executes the query and fetches some rows at a time. The query says ORDER BY,
    or rows could come in another order each time. Raises: AttributeValueError where it does not.
    """

    def __init__(
        self, connect: Connect, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> None:
        if not re.search(r"\border\s+by\b", query, re.IGNORECASE):
            raise AttributeValueError(
                "SQLQuery: a query whose rows come in one order", got="no ORDER BY", hint="ORDER BY a key"
            )
        self._connect, self.query, self.parameters = connect, query, parameters

    def __iter__(self) -> Iterator[dict[str, Any]]:
        cursor = self._connect().cursor()
        cursor.execute(self.query, self.parameters)
        names = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(_AT_ONCE):
            yield from (dict(zip(names, row, strict=True)) for row in rows)


def _packed(rows: list[Any]) -> list[Column] | None:
    """Return the columns of rows of floats and of integers of 32 bits, each of one type; None for others.

    A row of them takes the same bytes as the first one where Python packs it (`marshal`, version 2): a tag
    for each tuple and number, which says how many bytes follow. Equal tags mean equal types in all rows.
    """
    try:
        data = np.frombuffer(marshal.dumps(rows, 2), np.uint8)[5:]
    except ValueError:  # of a type that is not packed
        return None
    at, places = 5, [0]
    for value in rows[0]:
        places.append(at)
        at += {float: 9, int: 5}.get(type(value), 1)
    if len(data) != at * len(rows):
        return None
    body = data.reshape(len(rows), at)
    tags = body[:, places]
    if (tags != tags[0]).any() or not set(tags[0].tolist()) <= set(b"(gi"):
        return None
    kinds = {ord("g"): (8, "<f8", np.float64), ord("i"): (4, "<i4", np.int64)}
    found: list[Column] = []
    for place in places[1:]:
        size, packed, dtype = kinds[int(body[0, place])]
        numbers = np.ascontiguousarray(body[:, place + 1 : place + 1 + size]).view(packed)
        found.append(numbers.reshape(-1).astype(dtype))
    return found


def _numbers(column: Sequence[Any]) -> Column:
    """Return a column of floats, or of integers of 64 bits, as an array; any other as it is."""
    kinds = set(map(type, column))
    if kinds == {float}:
        return np.array(column, np.float64)
    if kinds == {int}:
        with suppress(OverflowError):
            return np.array(column, np.int64)
    return column


def _is_float(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype == np.float64


def _fetched(connection: Any, query: str, parameters: Any) -> tuple[list[str], list[Any]]:
    cursor = connection.cursor()
    cursor.execute(query, parameters)
    return [column[0] for column in cursor.description], cursor.fetchall()


def _paramstyle(connection: Any) -> str:
    """Return how the module of a connection marks parameters. Raises: AttributeValueError."""
    name = type(connection).__module__.partition(".")[0]
    found = getattr(sys.modules.get(name), "paramstyle", None)
    if found is None:
        raise AttributeValueError(
            "SQLTable: the module of a connection says how it marks parameters",
            got=f"{name} without paramstyle",
            hint='paramstyle="qmark", "format", "numeric" or "named"',
        )
    return str(found)
