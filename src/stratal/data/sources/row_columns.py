"""Rows of Python's numbers as columns, without a look at each number.

`marshal` (version 2) packs a sequence as a tag and its length, a float as b"g" and 8 bytes, an integer of 32
bits as b"i" and 4 bytes. Where all rows are packed alike, they are records of one size:

    [(0.5, 7), (1.5, 8)]  ->  "[" 2  "(" 2 "g" 0.5 "i" 7  "(" 2 "g" 1.5 "i" 8
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from stratal.base.dtypes import as_dtype
from stratal.data.sources.columns import Column, array_of

_VERSION: Final = 2  # of the format: later ones refer to what came before
_HEAD: Final = 5  # bytes: the tag and the length of a sequence
_PACKED: Final[dict[Any, tuple[int, str]]] = {float: (ord("g"), "<f8"), int: (ord("i"), "<i4")}


def columns_of_rows(rows: Sequence[Sequence[Any]]) -> list[Column]:
    """Return the columns of rows, as batches have them: floats, and integers of 32 bits (int64), as arrays;
    a column of anything else as it is, in which lists of numbers are arrays.
    """
    if not rows:
        return []
    found = _packed(rows, rows[0], _HEAD)
    if found is not None:
        return found
    columns = list(zip(*rows, strict=True))
    packed = [_packed(column, column[:1], 0) for column in columns]
    return [
        list(map(array_of, column)) if found is None else found[0]
        for column, found in zip(columns, packed, strict=True)
    ]


def _packed(rows: Any, first: Sequence[Any], head: int) -> list[Column] | None:
    """Return the columns of rows that are packed as the first one is, `head` bytes before its values."""
    runs = [(kind, len(list(values))) for kind, values in groupby(map(type, first))]  # of columns of one type
    if any(kind not in _PACKED for kind, _ in runs):
        return None
    fields: list[Any] = [("head", f"V{head}")] if head else []
    for k, (kind, count) in enumerate(runs):
        fields.append((str(k), [("tag", "u1"), ("value", _PACKED[kind][1])], (count,)))
    record = np.dtype(fields)
    try:
        data = marshal.dumps(rows, _VERSION)
    except ValueError:  # of a type that is not packed
        return None
    if len(data) != _HEAD + record.itemsize * len(rows):
        return None
    table = np.frombuffer(data, record, offset=_HEAD)
    dtypes: dict[Any, Any] = {float: as_dtype(float).np, int: np.int64}
    found: list[Column] = []
    for k, (kind, _) in enumerate(runs):
        part = table[str(k)]
        if (part["tag"] != _PACKED[kind][0]).any():
            return None
        with np.errstate(over="ignore"):
            found.extend(part["value"].T.astype(dtypes[kind], order="C"))
    return found
