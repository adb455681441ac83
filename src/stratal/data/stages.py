"""Stages of a pipeline: functions from a stream's elements to those of another one.

Each passes on marks as `streams.py` says: the mark of the element it had read when it held nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from stratal.base.errors import DTypeError, ShapeError
from stratal.data.bad_rows import BadRowError
from stratal.data.collate import default_collate
from stratal.data.lazy_records import Batch, Record
from stratal.data.row_blocks import Part, RowBlocks
from stratal.data.shuffle import permutation
from stratal.data.streams import Element, Keys, Run
from stratal.data.workers import called, in_order

Stage = Callable[[Iterator[Element], Run], Iterator[Element]]


def mapped(function: Callable[..., Any], seed: int | None) -> Stage:
    """`function(x)` of each element, or `function(x, rng)` with a generator of the element's own."""

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        if seed is not None:
            return drawing(elements, Keys(seed, run.epoch))
        if isinstance(elements, RowBlocks):
            return elements.then(function)
        return ((mark, value.then(function)) for mark, value in elements)

    def drawing(elements: Iterator[Element], keys: Keys) -> Iterator[Element]:
        for mark, value in elements:
            yield mark, value.then(_Drawing(function, keys.of(mark)))

    return stage


class _Drawing:
    """A function with a generator made anew from a key at each call."""

    __slots__ = ("function", "key")

    def __init__(self, function: Callable[..., Any], key: int) -> None:
        self.function, self.key = function, key

    def __call__(self, value: Any) -> Any:
        return self.function(value, np.random.Generator(np.random.Philox(key=self.key)))


def filtered(predicate: Callable[[Any], Any]) -> Stage:
    """The elements for which a predicate holds."""

    def decided(element: Element) -> tuple[Element, bool]:
        mark, value = element
        made = value.value()
        lazy = value if isinstance(value, Batch) else Record((made,), 0)  # a rank takes its part later
        return (mark, lazy), bool(predicate(made))

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        return (element for element, holds in computed(decided, elements, run) if holds)

    return stage


def good(note: Callable[[BadRowError], None]) -> Stage:
    """The elements that can be read; `note` gets the errors of the others."""

    def read(element: Element) -> tuple[Element | None, BadRowError | None]:
        try:
            return (element[0], Record((element[1].value(),), 0)), None
        except BadRowError as error:
            return None, error

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        for element, error in computed(read, elements, run):
            if error is not None:
                note(error)
            elif element is not None:
                yield element

    return stage


def computed(function: Callable[[Any], Any], items: Iterable[Any], run: Run) -> Iterator[Any]:
    """Yield a function of items in order, by the workers of the run where it has any."""
    if run.pool is None:
        return called(function, items)
    return in_order(run.pool, function, items, run.ahead, 0)


def shuffled(window: int, seed: int) -> Stage:
    """Windows of elements, each in an order drawn from (seed, epoch, the window's position)."""

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        keys = Keys(seed, run.epoch)
        if isinstance(elements, RowBlocks):
            return elements.reordered(parts(elements, keys))
        return one_by_one(elements, keys)

    def parts(elements: RowBlocks, keys: Keys) -> Iterator[Part]:
        while (held := elements.block(window)) is not None:
            mark, rows = held
            yield Part(mark, rows.positions[permutation(len(rows), keys.of(mark))])

    def one_by_one(elements: Iterator[Element], keys: Keys) -> Iterator[Element]:
        while held := list(islice(elements, window)):
            mark = held[0][0]
            for k in permutation(len(held), keys.of(mark)).tolist():
                yield mark, held[k][1]
                mark = None

    return stage


def batched(size: int, drop_last: bool, collate: Callable[[list[Any]], Any]) -> Stage:
    """Batches of elements that follow each other."""

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        while (held := _block(elements, size)) is not None:
            mark, rows = held
            if len(rows) == size or not drop_last:
                yield mark, Batch(rows, collate)

    return stage


def _block(elements: Iterator[Element], size: int) -> tuple[Any, Sequence[Any]] | None:
    """Return the mark of the first of the next `size` elements, and their values; None at the end."""
    if isinstance(elements, RowBlocks):
        return elements.block(size)
    held = list(islice(elements, size))
    return (held[0][0], [value for _, value in held]) if held else None


def bucketed(
    size: int, key: Callable[[Any], Any], window: int, drop_last: bool, collate: Callable[[list[Any]], Any]
) -> Stage:
    """Batches of elements of like keys: windows are sorted by key and cut into batches."""

    def keyed(element: Element) -> tuple[Any, Any]:
        made = element[1].value()
        return key(made), Record((made,), 0)

    def stage(elements: Iterator[Element], run: Run) -> Iterator[Element]:
        while held := list(islice(elements, window)):
            mark, rows = held[0][0], sorted(computed(keyed, held, run), key=lambda row: row[0])
            for start in range(0, len(rows), size):
                part = [value for _, value in rows[start : start + size]]
                if len(part) == size or not drop_last:
                    yield mark, Batch(part, collate)
                    mark = None

    return stage


