"""Padding: by a value, or by what lies inside, mirrored, repeated or from the other end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.functions.shapes import broadcast_to, concat, flip, narrow, pad_constant
from stratal.tensor.tensor import Tensor

Border = Callable[[Tensor, int, int, int], "tuple[Tensor, Tensor]"]  # x, axis, sizes before and after


def _reflected(x: Tensor, axis: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    n = int(x.shape[axis])
    return flip(narrow(x, axis, 1, before), axis), flip(narrow(x, axis, n - 1 - after, after), axis)


def _replicated(x: Tensor, axis: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    n = int(x.shape[axis])

    def repeated(start: int, count: int) -> Tensor:
        return broadcast_to(narrow(x, axis, start, 1), (*x.shape[:axis], count, *x.shape[axis + 1 :]))

    return repeated(0, before), repeated(n - 1, after)


def _wrapped(x: Tensor, axis: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    return narrow(x, axis, int(x.shape[axis]) - before, before), narrow(x, axis, 0, after)


# What stands before and after an axis, and how many elements fewer than its size there may be of it.
BORDERS: dict[str, tuple[Border, int | None]] = {
    "reflect": (_reflected, 1),
    "replicate": (_replicated, None),
    "circular": (_wrapped, 0),
}


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Return x surrounded by a value, or by what lies inside: `mode` is 'constant', 'reflect', 'replicate' or
    'circular'. Sizes are (before, after) pairs from the last axis backwards; negative ones cut off.
    """
    sizes = tuple(pad) if isinstance(pad, (list, tuple)) else (pad,)
    if len(sizes) % 2 or len(sizes) > 2 * input.ndim or any(not isinstance(n, int) for n in sizes):
        raise ShapeError(
            "pad: takes a (before, after) pair of ints per padded axis",
            got=f"{list(sizes)} for shape {list(input.shape)}",
        )
    pairs = [(sizes[k], sizes[k + 1]) for k in range(0, len(sizes), 2)][::-1]
    pairs = [(0, 0)] * (input.ndim - len(pairs)) + pairs
    for (before, after), n in zip(pairs, input.shape, strict=True):
        if min(before, after) < 0 and (before + after + int(n) < 0 or min(before, after) < -int(n)):
            raise ShapeError("pad: more is cut off than there is", got=f"{(before, after)} of {n}")
    if mode == "constant":
        return pad_constant(input, pairs, 0 if value is None else value)
    if mode not in BORDERS:
        raise AttributeValueError(
            "pad: mode must be 'constant', " + ", ".join(map(repr, BORDERS)), got=repr(mode)
        )
    if value is not None:
        raise AttributeValueError("pad: a value goes with mode 'constant'", got=f"{value} for {mode!r}")
    return _bordered(input, pairs, mode)


def _bordered(x: Tensor, pairs: list[tuple[int, int]], mode: str) -> Tensor:
    border, fewer = BORDERS[mode]
    x = pad_constant(x, [(min(a, 0), min(b, 0)) for a, b in pairs])
    for axis, (before, after) in enumerate((max(a, 0), max(b, 0)) for a, b in pairs):
        if not before and not after:
            continue
        n = int(x.shape[axis])
        if n == 0 or (fewer is not None and max(before, after) > n - fewer):
            least = 1 if fewer is None else max(before, after) + fewer
            raise ShapeError(
                f"pad: mode {mode!r} takes its elements from inside",
                got=f"{(before, after)} around {n}", hint=f"axis {axis} needs at least {least} elements",
            )  # fmt: skip
        left, right = border(x, axis, before, after)
        x = concat([part for part in (left, x, right) if part.shape[axis]], axis=axis)
    return x
