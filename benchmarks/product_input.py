"""Batches from files, by Stratal, and by PyTorch's DataLoader with the libraries people use there.

Every way gives the same: mappings of float32 columns, or pictures between 0 and 1 [batch, channels, height,
width] with their classes. A pass opens its source anew, so nothing is left from the one before.

    WAYS[kind][system]      the ways a system has; the quickest counts
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.product_data import FILES, Size, names

Array = np.ndarray[Any, Any]
Way = Callable[[Path, Size], Iterable[Any]]
SHUFFLED: Final = {"parquet shuffled": "parquet"}  # workload: kind of data


# -- Stratal -------------------------------------------------------------------------------------------------
def _own_parquet(path: Path, size: Size, shuffled: bool) -> Iterable[Any]:
    from stratal.data import Parquet, Pipeline

    rows = Pipeline(Parquet(path))
    return (rows.shuffle(seed=0) if shuffled else rows).batch(size.batch)


def _own_csv(path: Path, size: Size) -> Iterable[Any]:
    from stratal.data import CSV, Pipeline

    return Pipeline(CSV(path)).batch(size.batch)


def _own_sqlite(path: Path, size: Size) -> Iterable[Any]:
    from stratal.data import Pipeline, SQLTable

    table = SQLTable(lambda: sqlite3.connect(path), "t", "id", names(size.sqlite[1]))
    return Pipeline(table).batch(size.batch)


def _own_jpeg(path: Path, size: Size) -> Iterable[Any]:
    from stratal.data import ImageFolder, Pipeline
    from stratal.data.transforms import On, ToFloat

    pictures = Pipeline(ImageFolder(path)).map(On(0, ToFloat()))
    return pictures.batch(size.pictures).prefetch(2, workers=2)


# -- PyTorch and friends -------------------------------------------------------------------------------------
def _streamed(batches: Callable[[], Iterator[Any]]) -> Iterable[Any]:
    """Return a DataLoader over batches that a generator makes."""
    import torch.utils.data as data

    class Stream(data.IterableDataset):  # type: ignore[type-arg, misc, unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            return batches()

    return data.DataLoader(Stream(), batch_size=None)


def _in_memory(columns: Mapping[str, Array], batch: int, shuffled: bool) -> Iterable[Any]:
    """Return a DataLoader over columns, which takes a batch with one look-up for each."""
    import torch
    import torch.utils.data as data

    class Columns(data.Dataset):  # type: ignore[type-arg, misc, unused-ignore]
        def __len__(self) -> int:
            return len(next(iter(columns.values())))

        def __getitems__(self, positions: list[int]) -> Any:
            rows = np.asarray(positions)
            return {name: torch.from_numpy(column[rows]) for name, column in columns.items()}

    return data.DataLoader(Columns(), batch, shuffled, collate_fn=lambda made: made)


def _iter_batches(path: Path, size: Size) -> Iterable[Any]:
    import pyarrow.parquet as pq
    import torch

    def batches() -> Iterator[Any]:
        with pq.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(size.batch):
                arrays = (column.to_numpy() for column in batch.columns)
                # a copy: Arrow's memory is read-only, and PyTorch's tensors are not
                yield {n: torch.from_numpy(a.copy()) for n, a in zip(batch.schema.names, arrays, strict=True)}

    return _streamed(batches)


def _read_table(path: Path, size: Size, shuffled: bool) -> Iterable[Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, memory_map=True)
    return _in_memory({n: table[n].to_numpy() for n in table.column_names}, size.batch, shuffled)


def _pandas_chunks(path: Path, size: Size) -> Iterable[Any]:
    import pandas as pd
    import torch

    def batches() -> Iterator[Any]:
        with pd.read_csv(path, dtype=np.float32, chunksize=size.batch) as chunks:
            for frame in chunks:
                yield {name: torch.from_numpy(frame[name].to_numpy(copy=True)) for name in frame.columns}

    return _streamed(batches)


def _pandas_whole(path: Path, size: Size) -> Iterable[Any]:
    import pandas as pd

    frame = pd.read_csv(path, dtype=np.float32)
    return _in_memory({name: frame[name].to_numpy() for name in frame.columns}, size.batch, False)


def _arrow_whole(path: Path, size: Size) -> Iterable[Any]:
    import pyarrow.csv as arrow_csv

    table = arrow_csv.read_csv(path)
    columns = {n: table[n].to_numpy().astype(np.float32) for n in table.column_names}
    return _in_memory(columns, size.batch, False)


def _fetched(path: Path, size: Size) -> Iterable[Any]:
    import torch

    columns = names(size.sqlite[1])

    def batches() -> Iterator[Any]:
        connection = sqlite3.connect(path)
        cursor = connection.execute(f"SELECT {', '.join(columns)} FROM t ORDER BY id")
        while rows := cursor.fetchmany(size.batch):
            values = torch.from_numpy(np.array(rows, np.float32))
            yield dict(zip(columns, values.unbind(1), strict=True))
        connection.close()

    return _streamed(batches)


def _pictures(path: Path, size: Size, workers: int) -> Iterable[Any]:
    import torch
    import torch.utils.data as data
    from PIL import Image

    classes = sorted(p.name for p in path.iterdir())
    files = [(p, k) for k, name in enumerate(classes) for p in sorted((path / name).iterdir())]

    class Pictures(data.Dataset):  # type: ignore[type-arg, misc, unused-ignore]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, k: int) -> Any:
            file, label = files[k]
            with Image.open(file) as picture:
                pixels = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
            return torch.from_numpy(pixels.astype(np.float32, order="C") / np.float32(255)), label

    return data.DataLoader(Pictures(), size.pictures, num_workers=workers)


WAYS: Final[dict[str, dict[str, dict[str, Way]]]] = {
    "parquet": {
        "stratal": {"": partial(_own_parquet, shuffled=False)},
        "torch": {"iter_batches": _iter_batches, "read_table": partial(_read_table, shuffled=False)},
    },
    "parquet shuffled": {
        "stratal": {"": partial(_own_parquet, shuffled=True)},
        "torch": {"read_table": partial(_read_table, shuffled=True)},
    },
    "csv": {
        "stratal": {"": _own_csv},
        "torch": {"pandas": _pandas_chunks, "pandas at once": _pandas_whole, "pyarrow": _arrow_whole},
    },
    "sqlite": {"stratal": {"": _own_sqlite}, "torch": {"fetchmany": _fetched}},
    "jpeg": {
        "stratal": {"": _own_jpeg},
        "torch": {"no workers": partial(_pictures, workers=0), "2 workers": partial(_pictures, workers=2)},
    },
}  # fmt: skip


def kind_of(workload: str) -> str:
    """Return the kind of data a workload reads."""
    return SHUFFLED.get(workload, workload)


def batches_of(workload: str, system: str, way: str, folder: Path, size: Size) -> Iterable[Any]:
    """Return the batches of one pass."""
    return WAYS[workload][system][way](folder / FILES[kind_of(workload)], size)


def passed(batches: Iterable[Any]) -> int:
    """Go through batches; return how many rows they have."""
    rows = 0
    for batch in batches:
        parts = list(batch.values() if isinstance(batch, Mapping) else batch)
        rows += parts[0].shape[0]
    return rows


def digest(batches: Iterable[Any], ordered: bool) -> int:
    """Return a number that batches of equal rows have in common: of rows in one order, or in any."""
    total, row = 0, 0
    for batch in batches:
        parts = [batch[k] for k in sorted(batch)] if isinstance(batch, Mapping) else list(batch)
        arrays = [np.asarray(part.numpy(), np.float32).reshape(part.shape[0], -1) for part in parts]
        found = np.concatenate(arrays, 1).view(np.uint32).astype(np.uint64)
        factors = np.random.default_rng(1).integers(1, 1 << 63, found.shape[1], np.uint64) | np.uint64(1)
        hashes = (found * factors).sum(1, dtype=np.uint64)
        places = np.arange(row, row + len(hashes), dtype=np.uint64) + np.uint64(1)
        hashes = hashes * places if ordered else hashes * hashes
        total = (total + int(hashes.sum(dtype=np.uint64))) % (1 << 64)
        row += len(hashes)
    return total
