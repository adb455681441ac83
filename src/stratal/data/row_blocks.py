"""Rows of one data set as a stream: element by element, or in blocks without an object for each row.

    RowBlocks := data set, Part ..., functions          Part := mark, positions
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from stratal.data.lazy_records import Record, RowBlock

Array = np.ndarray[Any, Any]
Mark = Any  # JSON
Function = Callable[[Any], Any]


class Part(NamedTuple):
    """Positions that follow each other in a stream; the first has the mark.

    Where they are `counted`, each further one has a mark that is higher by 1; else it has none.
    """

    mark: Mark
    positions: Array
    counted: bool = False


class RowBlocks(Iterator[tuple[Mark, Record]]):
    """A stream of rows, read by one reader: element by element, or by `block`."""

    def __init__(self, source: Any, parts: Iterable[Part], functions: tuple[Function, ...] = ()) -> None:
        self.source, self.functions = source, functions
        self._parts = iter(parts)
        self._part = Part(None, np.empty(0, np.int64))  # what is left of the part under way
        self._singles: Iterator[tuple[Mark, int]] = iter(())  # of a part that is read one by one

    def then(self, function: Function) -> RowBlocks:
        """Return the stream with one function more."""
        return RowBlocks(self.source, self._parts, (*self.functions, function))

    def reordered(self, parts: Iterable[Part]) -> RowBlocks:
        """Return a stream of the same rows in other parts."""
        return RowBlocks(self.source, parts, self.functions)

    def __next__(self) -> tuple[Mark, Record]:
        while True:
            for mark, position in self._singles:
                return mark, Record(self.source, position, self.functions)
            self._singles = _marked(next(self._parts))

    def block(self, size: int) -> tuple[Mark, RowBlock] | None:
        """Return the mark of the next row, and `size` rows, or those that are left; None where none is."""
        found: list[Array] = []
        mark, missing = None, size
        while missing:
            while not len(self._part.positions):
                if (part := next(self._parts, None)) is None:
                    break
                self._part = part
            at, positions, counted = self._part
            if not len(positions):
                break
            mark = mark if found else at
            found.append(positions[:missing])
            taken = len(found[-1])
            self._part = Part(at + taken if counted else None, positions[taken:], counted)
            missing -= taken
        if not found:
            return None
        rows = found[0] if len(found) == 1 else np.concatenate(found)
        return mark, RowBlock(self.source, rows, self.functions)


def _marked(part: Part) -> Iterator[tuple[Mark, int]]:
    """Yield each position of a part with its mark."""
    for k, position in enumerate(part.positions.tolist()):
        yield part.mark + k if part.counted else None if k else part.mark, position
