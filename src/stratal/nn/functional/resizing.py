"""Images in other sizes: nearest, linear and cubic interpolation, axis by axis; sampling at given places.

Along one axis every result is a weighted sum of a few elements, whose places and weights are constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.nn.functional.adaptive_pooling import adaptive_avg_pool
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.indexing import take
from stratal.tensor.functions.linear import tensordot
from stratal.tensor.functions.shapes import moveaxis, repeat_interleave
from stratal.tensor.tensor import Tensor, fresh, tensor

Array = np.ndarray[Any, Any]

MODES = {
    "nearest": (3, 4, 5), "nearest-exact": (3, 4, 5), "linear": (3,), "bilinear": (4,), "bicubic": (4,),
    "trilinear": (5,), "area": (3, 4, 5),
}  # fmt: skip
_SHARPNESS = -0.75  # of the cubic; -0.5 where it is stretched against aliasing (Keys, 1981)


class Axis(NamedTuple):
    """How an axis is resized: its size before and after, and the distance of results in elements."""

    size: int
    result: int
    step: float
    align_corners: bool

    def centres(self, dtype: Any) -> Array:
        """Return where results lie among the elements, as numbers of them."""
        numbers = np.arange(self.result, dtype=dtype)
        step = dtype(self.step)
        return numbers * step if self.align_corners else (numbers + dtype(0.5)) * step - dtype(0.5)


Taps = tuple[Array, Array]  # places and weights of the elements each result is a sum of, [results, elements]


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False
) -> Tensor:
    """Resize the axes after the first two to `size`, or by `scale_factor`.

    `mode` is 'nearest', 'nearest-exact', 'linear' (3 axes), 'bilinear', 'bicubic' (4), 'trilinear' (5) or
    'area'. With `align_corners` the outermost elements stay where they are, else the outer edges do.
    `antialias` widens the bilinear and bicubic filters where the image shrinks.
    """
    if mode not in MODES:
        raise AttributeValueError("interpolate: mode is one of " + ", ".join(MODES), got=repr(mode))
    if input.ndim not in MODES[mode]:
        raise ShapeError(
            f"interpolate: mode {mode!r} takes {' or '.join(map(str, MODES[mode]))} axes",
            got=f"shape {list(input.shape)}",
        )
    linear = mode.endswith(("linear", "cubic"))
    if align_corners is not None and not linear:
        raise AttributeValueError("interpolate: align_corners goes with linear and cubic modes", got=mode)
    if antialias and mode not in ("bilinear", "bicubic"):
        raise AttributeValueError("interpolate: antialias goes with 'bilinear' and 'bicubic'", got=mode)
    axes = _axes(input, size, scale_factor, recompute_scale_factor, bool(align_corners))
    if all(axis.size == axis.result for axis in axes):
        return fresh(input)
    if mode == "area":
        return adaptive_avg_pool(len(axes), input, tuple(axis.result for axis in axes))
    if not linear:
        return _nearest(input, axes, exact=mode == "nearest-exact")
    if not input.dtype.is_float:
        raise DTypeError(f"interpolate: mode {mode!r} takes floats", got=str(input.dtype))
    x = cast(input, input.dtype.compute)
    cubic = mode == "bicubic"
    for k, axis in enumerate(axes):
        if axis.size != axis.result:
            taps = _filtered(axis, cubic) if antialias else _cubic(axis) if cubic else _linear(axis)
            x = _along(x, k + 2, taps)
    return cast(x, input.dtype)


def _axes(x: Tensor, size: Any, scale_factor: Any, recompute: bool | None, align_corners: bool) -> list[Axis]:
    have = [int(n) for n in x.shape[2:]]
    if (size is None) == (scale_factor is None):
        raise AttributeValueError("interpolate: takes size or scale_factor", got="both or none of them")
    given = size if size is not None else scale_factor
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * len(have)
    if len(values) != len(have):
        raise ShapeError(f"interpolate: takes one value, or one for each of {len(have)} axes", got=str(given))
    kinds = (int, float) if size is None else (int,)
    if any(not isinstance(v, kinds) or not math.isfinite(v) for v in values):
        what = "scale_factor is finite numbers" if size is None else "size is ints"
        raise AttributeValueError(f"interpolate: {what}", got=str(given))
    if size is None:
        wanted = [math.floor(n * f) for n, f in zip(have, values, strict=True)]
    else:
        wanted = [int(n) for n in values]
    if min(wanted) < 1 or min(have) < 1:
        raise ShapeError("interpolate: sizes before and after are positive", got=f"{have} to {wanted}")
    known = size is None and not recompute
    axes = []
    for n, m, value in zip(have, wanted, values, strict=True):
        step = 1 / value if known else n / m
        if align_corners:
            step = (n - 1) / (m - 1) if m > 1 else 0.0
        axes.append(Axis(n, m, step, align_corners))
    return axes


def _nearest(x: Tensor, axes: Sequence[Axis], exact: bool) -> Tensor:
    for k, axis in enumerate(axes):
        if axis.result % axis.size == 0 and axis.step == axis.size / axis.result:
            times = axis.result // axis.size
            x = x if times == 1 else repeat_interleave(x, times, k + 2)
            continue
        # Places are computed in float32, as PyTorch does: at halves its choice is that of the rounding.
        numbers = np.arange(axis.result, dtype=np.float32) + np.float32(0.5 if exact else 0)
        places = np.minimum((numbers * np.float32(axis.step)).astype(np.int64), axis.size - 1)
        x = take(x, tensor(places), axis=k + 2)
    return x


def _linear(axis: Axis) -> Taps:
    centre = np.maximum(axis.centres(np.float64), 0)
    low = np.minimum(centre.astype(np.int64), axis.size - 1)
    share = centre - low
    places = np.stack([low, np.minimum(low + 1, axis.size - 1)], 1)
    return places, np.stack([1 - share, share], 1)


def _keys(distance: Array, a: float) -> Array:
    """Return the cubic filter at a distance. See: Keys 1981, equation 4."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _cubic(axis: Axis) -> Taps:
    centre = axis.centres(np.float64)[:, None]
    places = np.floor(centre).astype(np.int64) + np.arange(-1, 3)
    return np.clip(places, 0, axis.size - 1), _keys(centre - places, _SHARPNESS)


