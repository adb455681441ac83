"""Rows that lie in columns: groups of rows that are read at once, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

import numpy as np

from stratal.base.errors import FormatError, IndexOutOfRangeError
from stratal.data.shuffle import span_of

Array = np.ndarray[Any, Any]
Column = Any  # an array, or a sequence of values that are none
CACHE_BYTES: Final = 1 << 30
_NESTED: Final = frozenset((list, dict, np.ndarray))


class ColumnGroups:
    """Rows in groups; `read(k)` returns the columns of group k, `sizes` has how many rows each has.

    Groups that were read last stay in memory, up to `cache_bytes`: rows in any order are quick where all
    groups fit. Where they do not, `shuffle(window)` reads each group once. While they are read one after the
    other, threads read so many of the next ones as `ahead` says.
    """

    def __init__(
        self, read: Callable[[int], Mapping[str, Column]], sizes: Sequence[int], names: Sequence[str],
        cache_bytes: int = CACHE_BYTES, ahead: int = 0,
    ) -> None:  # fmt: skip
        self._read, self.names = read, list(names)
        self._sizes = list(sizes)
        self._ends = np.cumsum(np.asarray(sizes, np.int64), dtype=np.int64)
        self._cache_bytes = cache_bytes
        self._groups: OrderedDict[int, tuple[int, Mapping[str, Column]]] = OrderedDict()
        self._whole: Mapping[str, Column] | None = None  # all groups as one, which then replaces them
        self._next = _ReadAhead(read, len(self._sizes), ahead) if ahead else None
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

    def columns_at(self, positions: Sequence[int] | Array) -> dict[str, Column]:
        """Return the columns of some rows, in their order; arrays are read-only where they are views.

        Raises: IndexOutOfRangeError.
        """
        asked = checked_positions(positions, len(self))
        if (span := span_of(asked)) is not None:
            return self._span(span.start, span.stop)
        if (whole := self._merged()) is not None:
            return {name: _chosen(whole[name], asked) for name in self.names}
        groups = np.searchsorted(self._ends, asked, side="right")
        found = np.unique(groups)
        parts = [self._part(int(g), asked[groups == g]) for g in found]
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.argsort(groups, kind="stable"), kind="stable")  # of rows within the parts
        return {name: _chosen(_joined([part[name] for part in parts]), order) for name in self.names}

    def _span(self, start: int, stop: int) -> dict[str, Column]:
        """Return the columns of rows that follow each other: views, where they lie in one group."""
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right").tolist()
        parts = []
        for group in range(first, last + 1):
            columns, begin = self._group(group), self._begin(group)
            inside = slice(max(start - begin, 0), stop - begin)
            parts.append({name: columns[name][inside] for name in self.names})
        return parts[0] if len(parts) == 1 else {n: _joined([part[n] for part in parts]) for n in self.names}

    def _part(self, group: int, rows: Array) -> dict[str, Column]:
        """Return the columns of some rows of a group."""
        columns = self._group(group)
        inside = rows - self._begin(group)
        return {name: _chosen(columns[name], inside) for name in self.names}

    def _begin(self, group: int) -> int:
        return int(self._ends[group - 1]) if group else 0

    def _group(self, group: int) -> Mapping[str, Column]:
        with self._lock:
            if self._whole is not None:
                inside = slice(self._begin(group), int(self._ends[group]))
                return {name: column[inside] for name, column in self._whole.items()}
            if group in self._groups:
                self._groups.move_to_end(group)
                return self._groups[group][1]
            columns = self._read(group) if self._next is None else self._next.read(group)
            if wrong := [name for name in self.names if len(columns[name]) != self._sizes[group]]:
                raise FormatError(f"{type(self).__name__}: a group has as many rows as the file says",
                                  got=f"{len(columns[wrong[0]])} of {self._sizes[group]}")  # fmt: skip
            columns = {name: _fixed(columns[name]) for name in self.names}
            self._groups[group] = sum(map(_nbytes, columns.values())), columns
            while len(self._groups) > 1 and sum(n for n, _ in self._groups.values()) > self._cache_bytes:
                self._groups.popitem(last=False)
            return columns

    def _merged(self) -> Mapping[str, Column] | None:
        """Return all rows as one group, where all are in memory: scattered rows are then one look-up."""
        with self._lock:
            if self._whole is None and self._groups and len(self._groups) == len(self._sizes):
                parts = [dict(self._groups[k][1]) for k in range(len(self._sizes))]
                self._groups.clear()
                self._whole = {
                    name: _fixed(_joined([part.pop(name) for part in parts])) for name in self.names
                }
            return self._whole


class _ReadAhead:
    """Reads groups; threads read the ones after a group that followed the one before."""

    def __init__(self, read: Callable[[int], Mapping[str, Column]], count: int, ahead: int) -> None:
        self._read, self._count, self._ahead = read, count, ahead
        self._last = -1
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: dict[int, Future[Mapping[str, Column]]] = {}

    def read(self, group: int) -> Mapping[str, Column]:
        """Return the columns of a group. Raises: what reading it raises."""
        if group not in (0, self._last, self._last + 1):  # the last again: it could not be read as a whole
            self._under_way.clear()
        else:
            begin = max(self._under_way, default=group) + 1
            for later in range(begin, min(group + self._ahead + 1, self._count)):
                self._start(later)
        self._last = group
        made = self._under_way.pop(group, None)
        return self._read(group) if made is None else made.result()

    def _start(self, group: int) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._ahead, "stratal-data-ahead")
        self._under_way[group] = self._threads.submit(copy_context().run, self._read, group)
        if group == self._count - 1:
            self._threads.shutdown(wait=False)  # after what they have begun
            self._threads = None


def checked_positions(positions: Sequence[int] | Array, count: int) -> Array:
    """Return positions from 0 on, int64. Raises: IndexOutOfRangeError."""
    asked = np.asarray(positions, np.int64)
    if not len(asked):
        return asked
    lowest, highest = asked.min(), asked.max()
    if not (-count <= lowest and highest < count):
        raise IndexOutOfRangeError(f"a row of {count}", got=f"{lowest} to {highest}")
    return np.where(asked < 0, asked + count, asked) if lowest < 0 else asked


def _fixed(column: Column) -> Column:
    """Return a column whose views can be handed out: nobody writes to what stays in memory."""
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def _nbytes(column: Column) -> int:
    return column.nbytes if isinstance(column, np.ndarray) and column.dtype != object else 64 * len(column)


def _chosen(column: Column, rows: Array) -> Column:
    return column.take(rows, 0) if isinstance(column, np.ndarray) else [column[k] for k in rows.tolist()]


def _joined(parts: Sequence[Column]) -> Column:
    """Return parts of a column one after the other; arrays where all are of one dtype and shape of row."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(p, np.ndarray) for p in parts) and len({(p.dtype, p.shape[1:]) for p in parts}) == 1:
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def array_of(value: Any) -> Any:
    """Return a list of numbers, or of lists of them of one length, as an array; other lists, and dicts, with
    such ones within as arrays; any other value as it is.
    """
    if type(value) not in _NESTED:
        return value
    if type(value) is dict:
        return {key: array_of(v) for key, v in value.items()}
    if type(value) is np.ndarray and value.dtype == object:  # of pandas, of a column of Arrow's lists
        value = value.tolist()
    if type(value) is not list or any(isinstance(v, tuple) for v in value):
        return value  # a map of Arrow's is a list of pairs
    leaf = value
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, bool | int | float | complex | np.number | np.ndarray | list):
        try:
            made = np.asarray(value)
        except (ValueError, OverflowError):  # of unequal lengths
            made = np.asarray(None)
        if made.dtype.kind == "f" and (np.abs(made) >= 1 << 63).any():
            return _whole(np.asarray(value, object), made)
        if made.dtype.kind in "biufc":
            return made
    return [array_of(v) for v in value]


def _whole(values: Array, floats: Array) -> Array:
    """Return whole numbers of which some do not fit int64 as uint64, for which NumPy takes float64; those
    that do not fit it either as Python's, which no batch takes.
    """
    if not all(type(v) is int for v in values.flat):
        return floats
    return values.astype(np.uint64) if min(values.flat) >= 0 and max(values.flat) < 1 << 64 else values
