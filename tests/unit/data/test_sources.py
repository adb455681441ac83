"""Sources: rows of files, databases, frames and folders, as data sets; what cannot be read is named."""

from __future__ import annotations

import gc
import io
import json
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratal as st
from stratal.base.errors import (
    AttributeValueError,
    DTypeError,
    FormatError,
    IndexOutOfRangeError,
    MissingExtraError,
)
from stratal.data import (
    CSV,
    ArrowFile,
    AudioFolder,
    BadRowError,
    DataLoader,
    Frame,
    ImageFolder,
    JSONLines,
    MissingSourceError,
    Parquet,
    Pipeline,
    SQLQuery,
    SQLTable,
    TensorDataset,
    TextLines,
    default_collate,
    memory_map,
)
from stratal.data.sources import lines
from stratal.data.sources.columns import ColumnGroups

pytestmark = [pytest.mark.quick, pytest.mark.row("F21")]
COUNT = 23
COLUMNS: dict[str, list[Any]] = {
    "id": list(range(COUNT)),
    "x": [0.5 * k for k in range(COUNT)],
    "name": [f"name, {k}" for k in range(COUNT)],
}


def parquet(folder: Path) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for path, part in zip(paths, (slice(0, 10), slice(10, COUNT)), strict=True):
        pq.write_table(pa.table({n: v[part] for n, v in COLUMNS.items()}), path, row_group_size=4)
    return Parquet(paths)


