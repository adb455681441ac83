"""Databases by any DBAPI connection: the rows of a table by position, or those of a query in order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.data.bad_rows import BadRowError
from stratal.data.shuffle import span_of
from stratal.data.sources.columns import Column, array_of, checked_positions
from stratal.data.sources.opening import checked_columns
from stratal.data.sources.row_columns import columns_of_rows

Connect = Callable[[], Any]
_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")
_AT_ONCE: Final = 500  # rows of one statement: databases limit their parameters
_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}", "named": ":p{}"}


class SQLTable:
    """The rows of a table by position, in the order of `key`, a column without equal or missing values.

    `connect()` returns a DBAPI connection; each thread calls it once. The keys are read at once, rows when
    they are asked for. What `paramstyle` a connection has is asked of its module.
    Raises: AttributeValueError for names that are none, keys that are equal or missing; BadRowError for a row
    that is gone; FormatError for what the database refuses.
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
        dense = _row_numbers(self._connection(), table, key)
        self._keys: Sequence[Any] = self._all_keys() if dense is None else dense
        wanted = f"{table}.*" if self.columns is None else ", ".join(self.columns)
        names = _fetched(self._connection(), f"SELECT {wanted} FROM {table} WHERE 1 = 0", ())[0]
        self._names = names if self.columns is None else self.columns
        self._key_at = self._names.index(key) if key in self._names else len(self._names)
        self._wanted = wanted
        self._keyed = wanted if key in self._names else f"{wanted}, {key}"

    def _all_keys(self) -> list[Any]:
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
        return [dict(zip(self._names, map(array_of, row), strict=False)) for row in self._rows(positions)]

    def columns_at(self, positions: Sequence[int]) -> dict[str, Column]:
        """Return the columns of some rows, as batches have them. Raises: BadRowError for one that is gone."""
        columns = columns_of_rows(self._rows(positions)) or [()] * len(self._names)
        return dict(zip(self._names, columns, strict=False))

    def _rows(self, positions: Sequence[int]) -> list[Sequence[Any]]:
        """Return rows, perhaps with their key at the end where it is no column. Raises: BadRowError."""
        asked, at = checked_positions(positions, len(self)), self._key_at
        if (span := span_of(asked)) is not None and len(asked) > 1:
            keys = self._keys[span]
            dense = isinstance(keys, range)  # so many whole numbers between two are all of them
            wanted = self._wanted if dense else self._keyed
            rows = self._selected(wanted, "BETWEEN {} AND {}", (keys[0], keys[-1]))
            if len(rows) == len(keys) and (dense or [row[at] for row in rows] == keys):
                return rows
        keys = [self._keys[k] for k in asked.tolist()]
        found: dict[Any, Sequence[Any]] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            among = f"IN ({', '.join(['{}'] * len(some))})"
            found |= {row[at]: row for row in self._selected(self._keyed, among, some)}
        for position, key in zip(asked.tolist(), keys, strict=True):
            if key not in found:
                raise BadRowError(self.table, position, self.key, f"no row has {key!r} any more")
        return [found[key] for key in keys]

    def _selected(self, wanted: str, condition: str, keys: Sequence[Any]) -> list[Sequence[Any]]:
        """Return columns of the rows whose key meets a condition, in the order of keys."""
        marked = condition.format(*(_MARKS[self._paramstyle].format(k) for k in range(1, len(keys) + 1)))
        query = f"SELECT {wanted} FROM {self.table} WHERE {self.key} {marked} ORDER BY {self.key}"
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
    or rows could come in another order each time. Raises: AttributeValueError where it does not, and where
    two columns have one name; FormatError for what the database refuses.
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
        connection = self._connect()
        with _refused(connection, "SQLQuery"):
            cursor = connection.cursor()
            cursor.execute(self.query, self.parameters)
            names = [column[0] for column in cursor.description]
        checked_columns("SQLQuery", None, names, "AS gives a column another name")
        while rows := self._next_rows(connection, cursor):
            for row in _by_position(names, rows):
                yield dict(zip(names, map(array_of, row), strict=True))

    @staticmethod
    def _next_rows(connection: Any, cursor: Any) -> list[Any]:
        with _refused(connection, "SQLQuery"):
            return list(cursor.fetchmany(_AT_ONCE))


def _row_numbers(connection: Any, table: str, key: str) -> range | None:
    """Return the keys of a table of SQLite without reading each: where its row numbers are the key, and none
    is left out; else None.
    """
    if type(connection).__module__.partition(".")[0] != "sqlite3":
        return None
    schema, _, name = table.rpartition(".")
    named = f"'{name}', '{schema}'" if schema else f"'{name}'"
    primary = _fetched(connection, f"SELECT name, type FROM pragma_table_info({named}) WHERE pk", ())[1]
    if [(name.lower(), kind.upper()) for name, kind in primary] != [(key.lower(), "INTEGER")]:
        return None
    if _fetched(connection, f"SELECT 1 FROM pragma_index_list({named}) WHERE origin = 'pk'", ())[1]:
        return None  # a key beside the row numbers: DESC, WITHOUT ROWID
    parts = (f"(SELECT {what}) FROM {table})" for what in (f"MIN({key}", f"MAX({key}", "COUNT(*"))
    ((least, greatest, count),) = _fetched(connection, f"SELECT {', '.join(parts)}", ())[1]
    if not count:
        return range(0)
    return range(least, greatest + 1) if greatest - least + 1 == count else None


def _fetched(connection: Any, query: str, parameters: Any) -> tuple[list[str], list[Any]]:
    with _refused(connection, "SQLTable"):
        cursor = connection.cursor()
        cursor.execute(query, parameters)
        names = [column[0] for column in cursor.description]
        return names, _by_position(names, cursor.fetchall())


def _by_position(names: Sequence[str], rows: Sequence[Any]) -> list[Any]:
    """Return rows with their values in the order of columns, also those a connection makes mappings of.

    Raises: DTypeError for rows that are something else.
    """
    if not rows:
        return []
    first = rows[0]
    if isinstance(first, Mapping):
        if not set(names) - set(first):
            return [tuple(map(row.__getitem__, names)) for row in rows]
    elif not isinstance(first, str | bytes) and hasattr(first, "__getitem__") and len(first) == len(names):
        return list(rows)
    raise DTypeError(
        "SQL: rows of a connection are sequences or mappings of their columns", got=f"{first!r:.60}",
        hint="connect() returns a connection without a row factory",
    )  # fmt: skip


@contextmanager
def _refused(connection: Any, what: str) -> Iterator[None]:
    """Turn the errors of a connection's module into ours. Raises: FormatError."""
    module = sys.modules.get(type(connection).__module__.partition(".")[0])
    kind = getattr(module, "Error", None)  # DBAPI's name for all of them
    try:
        yield
    except Exception as error:
        if not isinstance(kind, type) or not isinstance(error, kind):
            raise
        got = f"{type(error).__name__}: {error}"
        hint = "look at the names of tables and columns, and at the database"
        raise FormatError(f"{what}: the database answers a query", got=got, hint=hint) from error


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
