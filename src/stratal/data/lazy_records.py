"""Records and batches that are made when their value is asked for: a rank that has no part in one skips it.

    Record := data set, position, functions          RowBlock := data set, positions, functions
    Batch := RowBlock | [Record | Batch ...], collate, functions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from stratal.data.collate import collated_columns, default_collate
from stratal.data.shuffle import part_of

Array = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


class Record:
    """An element of a data set, with functions to apply to it."""

    __slots__ = ("functions", "index", "source")

    def __init__(self, source: Any, index: int, functions: tuple[Function, ...] = ()) -> None:
        self.source, self.index, self.functions = source, index, functions

    def then(self, function: Function) -> Record:
        """Return the record with one function more."""
        return Record(self.source, self.index, (*self.functions, function))

    def value(self) -> Any:
        """Read the element and apply the functions."""
        return applied(self.functions, self.source[self.index])


class RowBlock(Sequence[Record]):
    """Rows of a data set, with functions to apply to each."""

    __slots__ = ("functions", "positions", "source")

    def __init__(self, source: Any, positions: Array, functions: tuple[Function, ...] = ()) -> None:
        self.source, self.positions, self.functions = source, positions, functions

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RowBlock: ...
    def __getitem__(self, index: int | slice) -> Record | RowBlock:
        if isinstance(index, slice):
            return RowBlock(self.source, self.positions[index], self.functions)
        return Record(self.source, int(self.positions[index]), self.functions)


class Joined:
    """The elements of several pipelines at one position, as a tuple."""

    __slots__ = ("functions", "parts")

    def __init__(self, parts: Sequence[Any], functions: tuple[Function, ...] = ()) -> None:
        self.parts, self.functions = parts, functions

    def then(self, function: Function) -> Joined:
        """Return the tuple with one function more."""
        return Joined(self.parts, (*self.functions, function))

    def value(self) -> Any:
        """Make the elements and apply the functions."""
        return applied(self.functions, tuple(part.value() for part in self.parts))


class Batch:
    """Records that `collate` makes one value of, with functions to apply to that."""

    __slots__ = ("collate", "functions", "rows")

    def __init__(
        self, rows: Sequence[Any], collate: Callable[[list[Any]], Any], functions: tuple[Function, ...] = ()
    ) -> None:
        self.rows, self.collate, self.functions = rows, collate, functions

    def then(self, function: Function) -> Batch:
        """Return the batch with one function more."""
        return Batch(self.rows, self.collate, (*self.functions, function))

    def part(self, rank: int, ranks: int) -> Batch:
        """Return the part of a rank. Raises: AttributeValueError where a rank would have none."""
        return Batch(self.rows[part_of(len(self.rows), rank, ranks)], self.collate, self.functions)

    def value(self) -> Any:
        """Make the records, collate them and apply the functions."""
        plain = getattr(self.collate, "function", self.collate)  # of one that is timed
        if plain is default_collate and (columns := _columns_of(self.rows)) is not None:
            return applied(self.functions, columns)
        return applied(self.functions, self.collate(values_of(self.rows)))


def _columns_of(rows: Sequence[Any]) -> Any:
    """Return the batch of untouched rows of one source that has columns; None for others."""
    if isinstance(rows, RowBlock):
        source: Any = rows.source
        whole = hasattr(source, "columns_at") and not rows.functions
        return collated_columns(source.columns_at(rows.positions)) if whole else None
    source = getattr(rows[0], "source", None)
    if not hasattr(source, "columns_at"):
        return None
    if any(getattr(r, "source", None) is not source or r.functions for r in rows):
        return None
    return collated_columns(source.columns_at([r.index for r in rows]))


def values_of(rows: Sequence[Any]) -> list[Any]:
    """Return the values of records, read at once where they are of one data set that has `__getitems__`."""
    if isinstance(rows, RowBlock):
        source: Any = rows.source
        positions = rows.positions.tolist()
        several = hasattr(source, "__getitems__")
        read = source.__getitems__(positions) if several else [source[k] for k in positions]
        return [applied(rows.functions, value) for value in read] if rows.functions else list(read)
    source = getattr(rows[0], "source", None)
    if hasattr(source, "__getitems__") and all(getattr(r, "source", None) is source for r in rows):
        read = source.__getitems__([r.index for r in rows])
        return [applied(r.functions, value) for r, value in zip(rows, read, strict=True)]
    return [row.value() for row in rows]


def applied(functions: Sequence[Function], value: Any) -> Any:
    """Return a value after functions, one after the other."""
    for function in functions:
        value = function(value)
    return value
