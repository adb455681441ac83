"""Rows that lie in columns: groups of rows that are read at once, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError, IndexOutOfRangeError

Array = np.ndarray[Any, Any]
Column = Any  # an array, or a sequence of values that are none
CACHE_BYTES: Final = 1 << 30


class ColumnGroups:
    """Rows in groups; `read(k)` returns the columns of group k, `sizes` has how many rows each has.

    Groups that were read last stay in memory, up to `cache_bytes`: rows in any order are quick where all
    groups fit. Where they do not, `shuffle(window)` reads each group once.
    """

    def __init__(
        self, read: Callable[[int], Mapping[str, Column]], sizes: Sequence[int], names: Sequence[str],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:  # fmt: skip
        self._read, self.names = read, list(names)
        self._sizes = list(sizes)
        self._ends = np.cumsum(np.asarray(sizes, np.int64), dtype=np.int64)
        self._cache_bytes = cache_bytes
        self._groups: OrderedDict[int, tuple[int, Mapping[str, Column]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows, of NumPy's numbers and Python's texts."""
        columns = self.columns_at(positions)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def columns_at(self, positions: Sequence[int]) -> dict[str, Column]:
        """Return the columns of some rows, in their order. Raises: IndexOutOfRangeError."""
        asked = np.asarray(positions, np.int64)
        count = len(self)
        if len(asked) and not (-count <= asked.min() and asked.max() < count):
            raise IndexOutOfRangeError(f"a row of {count}", got=f"{asked.min()} to {asked.max()}")
        asked = np.where(asked < 0, asked + count, asked)
        groups = np.searchsorted(self._ends, asked, side="right")
        found = np.unique(groups)
        parts = [self._part(int(g), asked[groups == g]) for g in found]
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.argsort(groups, kind="stable"), kind="stable")  # of rows within the parts
        return {name: _joined([part[name] for part in parts], order) for name in self.names}

    def _part(self, group: int, rows: Array) -> dict[str, Column]:
        """Return the columns of some rows of a group."""
        columns = self._group(group)
        inside = rows - (int(self._ends[group - 1]) if group else 0)
        return {name: _chosen(columns[name], inside) for name in self.names}

    def _group(self, group: int) -> Mapping[str, Column]:
        with self._lock:
            if group in self._groups:
                self._groups.move_to_end(group)
                return self._groups[group][1]
            columns = self._read(group)
            if wrong := [name for name in self.names if len(columns[name]) != self._sizes[group]]:
                raise FormatError(f"{type(self).__name__}: a group has as many rows as the file says",
                                  got=f"{len(columns[wrong[0]])} of {self._sizes[group]}")  # fmt: skip
            self._groups[group] = sum(map(_nbytes, columns.values())), columns
            while len(self._groups) > 1 and sum(n for n, _ in self._groups.values()) > self._cache_bytes:
                self._groups.popitem(last=False)
            return columns


def _nbytes(column: Column) -> int:
    return column.nbytes if isinstance(column, np.ndarray) and column.dtype != object else 64 * len(column)


def _chosen(column: Column, rows: Array) -> Column:
    return column[rows] if isinstance(column, np.ndarray) else [column[k] for k in rows.tolist()]


def _joined(parts: Sequence[Column], order: Array) -> Column:
    """Return parts of a column one after the other, in another order; arrays where all are of one dtype."""
    if all(isinstance(p, np.ndarray) for p in parts) and len({p.dtype for p in parts}) == 1:
        return np.concatenate(parts)[order]
    values = [value for part in parts for value in part]
    return [values[k] for k in order.tolist()]
