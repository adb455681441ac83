"""Sizes given once for all spatial axes, or one per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from stratal.base.errors import AttributeValueError

Sizes = Union[int, Sequence[int]]


def per_axis(what: str, value: Sizes, count: int, least: int | None = 1) -> tuple[int, ...]:
    """Return one size per axis.

    Raises: AttributeValueError for another count, for what is no int, or a size below `least`, where given.
    """
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(sizes) == 1 and count > 1:
        sizes = sizes * count
    whole = all(isinstance(s, int) and (least is None or s >= least) for s in sizes)
    if len(sizes) != count or not whole:
        bound = "" if least is None else f" of at least {least}"
        raise AttributeValueError(f"{what} must be an int{bound}, or {count} of them", got=str(value))
    return sizes
