"""What a pass read is free when the pass is over, without the collector of cycles."""

from __future__ import annotations

import gc
import sqlite3
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratal.data import CSV, DataLoader, Frame, JSONLines, Parquet, Pipeline, SQLTable

pytestmark = [pytest.mark.quick, pytest.mark.row("F21")]


def parquet(folder: Path) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": np.arange(50)}), folder / "x.parquet", row_group_size=20)
    return Parquet(folder / "x.parquet")


def csv_file(folder: Path) -> Any:
    (folder / "x.csv").write_text("x\n" + "\n".join(map(str, range(50))))
    return CSV(folder / "x.csv")


def json_lines(folder: Path) -> Any:
    (folder / "x.jsonl").write_text("\n".join(f'{{"x": {k}}}' for k in range(50)))
    return JSONLines(folder / "x.jsonl")


def database(folder: Path) -> Any:
    with sqlite3.connect(folder / "x.sqlite") as connection:
        connection.execute("CREATE TABLE t (x INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO t VALUES (?)", [(k,) for k in range(50)])
    return SQLTable(lambda: sqlite3.connect(folder / "x.sqlite"), "t", "x", ["x"])


def frame(folder: Path) -> Any:
    return Frame(pytest.importorskip("pandas").DataFrame({"x": np.arange(50)}))


PASSES: dict[str, Callable[[Any], Any]] = {
    "loader": lambda source: DataLoader(source, 8, shuffle=True, num_workers=2),
    "batches": lambda source: Pipeline(source).shuffle().batch(8),
    "windows": lambda source: Pipeline(source).shuffle(16).map(dict).batch(8).prefetch(workers=2),
    "rows": lambda source: Pipeline(source, on_error="skip").filter(bool).bucket(8, len, window=16),
}


@pytest.mark.parametrize("made", [parquet, csv_file, json_lines, database, frame])
@pytest.mark.parametrize("name", PASSES)
def test_a_source_is_freed_with_the_last_pass_over_it(name: str, made: Any, tmp_path: Path) -> None:
    source = made(tmp_path)
    alive = weakref.ref(source)
    gc.collect()
    gc.disable()
    try:
        assert sum(len(batch["x"]) for batch in PASSES[name](source)) == 50
        del source
        end = time.monotonic() + 10  # a worker may still be ending
        while alive() is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert alive() is None
    finally:
        gc.enable()
