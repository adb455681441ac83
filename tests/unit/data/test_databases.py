"""Tables of databases: batches are what rows give one by one, and what need not be read is not."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import stratal as st
from stratal.base.errors import DTypeError, FormatError
from stratal.data import BadRowError, Pipeline, SQLQuery, SQLTable, default_collate
from stratal.data.collate import collated_columns

pytestmark = [pytest.mark.quick, pytest.mark.row("F21")]
MIXED: dict[str, list[Any]] = {
    "floats": [0.5, -0.0, float("inf"), 1e300, 2.25], "small": [1, -2, 3, 0, 5],
    "large": [1, 2**40, 3, -(2**62), 5],
    "both": [1, 2.5, 3, 4, 5], "texts": ["a", "b\0", "", "d", "\u00e9"],
}  # fmt: skip


@pytest.mark.parametrize("names", [["floats"], ["floats", "small"], ["small", "large"], [*MIXED]], ids=str)
@pytest.mark.parametrize("keys", ["INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY DESC", "INTEGER", "TEXT"])
def test_batches_of_a_database_are_those_of_its_rows(names: list[str], keys: str, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE t (id {keys}, {', '.join(names)})")
        rows = [[k + 7, *(MIXED[n][k % 5] for n in names)] for k in range(600)]
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * (len(names) + 1))})", rows)
    connection.close()
    table = SQLTable(lambda: sqlite3.connect(path), "t", "id", names)
    for dtype in ("float32", "float64"):
        st.set_default_dtype(dtype)
        try:
            for asked in (range(599), [3, 1, 3], [599]):
                batch = collated_columns(table.columns_at(asked))
                expected = default_collate(table.__getitems__(list(asked)))
                for name in names:
                    assert repr(batch[name]) == repr(expected[name])
                    assert list(map(repr, batch[name])) == list(map(repr, expected[name]))
        finally:
            st.set_default_dtype("float32")


def test_missing_values_of_a_database_are_none(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.sqlite") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x REAL)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(0, 1.5), (1, None), (2, 2.5)])
    table = SQLTable(lambda: sqlite3.connect(tmp_path / "t.sqlite"), "t", "id")
    assert list(table.columns_at([0, 1, 2])["x"]) == [1.5, None, 2.5]
    with pytest.raises(DTypeError, match=r"'x' is an array.*\n.*NoneType in sample 1"):
        next(iter(Pipeline(table).batch(3)))


def test_row_numbers_of_sqlite_are_keys_that_need_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    asked: list[str] = []

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.set_trace_callback(asked.append)
        return connection

    with sqlite3.connect(path) as connection:
        for name, kind in {"plain": "", "without": "WITHOUT ROWID"}.items():
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, x REAL) {kind}")
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(k, k / 2) for k in range(5, 25)])
        connection.execute("CREATE TABLE empty (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE VIEW v AS SELECT * FROM plain")
    for name, listed in {"plain": False, "main.plain": False, "without": True, "v": True}.items():
        asked.clear()
        table = SQLTable(connect, name, "ID" if name == "plain" else "id", ["x"])
        assert [q for q in asked if "SELECT id FROM" in q] != [] if listed else "SELECT id" not in str(asked)
        assert len(table) == 20 and table[0] == {"x": 2.5} and table[-1] == {"x": 12.0}
        assert [row["x"] for row in table.__getitems__([3, 0])] == [4.0, 2.5]
        assert sorted(v for b in Pipeline(table).shuffle().batch(7) for v in b["x"].tolist()) == [
            k / 2 for k in range(5, 25)
        ]  # fmt: skip
    assert len(SQLTable(connect, "empty", "id")) == 0
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM plain WHERE id = 9")
    assert [row["id"] for row in SQLTable(connect, "plain", "id")][3:6] == [8, 10, 11]
    with pytest.raises(BadRowError, match="row 4, column 'id'"):
        table.columns_at(range(20))


def test_what_a_database_refuses_is_an_error_about_the_query(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "t.sqlite", check_same_thread=False)

    with connect() as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x REAL)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(k, k / 2) for k in range(9)])
    for table, key, columns in (("u", "id", None), ("t", "key", None), ("t", "id", ["y"])):
        with pytest.raises(FormatError, match=r"(?s)SQLTable.*OperationalError: no such (table|column)"):
            SQLTable(connect, table, key, columns)
    table = SQLTable(connect, "t", "id")
    connection.execute("DROP TABLE t")
    with pytest.raises(FormatError, match="no such table"):
        table[3]
    fails = "SELECT n, CASE n WHEN 700 THEN abs(-9223372036854775807 - 1) END FROM (WITH RECURSIVE c(n) AS "
    fails += "(SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 2000) SELECT n FROM c) ORDER BY n"
    for query in ("selec x order by x", "select x from u order by x", fails):
        with pytest.raises(FormatError, match="SQLQuery"):
            list(SQLQuery(connect, query))
    with pytest.raises(ZeroDivisionError):
        list(SQLQuery(lambda: 1 / 0, "select 1 order by 1"))
