"""Data frames and tables in memory: of pandas, polars and pyarrow, by what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import DTypeError
from stratal.data.sources.arrow_files import arrow_column
from stratal.data.sources.columns import Column, ColumnGroups, array_of
from stratal.data.sources.opening import checked_columns

_NUMBERS: Final = "biufcMm"


class Frame(ColumnGroups):
    """The rows of a data frame: anything with columns by name, each of which has `to_numpy()`.

    Columns of numbers are NumPy's, without a copy where the frame has them so; others are lists, in which
    lists of numbers are arrays. Raises: DTypeError for another kind of object, AttributeValueError where two
    columns have one name.
    """

    def __init__(self, frame: Any, columns: Sequence[str] | None = None) -> None:
        there = getattr(frame, "column_names", None)
        there = getattr(frame, "columns", None) if there is None else there
        if there is None or not hasattr(frame, "__getitem__"):
            raise DTypeError("Frame: takes a frame with columns", got=f"a {type(frame).__name__}")
        names = checked_columns("Frame", columns, list(there))
        made = {name: _values(frame[name]) for name in names}

        def read(group: int) -> Mapping[str, Column]:
            return made

        super().__init__(read, [len(frame)], names)


def _values(column: Any) -> Column:
    """Return a column as an array of numbers where none is missing, else as a list with None for those."""
    if type(column).__module__.partition(".")[0] == "pyarrow":
        return arrow_column(column)
    if callable(getattr(column, "null_count", None)):
        return _of_polars(column)
    if not isinstance(getattr(column, "dtype", np.dtype(int)), np.dtype) and hasattr(column, "isna"):
        missing = np.asarray(column.isna())  # a nullable column of pandas, which makes floats of it
        if missing.any():
            pairs = zip(column.tolist(), missing.tolist(), strict=True)
            return [None if is_missing else array_of(value) for value, is_missing in pairs]
    array = np.asarray(column.to_numpy())
    return array if array.dtype.kind in _NUMBERS else list(map(array_of, array.tolist()))


def _of_polars(column: Any) -> Column:
    array = None if column.null_count() else np.asarray(column.to_numpy())
    if array is not None and array.dtype.kind in _NUMBERS:
        return array
    if type(column.dtype).__name__ not in ("List", "Array"):
        return list(map(array_of, column.to_list()))
    rows = ((None if row is None else _of_polars(row)) for row in column)  # of the type the numbers have
    return [array_of(row) for row in rows]
