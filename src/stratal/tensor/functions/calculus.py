"""Differences and sums of neighbours along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.dims import upper_bound
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import along, as_tensor, broadcast_shapes
from stratal.tensor.functions.elementwise import FUNCTIONS, in_floats
from stratal.tensor.functions.reductions import cumsum, rounded_once
from stratal.tensor.functions.reductions import sum as sum_over
from stratal.tensor.functions.shapes import as_axes, broadcast_to, concat, narrow, reshape
from stratal.tensor.tensor import Tensor, fresh


def _pairs(t: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return all elements but the first, and all but the last, along an axis."""
    length = max(t.shape[axis] - 1, 0)
    return narrow(t, axis, t.shape[axis] - length, length), narrow(t, axis, 0, length)


def diff(x: Any, /, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Return the differences of neighbours along an axis, taken `n` times; of bools, whether they differ.

    `prepend` and `append` are joined to `x` before; a single number stands for a slice of it.
    """
    t, a = along("diff", x, axis)
    if n < 0:
        raise AttributeValueError("diff: n must not be negative", got=str(n))
    if n == 0:
        return fresh(t)
    ends = [None if e is None else _slice_of(t, a, e) for e in (prepend, append)]
    parts = [e for e in (ends[0], t, ends[1]) if e is not None]
    t = concat(parts, axis=a) if len(parts) > 1 else fresh(t)
    for _ in range(min(n, upper_bound(t.shape[a]))):  # after as many nothing is left
        later, earlier = _pairs(t, a)
        t = FUNCTIONS["not_equal" if t.dtype.is_bool else "subtract"](later, earlier)
    return t


def _slice_of(t: Tensor, axis: int, value: Any) -> Tensor:
    end = as_tensor(value, "diff")
    if end.ndim:
        return end
    return broadcast_to(end, [1 if k == axis else n for k, n in enumerate(t.shape)])


def _widths(name: str, t: Tensor, x: Any, dx: Any, axis: int) -> Any:
    """Return the distances of neighbours: `dx`, or the differences of the coordinates `x`."""
    if x is None:
        return dx
    places = as_tensor(x, name)
    if places.ndim == 1:
        if places.shape[0] != t.shape[axis]:
            raise ShapeError(f"{name}: needs one coordinate per element", got=f"{places.type} for {t.type}")
        places = reshape(places, [places.shape[0] if k == axis else 1 for k in range(t.ndim)])
        return diff(places, axis=axis)
    return diff(broadcast_to(places, broadcast_shapes(name, places.shape, t.shape)), axis=axis)


def _trapezoids(name: str, y: Any, x: Any, dx: Any, axis: int) -> tuple[Tensor, int]:
    t = in_floats(name, y)
    a = check_axis(name, axis, t.ndim)
    later, earlier = _pairs(t, a)
    return (later + earlier) * _widths(name, t, x, dx, a) * 0.5, a


@rounded_once
def trapezoid(y: Any, x: Any = None, *, dx: Any = 1.0, dim: int = -1, axis: int | None = None) -> Tensor:
    """Return the integral along an axis by the trapezoidal rule, at coordinates `x` or at distance `dx`."""
    areas, a = _trapezoids("trapezoid", y, x, dx, dim if axis is None else axis)
    return sum_over(areas, axis=a)


def cumulative_trapezoid(
    y: Any, x: Any = None, *, dx: Any = 1.0, dim: int = -1, axis: int | None = None
) -> Tensor:
    """Return the integrals up to each element but the first, by the trapezoidal rule."""
    areas, a = _trapezoids("cumulative_trapezoid", y, x, dx, dim if axis is None else axis)
    return cumsum(areas, axis=a)


def gradient(
    x: Any, *, spacing: Any = 1, dim: Any = None, axis: Any = None, edge_order: int = 1
) -> Tensor | list[Tensor]:
    """Return the slopes along axes by central differences: one tensor for one axis (`axis=`), else a list.

    `spacing` is a distance, or coordinates along each axis. At both ends the slope is that of the first two
    elements, or with `edge_order=2` of a parabola through three.
    """
    t = in_floats("gradient", x)
    wanted = axis if axis is not None else dim
    axes = as_axes("gradient", wanted, t.ndim)
    if edge_order not in (1, 2):
        raise AttributeValueError("gradient: edge_order is 1 or 2", got=repr(edge_order))
    spaces = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(axes)
    if len(spaces) != len(axes):
        raise AttributeValueError(
            "gradient: needs one spacing per axis", got=f"{len(spaces)} for {len(axes)}"
        )
    found = [_slope(t, a, h, edge_order) for a, h in zip(axes, spaces, strict=True)]
    return found[0] if isinstance(axis, int) else found


def _slope(t: Tensor, axis: int, spacing: Any, edge_order: int) -> Tensor:
    size = t.shape[axis]
    if size < edge_order + 1:
        raise ShapeError("gradient: the axis is too short", got=f"axis {axis} of {t.type}",
                         hint=f"needs {edge_order + 1} elements")  # fmt: skip
    step = as_tensor(spacing, "gradient")
    places = None if step.ndim == 0 else step
    h: Any = _widths("gradient", t, places, spacing, axis)
    rise = diff(t, axis=axis)
    slopes = rise / h  # of the size - 1 gaps
    first, last = narrow(slopes, axis, 0, 1), narrow(slopes, axis, size - 2, 1)
    middle = []
    if size > 2:
        right, left = _pairs(slopes, axis)
        h_right, h_left = _pairs(h, axis) if places is not None else (1.0, 1.0)
        middle = [(left * h_right + right * h_left) / (h_right + h_left)]
        if edge_order == 2:
            first = _edge(slopes, h, axis, [0, 1], places is not None)
            last = _edge(slopes, h, axis, [size - 2, size - 3], places is not None)
    return concat([first, *middle, last], axis=axis)


def _edge(slopes: Tensor, h: Any, axis: int, at: Sequence[int], uneven: bool) -> Tensor:
    """Return the slope at the end of a parabola: of the gap `at[0]`, corrected by that of its neighbour."""
    near, far = (narrow(slopes, axis, k, 1) for k in at)
    share: Tensor | float = 0.5
    if uneven:
        h_near, h_far = (narrow(h, axis, k, 1) for k in at)
        share = h_near / (h_near + h_far)
    return near + (near - far) * share


trapz = trapezoid

__all__ = ["cumulative_trapezoid", "diff", "gradient", "trapezoid", "trapz"]
