"""Columns of CSV text at once, where that gives what its cells give one by one.

    text without quotes     Arrow, where it is installed: numbers by column
    other text              Python's csv module, then numbers by column

Both return None for text they may read in another way than cell by cell, or that has a cell its type does not
take: rows are then read one by one, and the error names the cell. Floats become what Python's do in
batches (float32), integers int64; columns of other types are lists.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.data.sources.columns import Column

Array = np.ndarray[Any, Any]
Type = Callable[[str], Any]


def number(cell: str) -> float:
    """Return a cell as a float; NaN where it is empty."""
    if not cell.strip():
        return math.nan
    if "_" in cell:
        raise ValueError(f"{cell!r} is no number")
    return float(cell)


def truth(cell: str) -> bool:
    """Return a cell as true or false, in the words of pandas and Arrow. Raises: ValueError for others."""
    if cell in ("true", "True", "TRUE", "1"):
        return True
    if cell in ("false", "False", "FALSE", "0"):
        return False
    raise ValueError(f"{cell!r} is neither true nor false")


def whole(cell: str) -> int:
    """Return a cell as an integer. Raises: ValueError, for `1_000`, too, which is Python's alone."""
    if "_" in cell:
        raise ValueError(f"{cell!r} is no integer")
    return int(cell)


def whole_or_missing(cell: str) -> float:
    """Return a cell of a column of whole numbers of which some are missing: NaN where it is empty.

    Raises: ValueError for whole numbers that batches would round.
    """
    try:
        exact = whole(cell)
    except ValueError:
        return number(cell)
    if abs(exact) > _SMALL:
        dtype = as_dtype(float)
        with np.errstate(over="ignore"):
            rounded = float(np.float64(exact).astype(dtype.np)) if abs(exact) <= _LARGEST else math.inf
        if rounded != exact:
            raise ValueError(f"{cell!r} is not exact in {dtype.name}, which columns with empty cells have; "
                             "types={column: function} reads them in another way")  # fmt: skip
    return float(exact)


def whole_or_empty(cell: str) -> int | None:
    """Return a cell as an integer, None where it is empty. Raises: ValueError."""
    return whole(cell) if cell.strip() else None


def number_or_empty(cell: str) -> float | None:
    """Return a cell as an integer where it is one, else as a float; None where it is empty.

    Raises: ValueError.
    """
    try:
        return whole_or_empty(cell)
    except ValueError:
        return number(cell)


_BLOCK: Final = 1 << 26  # bytes that Arrow parses at once; a longer record is left to Python
FLOATS: Final = (float, number, whole_or_missing)
REFUSALS: Final = (ValueError, TypeError, ArithmeticError, LookupError)  # of cells: int8("300"), Decimal("x")
_SMALL, _LARGEST = 1 << 8, 1 << 53  # whole numbers up to here are those of every float, and of float64
_INTEGERS: Final = (int, whole)


def arrow_columns(
    text: bytes, count: int, names: Sequence[str], types: Mapping[str, Type], delimiter: str
) -> dict[str, Column] | None:
    """Return the columns in `types` of `count` records in UTF-8, of which empty lines are none; or None.

    Arrow takes for numbers what Python does not: 0x1F, nan(1). It leaves out a mark of UTF-8 at the start,
    and does not look at columns that are left out.
    """
    if any(mark in text for mark in b'"(\0') or text.startswith(codecs.BOM_UTF8) or not _is_utf8(text):
        return None
    try:
        arrow, arrow_csv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
    except ImportError:
        return None
    hexadecimal = any(kind in _INTEGERS for kind in types.values()) and (b"x" in text or b"X" in text)
    kinds = {name: _arrow_type(arrow, kind, hexadecimal) for name, kind in types.items()}
    try:
        table = arrow_csv.read_csv(
            arrow.BufferReader(text),
            arrow_csv.ReadOptions(  # one block: its columns are not joined; groups are parsed by threads
                use_threads=False, column_names=names, block_size=min(len(text) + 1, _BLOCK)
            ),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char=False),
            arrow_csv.ConvertOptions(
                include_columns=list(types), column_types=kinds, null_values=[""], strings_can_be_null=False
            ),
        )
        if table.num_rows != count:
            return None
        found = {n: _from_arrow(arrow, table.column(n).combine_chunks(), kind) for n, kind in types.items()}
    except (arrow.ArrowException, *REFUSALS):
        return None
    return None if any(column is None for column in found.values()) else found


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _arrow_type(arrow: Any, kind: Type, hexadecimal: bool) -> Any:
    if kind in FLOATS:
        return arrow.float64()
    return arrow.int64() if kind in _INTEGERS and not hexadecimal else arrow.string()


