"""Files that change while they are read: refused by name, never a crash, never other rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratal.data import (
    CSV,
    ArrowFile,
    ChangedSourceError,
    DataLoader,
    JSONLines,
    MissingSourceError,
    Parquet,
    Pipeline,
    TensorDataset,
    TextLines,
    memory_map,
)

ROWS = 60_000


def _text(head: str, row: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(head + "".join(row.format(k) for k in range(ROWS))) and None


def _columnar(kind: str, dictionary: bool = False) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        values = arrow.array(np.arange(ROWS))
        table = arrow.table({"a": values.dictionary_encode() if dictionary else values})
        if kind == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, path, row_group_size=5000, compression="none", use_dictionary=False)
            return
        new = arrow.ipc.new_file if kind == "file" else arrow.ipc.new_stream
        with arrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5000)

    return write


SOURCES: dict[str, tuple[Any, Callable[[Path], None]]] = {
    "CSV": (CSV, _text("a\n", "{}\n")),
    "JSONLines": (JSONLines, _text("", '{{"a": {}}}\n')),
    "TextLines": (TextLines, _text("", "{}\n")),
    "Parquet": (Parquet, _columnar("parquet")),
    "Arrow": (ArrowFile, _columnar("file")),
    "Arrow stream": (ArrowFile, _columnar("stream")),
}
CHANGES: dict[str, Callable[[Path], Any]] = {
    "emptied": lambda path: os.truncate(path, 0),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "rewritten": lambda path: path.write_bytes(b"7\n" * (path.stat().st_size // 2)),
    "longer": lambda path: path.write_bytes(path.read_bytes() * 2),
    "replaced": lambda path: (path.rename(path.with_suffix(".old")), path.write_bytes(b"7\n" * 99)),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.sampled(1)
def test_a_file_that_changes_while_it_is_read_is_refused(name: str, change: str, tmp_path: Path) -> None:
    source, write = SOURCES[name]
    path = tmp_path / "rows"
    write(path)
    os.utime(path, (1, 1))
    given = {} if name in ("JSONLines", "TextLines") else {"cache_bytes": 1}
    batches = iter(Pipeline(source(path, **given)).batch(100))
    next(batches)
    CHANGES[change](path)
    with pytest.raises((ChangedSourceError, MissingSourceError), match="rows") as caught:
        list(batches)
    assert name.split()[0] in str(caught.value)
    assert "\n  hint:" in str(caught.value)


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_batches_of_arrow_files_are_read_in_any_order(kind: str, dictionary: bool, tmp_path: Path) -> None:
    _columnar(kind, dictionary)(tmp_path / "rows")
    rows = ArrowFile(tmp_path / "rows", cache_bytes=1)
    asked = [59_999, 3, 30_000, 29_999, 5000, 4999, 3]
    assert len(rows) == ROWS
    assert [row["a"] for row in rows.__getitems__(asked)] == asked
    assert [rows[k]["a"] for k in asked] == asked


def test_records_are_found_across_blocks_with_carriage_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratal.data.sources import lines

    texts = ["a", "", "\r", " ", "bb\r", "c\r\n", " \t", "dddd", "\r\r", "é", " e"]
    for end in ("", "\n", "\r\n", "\r"):
        for head in (b"", b"\xef\xbb\xbf"):
            data = head + ("\n".join(texts * 3) + end).encode()
            (tmp_path / "t").write_bytes(data)
            kept = [line.removesuffix(b"\r") for line in data[len(head) :].split(b"\n")]
            for size in (1, 2, 3, 7, 1 << 22):
                monkeypatch.setattr(lines, "_BLOCK", size)
                found = lines.TextRecords("t", tmp_path / "t")
                assert [r for _, _, r in found.at(range(len(found)))] == [line for line in kept if line]
                inked = lines.TextRecords("t", tmp_path / "t", blanks=True)
                wanted = [line for line in kept if line.strip(b" \t\r")]
                assert [r for _, _, r in inked.at(range(len(inked)))] == wanted


def test_sources_follow_no_change_of_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t").write_text("one\ntwo\n")
    rows = TextLines("t")
    monkeypatch.chdir("/")
    assert list(rows) == ["one", "two"]


def test_a_line_of_zeros_is_refused_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b'{"a": 1}\n' + bytes(8) + b"\n")
    with pytest.raises(ValueError, match="Expecting value"):
        JSONLines(tmp_path / "t")[1]


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (CSV, TextLines, JSONLines):
        for path in (tmp_path / "pipe", tmp_path):
            with pytest.raises(ValueError, match="not a regular file"):
                source(path)


@pytest.mark.parametrize("offset", [None, 0, 5000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_map_whose_file_was_cut_short_is_refused(shuffle: bool, offset: int | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(3_000.0))
    raw = {} if offset is None else {"dtype": "u1", "shape": (15_000,), "offset": offset}
    for rows in (TensorDataset(memory_map(path, **raw)), TensorDataset(memory_map(path, **raw)[5:])):
        batches = iter(DataLoader(rows, 10, shuffle=shuffle, seed=0))
        next(batches)
        os.truncate(path, 6000)
        with pytest.raises(ChangedSourceError, match=r"rows\.npy stays as it is"):
            list(batches)
        with pytest.raises(ChangedSourceError):
            rows[len(rows) - 1]
        np.save(path, np.arange(3_000.0))