class Padded:
    """Pads axis 0 of fields of rows to the longest of a batch, or to `length`, and collates.

    `fields` is the value to pad with for every array, of mappings and tuples, too, whose numbers and texts
    stay as they are; or one for each field of mappings.
    Raises: ShapeError where one is longer than `length`, or no array; DTypeError for a value that its dtype
    does not hold.
    """

    def __init__(
        self, fields: Any, length: int | None = None, collate: Callable[[list[Any]], Any] = default_collate
    ) -> None:
        self.fields, self.length, self.collate = fields, length, collate

    def __call__(self, rows: list[Any]) -> Any:
        return self.collate(self.padded(rows))

    def padded(self, rows: list[Any]) -> list[Any]:
        """Return the rows with their fields padded.

        Raises: ShapeError where one is longer than `length`, DTypeError where its type has no such value.
        """
        if not isinstance(self.fields, Mapping):
            return self._all(rows, self.fields, "an element")
        made = [dict(row) for row in rows]
        for name, value in self.fields.items():
            for row, array in zip(made, self._column([r[name] for r in rows], value, name), strict=True):
                row[name] = array
        return made

    def _all(self, values: Sequence[Any], pad: Any, name: str) -> list[Any]:
        """Return values with every array in them padded."""
        first = values[0]
        if isinstance(first, Mapping | tuple) and any(_fields(v) != _fields(first) for v in values):
            return list(values)  # which collation refuses
        if isinstance(first, Mapping):
            columns = {key: self._part([v[key] for v in values], pad, repr(key)) for key in first}
            return [{key: column[k] for key, column in columns.items()} for k in range(len(values))]
        if isinstance(first, tuple) and not all(map(_is_plain, first)):
            parts = [self._part(column, pad, str(k)) for k, column in enumerate(zip(*values, strict=True))]
            make = type(first)._make if hasattr(first, "_make") else type(first)
            return [make(row) for row in zip(*parts, strict=True)]
        return self._column(values, pad, name)

    def _part(self, values: Sequence[Any], pad: Any, name: str) -> Sequence[Any]:
        """Return a field of rows with its arrays padded; what has no rows stays as it is."""
        return values if all(map(_is_plain, values)) else self._all(values, pad, name)

    def _column(self, values: Sequence[Any], value: Any, name: str) -> list[Any]:
        arrays = _of_numbers([np.asarray(v) for v in values])
        for scalar, array in zip(values, arrays, strict=True):
            if not array.ndim:
                raise ShapeError(f"pad: {name} is an array", got=repr(scalar)[:80],
                                 hint="pad={field: value} names the fields to pad")  # fmt: skip
        longest = max(len(a) for a in arrays)
        length = longest if self.length is None else self.length
        if longest > length:
            raise ShapeError(
                f"pad: arrays have at most {length} rows", got=f"{longest} in {name}", hint="map cuts them"
            )
        made = {dtype: _padding(dtype, value, name) for dtype in {a.dtype for a in arrays}}
        return [_grown(a, length, made[a.dtype]) for a in arrays]


def _of_numbers(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return arrays of which those without numbers have the type of another: an empty list has none."""
    kind = next((a.dtype for a in arrays if a.size), None)
    return [a if a.size or kind is None else a.astype(kind) for a in arrays]


def _is_plain(value: Any) -> bool:
    """Return whether a value has no rows to pad: a number, a text, None."""
    return not isinstance(value, list | tuple | Mapping) and not getattr(value, "ndim", 0)


def _fields(value: Any) -> Any:
    """Return what rows have alike that are padded by fields: their keys, or how many there are."""
    if isinstance(value, Mapping):
        return value.keys()
    return len(value) if isinstance(value, tuple) else None


def _grown(array: np.ndarray[Any, Any], length: int, value: Any) -> np.ndarray[Any, Any]:
    """Return an array with rows of a value behind its own."""
    made = np.full((length, *array.shape[1:]), value, array.dtype)
    made[: len(array)] = array
    return made


def _padding(dtype: np.dtype[Any], value: Any, name: str) -> Any:
    """Return what to pad arrays of a type with; floats may round it. Raises: DTypeError for another value."""
    given = np.asarray(value)
    with np.errstate(all="ignore"):
        try:
            made = given.astype(dtype)
            same = (made == given) | ((made != made) & (given != given))  # NaN and NaT are not themselves
            if (given.dtype.kind, dtype.kind) in (("f", "f"), ("f", "c"), ("c", "c")):  # which may round
                same = same | (np.isfinite(made) & np.isfinite(given))
        except (ValueError, TypeError, OverflowError):
            same = np.False_
    if not np.all(same):
        raise DTypeError(
            f"pad: {dtype} has the value to pad with", got=f"{value!r} for {name}",
            hint="pad={field: value} has one for each field",
        )  # fmt: skip
    return made
