"""The error function and the normal distribution: what lies below a number, and the number for what does."""

from __future__ import annotations

import math
from typing import Any

from stratal.special.family import floats, from_records
from stratal.tensor.functions.elementwise import FUNCTIONS, where
from stratal.tensor.tensor import Tensor

_RECORDS = {
    "erf": "erf", "erfc": "erfc", "erfcinv": "erfcinv", "erfcx": "erfcx", "erfinv": "erfinv",
    "ndtri": "ndtri",
}  # fmt: skip
globals().update(from_records(__name__, _RECORDS))
_erfc, _erfcx = (from_records(__name__, _RECORDS)[name] for name in ("erfc", "erfcx"))
_ROOT_HALF = math.sqrt(0.5)


def ndtr(x: Any) -> Tensor:
    """Return the probability that a standard normal variable lies below each element."""
    (t,) = floats("ndtr", x)
    return 0.5 * _erfc(-_ROOT_HALF * t)


def log_ndtr(x: Any) -> Tensor:
    """Return the logarithm of `ndtr`, also where that underflows."""
    (t,) = floats("log_ndtr", x)
    low = t < -1.0
    below = where(low, t, -1.0)  # so that what is not chosen has a derivative, too
    tail = FUNCTIONS["log"](0.5 * _erfcx(-_ROOT_HALF * below)) - 0.5 * below * below
    body = FUNCTIONS["log1p"](-0.5 * _erfc(_ROOT_HALF * where(low, 0.0, t)))
    return where(low, tail, body)  # type: ignore[no-any-return]


__all__ = [*_RECORDS, "log_ndtr", "ndtr"]
