"""Values at equal distance, of their own or of their logarithms.

Ends are numbers or arrays that broadcast; the values are then the first axis, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from stratal.base.dtypes import DType, as_dtype, complex64, float32
from stratal.base.errors import AttributeValueError, CaptureError, DTypeError, ShapeError
from stratal.tensor.arrays import Array
from stratal.tensor.device import check_device
from stratal.tensor.ramps import write_ramp, written
from stratal.tensor.state import MODE
from stratal.tensor.tensor import Tensor, tensor


def _end(name: str, given: Any) -> Array:
    """Return an end as NumPy computes with it: in double precision."""
    if isinstance(given, Tensor) and MODE.trace is not None:
        raise CaptureError(
            f"{name}: its values are written when it is called, but this end is data",
            got=str(given.type), hint="start + (stop - start) * st.linspace(0, 1, num)",
        )  # fmt: skip
    found = given._value(name).array if isinstance(given, Tensor) else np.asarray(given)
    if found.dtype.kind in "OSUMm":
        raise DTypeError(f"{name}: the ends are numbers or arrays of them", got=repr(given))
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)


def _count(name: str, num: Any) -> int:
    if not hasattr(num, "__index__") or index(num) < 0:
        raise AttributeValueError(f"{name}: needs a number of values", got=repr(num))
    return index(num)


def _spaced(name: str, rule: Callable[..., Array], ends: tuple[Array, Array], num: Any, dtype: Any) -> Tensor:
    count = _count(name, num)
    try:
        np.broadcast_shapes(*(end.shape for end in ends))
    except ValueError:
        got = " and ".join(str(list(end.shape)) for end in ends)
        raise ShapeError(f"{name}: the ends do not broadcast", got=got) from None
    with np.errstate(all="ignore"):
        values = rule(*ends, count)
    target = as_dtype(dtype or (complex64 if values.dtype.kind == "c" else float32))
    if values.dtype.kind == "c" and not target.is_complex:
        raise AttributeValueError(f"{name}: complex ends have complex values between them", got=str(target))
    return tensor(values.astype(target.np))


def linspace(
    start: Any, stop: Any, /, num: int | None = None, *, steps: int | None = None, dtype: Any = None,
    device: Any = None, endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Return `num` values from start to stop at equal distance.

    Shapes: ends of s... -> [num, s...]. Raises: ShapeError for ends that do not broadcast.
    """
    check_device(device)
    ends = _end("linspace", start), _end("linspace", stop)
    count = num if num is not None else steps
    if all(end.ndim == 0 and end.dtype.kind == "f" for end in ends):
        return _line(*map(float, ends), _count("linspace", count), endpoint, as_dtype(dtype or float32))
    return _spaced("linspace", lambda a, b, n: np.linspace(a, b, n, endpoint=endpoint), ends, count, dtype)


def _line(first: float, last: float, count: int, endpoint: bool, dtype: DType) -> Tensor:
    """Return values between two numbers, written where they stay."""
    step = (last - first) / max(count - 1 if endpoint else count, 1)

    def write(out: Array) -> None:
        if math.isfinite(step) and (step or first == last):
            write_ramp(out, first, step)
            if endpoint:
                out[1:][-1:] = last
        else:  # steps below the least number: NumPy divides later
            with np.errstate(all="ignore"):
                out[...] = np.linspace(first, last, count, endpoint=endpoint)

    return written(dtype, (count,), write)


def logspace(
    start: Any, stop: Any, /, num: int | None = None, base: float = 10.0, *, steps: int | None = None,
    endpoint: bool = True, dtype: Any = None, device: Any = None,
) -> Tensor:  # fmt: skip
    """Return `num` values from base**start to base**stop whose logarithms are at equal distance.

    Shapes: ends of s... -> [num, s...]. Raises: ShapeError for ends that do not broadcast.
    """
    check_device(device)
    ends = _end("logspace", start), _end("logspace", stop)
    count, of = num if num is not None else steps, float(base)
    return _spaced(
        "logspace", lambda a, b, n: np.logspace(a, b, n, endpoint=endpoint, base=of), ends, count, dtype
    )


def geomspace(start: Any, stop: Any, /, num: int = 50, *, endpoint: bool = True, dtype: Any = None) -> Tensor:
    """Return `num` values from start to stop, each the same multiple of the one before.

    Shapes: ends of s... -> [num, s...]. Raises: AttributeValueError for an end of 0 and ends of unlike signs.
    """
    first, last = _end("geomspace", start), _end("geomspace", stop)

    def rule(a: Array, b: Array, n: int) -> Array:
        real = a.dtype.kind != "c" and b.dtype.kind != "c"
        if np.any(a * b <= 0 if real else (a == 0) | (b == 0)):
            got = f"{start}, {stop}"
            raise AttributeValueError("geomspace: both ends have one sign and are not 0", got=got)
        return np.geomspace(a, b, n, endpoint=endpoint)

    return _spaced("geomspace", rule, (first, last), num, dtype)


__all__ = ["geomspace", "linspace", "logspace"]