def _from_arrow(arrow: Any, column: Any, kind: Type) -> Column | None:
    """Return a column of Arrow's as that of a type; None where it has a cell that the type does not take."""
    if kind in FLOATS:
        if column.null_count and kind is float:
            return None
        found = column.fill_null(math.nan) if column.null_count else column
        numbers = _buffer(found, np.float64)
        with np.errstate(over="ignore"):
            batched = numbers.astype(as_dtype(float).np)
        return None if kind is whole_or_missing and _rounds_whole(numbers, batched) else batched
    if kind in _INTEGERS:
        if column.type != arrow.int64():
            if any("x" in cell or "X" in cell for cell in column.to_pylist()):
                return None
            column = column.cast(arrow.int64())
        return None if column.null_count else _buffer(column, np.int64)
    return column.to_pylist() if kind is str else list(map(kind, column.to_pylist()))


def _rounds_whole(numbers: Array, batched: Array) -> bool:
    """Return whether some float64 may be whole numbers that others round; their cells tell."""
    with np.errstate(invalid="ignore"):
        rounded = (batched != numbers) | (np.abs(numbers) >= _LARGEST)  # which is also what 2^53 + 1 reads as
        return bool((rounded & (numbers == np.trunc(numbers))).any())


def _buffer(column: Any, dtype: Any) -> Array:
    """Return the numbers of an Arrow array of 8 bytes each."""
    return np.frombuffer(column.buffers()[1], dtype, len(column), 8 * column.offset)


def found_type(cells: Sequence[str]) -> Type:
    """Return the first of int, float and str that takes all cells of a column, as those that batches need."""
    plain = "_" not in "".join(cells)
    for takes, kind in (
        (whole, whole), (whole_or_empty, whole_or_missing), (float if plain else number, number),
        (number, number),
    ):  # fmt: skip
        try:
            list(map(takes, cells))
        except ValueError:
            continue
        return kind
    return str


def cell_columns(cells: Mapping[str, Sequence[str]], types: Mapping[str, Type]) -> dict[str, Column] | None:
    """Return the columns in `types` of cells; None where a type does not take one."""
    try:
        return {name: _from_cells(cells[name], kind) for name, kind in types.items()}
    except REFUSALS:
        return None


def cells_of(
    records: Sequence[bytes], width: int, delimiter: str, encoding: str
) -> Sequence[Sequence[str]] | None:
    """Return the cells of records by column; None where there are not `width` in each.

    Records without line breaks can only be joined by a stray quote, which shows in their number.
    """
    text = b"\n".join(records)
    if text.count(b"\n") != len(records) - 1 or b"\r" in text:
        return None
    return text_cells(text, len(records), width, delimiter, encoding)


def text_cells(
    text: bytes, count: int, width: int, delimiter: str, encoding: str
) -> Sequence[Sequence[str]] | None:
    """Return the cells of `count` records by column, none of which has a line break within; or None."""
    try:
        return _split(text.decode(encoding), count, width, delimiter)
    except UnicodeDecodeError:
        return None


def _split(text: str, count: int, width: int, delimiter: str) -> Sequence[Sequence[str]] | None:
    """Return the cells of records by column; None where there are no records of `width` cells each."""
    if '"' not in text and text.isascii():
        marks = np.frombuffer(text.encode(), np.uint8)
        ends = marks[(marks == ord("\n")) | (marks == ord(delimiter))]
        if len(ends) == count * width - 1 and (ends[width - 1 :: width] == ord("\n")).all() and (
            np.count_nonzero(ends == ord("\n")) == count - 1
        ):  # each line has its cells
            cells = text.replace("\n", delimiter).split(delimiter)
            return [cells[k::width] for k in range(width)]
    try:
        table = [row for row in csv.reader(io.StringIO(text, ""), delimiter=delimiter, strict=True) if row]
    except csv.Error:
        return None
    if not table or len(table) != count or set(map(len, table)) - {width}:
        return None
    return list(zip(*table, strict=True))


def _from_cells(cells: Sequence[str], kind: Type) -> Column:
    """Return a column of cells. Raises: ValueError, TypeError for one that the type does not take."""
    underscores = (kind in FLOATS or kind is whole) and "_" in "".join(cells)
    if kind in FLOATS:
        try:
            exact = underscores or kind is whole_or_missing
            numbers = list(map(kind if exact else float, cells))
        except ValueError:
            numbers = list(map(kind, cells))  # some are empty
        with np.errstate(over="ignore"):
            return np.array(numbers).astype(as_dtype(float).np)
    made = list(map(int if kind is whole and not underscores else kind, cells))
    if kind not in _INTEGERS:
        return made
    try:
        return np.array(made, np.int64)
    except OverflowError:
        return made
