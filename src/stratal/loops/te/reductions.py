"""Reductions of terms by name; the names are those of NumPy, so Python's own stay out of this file."""

from __future__ import annotations

from stratal.loops.te.term import Reduction, Value, reduction


def sum(value: Value, axis: object = None) -> Reduction:
    """Add up a term over reduce axes. A product of two elements is added with one rounding (fma)."""
    return reduction("sum", value, axis)


def prod(value: Value, axis: object = None) -> Reduction:
    """Multiply a term over reduce axes."""
    return reduction("prod", value, axis)


def max(value: Value, axis: object = None) -> Reduction:
    """Return the largest value of a term over reduce axes, NaN if any is."""
    return reduction("max", value, axis)


def min(value: Value, axis: object = None) -> Reduction:
    """Return the smallest value of a term over reduce axes, NaN if any is."""
    return reduction("min", value, axis)


def any(value: Value, axis: object = None) -> Reduction:
    """Return whether a bool term holds anywhere along reduce axes."""
    return reduction("any", value, axis)


def all(value: Value, axis: object = None) -> Reduction:
    """Return whether a bool term holds everywhere along reduce axes."""
    return reduction("all", value, axis)
