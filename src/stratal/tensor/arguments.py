"""What arguments that many functions take may say: axes and functions."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AxisError, DTypeError


def check_axis(name: str, axis: Any, ndim: int) -> int:
    """Return an axis in [0, ndim) for one that may count from the end. Raises: AxisError, DTypeError."""
    try:
        k = axis.__index__()
    except AttributeError:
        raise DTypeError(f"{name}: an axis is an int", got=repr(axis)) from None
    if not -ndim <= k < ndim:
        raise AxisError(f"{name}: axis out of range", got=f"axis {k} of {ndim} dimensions")
    return int(k % ndim)


def check_function(name: str, function: Any) -> None:
    """Refuse what cannot be called, before it is called somewhere inside. Raises: DTypeError."""
    if not callable(function):
        raise DTypeError(f"{name}: takes a function", got=f"{type(function).__name__} {function!r}"[:80],
                         hint="something that can be called on tensors: def, lambda, a module")  # fmt: skip
