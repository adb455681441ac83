"""Sources and column types: each source gives the same values, in rows and in batches however made."""

from __future__ import annotations

import datetime
import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.data import (
    CSV,
    ArrowFile,
    BadRowError,
    DataLoader,
    Frame,
    JSONLines,
    Parquet,
    Pipeline,
    SQLQuery,
    SQLTable,
)

pytestmark = [pytest.mark.quick, pytest.mark.row("F21")]
NUMBERS = {
    **{f"{sign}int{bits}": [0, 3, 2 ** (bits - (sign == "")) - 1]
       for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": [0.5, 0.1, 1e-30], "float64": [0.5, 0.1, 1e300], "bool": [True, False, True],
}  # fmt: skip
TYPES: dict[str, list[Any]] = {
    **NUMBERS,
    "text": ["a", "", "\u00e9"],
    **{f"pairs of {kind}": [[v[0], v[1]], [v[2], v[0]], [v[1], v[2]]] for kind, v in NUMBERS.items()},
    "matrices": [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]],
    "ragged": [[1, 2], [], [3]],
    "texts": [["a", "b"], ["c", "d"], ["e", ""]],
}
TYPED = ("parquet", "arrow", "table", "from arrow", "polars")  # the others have Python's numbers
SOURCES = (*TYPED, "pandas", "json", "sqlite", "query")


def _arrow_type(name: str) -> Any:
    pa = pytest.importorskip("pyarrow")
    if name.startswith("pairs of "):
        return pa.list_(_arrow_type(name.removeprefix("pairs of ")))
    known = {"bool": pa.bool_(), "text": pa.string(), "matrices": pa.list_(pa.list_(pa.int64())),
             "ragged": pa.list_(pa.int32()), "texts": pa.list_(pa.string())}  # fmt: skip
    return known[name] if name in known else pa.from_numpy_dtype(name)


def _source(kind: str, folder: Path, name: str, values: list[Any]) -> Any:
    """Return a source of one column `a`, in groups of 2 rows where it has groups."""
    if kind in ("json", "sqlite", "query", "pandas"):
        return _untyped(kind, folder, values)
    pa = pytest.importorskip("pyarrow")
    return _table_source(kind, folder, pa.table({"a": pa.array(values, _arrow_type(name))}))


def _table_source(kind: str, folder: Path, table: Any) -> Any:
    pa, path = pytest.importorskip("pyarrow"), folder / "a"
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)
        return Parquet(path)
    if kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, 2)
        return ArrowFile(path)
    if kind == "from arrow":
        pytest.importorskip("pandas")
        return Frame(table.to_pandas())
    return Frame(pytest.importorskip("polars").from_arrow(table) if kind == "polars" else table)


def _untyped(kind: str, folder: Path, values: list[Any]) -> Any:
    if kind == "pandas":
        return Frame(pytest.importorskip("pandas").DataFrame({"a": values}))
    if kind == "json":
        (folder / "a").write_text("\n".join(json.dumps({"a": v}) for v in values))
        return JSONLines(folder / "a")
    lists = isinstance(values[0], list)
    connection = sqlite3.connect(folder / "a")
    connection.execute(f"CREATE TABLE t (k INTEGER PRIMARY KEY, a {'json' if lists else ''})")
    given = [(k, json.dumps(v) if lists else v) for k, v in enumerate(values)]
    connection.executemany("INSERT INTO t VALUES (?, ?)", given)
    connection.commit()
    sqlite3.register_converter("json", json.loads)

    def connect() -> Any:
        return sqlite3.connect(folder / "a", detect_types=sqlite3.PARSE_DECLTYPES)

    if kind == "query":
        return SQLQuery(connect, "SELECT a FROM t ORDER BY k")
    return SQLTable(connect, "t", "k", ["a"])


