"""What arguments that many functions take may say: axes and devices."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AxisError, DTypeError, StratalError


def check_axis(name: str, axis: Any, ndim: int) -> int:
    """Return an axis in [0, ndim) for one that may count from the end. Raises: AxisError, DTypeError."""
    try:
        k = axis.__index__()
    except AttributeError:
        raise DTypeError(f"{name}: an axis is an int", got=repr(axis)) from None
    if not -ndim <= k < ndim:
        raise AxisError(f"{name}: axis out of range", got=f"axis {k} of {ndim} dimensions")
    return int(k % ndim)


def check_device(device: Any) -> None:
    """Refuse any device but the CPU: another name is an error rather than a silent change of place."""
    if device is not None and str(device) not in ("cpu", "cpu:0"):
        raise StratalError(
            "device: only the CPU is here", got=str(device), hint='leave device out, or pass "cpu"'
        )


def check_function(name: str, function: Any) -> None:
    """Refuse what cannot be called, before it is called somewhere inside. Raises: DTypeError."""
    if not callable(function):
        raise DTypeError(f"{name}: takes a function", got=f"{type(function).__name__} {function!r}"[:80],
                         hint="something that can be called on tensors: def, lambda, a module")  # fmt: skip
