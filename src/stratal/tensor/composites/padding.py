"""NumPy's padding: by a value, or by what lies inside: repeated, mirrored, or from the other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arrays import Array
from stratal.tensor.build import as_tensor
from stratal.tensor.indexing import take
from stratal.tensor.reductions import amax, amin, mean
from stratal.tensor.shapes import broadcast_to, concat, pad_constant
from stratal.tensor.tensor import Tensor, tensor


def _mirrored(place: Array, n: int) -> Array:
    """Return places in [0, n) for places anywhere, mirrored at the outer elements, again and again."""
    period = max(2 * n - 2, 1)
    folded = place % period
    return np.asarray(np.minimum(folded, period - folded) if n > 1 else folded * 0)


def _mirrored_whole(place: Array, n: int) -> Array:
    """Return places in [0, n) for places anywhere, mirrored beyond the outer elements."""
    folded = place % (2 * n)
    return np.asarray(np.minimum(folded, 2 * n - 1 - folded))


_PLACES: dict[str, Callable[[Array, int], Array]] = {
    "edge": lambda place, n: np.clip(place, 0, n - 1),
    "reflect": _mirrored,
    "symmetric": _mirrored_whole,
    "wrap": lambda place, n: place % n,
}
_STATISTICS: dict[str, Callable[..., Tensor]] = {"maximum": amax, "mean": mean, "minimum": amin}
MODES = ("constant", *_PLACES, *_STATISTICS)


def _pairs(given: Any, ndim: int) -> list[tuple[int, int]]:
    try:
        pairs = np.broadcast_to(np.asarray(given), (ndim, 2))
    except ValueError:
        pairs = np.empty((0, 2))
    if len(pairs) != ndim or (ndim and pairs.dtype.kind not in "iu") or np.any(pairs < 0):
        raise ShapeError(
            "pad: takes a size, a (before, after) pair, or a pair per axis, none negative",
            got=f"{given!r} for {ndim} axes",
        )
    return [(int(a), int(b)) for a, b in pairs]


def pad(x: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Tensor:
    """Return `x` with more elements around it: `pad_width` before and after each axis.

    `mode` is "constant", "edge" (the outer element again), "reflect" (mirrored at it), "symmetric" (mirrored
    beyond it), "wrap" (from the other end), or "maximum", "mean", "minimum" (of the axis). PyTorch's words
    are those of `stratal.nn.functional.pad`.
    """
    t = as_tensor(x, "pad")
    if mode not in MODES:
        raise AttributeValueError(f"pad: mode is one of {', '.join(MODES)}", got=repr(mode))
    pairs = _pairs(pad_width, t.ndim)
    if mode == "constant":
        return pad_constant(t, pairs, constant_values)
    for axis, (before, after) in enumerate(pairs):
        n = int(t.shape[axis])
        if not before and not after:
            continue
        if n == 0:
            raise ShapeError(
                f"pad: mode {mode!r} takes its elements from inside", got=f"axis {axis} of {t.type}"
            )
        if mode in _PLACES:
            places = _PLACES[mode](np.arange(-before, n + after), n)
            t = take(t, tensor(places.astype(np.int64)), axis=axis)
        else:
            t = _with_statistic(t, axis, before, after, _STATISTICS[mode])
    return t


def _with_statistic(
    t: Tensor, axis: int, before: int, after: int, statistic: Callable[..., Tensor]
) -> Tensor:
    value = statistic(t, axis=axis, keepdims=True)
    if value.dtype is not t.dtype:
        value = value.round().astype(t.dtype)

    def repeated(count: int) -> Tensor:
        return broadcast_to(value, [count if k == axis else n for k, n in enumerate(t.shape)])

    return concat([repeated(before), t, repeated(after)], axis=axis)


__all__ = ["pad"]