def _plain(value: Any) -> Any:
    """Return a value without arrays and tensors: lists of Python's numbers."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _same(x: Any) -> Any:
    return x


def _expected(kind: str, name: str, values: list[Any]) -> Any:
    """Return a column as an array: of its own type where a source knows it, else of Python's numbers."""
    inner = name.removeprefix("pairs of ")
    if kind not in TYPED:
        scalars = kind not in ("pandas", "from arrow") and inner == name
        inner = {"f": "float32" if scalars else "float64", "i": "int64", "u": "int64"}.get(
            inner[0] if inner != "uint64" else "", inner
        )
    return np.array(values, inner if inner in NUMBERS else None)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_column_of_any_type_is_the_same_from_any_source_and_in_any_batches(
    kind: str, name: str, tmp_path: Path
) -> None:
    values = TYPES[name]
    if kind in ("sqlite", "query") and name == "uint64":
        pytest.skip("SQLite's integers have a sign")
    source = _source(kind, tmp_path, name, values)
    rows = [_plain(row["a"]) for row in source]
    rounded = kind in TYPED and name.endswith("float32")
    assert rows == (_expected(kind, name, values).tolist() if rounded else values)
    if name == "ragged":
        for padded in (Pipeline(source), Pipeline(source).map(_same)):
            (batch,) = padded.batch(3, pad={"a": -1})
            assert batch["a"].tolist() == [[1, 2], [-1, -1], [3, -1]]
            assert np.asarray(batch["a"]).dtype.kind == "i"
        with pytest.raises(st.StratalError, match="'a'"):
            list(Pipeline(source).batch(3))
    for size in (1, 2, 3) if name not in ("ragged", "texts") else ():
        for made in (
            Pipeline(source).batch(size), Pipeline(source).map(_same).batch(size), DataLoader(source, size)
        ):  # fmt: skip
            for k, batch in enumerate(made):
                part = values[k * size : k * size + size]
                if name == "text":
                    assert batch["a"] == part
                    continue
                want = _expected(kind, name, part)
                assert batch["a"].shape == want.shape and batch["a"].tolist() == want.tolist()
                python = kind not in TYPED and (name.endswith("uint64") or kind in ("sqlite", "query"))
                assert python or np.asarray(batch["a"]).dtype == want.dtype  # uint64 where int64 has no room


def _csv(folder: Path, text: str, **options: Any) -> CSV:
    (folder / "a.csv").write_bytes(text.encode())
    return CSV(folder / "a.csv", **options)


def _merged(source: Any) -> list[Any]:
    """Return batches of all rows: of columns, of rows, and of a loader."""
    size = 1 << 20
    pipeline = Pipeline(source)
    whole = (pipeline.batch(size), pipeline.map(_same).batch(size), DataLoader(source, size))
    return [batch["a"] for made in whole for batch in made]


LARGE, LARGER = (1 << 53) + 1, (1 << 64) - 1


def test_whole_numbers_of_two_types_never_become_floats(tmp_path: Path) -> None:
    csv = _csv(tmp_path, "a\n" + f"{LARGE}\n" * (1 << 14) + f"{LARGER}\n")  # parsed in two groups
    for batch in _merged(csv):
        assert batch.tolist()[-2:] == [LARGE, LARGER]
    assert next(iter(Pipeline(csv).batch(2)))["a"].tolist() == [LARGE, LARGE]
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, value, kind in (("i", LARGE, pa.int64()), ("u", LARGER, pa.uint64()), ("n", -1, pa.int8())):
        pq.write_table(pa.table({"a": pa.array([value], kind)}), tmp_path / name)
    for batch in _merged(Parquet([tmp_path / "i", tmp_path / "u"])):
        assert batch.tolist() == [LARGE, LARGER]
    for batch in _merged(Parquet([tmp_path / "i", tmp_path / "n"])):
        assert batch.tolist() == [LARGE, -1]
    with pytest.raises(DTypeError, match=r"in the field 'a'\n  got:   -1 to 18446744073709551615"):
        list(Pipeline(Parquet([tmp_path / "u", tmp_path / "n"])).batch(2))


def test_a_missing_value_is_refused_in_a_batch_of_any_size(tmp_path: Path) -> None:
    for kind in ("parquet", "table", "polars", "query", "json"):
        (folder := tmp_path / kind).mkdir()
        source = _source(kind, folder, "int64", [None, None])
        for size in (1, 2):
            for made in (Pipeline(source).batch(size), Pipeline(source).map(_same).batch(size)):
                with pytest.raises(DTypeError, match=r"the field 'a' is an array(.|\n)*NoneType in sample 0"):
                    list(made)