def _filtered(axis: Axis, cubic: bool) -> Taps:
    """Return the taps of a filter as wide as the distance of results, its weights normalised to sum to 1."""

    def form(distance: Array) -> Array:
        return _keys(distance, -0.5) if cubic else np.maximum(1 - np.abs(distance), 0.0)

    stretch = max(axis.step, 1.0)
    reach = (2 if cubic else 1) * stretch
    centre = axis.step * (np.arange(axis.result) + 0.5)
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach + 0.5).astype(np.int64), axis.size)
    places = first[:, None] + np.arange(int((last - first).max()))
    weights = form((places + 0.5 - centre[:, None]) / stretch) * (places < last[:, None])
    return np.minimum(places, axis.size - 1), weights / weights.sum(1, keepdims=True)


_MOST_TAPS = 8  # above, a product with the matrix of all weights is faster than reading taps one by one


def _along(x: Tensor, axis: int, taps: Taps) -> Tensor:
    places, weights = taps
    if places.shape[1] > _MOST_TAPS:
        matrix = np.zeros((int(x.shape[axis]), len(places)))
        np.add.at(matrix, (places, np.arange(len(places))[:, None]), weights)
        return moveaxis(tensordot(x, tensor(matrix.astype(x.dtype.np)), ([axis], [0])), -1, axis)
    shape = (-1, *(1,) * (x.ndim - axis - 1))
    total: Any = None
    for k in range(places.shape[1]):
        part = take(x, tensor(places[:, k]), axis=axis)
        part = part * tensor(weights[:, k].astype(x.dtype.np)).reshape(shape)
        total = part if total is None else total + part
    return total  # type: ignore[no-any-return]


def upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize by `interpolate`: the older name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Resize to the nearest elements: the older name."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Resize linearly with the corners fixed: the older name."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
