"""Tables and pictures that input is measured with: made up, from fixed seeds, written to a folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

SEED: Final = 0


class Size(NamedTuple):
    """How much data there is, and how many rows a batch of it has."""

    parquet: tuple[int, int]  # rows, columns
    csv: tuple[int, int]
    sqlite: tuple[int, int]
    jpeg: tuple[int, int]  # pictures, classes
    batch: int
    pictures: int  # of a batch
    group: int  # rows of a group of Parquet


FULL: Final = Size((1_000_000, 40), (200_000, 20), (200_000, 8), (5_000, 10), 1024, 64, 100_000)
SMOKE: Final = Size((900, 4), (700, 3), (600, 2), (30, 3), 128, 8, 400)
PICTURE: Final = 128, 160  # height, width
FILES: Final = {"parquet": "t.parquet", "csv": "t.csv", "sqlite": "t.sqlite", "jpeg": "pictures"}


def names(columns: int) -> list[str]:
    """Return the names of columns."""
    return [f"c{k}" for k in range(columns)]


def write(kind: str, folder: Path, size: Size) -> None:
    """Write the data of a kind to a folder."""
    rng, path = np.random.default_rng(SEED), folder / FILES[kind]
    if kind == "jpeg":
        _pictures(rng, path, *size.jpeg)
        return
    rows, columns = getattr(size, kind)
    values = rng.standard_normal((columns, rows), dtype=np.float32)
    if kind == "parquet":
        _parquet(path, dict(zip(names(columns), values, strict=True)), size.group)
    elif kind == "csv":
        with path.open("w") as file:
            file.write(",".join(names(columns)) + "\n")
            np.savetxt(file, values.T, "%.6g", ",")
    else:
        _database(path, values.T.astype(np.float64).tolist(), names(columns))


def _parquet(path: Path, columns: dict[str, Any], group: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=group)


def _database(path: Path, rows: list[list[float]], columns: list[str]) -> None:
    with sqlite3.connect(path) as connection:
        typed = ", ".join(f"{name} REAL" for name in columns)
        connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, {typed})")
        marks = ", ".join("?" * (len(columns) + 1))
        connection.executemany(f"INSERT INTO t VALUES ({marks})", ((k, *row) for k, row in enumerate(rows)))
    connection.close()


def _pictures(rng: np.random.Generator, folder: Path, count: int, classes: int) -> None:
    """Write coloured clouds: noise that is scaled up, with the detail of photographs."""
    from PIL import Image

    height, width = PICTURE
    for k in range(count):
        place = folder / f"{k % classes:02}"
        place.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(
            place / f"{k:05}.jpg", quality=90
        )
