"""Bessel functions."""

from __future__ import annotations

from typing import Any

from stratal.special.family import floats, from_records
from stratal.tensor.functions.elementwise import FUNCTIONS, where
from stratal.tensor.tensor import Tensor

_SCIPYS = ("i0", "i0e", "i1", "i1e", "j0", "j1", "k0", "k0e", "k1", "k1e", "y0", "y1")
_RECORDS = {name: name for name in _SCIPYS} | {
    "bessel_j0": "j0", "bessel_j1": "j1", "bessel_y0": "y0", "bessel_y1": "y1", "modified_bessel_i0": "i0",
    "modified_bessel_i1": "i1", "modified_bessel_k0": "k0", "modified_bessel_k1": "k1",
    "scaled_modified_bessel_k0": "k0e", "scaled_modified_bessel_k1": "k1e",
}  # fmt: skip
globals().update(from_records(__name__, _RECORDS))


def spherical_bessel_j0(x: Any) -> Tensor:
    """Return sin(x) / x of each element, 1 at 0."""
    (t,) = floats("spherical_bessel_j0", x)
    near = FUNCTIONS["abs"](t) < 1e-3
    square = where(near, t * t, 0.0)
    away = where(near, 1.0, t)
    series = 1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0))
    quotient = where(FUNCTIONS["isinf"](t), 0.0, FUNCTIONS["sin"](away) / away)
    return where(near, series, quotient)  # type: ignore[no-any-return]


__all__ = [*_RECORDS, "spherical_bessel_j0"]