def arrow(folder: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(COLUMNS)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return ArrowFile(folder / "a.arrow")


def arrow_stream(folder: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(COLUMNS)
    with pa.OSFile(str(folder / "s.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return ArrowFile([str(folder / "s.arrow")])


def csv_file(folder: Path) -> Any:
    rows = [f'{k},{x},"{n}"' for k, x, n in zip(*COLUMNS.values(), strict=True)]
    (folder / "a.csv").write_text("id,x,name\r\n" + "\r\n".join(rows[:9]), newline="")
    (folder / "b.csv").write_text("\ufeffid,x,name\n" + "\n\n".join(rows[9:]) + "\n")
    return CSV([folder / "a.csv", folder / "b.csv"])


def json_lines(folder: Path) -> Any:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return JSONLines(folder / "a.jsonl")


def database(folder: Path) -> Callable[[], sqlite3.Connection]:
    path = folder / "a.sqlite"
    if not path.exists():
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE readings (id INTEGER PRIMARY KEY, x REAL, name TEXT)")
            rows = list(zip(*COLUMNS.values(), strict=True))
            connection.executemany("INSERT INTO readings VALUES (?, ?, ?)", rows[::-1])
        connection.close()
    return lambda: sqlite3.connect(path)


def sql_table(folder: Path) -> Any:
    return SQLTable(database(folder), "readings", key="id")


class Series:
    """What `Frame` asks of a column, as pandas, polars and pyarrow have it."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return np.array(self.values, object if isinstance(self.values[0], str) else None)


class LittleFrame(dict[str, Any]):
    """Columns by name, with the number of rows as length."""

    columns = tuple(COLUMNS)

    def __getitem__(self, name: str) -> Series:
        return Series(COLUMNS[name])

    def __len__(self) -> int:
        return COUNT


def frame(folder: Path) -> Any:
    return Frame(LittleFrame())


def pandas_frame(folder: Path) -> Any:
    return Frame(pytest.importorskip("pandas").DataFrame(COLUMNS))


def polars_frame(folder: Path) -> Any:
    return Frame(pytest.importorskip("polars").DataFrame(COLUMNS))


def arrow_table(folder: Path) -> Any:
    return Frame(pytest.importorskip("pyarrow").table(COLUMNS))


SOURCES = (
    parquet, arrow, arrow_stream, csv_file, json_lines, sql_table,
    frame, pandas_frame, polars_frame, arrow_table,
)  # fmt: skip


def plain(row: Any) -> dict[str, Any]:
    return {n: v.item() if hasattr(v, "item") else v for n, v in row.items()}


@pytest.mark.parametrize("made", SOURCES)
def test_a_source_has_the_rows_in_order_by_position_and_in_batches(made: Any, tmp_path: Path) -> None:
    source = made(tmp_path)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    assert len(source) == COUNT
    assert [plain(row) for row in source] == [plain(source[k]) for k in range(COUNT)] == rows
    assert plain(source[-1]) == rows[-1]
    some = [5, 0, 22, 11, 5, 10]
    assert [plain(row) for row in source.__getitems__(some)] == [rows[k] for k in some]
    with pytest.raises(IndexError):
        source[COUNT]
    batch = default_collate(source.__getitems__(some))
    for found in (
        next(iter(DataLoader(source, batch_sampler=[some]))),
        next(iter(DataLoader(source, batch_sampler=[some], num_workers=2))),
    ):
        assert {n: getattr(v, "dtype", list) for n, v in found.items()} == {
            n: getattr(v, "dtype", list) for n, v in batch.items()
        }
        assert {n: np.asarray(v).tolist() for n, v in found.items()} == {
            n: [rows[k][n] for k in some] for n in COLUMNS
        }


@pytest.mark.parametrize("made", SOURCES)
def test_a_pipeline_reads_a_source_shuffled_by_ranks_and_resumes(made: Any, tmp_path: Path) -> None:
    source = made(tmp_path)

    def pipeline(rank: int = 0, ranks: int = 1) -> Pipeline:
        return Pipeline(source).shuffle(seed=1).batch(6).prefetch(2, workers=2).sharded(rank, ranks)

    whole = [batch["id"].tolist() for batch in pipeline()]
    assert sorted(sum(whole, [])) == COLUMNS["id"]  # noqa: RUF017
    parts = [[batch["id"].tolist() for batch in pipeline(rank, 2)] for rank in range(2)]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole
    stopped = pipeline(0, 2)
    next(iter(stopped))
    resumed = pipeline()
    resumed.load_state_dict(stopped.state_dict())
    assert [batch["id"].tolist() for batch in resumed] == whole[1:]
    mapped = Pipeline(source).map(lambda row: row["id"] * 10).batch(4)
    assert next(iter(mapped)).tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize("made", [parquet, arrow, csv_file, json_lines, sql_table, frame])
def test_columns_are_chosen_and_others_are_refused(made: Any, tmp_path: Path) -> None:
    made(tmp_path)
    again: dict[Any, Callable[[Any], Any]] = {
        parquet: lambda c: Parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"], c),
        arrow: lambda c: ArrowFile(tmp_path / "a.arrow", c), csv_file: lambda c: CSV(tmp_path / "a.csv", c),
        json_lines: lambda c: JSONLines(tmp_path / "a.jsonl", c), frame: lambda c: Frame(LittleFrame(), c),
        sql_table: lambda c: SQLTable(database(tmp_path), "readings", "id", c),
    }  # fmt: skip
    assert plain(again[made](["x"])[3]) == {"x": 1.5}
    with pytest.raises((AttributeValueError, FormatError), match="y"):
        again[made](["y"])[0]


def test_parquet_keeps_groups_while_there_is_room_and_reads_nulls_and_lists(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "f": pa.array([1.0, None, 3.0]), "v": [[1, 2], [3, 4], [5, 6]], "b": [True, False, True],
        "h": pa.array(np.ones(3, np.float16)), "s": pa.array(["a", "b", "a"]).dictionary_encode(),
        "t": pa.array(np.array(["2024-01-01"] * 3, "datetime64[s]")),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "n.parquet")
    row = Parquet(tmp_path / "n.parquet")[1]
    assert (row["f"], row["v"].tolist(), row["b"], row["s"]) == (None, [3, 4], False, "b")
    assert row["h"].dtype == np.float16 and row["t"].dtype.kind == "M"
    batch = next(iter(DataLoader(Parquet(tmp_path / "n.parquet", ["v", "b", "h", "s"]), 2)))
    assert batch["v"].tolist() == [[1, 2], [3, 4]] and batch["s"] == ["a", "b"]
    with pytest.raises(DTypeError, match=r"'f' is an array.*\n.*NoneType in sample 1"):
        next(iter(DataLoader(Parquet(tmp_path / "n.parquet", ["f"]), 2)))

    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "l.parquet", row_group_size=100)
    reads: list[int] = []
    source = Parquet(tmp_path / "l.parquet", cache_bytes=250 * 8)
    read = source._read
    source._read = lambda k: (reads.append(k), read(k))[1]
    batches = Pipeline(source).shuffle(100, seed=0).batch(50)
    assert sorted(x for b in batches for x in b["x"].tolist()) == list(range(1000))
    assert reads == list(range(10))  # each once, in order


def test_csv_reads_quotes_breaks_delimiters_and_types(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('a;b;c\n1;"two\nlines; ""quoted""";\n2;"";0.5\n', encoding="latin-1")
    source = CSV(path, delimiter=";", encoding="latin-1")
    assert source[0]["b"] == 'two\nlines; "quoted"' and np.isnan(source[0]["c"])
    assert source[1] == {"a": 2, "b": "", "c": 0.5}
    assert CSV(path, ["a"], types={"a": float}, delimiter=";")[0] == {"a": 1.0}
    path.write_text("1,x\n2,y\n")
    assert list(CSV(path, names=["k", "t"])) == [{"k": 1, "t": "x"}, {"k": 2, "t": "y"}]
    path.write_text("a\n1_000\n2\n")
    assert [row["a"] for row in CSV(path)] == ["1_000", "2"]
    path.write_text("a,b\n")
    assert len(CSV(path)) == 0 and list(CSV(path)) == []


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        ("1,2,3", None, "3 cells, 2 columns"), ("1", None, "1 cells, 2 columns"),
        ("x,2", "a", "invalid literal"),
        ("1,", "b", "invalid literal"), ('1,"2', None, "unexpected end"), ('1,"2"3', None, "expected after"),
        ("1,\x00\xff", "b", "invalid literal"),
    ],
)  # fmt: skip
def test_bad_rows_of_csv_are_raised_left_out_or_collected(
    line: str, column: str | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n3,4\n" + line + "\n")
    with pytest.raises(BadRowError, match=reason) as caught:
        CSV(path, types={"a": int, "b": int})[2]
    assert (caught.value.file, caught.value.row, caught.value.column) == (str(path), 2, column)
    found = Pipeline(CSV(path, types={"a": int, "b": int}), on_error="collect")
    assert [row["a"] for row in found] == [1, 3] and [bad.row for bad in found.bad_rows] == [2]


def test_bad_lines_of_json_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"x": 1}\n{"x": \n\xff\n' + b"[" * 100_000 + b'\n5\n{"x": 6}')
    found = Pipeline(JSONLines(path, ["x"]), on_error="collect")
    assert [row["x"] for row in found] == [1, 6]
    assert [(bad.row, bad.column) for bad in found.bad_rows] == [(1, None), (2, None), (3, None), (4, "x")]


def test_sql_takes_any_dbapi_and_keeps_to_one_order(tmp_path: Path) -> None:
    connect = database(tmp_path)
    query = SQLQuery(connect, "SELECT x, id FROM readings WHERE id > ? ORDER BY id DESC", (19,))
    assert list(query) == list(query) == [{"x": 11.0, "id": 22}, {"x": 10.5, "id": 21}, {"x": 10.0, "id": 20}]
    assert [b["id"].tolist() for b in Pipeline(query).batch(2)] == [[22, 21], [20]]
    table = SQLTable(connect, "main.readings", "id", ["name"], paramstyle="named")
    assert table[4] == {"name": "name, 4"}
    assert SQLTable(connect, "readings", "id", ["x"], paramstyle="numeric").__getitems__([3, 1]) == [
        {"x": 1.5}, {"x": 0.5},
    ]  # fmt: skip
    with connect() as connection:
        connection.execute("DELETE FROM readings WHERE id = 7")
    with pytest.raises(BadRowError, match="readings: row 7, column 'id'"):
        table[7]
    assert len(list(Pipeline(table, on_error="skip"))) == COUNT - 1
    with connect() as connection:
        connection.execute("UPDATE readings SET x = 1 WHERE id < 3")
    wrong: list[Callable[[], Any]] = [
        lambda: SQLQuery(connect, "SELECT * FROM readings"),
        lambda: SQLTable(connect, "readings; DROP", "id"),
        lambda: SQLTable(connect, "readings", "id", ["x FROM readings; --"]),
        lambda: SQLTable(connect, "readings", "x"),
        lambda: SQLTable(connect, "readings", "id", paramstyle="?"),
    ]  # fmt: skip
    for call in wrong:
        with pytest.raises(AttributeValueError):
            call()


def test_arrays_in_files_are_mapped(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", x)
    x.tofile(tmp_path / "x.bin")
    for mapped in (
        memory_map(tmp_path / "x.npy"),
        memory_map(tmp_path / "x.bin", "float32", (4, 3)),
        memory_map(tmp_path / "x.bin", "float32", (4, 3), offset=0),
    ):
        assert isinstance(mapped, np.memmap) and not mapped.flags.writeable
        data = TensorDataset(mapped)
        assert np.shares_memory(data.arrays[0], mapped)
        assert next(iter(DataLoader(data, 2)))[0].tolist() == x[:2].tolist()
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "t.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-4])
    (tmp_path / "n.npy").write_text("no array")
    np.savez(tmp_path / "z.npz", x)
    for bad in ("o.npy", "t.npy", "n.npy", "z.npz"):
        with pytest.raises(FormatError, match=bad):
            memory_map(tmp_path / bad)
    with pytest.raises(FormatError, match=r"x\.bin"):
        memory_map(tmp_path / "x.bin", "float32", (5, 3))
    with pytest.raises(AttributeValueError, match="both"):
        memory_map(tmp_path / "x.bin", "float32")


def test_folders_of_images_are_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, value in (("dog", 200), ("cat", 10)):
        (tmp_path / name).mkdir()
        for k in range(2):
            image.fromarray(np.full((4, 6 + k, 3), value, np.uint8)).save(tmp_path / name / f"{k}.png")
    (tmp_path / "cat" / "2.jpg").write_bytes(b"no image")
    whole = (tmp_path / "dog" / "0.png").read_bytes()
    (tmp_path / "cat" / "3.png").write_bytes(whole[:40])
    pixels_at = whole.index(b"IDAT") + 8
    changed = bytes([whole[pixels_at] ^ 1])
    (tmp_path / "cat" / "4.png").write_bytes(whole[:pixels_at] + changed + whole[pixels_at + 1 :])
    (tmp_path / "cat" / "notes.txt").write_text("no image, and none by its name")
    source = ImageFolder(tmp_path)
    assert source.classes == ["cat", "dog"] and len(source) == 7
    pixels, label = source[1]
    assert pixels.shape == (3, 4, 7) and pixels.dtype == np.uint8 and pixels.max() == 10 and label == 0
    with pytest.raises(BadRowError, match=r"2\.jpg: row 2 cannot be read"):
        source[2]
    grey = ImageFolder(tmp_path, size=(8, 8), mode="L")
    found = Pipeline(grey, on_error="collect").batch(4).prefetch(workers=2)
    ((images, labels),) = found
    assert images.shape == (4, 1, 8, 8) and labels.tolist() == [0, 0, 1, 1]
    assert [(Path(bad.file).name, bad.row) for bad in found.bad_rows] == [
        ("2.jpg", 2), ("3.png", 3), ("4.png", 4),
    ]  # fmt: skip
    with pytest.raises(FormatError, match="a folder of files for each class"):
        ImageFolder(tmp_path / "cat")
    with pytest.raises(MissingSourceError):
        ImageFolder(tmp_path / "none")
    with pytest.raises(AttributeValueError, match="mode is one of"):
        ImageFolder(tmp_path, mode="CMYK")


def test_folders_of_recordings_are_classes(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    wave = np.linspace(-0.5, 0.5, 400, dtype=np.float32).reshape(200, 2)
    for name in ("no", "yes"):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "0.wav", wave, 8000, subtype="FLOAT")
    soundfile.write(tmp_path / "yes" / "1.wav", wave, 16000)
    (tmp_path / "yes" / "2.wav").write_bytes(b"RIFF")
    source = AudioFolder(tmp_path)
    samples, label = source[1]
    assert (source.rate, source.classes, label) == (8000, ["no", "yes"], 1)
    assert samples.tolist() == wave.T.tolist()
    found = Pipeline(AudioFolder(tmp_path, frames=50), on_error="collect").batch(2)
    ((batch, labels),) = found
    assert batch.shape == (2, 2, 50) and labels.tolist() == [0, 1]
    assert found.bad_rows[0].reason == "16000 Hz, not 8000"
    assert [bad.row for bad in found.bad_rows] == [2, 3]


def test_text_is_read_by_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\n\ntwo \u00e9\n".encode() + b"\xff\nlast")
    source = TextLines(tmp_path / "a.txt")
    assert [source[k] for k in (0, 1, 3)] == ["one", "two \u00e9", "last"] and len(source) == 4
    with pytest.raises(BadRowError, match="row 2 cannot be read"):
        source[2]
    assert list(Pipeline(source, on_error="skip").batch(3)) == [["one", "two \u00e9", "last"]]


def test_a_data_set_of_hugging_faces_kind_is_read_by_batches() -> None:
    class Hub:
        """As `datasets.Dataset`: rows are mappings, a list of positions gives a list of them."""

        asked = 0

        def __len__(self) -> int:
            return 7

        def __getitem__(self, k: Any) -> Any:
            return {"text": f"t{k}", "label": k % 2}

        def __getitems__(self, keys: list[int]) -> list[Any]:
            self.asked += 1
            return [self[k] for k in keys]

    hub = Hub()
    assert [b["text"] for b in Pipeline(hub).shuffle(seed=0).batch(4)][1:] != [] and hub.asked == 2
    assert [b["label"].tolist() for b in DataLoader(hub, 4)] == [[0, 1, 0, 1], [0, 1, 0]]


MISSING: dict[str, Callable[[str], Any]] = {
    "parquet": Parquet, "arrow": ArrowFile, "csv": CSV, "jsonl": JSONLines, "npy": memory_map,
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSING)
def test_a_file_that_is_not_there_or_something_else_is_named(kind: str, tmp_path: Path) -> None:
    if kind in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    with pytest.raises(FileNotFoundError, match=f"none.{kind} is not there") as caught:
        MISSING[kind](str(tmp_path / f"none.{kind}"))
    assert isinstance(caught.value, MissingSourceError)
    (tmp_path / f"empty.{kind}").write_bytes(b"")
    if kind == "jsonl":
        assert len(JSONLines(tmp_path / "empty.jsonl")) == 0
        return
    with pytest.raises(FormatError, match=f"empty.{kind}"):
        MISSING[kind](str(tmp_path / f"empty.{kind}"))


@pytest.mark.parametrize(("module", "extra", "call"), [
    ("pyarrow", "data", lambda: Parquet("a")), ("pyarrow", "data", lambda: ArrowFile("a")),
    ("PIL.Image", "images", lambda: ImageFolder(".")), ("soundfile", "audio", lambda: AudioFolder(".")),
])  # fmt: skip
def test_a_library_that_is_missing_is_named_with_its_extra(
    module: str, extra: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"(?s)needs {module.split('.')[0]}.*stratal\[{extra}\]"):
        call()


def mapped(folder: Path) -> None:
    np.save(folder / "x.npy", np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("made", [parquet, arrow, arrow_stream, csv_file, json_lines, mapped])
def test_damaged_files_are_refused_or_give_rows_and_never_something_else(made: Any, tmp_path: Path) -> None:
    made(tmp_path)
    name, kind = {
        parquet: ("b.parquet", Parquet), arrow: ("a.arrow", ArrowFile), arrow_stream: ("s.arrow", ArrowFile),
        csv_file: ("b.csv", CSV), json_lines: ("a.jsonl", JSONLines), mapped: ("x.npy", memory_map),
    }[made]  # fmt: skip
    whole = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    for k in range(100):
        damaged = bytearray(whole[: rng.integers(1, len(whole))] if k % 3 == 0 else whole)
        for at in rng.integers(0, len(damaged), 3):
            damaged[at] = rng.integers(256)
        path = tmp_path / f"damaged{k}"
        path.write_bytes(damaged)
        try:
            rows = list(kind(path))  # type: ignore[operator]
        except st.StratalError:
            continue
        assert all(isinstance(row, dict | np.ndarray | int | float) for row in rows)


def test_parquet_without_checksums_is_checked_against_its_statistics(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "i": np.arange(7, 47, dtype=np.int64), "u": np.arange(40, dtype=np.uint8) + np.uint8(200),
        "f": np.linspace(-1, 1, 40, dtype=np.float32),
    }  # fmt: skip
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    assert [row["i"] for row in Parquet(path)] == list(range(7, 47))
    for name in columns:
        values = columns[name].astype(np.int32) if name == "u" else columns[name]
        at = whole.index(values.tobytes()[40:80]) + 40  # the first are in the statistics, too
        for change, caught in ((values[20].tobytes(), False), (b"\x7f" * values.itemsize, True)):
            path.write_bytes(whole[:at] + change + whole[at + values.itemsize :])
            if caught:
                with pytest.raises(FormatError, match=f"column '{name}': is as the file says"):
                    Parquet(path, [name])[0]
            else:
                Parquet(path, [name])[0]
    odd = {"f": pa.array([1.0, None, np.nan, 3.0]), "n": pa.array([np.nan] * 4), "s": ["a", "b", "c", "d"]}
    pq.write_table(pa.table(odd), path)
    assert [row["s"] for row in Parquet(path)] == ["a", "b", "c", "d"]
    pq.write_table(pa.table({"x": np.array([-0.0, 0.0, np.nan])}), path)
    assert len(list(Parquet(path))) == 3


def test_checksums_of_pages_are_verified_where_a_file_has_them(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "sums.parquet"
    table = pa.table({"x": np.arange(1000, dtype=np.int64) << 40})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FormatError, match=r"row group 0: .*sums\.parquet cannot be read"):
        list(Parquet(path))


def test_other_objects_are_no_frames() -> None:
    with pytest.raises(DTypeError, match="a frame with columns"):
        Frame(io.StringIO())
    for encoding in ("utf-16", "nonsense"):
        for kind in (CSV, TextLines):
            with pytest.raises(AttributeValueError, match="takes encodings"):
                kind("a", encoding=encoding)
    with pytest.raises(AttributeValueError, match="at least one path"):
        CSV([])


@pytest.mark.parametrize("cache_bytes", [1 << 20, 40])
def test_columns_of_any_positions_are_those_of_the_rows(cache_bytes: int) -> None:
    """Rows that follow each other, within a group and across several, and scattered ones, again and again."""
    numbers, texts = np.arange(20, dtype=np.float32), [f"t{k}" for k in range(20)]
    sizes = [7, 0, 1, 12]
    ends = np.cumsum(sizes).tolist()

    def read(group: int) -> dict[str, Any]:
        rows = slice(ends[group] - sizes[group], ends[group])
        return {"x": numbers[rows].copy(), "t": texts[rows]}

    source = ColumnGroups(read, sizes, ["x", "t"], cache_bytes)
    for _ in range(2):
        for asked in ([2, 3, 4], range(5, 19), [7], [19, 0, 7, 7, 6], [-1, -20], [], [18, 17], [0, 8]):
            found = source.columns_at(asked)
            assert list(found["x"]) == [float(k % 20) for k in asked]
            assert list(found["t"]) == [texts[k] for k in asked]
    with pytest.raises(ValueError, match="read-only"):
        source.columns_at([2, 3])["x"][0] = 1
    with pytest.raises(IndexOutOfRangeError, match="a row of 20"):
        source.columns_at([0, 20])


def test_groups_are_read_ahead_once_and_errors_come_with_theirs() -> None:
    reads: list[int] = []

    def read(group: int) -> dict[str, Any]:
        reads.append(group)
        if group == 4:
            raise ValueError("group 4")
        return {"x": np.arange(10 * group, 10 * group + 10)}

    source = ColumnGroups(read, [10] * 6, ["x"], cache_bytes=100, ahead=2)
    for _ in range(2):  # passes
        reads.clear()
        found = [source.columns_at(range(k, k + 5))["x"].tolist() for k in range(0, 40, 5)]
        assert sum(found, []) == list(range(40))  # noqa: RUF017
        with pytest.raises(ValueError, match="group 4"):
            source.columns_at(range(38, 45))
        assert source.columns_at([55])["x"].tolist() == [55]
        assert sorted(reads)[:4] == [0, 1, 2, 3] and reads.count(4) == 1
    assert source.columns_at([5, 33, 12])["x"].tolist() == [5, 33, 12]
    whole = ColumnGroups(lambda k: {"x": np.full(3, k)}, [3] * 5, ["x"], ahead=3)
    assert whole.columns_at(range(15))["x"].tolist() == np.repeat(range(5), 3).tolist()
    assert whole.columns_at([14, 0])["x"].tolist() == [4, 0]


def test_what_was_read_ahead_goes_with_its_reader() -> None:
    class Held:
        def __call__(self, group: int) -> dict[str, Any]:
            return {"x": np.zeros(3)}

    held = Held()
    freed = weakref.ref(held)
    source = ColumnGroups(held, [3] * 9, ["x"], ahead=2)
    gc.collect()
    gc.disable()
    try:
        source.columns_at([0])
        del source, held
        for _ in range(1000):
            if freed() is None:
                break
            time.sleep(0.01)
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("columns", [None, ["name", "x"], ["x", "id"]])
def test_a_table_by_columns_is_what_its_rows_are(columns: list[str] | None, tmp_path: Path) -> None:
    """In spans, which one condition selects, and scattered; also where rows were added or are gone."""
    connect = database(tmp_path)
    with connect() as connection:
        connection.execute("UPDATE readings SET id = -3 * id - 1")
        connection.execute("UPDATE readings SET id = -id - 1")
    table = SQLTable(connect, "readings", "id", columns)
    for _ in range(2):
        for asked in (range(COUNT), [4, 5, 6], [6, 5, 5, -1], [], [3]):
            rows = table.__getitems__(asked)
            found = table.columns_at(asked)
            names = columns or ["id", "x", "name"]
            assert list(found) == names
            assert [list(column) for column in found.values()] == [[row[n] for row in rows] for n in names]
        with connect() as connection:
            connection.execute("INSERT OR IGNORE INTO readings VALUES (13, 1.0, 'new')")
    with connect() as connection:
        connection.execute("DELETE FROM readings WHERE id = 15")
    assert len(table.columns_at(range(5))["x"]) == 5
    with pytest.raises(BadRowError, match="row 5, column 'id'"):
        table.columns_at(range(COUNT))


BIG = 2**53 + 1


def test_missing_values_of_frames_are_none_and_whole_numbers_stay_whole() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({
        "d": pa.array(["a", None, "b", None]).dictionary_encode(), "n": [1, None, BIG, 3],
        "whole": [BIG, 2, 3, 4],
    })  # fmt: skip
    found = Frame(table)
    assert [row["d"] for row in found] == ["a", None, "b", None]
    assert [row["n"] for row in found] == [1, None, BIG, 3] and type(found[2]["n"]) is int
    assert found[0]["whole"] == BIG


def test_missing_values_of_frames_of_pandas_and_polars_are_none() -> None:
    pd = pytest.importorskip("pandas")
    found = Frame(pd.DataFrame({"n": pd.array([1, None, BIG], "Int64"), "f": [1.0, np.nan, 2.0]}))
    assert [row["n"] for row in found] == [1, None, BIG] and np.isnan(found[1]["f"])
    pl = pytest.importorskip("polars")
    found = Frame(pl.DataFrame({"n": [1, None, BIG], "s": ["a", None, "b"]}))
    assert [row["n"] for row in found] == [1, None, BIG] and found[1]["s"] is None


def test_bad_rows_of_text_files_name_the_line_an_editor_shows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('k,s\n1,"two\nlines"\n\n?,x\n3,y\n!,z\n')
    source = CSV(path, types={"k": int})
    with pytest.raises(BadRowError, match=r"a\.csv:5: row 1, column 'k' cannot be read"):
        source.columns_at(range(2))
    found = Pipeline(source, on_error="collect").shuffle(4, seed=3)
    assert len(list(found)) == 2 and sorted((bad.row, bad.line) for bad in found.bad_rows) == [(1, 5), (3, 7)]
    found.bad_rows.reverse()
    assert [source.records.line(str(path), k) for k in (3, 0, 1, 2, 0)] == [7, 2, 5, 6, 2]
    error = copy(found.bad_rows[0])  # as a worker process hands it over
    assert (error.row, error.column, error.line) == (found.bad_rows[0].row, "k", found.bad_rows[0].line)


@pytest.mark.parametrize("block", [1, 3, 16, 1 << 22])
def test_records_are_found_across_the_blocks_that_threads_look_at(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    path = tmp_path / "a.csv"
    path.write_bytes(b'k,s\n1,"a\nb"\r\n\n2,"c""\n""\n"\n3,"\n\n\n"\n4,d')
    assert [row["s"] for row in CSV(path)] == ["a\nb", 'c"\n"\n', "\n\n\n", "d"]
    assert [CSV(path).records.line(str(path), k) for k in range(4)] == [2, 5, 8, 12]
    assert len(TextLines(path)) == 9


def test_blank_lines_of_json_are_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'  \n{"x": 1}\n\n \t \r\n {"x": 2} \n{"x"\n   ')
    found = Pipeline(JSONLines(path), on_error="collect")
    assert list(found) == [{"x": 1}, {"x": 2}] and [(b.row, b.line) for b in found.bad_rows] == [(2, 6)]
    path.write_bytes(b"  \n\n")
    assert len(JSONLines(path)) == 0


def test_a_file_with_another_delimiter_is_told_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("heat;state\n1,5;ok\n2;worn\n")
    for call in (lambda: CSV(path)[0], lambda: CSV(path, ["heat"]), lambda: CSV(path, types={"heat": float})):
        with pytest.raises(st.StratalError, match="delimiter=';'"):
            call()
    assert CSV(path, delimiter=";")[0]["heat"] == "1,5"


def test_lists_of_lists_of_unequal_lengths_spoil_no_other_row(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"v": [[[1, 2], [3, 4]], [[1, 2], [3]], None, [[5, 6], [7, 8]]]}), tmp_path / "l")
    source = Parquet(tmp_path / "l")
    assert source[0]["v"].tolist() == [[1, 2], [3, 4]] and source[2]["v"] is None
    assert [part.tolist() for part in source[1]["v"]] == [[1, 2], [3]]
    assert next(iter(DataLoader(source, batch_sampler=[[3, 0]])))["v"].shape == (2, 2, 2)
    with pytest.raises(st.StratalError, match="'v'"):
        next(iter(DataLoader(source, 2)))
    pairs = pa.table({"m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64()))})
    assert [row["m"] for row in Frame(pairs)][:2] == [[("k", 1)], None]
