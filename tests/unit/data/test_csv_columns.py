"""CSV by columns: what is parsed at once is what rows give one by one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import DTypeError
from stratal.data import CSV, BadRowError, DataLoader, Pipeline, default_collate
from stratal.data.collate import collated_columns
from stratal.data.sources import csv_columns

pytestmark = pytest.mark.row("F21")


def plain_columns(batch: Any) -> dict[str, Any]:
    """Return columns as texts that show types and every digit."""
    return {name: repr(c.dtype) + repr(c.tolist()) if hasattr(c, "dtype") else c for name, c in batch.items()}


def batch_of(columns: dict[str, Any]) -> dict[str, Any]:
    """Return what a batch of columns is."""
    return {n: [] for n in columns} if not len(columns["k"]) else plain_columns(collated_columns(columns))


CELLS = [
    "1", "-7", "+5", " 8", "9 ", "007", "0x1F", "1_0", "", " ", "1.5", ".5", "1.", "1e3", "1E-320", "1e400",
    "-0", "nan", "NaN", "-inf", "Infinity", "nan(1)", "inf(", "16777217", "9007199254740993", "1e", "0.1",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1d5", "0b1", "\u0661", "\u00e9",
    "x", "ab", "1,5", "0.30000001192092896", "3.4028235677973366e38", "\t4", "4\x0b", "\ufeff1", "1\x00",
    "True", "null", "NA", "#N/A", "1\r2",
]  # fmt: skip
KINDS: dict[str, Any] = {"int": int, "float": float, "text": str, "found": None, "length": len}


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_csv_by_columns_takes_and_refuses_what_its_rows_do(
    kind: str, arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell in a file of its own, beside others that are numbers, and quoted."""
    if arrow:
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "cells.csv"
    for cell in CELLS:
        for lines in (f"1,a\n{cell},b\n2,c", f'1,a\r\n"{cell}",b\r\n2,c\r\n', f"{cell},a"):
            path.write_text(f"k,s\n{lines}", newline="", encoding="utf-8")
            types = {} if KINDS[kind] is None else {"k": KINDS[kind]}
            source = CSV(path, types=types)
            every = range(len(source))
            try:
                expected = plain_columns(default_collate(source.__getitems__(every)))
            except (BadRowError, DTypeError) as error:
                with pytest.raises(type(error)):
                    batch_of(source.columns_at(every))
            else:
                assert batch_of(source.columns_at(every)) == expected, lines


def test_csv_read_at_once_is_what_its_rows_are(tmp_path: Path) -> None:
    path = tmp_path / "mixed.csv"
    lines = ["1,a,0.5", '2,"b\nc",', '3,"d ""e""",1e3', "4,,nan", '5,"x,y",-1']
    path.write_text("k,s,v\n" + "\n".join(lines))
    source = CSV(path)
    for positions in ([0, 4], [2, 0, 2], [1], [3, 1, 0], [], range(5)):
        rows = source.__getitems__(positions)
        found = source.columns_at(positions)
        none: dict[str, Any] = {"k": [], "s": [], "v": []}
        assert batch_of(found) == (plain_columns(default_collate(rows)) if rows else none)
    path.write_text('k,s\n1,a"\n2,b\n3,c"\n4,d\n')
    for positions in ([0, 1], [0, 1, 2, 3][: len(CSV(path))]):
        try:
            rows = CSV(path).__getitems__(positions)
        except BadRowError:
            with pytest.raises(BadRowError):
                CSV(path).columns_at(positions)
        else:
            assert CSV(path).columns_at(positions)["s"] == [row["s"] for row in rows]
    with pytest.raises(BadRowError, match="column 'k'"):
        CSV(path.with_name("mixed.csv"), types={"k": float}, names=["k", "v"]).columns_at([0])


