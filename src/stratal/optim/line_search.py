"""A line search for the strong Wolfe conditions: Nocedal & Wright, "Numerical Optimization", 2nd edition,
algorithms 3.5 and 3.6, with the bounds and the safeguards of PyTorch's LBFGS, so that steps agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Evaluate = Callable[[float], tuple[float, Array]]  # a step along the direction to the loss and its gradient

_DECREASE, _CURVATURE = 1e-4, 0.9  # c1 and c2 of the conditions


class Point(NamedTuple):
    """A step along the direction, with the loss there, its gradient, and its slope along the direction."""

    t: float
    loss: float
    grad: Array
    slope: float


def strong_wolfe(
    evaluate: Evaluate, start: Point, t: float, direction: Array, tolerance: float, max_evals: int
) -> tuple[Point, int]:
    """Return a point that fulfils the strong Wolfe conditions, or the best found, and how often `evaluate`
    was called.

    `start` is the point at 0, `t` the first step tried. The search ends where the bracket moves no element
    by `tolerance`.
    """

    def at(t: float) -> Point:
        loss, grad = evaluate(t)
        return Point(t, loss, grad, float(grad @ direction))

    ends, done, evals = _bracket(at, start, t, max_evals)
    if done or evals > max_evals:
        return min(ends, key=lambda point: point.loss), evals
    longest = float(abs(direction).max())
    return _zoom(at, start, ends, lambda a, b: abs(b.t - a.t) * longest < tolerance, evals, max_evals)


def _bracket(
    at: Callable[[float], Point], start: Point, t: float, max_evals: int
) -> tuple[list[Point], bool, int]:
    """Lengthen the step until it fulfils the conditions, or two points have one that does between them.

    Returns the points, whether the conditions hold, and the number of evaluations: more than `max_evals`
    where none of this happened.
    """
    before, new, tries = start, at(t), 0
    while tries < max_evals:
        if _too_high(new, start) or (tries > 1 and new.loss >= before.loss):
            return [before, new], False, tries + 1
        if abs(new.slope) <= -_CURVATURE * start.slope:
            return [new], True, tries + 1
        if new.slope >= 0:
            return [before, new], False, tries + 1
        bounds = new.t + 0.01 * (new.t - before.t), new.t * 10
        before, new, tries = new, at(_cubic_minimum(before, new, bounds)), tries + 1
    return [start, new], False, tries + 1


def _zoom(
    at: Callable[[float], Point], start: Point, ends: list[Point], close: Callable[[Point, Point], bool],
    evals: int, max_evals: int
) -> tuple[Point, int]:
    """Shrink a bracket until its lower end fulfils the conditions, or its ends are close."""
    low = 0 if ends[0].loss <= ends[1].loss else 1  # which end has the lower loss
    near_end = False  # whether the last trial was close to an end
    while evals <= max_evals and not close(ends[0], ends[1]):
        t, near_end = _trial(ends, near_end)
        new = at(t)
        evals += 1
        if _too_high(new, start) or new.loss >= ends[low].loss:
            ends[1 - low] = new
            low = 0 if ends[0].loss <= ends[1].loss else 1
            continue
        if abs(new.slope) <= -_CURVATURE * start.slope:
            return new, evals
        if new.slope * (ends[1 - low].t - ends[low].t) >= 0:
            ends[1 - low] = ends[low]
        ends[low] = new
    return ends[low], evals


def _trial(ends: list[Point], near_end: bool) -> tuple[float, bool]:
    """Return the next step inside a bracket, and whether it is close to an end: twice in a row it is not."""
    first, last = sorted(point.t for point in ends)
    t, margin = _cubic_minimum(ends[0], ends[1], (first, last)), 0.1 * (last - first)
    if min(last - t, t - first) >= margin:
        return t, False
    if not (near_end or t >= last or t <= first):
        return t, True
    return (last - margin if abs(t - last) < abs(t - first) else first + margin), False


def _too_high(point: Point, start: Point) -> bool:
    return point.loss > start.loss + _DECREASE * point.t * start.slope


def _cubic_minimum(a: Point, b: Point, bounds: tuple[float, float]) -> float:
    """Return the minimum within bounds of the cubic with the losses and slopes of two points; the middle of
    the bounds where it has none.
    """
    left, right = (a, b) if a.t <= b.t else (b, a)
    with np.errstate(all="ignore"):
        span = np.float64(right.t - left.t)
        mean = left.slope + right.slope - 3 * (left.loss - right.loss) / -span
        square = mean**2 - left.slope * right.slope
        if not square >= 0:
            return (bounds[0] + bounds[1]) / 2
        root = np.sqrt(square)
        t = right.t - span * ((right.slope + root - mean) / (right.slope - left.slope + 2 * root))
    return float(min(max(t, bounds[0]), bounds[1]))