def test_columns_have_names_of_their_own(tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame([[1, 3], [2, 4]], columns=["a", "a"])
    with pytest.raises(AttributeValueError, match="different names\n  got:   two 'a'"):
        Frame(frame)
    with pytest.raises(FormatError, match="different names"):
        _csv(tmp_path, "a,a\n1,2\n")
    with pytest.raises(AttributeValueError, match="different names"):
        _csv(tmp_path, "1,2\n", names=["a", "a"])
    query = SQLQuery(lambda: sqlite3.connect(":memory:"), "SELECT 1 AS a, 2 AS a ORDER BY 1")
    with pytest.raises(AttributeValueError, match=r"different names(.|\n)*AS gives"):
        list(query)


def _named(cursor: Any, row: Any) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("factory", [None, sqlite3.Row, _named])
def test_rows_of_a_database_are_values_whatever_a_connection_makes_of_them(
    factory: Any, tmp_path: Path
) -> None:
    rows = [{"k": "a", "x": 2.5, "n": 1}, {"k": "b", "x": 3.5, "n": 2}, {"k": "c", "x": -1.0, "n": 5}]
    for key, kind in (("k", "TEXT"), ("n", "INTEGER")):
        with sqlite3.connect(tmp_path / kind) as connection:
            types = {"k": "TEXT", "x": "REAL", "n": "INTEGER"}
            columns = ", ".join(f"{c} {t}{' PRIMARY KEY' * (c == key)}" for c, t in types.items())
            connection.execute(f"CREATE TABLE t ({columns})")
            connection.executemany("INSERT INTO t VALUES (:k, :x, :n)", rows)

        def connect(path: Path = tmp_path / kind) -> Any:
            made = sqlite3.connect(path)
            made.row_factory = factory
            return made

        assert list(SQLQuery(connect, f"SELECT * FROM t ORDER BY {key}")) == rows
        for columns_ in (None, ["k", "x", "n"], ["x"]):
            table = SQLTable(connect, "t", key, columns_)
            for k in (0, 2):
                assert table[k] == {c: rows[k][c] for c in columns_ or rows[0]}
            (batch,) = Pipeline(table).batch(3)
            assert batch["x"].tolist() == [2.5, 3.5, -1.0]

    def scalars() -> Any:
        made = sqlite3.connect(tmp_path / "TEXT")
        made.row_factory = lambda cursor, row: row[0]
        return made

    with pytest.raises(DTypeError, match="sequences or mappings"):
        list(SQLQuery(scalars, "SELECT k, x FROM t ORDER BY k"))


@pytest.mark.parametrize("size", [1, 2])
def test_cells_that_a_type_does_not_take_are_bad_rows_whatever_it_raises(
    size: int, tmp_path: Path
) -> None:
    words = {"1": 10, "5": 50}
    for cells, kind, want in (
        ("1 300 x 5", np.int8, [1, 5]), ("1 x 5", Decimal, [Decimal(1), Decimal(5)]),
        ("1 2 5", words.__getitem__, [10, 50]), ("1 0 5", lambda cell: 1 / int(cell), [1.0, 0.2]),
        ("True false yes 1 FALSE ", bool, [True, False, True, False]), ("0 2", np.bool_, [False]),
    ):  # fmt: skip
        source = _csv(tmp_path, "a,b\n" + "".join(f"{c},0\n" for c in cells.split(" ")), types={"a": kind})
        rows = Pipeline(source, on_error="collect")
        found = [row["a"] for row in rows]
        assert found == want
        assert [bad.column for bad in rows.bad_rows] == ["a"] * (len(cells.split(" ")) - len(want))
        if kind is not Decimal:  # which no batch takes
            with pytest.raises(BadRowError, match="column 'a' cannot be read"):
                list(Pipeline(source).batch(size))


def test_a_line_that_a_carriage_return_ends_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="a carriage return alone"):
        _csv(tmp_path, "a,b\r1,2\r3,4\r")
    with pytest.raises(BadRowError, match="a carriage return alone"):
        list(_csv(tmp_path, "a,b\n1,2\r3,4\n"))
    with pytest.raises(BadRowError, match="a double quote within"):
        list(_csv(tmp_path, 'a,b\n1,x"\n3,"4"\n'))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("int64", (-1, 2**63 - 1, True, 3.0), (0.5, np.nan, 2**63, 1e30, "x")),
        ("uint8", (0, 255), (-1, 256, 1.5)), ("bool", (False, 1), (2, 0.5, np.nan)),
        ("float32", (-100, 0.1, np.nan, np.inf, 2**24), (1e300, 2**24 + 1, 1j, "x")),
        ("float16", (0.1, 2048), (70000, 2049)), ("complex64", (1j, 0.1), ("x",)),
    ],
)  # fmt: skip
def test_what_arrays_are_padded_with_is_in_them_or_refused(dtype: str, good: Any, bad: Any) -> None:
    rows = [np.ones(2, dtype), np.ones(1, dtype)]
    for value in good:
        (batch,) = Pipeline(rows).batch(2, pad=value)
        np.testing.assert_array_equal(np.asarray(batch)[1, 1], np.array(value, dtype))
        assert np.asarray(batch).dtype == dtype
    for value in bad:
        for made in (Pipeline(rows).batch(2, pad=value), Pipeline(rows).pad(3, value)):
            with pytest.raises(DTypeError, match=f"pad: {dtype} has the value"):
                list(made)


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.parametrize("name", ["timestamp", "date", "duration", "time", "decimal"])
def test_dates_and_decimals_never_pass_for_numbers(kind: str, name: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    day = datetime.datetime(2020, 1, 2, 3, 4)
    value, type_ = {
        "timestamp": (day, pa.timestamp("ns")), "date": (day.date(), pa.date32()),
        "duration": (datetime.timedelta(1), pa.duration("ns")), "time": (day.time(), pa.time64("us")),
        "decimal": (Decimal("1.5"), pa.decimal128(5, 2)),
    }[name]  # fmt: skip
    table = pa.table({"a": pa.array([value] * 2, type_)})
    source = _table_source(kind, tmp_path, table)
    for pipeline in (Pipeline(source), Pipeline(source).map(_same)):
        with pytest.raises(DTypeError):
            list(pipeline.batch(2))
