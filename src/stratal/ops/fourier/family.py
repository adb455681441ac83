"""What the transforms share: their scales, checks and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dims import upper_bound
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.types import TensorType

IN_REALS = "the compiler writes it in real numbers, as `dft`; beyond 2^22 points the host runs pocketfft"
ADJOINT = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""Scales, and those of the adjoints, which go the other way.

backward: the inverse is divided by n; forward: the transform itself; ortho: both by sqrt(n).
"""


def check(name: str, x: TensorType, axes: Sequence[int], norm: str, dtypes: Iterable[object]) -> None:
    """Refuse other dtypes, axes that are not there or empty, unknown scales."""
    if x.dtype not in dtypes:
        raise DTypeError(f"{name}: takes {', '.join(map(str, dtypes))}", got=str(x), hint="cast it first")
    if len(set(axes)) != len(axes) or not all(0 <= a < x.ndim for a in axes):
        raise AttributeValueError(f"{name}: axes out of range or named twice", got=f"{tuple(axes)} of {x}")
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"{name}: an axis to transform is empty", got=str(x))
    if norm not in ADJOINT:
        raise AttributeValueError(f"{name}: norm is one of {', '.join(ADJOINT)}", got=repr(norm))


def cost(x: TensorType, out: TensorType, axes: Sequence[int]) -> Cost:
    """Five operations per element and doubling: 5 N log2 N, half of that where one side is real."""
    rounds = sum(math.log2(max(upper_bound(x.shape[a]), 2)) for a in axes)
    factor = 5.0 if x.dtype is out.dtype else 2.5
    return Cost(factor * upper_bound(x.size) * rounds, float(x.nbytes), float(out.nbytes))
