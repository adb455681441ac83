"""Parquet and Arrow files (pyarrow): rows by groups, of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError
from stratal.data.sources.columns import CACHE_BYTES, Column, ColumnGroups, array_of
from stratal.data.sources.opening import Paths, checked_columns, opening, paths_of, required
from stratal.data.sources.unchanged import UnchangedFile, unchanged_file

_NUMBERS: Final = {  # Arrow's name of a type: NumPy's
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": "float16", "float": "float32", "double": "float64",
}  # fmt: skip


class Parquet(ColumnGroups):
    """The rows of Parquet files, one file after the other; reads row groups, and the named columns alone.

    Numbers are NumPy's, of the column's type; texts are Python's, missing values None; lists of numbers are
    arrays, and lists of lists of unequal lengths are lists of arrays.
    Raises: MissingSourceError, FormatError for what is no Parquet file, MissingExtraError without pyarrow.
    """

    def __init__(
        self, paths: Paths, columns: Sequence[str] | None = None, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        arrow, parquet = required("pyarrow", "data"), required("pyarrow.parquet", "data")
        self.paths = paths_of("Parquet", paths)
        groups: list[tuple[Any, UnchangedFile, int]] = []  # as Parquet, as it was, number of the row group
        sizes = []
        names: list[str] = []
        for path in self.paths:
            with opening(path, "Parquet", arrow.ArrowException, OSError, ValueError):
                state = unchanged_file("Parquet", path)
                file = parquet.ParquetFile(path, page_checksum_verification=True)
                there = file.schema_arrow.names
                rows = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            if min(rows, default=0) < 0 or sum(rows) != file.metadata.num_rows:
                raise FormatError(
                    f"Parquet: {path} cannot be read", got=f"{rows} rows, {file.metadata.num_rows} in all"
                )
            _check_names(path, names, there, columns)
            names = names or checked_columns(path, columns, there)
            groups += [(file, state, k) for k in range(file.num_row_groups)]
            sizes += rows

        def read(group: int) -> Mapping[str, Column]:
            file, state, k = groups[group]
            what = f"Parquet: row group {k}"
            try:
                with opening(state.path, what, arrow.ArrowException, OSError, ValueError):
                    table = file.read_row_group(k, columns=names)
                    found = columns_of(table, names)
                    _check_statistics(state.path, k, file.metadata.row_group(k), table, found)
            finally:
                state.check()
            return found

        super().__init__(read, sizes, names, cache_bytes)


class ArrowFile(ColumnGroups):
    """The rows of Arrow IPC files (Feather 2), of the file or the stream format, by batches.

    The rows of a stream with dictionaries are read at once. Raises: as `Parquet`.
    """

    def __init__(
        self, paths: Paths, columns: Sequence[str] | None = None, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        arrow = required("pyarrow", "data")
        self.paths = paths_of("ArrowFile", paths)
        batches: list[tuple[UnchangedFile, Callable[[int], Any], int]] = []  # number k of what reads them
        sizes: list[int] = []
        names: list[str] = []
        for path in self.paths:
            with opening(path, "ArrowFile", arrow.ArrowException, OSError, ValueError):
                state = unchanged_file("ArrowFile", path)
                there, rows, batch_of = _record_batches(arrow, state.absolute)
            _check_names(path, names, there, columns)
            names = names or checked_columns(path, columns, there)
            batches += [(state, batch_of, k) for k in range(len(rows))]
            sizes += rows

        def read(group: int) -> Mapping[str, Column]:
            state, batch_of, k = batches[group]
            try:
                with opening(state.path, "ArrowFile", arrow.ArrowException, OSError, ValueError):
                    batch = batch_of(k)
                    batch.validate(full=True)
                    return columns_of(batch, names)
            finally:
                state.check()

        super().__init__(read, sizes, names, cache_bytes)


def _record_batches(arrow: Any, path: str) -> tuple[list[str], list[int], Callable[[int], Any]]:
    """Return the names of columns of an Arrow file of either format, the rows of its batches, and what reads
    one of those. The file is mapped for the first two alone: a map kills the process where the file is cut.
    """
    ipc, as_stream = arrow.ipc, False
    with arrow.memory_map(path) as mapped:
        try:
            reader = ipc.open_file(mapped)
        except arrow.ArrowInvalid:
            mapped.seek(0)
            reader, as_stream = ipc.open_stream(mapped), True
        names = reader.schema.names
        if not as_stream:
            rows = [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)]
        else:
            rows, starts = _rows_of_stream(reader, mapped)
            if any("dictionary" in str(kind) for kind in reader.schema.types):
                with arrow.OSFile(path) as file:
                    return names, rows, list(ipc.open_stream(file)).__getitem__

    def of_file(k: int) -> Any:
        with arrow.OSFile(path) as file:
            return ipc.open_file(file).get_batch(k)

    def of_stream(k: int) -> Any:
        with arrow.OSFile(path) as file:
            batches = ipc.open_stream(file)  # which reads the schema, and then from where the file stands
            file.seek(starts[k])
            return batches.read_next_batch()

    return names, rows, of_stream if as_stream else of_file


def _rows_of_stream(reader: Any, mapped: Any) -> tuple[list[int], list[int]]:
    """Return how many rows each batch of a stream has, and where in the file it begins."""
    rows: list[int] = []
    starts: list[int] = []
    while True:
        start = mapped.tell()
        try:
            rows.append(reader.read_next_batch().num_rows)
        except StopIteration:
            return rows, starts
        starts.append(start)


def _check_names(path: str, names: list[str], there: list[str], columns: Sequence[str] | None) -> None:
    """Check that a further file has the columns of those before. Raises: FormatError."""
    if len(set(there)) < len(there):
        raise FormatError(f"{path}: columns have different names", got=", ".join(there))
    if names and (not set(names) <= set(there) or (columns is None and names != there)):
        raise FormatError(f"{path}: has the columns of the files before it", got=", ".join(there),
                          hint="columns=[...] names those that all have")  # fmt: skip


def _check_statistics(path: str, group: int, said: Any, table: Any, found: Mapping[str, Column]) -> None:
    """Check what was read of a row group against what the file says: missing values, least and greatest.

    Raises: FormatError.
    """
    for k in range(said.num_columns):
        column = said.column(k)
        name, statistics = column.path_in_schema, column.statistics
        if statistics is None or name not in found:
            continue
        missing = table.column(name).null_count
        if statistics.has_null_count and statistics.null_count != missing:
            raise _damaged(path, group, name, f"{missing} missing values, not {statistics.null_count}")
        values = found[name]
        if not statistics.has_min_max or not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
            continue
        bounds = statistics.min, statistics.max
        if not len(values) or not all(isinstance(bound, int | float) for bound in bounds):
            continue
        least, greatest = np.fmin.reduce(values).item(), np.fmax.reduce(values).item()  # without NaN
        if least < bounds[0] or greatest > bounds[1]:
            raise _damaged(path, group, name, f"values {least} to {greatest}, not {bounds[0]} to {bounds[1]}")


def _damaged(path: str, group: int, name: str, got: str) -> FormatError:
    return FormatError(f"Parquet: {path}, row group {group}, column {name!r}: is as the file says", got=got,
                       hint="the file is damaged; write_page_checksum=True shows where")  # fmt: skip


def columns_of(table: Any, names: Sequence[str]) -> dict[str, Column]:
    """Return columns of an Arrow table or batch: arrays of numbers, lists where some are missing."""
    return {name: arrow_column(table.column(table.schema.get_field_index(name))) for name in names}


def arrow_column(column: Any) -> Column:
    """Return an Arrow array, or one in chunks: numbers of which none is missing as an array, else a list."""
    if hasattr(column, "num_chunks"):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    kind = str(column.type)
    if column.null_count == 0 and kind in _NUMBERS:  # `to_numpy` imports pandas first, half a second
        buffer, dtype = column.buffers()[1], np.dtype(_NUMBERS[kind])
        return np.frombuffer(buffer, dtype, len(column), column.offset * dtype.itemsize)
    if column.null_count == 0 and (kind == "bool" or kind.startswith(("date", "timestamp"))):
        return column.to_numpy(zero_copy_only=False)
    lists = _number_lists(column, kind)
    return [array_of(v) for v in column.to_pylist()] if lists is None else lists


def _number_lists(column: Any, kind: str) -> Column | None:
    """Return lists of numbers as arrays of the numbers' type; None for other columns, and where some is
    missing.
    """
    fixed = kind.startswith("fixed_size_list<")
    if column.null_count or not (fixed or kind.startswith(("list<", "large_list<"))):
        return None
    inner = column.flatten()
    if inner.null_count or str(inner.type) not in (*_NUMBERS, "bool"):
        return None
    values = arrow_column(inner)
    if fixed:
        return values.reshape(len(column), column.type.list_size)
    ends = np.cumsum(arrow_column(column.value_lengths()), dtype=np.int64).tolist()
    return [values[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