def test_csv_larger_than_its_cache_and_of_several_files_is_read_in_any_order(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.csv" for k in range(3)]
    for k, path in enumerate(paths):
        rows = [f"{100 * k + j},{j / 4}" for j in range(40)]
        path.write_text("k,v\n\n" + "\n\n".join(rows) + "\n")
    for cache_bytes in (1 << 20, 100):
        source = CSV(paths, cache_bytes=cache_bytes)
        for asked in (range(30, 90), [119, 0, 40, 39], [80], range(120)):
            expected = plain_columns(default_collate(source.__getitems__(asked)))
            assert batch_of(source.columns_at(asked)) == expected
        keys = [100 * k + j for k in range(3) for j in range(40)]
        assert [k for b in DataLoader(source, 7) for k in b["k"].tolist()] == keys
        assert sorted(k for b in Pipeline(source).shuffle().batch(7) for k in b["k"].tolist()) == keys


def test_a_bad_row_does_not_spoil_the_rows_parsed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("k,v\n" + "\n".join(f"{k},{'?' if k == 5 else k}" for k in range(20)))
    source = CSV(path, types={"v": float})
    assert batch_of(source.columns_at([4, 6]))["v"] == "stratal.float32[4.0, 6.0]"
    with pytest.raises(BadRowError, match="row 5, column 'v'"):
        source.columns_at(range(20))


def test_floats_have_the_dtype_of_pythons(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("v\n0.1\n0.2\n")
    source = CSV(path)
    for dtype in ("float32", "float64", "float16"):
        st.set_default_dtype(dtype)
        try:
            ((batch,), (expected,)) = list(DataLoader(source, 2)), list(DataLoader(list(source), 2))
        finally:
            st.set_default_dtype("float32")
        assert batch["v"].dtype.name == dtype and batch["v"].tolist() == expected["v"].tolist()


@pytest.mark.parametrize("arrow", [True, False])
def test_whole_numbers_beside_empty_cells_are_exact_or_refused(
    arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arrow:
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "ids.csv"
    for cell in ("16777216", "-33554432", "7", "nan", "1.5", "16777217.0", "inf", "9007199254740992"):
        path.write_text("k,v\n" + "1,2\n,3\n" * 500 + f"{cell},4\n")  # behind those that types are found in
        (batch,) = Pipeline(CSV(path)).batch(2000)
        assert repr(batch["k"].tolist()[-1]) == repr(float(np.float32(float(cell))))
        assert repr(batch["k"].tolist()[:2]) == "[1.0, nan]"
    for cell in ("16777217", "-9007199254740993", "1" + 400 * "0"):
        path.write_text(f"k,v\n1,2\n,3\n{cell},4\n")
        for read in (CSV(path).__getitem__, lambda k: CSV(path).columns_at(range(k + 1))):
            with pytest.raises(BadRowError, match="row 2, column 'k'") as caught:
                read(2)
            assert "is not exact in float32" in caught.value.reason
        assert CSV(path, types={"k": str})[2]["k"] == cell
    st.set_default_dtype("float64")
    try:
        path.write_text("k,v\n1,2\n,3\n16777217,4\n")
        assert CSV(path).columns_at(range(3))["k"].tolist()[2] == 16777217
    finally:
        st.set_default_dtype("float32")


def test_records_across_blocks_and_longer_than_one_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_columns, "_BLOCK", 64)
    path = tmp_path / "long.csv"
    path.write_text("k,s\n" + "\n".join(f"{k},{'x' * (k % 30)}" for k in range(100)))
    assert CSV(path).columns_at(range(100))["k"].tolist() == list(range(100))
    path.write_text("k,s\n" + "\n".join(f"{k},{'x' * 3 * k}" for k in range(100)))
    assert list(map(len, CSV(path).columns_at(range(100))["s"])) == [3 * k for k in range(100)]


def test_a_cell_that_the_first_rows_did_not_announce_says_where_types_are_given(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("k\n" + "1\n" * 1000 + '""\n')
    for read in (lambda c: c[1000], lambda c: c.columns_at(range(1001))):
        with pytest.raises(BadRowError, match="the first 1,000 rows are numbers: types="):
            read(CSV(tmp_path / "t.csv"))
    assert CSV(tmp_path / "t.csv", types={"k": lambda cell: int(cell or 0)})[1000] == {"k": 0}
    with pytest.raises(BadRowError) as caught:
        CSV(tmp_path / "t.csv", types={"k": int})[1000]
    assert "first" not in caught.value.reason
