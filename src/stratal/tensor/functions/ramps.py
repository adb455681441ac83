"""Vectors made by NumPy, straight into the memory they stay in: ramps, windows, the places of triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.dtypes import DType
from stratal.runtime.program import new_storage
from stratal.tensor.tensor import Tensor, hold, tensor
from stratal.tensor.values.state import MODE

Array = np.ndarray[Any, Any]

BLOCK = 1 << 13  # elements
Number = int | float


def written(dtype: DType, shape: tuple[int, ...], write: Callable[[Array], None]) -> Tensor:
    """Return a tensor whose elements `write` writes into new memory; inside a capture, a given value."""
    storage = new_storage(dtype, shape)
    write(storage.array)
    return hold(storage) if MODE.trace is None else tensor(storage.array)


def write_ramp(out: Array, start: Number, step: Number, first: int = 0) -> None:
    """Fill a vector with start + step * k, for k = first, first + 1, ...

    Of ints the results are exact, and wrap around as conversions do. All else is computed in float64 and
    rounded once; floats of fewer bits start anew at each block, which moves one in some 10^8 by an ulp.
    """
    exact = isinstance(start, int) and isinstance(step, int)
    if out.size <= BLOCK:
        out[...] = start + step * np.arange(first, first + out.size)
    elif exact or (out.dtype.kind in "fV" and out.dtype.itemsize < 8):
        _write_blocks(out, start + step * first, step, np.int64 if exact else np.float64)
    elif out.dtype == np.float64:
        _write_blocks(out, first, 1, np.float64)
        np.multiply(out, step, out=out)
        np.add(out, start, out=out)
    else:
        out[...] = start + step * np.arange(first, first + out.size)


def _write_blocks(out: Array, start: Number, step: Number, compute: type[Any]) -> None:
    """Fill a vector with sums of one element of a block, the same for all blocks, and one for the block."""
    rows = out.size // BLOCK
    block = np.arange(BLOCK, dtype=compute) * step
    starts = np.arange(rows + 1)[:, None] * (BLOCK * step) + start
    if out.dtype.kind in "iu":
        block, starts = block.astype(out.dtype), starts.astype(out.dtype)
    whole = rows * BLOCK
    np.add(starts[:rows], block, out=out[:whole].reshape(rows, BLOCK), casting="unsafe")
    np.add(starts[rows], block[: out.size - whole], out=out[whole:], casting="unsafe")


def write_window(out: Array, count: int, weight: Callable[[Array], Array]) -> None:
    """Fill a vector with the first of `count` weights w(sin(pi k / (count - 1)) ** 2), which are symmetric.

    sin(a + b) = sin a cos b + cos a sin b joins a table of starts of blocks to one of places inside them, so
    that weights near 0 are as exact as others.
    """
    half = min((count + 1) // 2, out.size)
    inside = max(1, int(np.sqrt(half)))
    angle = np.pi / max(count - 1, 1)
    row = np.arange(-(-half // inside))[:, None] * (inside * angle)
    column = np.arange(inside) * angle
    sin, cos = np.sin(column), np.cos(column)
    rows = max(1, BLOCK // inside)
    for at in range(0, row.size, rows):
        starts = row[at : at + rows]
        wave = np.cos(starts) * sin
        wave += np.sin(starts) * cos
        wave *= wave
        part = out[at * inside : min((at + rows) * inside, half)]
        part[...] = weight(wave).reshape(-1)[: part.size]
    mirror(out, count)


def mirror(out: Array, count: int) -> None:
    """Fill the rest of what holds the first of `count` symmetric elements, up to their middle."""
    half = (count + 1) // 2
    out[half:] = out[: count // 2][::-1][: max(out.size - half, 0)]


def write_places(out: Array, rows: Array, first: Array, lengths: Array) -> None:
    """Fill two rows with the row and the column of every element of runs, none of them empty.

    Of each only differences are written; their running sums are what is asked for.
    """
    ends = np.cumsum(lengths)
    for line, inside, starts, stops in ((out[0], 0, rows, rows), (out[1], 1, first, first + lengths - 1)):
        line[:] = inside
        line[:1] = starts[:1]
        line[ends[:-1]] = starts[1:] - stops[:-1]
        np.cumsum(line, out=line)
