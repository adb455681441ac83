"""Sizes given once for all spatial axes, or one per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from stratal.base.errors import AttributeValueError

Sizes = Union[int, Sequence[int]]


def per_axis(what: str, value: Sizes, count: int, least: int = 1) -> tuple[int, ...]:
    """Return one size per axis. Raises: AttributeValueError for another count or a size below `least`."""
    sizes = (value,) * count if isinstance(value, int) else tuple(value)
    if len(sizes) == 1 and count > 1:
        sizes = sizes * count
    if len(sizes) != count or any(not isinstance(s, int) or s < least for s in sizes):
        raise AttributeValueError(
            f"{what} must be an int of at least {least}, or {count} of them", got=str(value)
        )
    return sizes


def shown(sizes: tuple[int, ...]) -> str:
    """Return sizes as PyTorch prints them: one number where all are equal."""
    return str(sizes[0]) if len(set(sizes)) == 1 else str(sizes)
