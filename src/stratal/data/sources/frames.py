"""Data frames and tables in memory: of pandas, polars and pyarrow, by what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stratal.base.errors import DTypeError
from stratal.data.sources.columns import Column, ColumnGroups
from stratal.data.sources.opening import checked_columns


class Frame(ColumnGroups):
    """The rows of a data frame: anything with columns by name, each of which has `to_numpy()`.

    Columns of numbers are NumPy's, without a copy where the frame has them so; others are lists.
    Raises: DTypeError for another kind of object.
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
    array = np.asarray(column.to_numpy())
    return array if array.dtype.kind in "biufcM" else array.tolist()
