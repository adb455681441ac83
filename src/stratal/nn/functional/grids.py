"""Images sampled at given places, and the places an affine map gives. See: Jaderberg et al. 2015."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.nn.dimensions import per_axis
from stratal.tensor.build import call
from stratal.tensor.functions.creation import arange, ones
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.shapes import broadcast_to, stack
from stratal.tensor.tensor import Tensor

_SHARPNESS = -0.75  # of the cubic filter (Keys, 1981), PyTorch's choice


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Return for every place of an image of `size` where theta maps it to, in [-1, 1] along each axis.

    Shapes: theta [N, 2, 3] and size (N, C, H, W) -> [N, H, W, 2]; theta [N, 3, 4] and size (N, C, D, H, W)
    -> [N, D, H, W, 3].
    """
    sizes = per_axis("affine_grid: size", size, len(size), None)
    dims = len(sizes) - 2
    if dims not in (2, 3) or tuple(theta.shape) != (sizes[0], dims, dims + 1):
        raise ShapeError(
            "affine_grid: takes theta [N, 2, 3] with 4 sizes, or [N, 3, 4] with 5",
            got=f"{list(theta.shape)} and {list(sizes)}",
        )
    if not theta.dtype.is_float:
        raise DTypeError("affine_grid: theta is floats", got=str(theta.dtype))
    if min(sizes) < 1:
        raise ShapeError("affine_grid: sizes are positive", got=str(list(sizes)))
    spatial = sizes[2:]
    columns = []
    for k in reversed(range(dims)):
        ends = _ends(spatial[k], bool(align_corners), theta)
        column = ends.reshape((-1, *(1,) * (dims - 1 - k)))
        columns.append(broadcast_to(column, spatial))
    columns.append(ones(spatial, dtype=theta.dtype))
    places = stack(columns, axis=-1).reshape((-1, dims + 1))
    grid = places @ theta.permute(0, 2, 1)
    return grid.reshape((sizes[0], *spatial, dims))


def _ends(n: int, align_corners: bool, like: Tensor) -> Tensor:
    """Return n numbers spread over [-1, 1]: the centres of n pixels, or from -1 to 1 where corners align."""
    numbers = cast(arange(n), like.dtype)
    if align_corners:
        return numbers * (2 / (n - 1)) - 1 if n > 1 else numbers
    return (numbers * 2 + 1) / n - 1


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Return the image at the places of `grid`, whose last axis has x, y (and z) in [-1, 1].

    `mode` is 'bilinear', 'nearest', or 'bicubic' (4 axes); outside of the image are 'zeros', its 'border', or
    its 'reflection'. With `align_corners` -1 and 1 are the centres of the outermost elements, else their
    edges.
    Shapes: input [N, C, H, W], grid [N, H', W', 2] -> [N, C, H', W'], or with a third spatial axis.
    """
    dims = input.ndim - 2
    if dims not in (2, 3) or grid.ndim != input.ndim or int(grid.shape[-1]) != dims:
        raise ShapeError(
            "grid_sample: takes [N, C, H, W] and [N, H', W', 2], or [N, C, D, H, W] and [N, D', H', W', 3]",
            got=f"{list(input.shape)} and {list(grid.shape)}",
        )
    if grid.shape[0] != input.shape[0]:
        raise ShapeError("grid_sample: batches differ", got=f"{list(input.shape)} and {list(grid.shape)}")
    if grid.dtype is not input.dtype or not input.dtype.is_float:
        raise DTypeError("grid_sample: image and grid have one float dtype", got=f"{input.type}, {grid.type}")
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and dims == 3):
        raise AttributeValueError(
            "grid_sample: mode is 'bilinear', 'nearest', or 'bicubic' in two dimensions", got=repr(mode)
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise AttributeValueError(
            "grid_sample: padding_mode is 'zeros', 'border' or 'reflection'", got=repr(padding_mode)
        )
    sizes = [int(n) for n in input.shape[2:]]
    if min(sizes) < 1:
        raise ShapeError("grid_sample: the image is empty", got=f"shape {list(input.shape)}")
    aligned = bool(align_corners)

    def inside(x: Tensor, n: int) -> Tensor:
        return _inside(x, n, padding_mode, aligned)

    where_to = []
    for k, n in enumerate(sizes):
        unit = grid[..., dims - 1 - k]
        where_to.append((unit + 1) / 2 * (n - 1) if aligned else ((unit + 1) * n - 1) / 2)
    if mode == "bicubic":
        return _sum_of_taps(input, [_cubic_taps(x, n, inside) for x, n in zip(where_to, sizes, strict=True)])
    placed = [inside(x, n) for x, n in zip(where_to, sizes, strict=True)]
    if mode == "nearest":
        return _sum_of_taps(input, [[(FUNCTIONS["round"](x), None)] for x in placed])
    return _sum_of_taps(input, [_linear_taps(x) for x in placed])


Tap = tuple[Tensor, "Tensor | None"]  # whole coordinates along one axis, and their weights


def _inside(x: Tensor, n: int, padding_mode: str, aligned: bool) -> Tensor:
    """Return coordinates moved into [0, n - 1], but for padding with zeros."""
    if padding_mode == "zeros":
        return x
    if padding_mode == "reflection":
        low, span = (0.0, n - 1) if aligned else (-0.5, n)
        if span == 0:
            return x * 0
        beyond = abs(x - low)
        turns = FUNCTIONS["floor"](beyond / span)
        rest = beyond - turns * span
        x = where(turns % 2 == 0, rest + low, span - rest + low)
    # No gradient flows from the ends on, as in PyTorch.
    return call("hardtanh", x, low=0.0, high=float(n - 1))  # type: ignore[no-any-return]


def _linear_taps(x: Tensor) -> list[Tap]:
    low = FUNCTIONS["floor"](x)
    share = x - low
    return [(low, 1 - share), (low + 1, share)]


def _cubic_taps(x: Tensor, n: int, inside: Callable[[Tensor, int], Tensor]) -> list[Tap]:
    low, a = FUNCTIONS["floor"](x), _SHARPNESS
    t = x - low

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [(inside(low + k, n), w) for k, w in zip(range(-1, 3), weights, strict=True)]


def _sum_of_taps(image: Tensor, axes: list[list[Tap]]) -> Tensor:
    """Return the sum over all combinations of taps of the image there, 0 outside, times their weights."""
    batch, channels, *rest = image.shape
    sizes = [int(n) for n in rest]
    places = axes[0][0][0].shape[1:]
    flat = image.reshape((batch, channels, -1))
    whole = "int32" if math.prod(sizes) < 1 << 31 else "int64"
    total: Any = None
    for taps in product(*axes):
        index: Any = 0
        weight: Any = None
        there: Any = None
        for (at, share), n in zip(taps, sizes, strict=True):
            fixed = at.detach()
            within = (fixed >= 0) & (fixed <= n - 1)
            there = within if there is None else there & within
            index = index * n + cast(where(within, fixed, 0.0), whole)
            weight = share if weight is None or share is None else weight * share
        everywhere = (batch, channels, math.prod(places))
        index = broadcast_to(index.reshape((batch, 1, -1)), everywhere)
        kept = where(there, 1.0 if weight is None else weight, 0.0).reshape((batch, 1, -1))
        part = call("gather_along", flat, index, axis=2) * cast(kept, image.dtype)
        total = part if total is None else total + part
    return total.reshape((batch, channels, *places))  # type: ignore[no-any-return]
