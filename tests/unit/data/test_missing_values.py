"""Missing values, as each source has them: `is_complete` leaves the same rows out of all."""

from __future__ import annotations

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.data import CSV, ArrowFile, Frame, JSONLines, Parquet, Pipeline, SQLTable, is_complete

pytestmark = pytest.mark.row("F21")
AGES: list[Any] = [31.5, None, 40.0, 22.0, None, 19.0] * 5
VISITS: list[Any] = [1, 2, None, 4, None, 6] * 5
CITIES: list[Any] = ["Bonn", "Ulm", "Kiel", None, None, "Hof"] * 5
COMPLETE = 2 * 5
COLUMNS = {"age": AGES, "visits": VISITS, "city": CITIES}


def sources(folder: Path) -> dict[str, Any]:
    """Return the same rows from each source whose library is there."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    text = "\n".join(",".join("" if v is None else str(v) for v in row.values()) for row in rows)
    (folder / "t.csv").write_text("age,visits,city\n" + text + "\n")
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with sqlite3.connect(folder / "t.sqlite") as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, age REAL, visits INTEGER, city TEXT)")
        values = [tuple(row.values()) for row in rows]
        database.executemany("INSERT INTO t (age, visits, city) VALUES (?, ?, ?)", values)
    found: dict[str, Any] = {
        "csv": CSV(folder / "t.csv"), "json": JSONLines(folder / "t.jsonl"),
        "sql": SQLTable(lambda: sqlite3.connect(folder / "t.sqlite"), "t", "id"),
    }  # fmt: skip
    return found


def test_complete_rows_are_the_same_from_text_and_databases(tmp_path: Path) -> None:
    for name, source in sources(tmp_path).items():
        kept = list(Pipeline(source).filter(is_complete))
        assert len(kept) == COMPLETE and {row["city"] for row in kept} == {"Bonn", "Hof"}, name


def test_complete_rows_are_the_same_from_arrow(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    feather, table = pytest.importorskip("pyarrow.feather"), arrow.table(COLUMNS)
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, tmp_path / "t.feather", compression="uncompressed")
    for source in (Parquet(tmp_path / "t.parquet"), ArrowFile(tmp_path / "t.feather"), Frame(table)):
        assert len(list(Pipeline(source).filter(is_complete))) == COMPLETE


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_complete_rows_are_the_same_from_frames(library: str) -> None:
    frames = pytest.importorskip(library)
    assert len(list(Pipeline(Frame(frames.DataFrame(COLUMNS))).filter(is_complete))) == COMPLETE
    if library == "pandas":
        nullable = frames.DataFrame(COLUMNS).convert_dtypes()
        assert len(nullable.dropna()) == len(list(Pipeline(Frame(nullable)).filter(is_complete))) == COMPLETE
        assert not is_complete({"x": frames.NA}) and not is_complete({"x": frames.NaT})


@pytest.mark.parametrize("value", [
    None, float("nan"), np.float32("nan"), "", "  ", b"", [1.0, None], (1, float("nan")), {"x": {"y": None}},
    np.array([1.0, np.nan]), np.array(["a", ""]), np.array([None]), np.datetime64("NaT"), Decimal("nan"),
    complex("nan"),
])  # fmt: skip
def test_what_is_missing_in_a_row_is_found_at_any_depth(value: object) -> None:
    assert not is_complete(value) and not is_complete({"a": 1, "x": value}) and not is_complete((0, value))


@pytest.mark.parametrize("value", [
    0, 0.0, False, float("inf"), "a", [], np.zeros(0), np.datetime64("2020"), (), b"a",
])  # fmt: skip
def test_zeros_and_empty_lists_are_not_missing(value: object) -> None:
    assert is_complete({"x": value})


def test_a_tensor_with_nan_misses_a_value() -> None:
    assert is_complete((st.ones(3), 1)) and not is_complete((st.tensor([1.0, float("nan")]), 1))
