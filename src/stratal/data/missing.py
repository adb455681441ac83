"""Missing values: None, NaN and NaT, and texts that are blank, as sources give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def is_complete(row: Any) -> bool:
    """Return whether a row, a mapping, a tuple or a single value, has no missing value, for `filter`.

    Missing are None (of Parquet, Arrow, JSON, SQL, polars), NaN and NaT (of CSV and pandas), and texts that
    are blank (of CSV). An array or a list is missing one where an element is.
    """
    return not _is_missing(row)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, str | bytes):
        return not value.strip()
    if isinstance(value, Mapping):
        return any(map(_is_missing, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_missing, value))
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            return any(map(_is_missing, array.ravel().tolist()))
        return bool((array != array).any())
    try:
        return bool(value != value)  # what is missing differs from itself: floats, decimals, NaT
    except TypeError:  # pandas.NA, which says neither
        return True
