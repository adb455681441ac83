"""Random algorithms and random legal schedules for them, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as hs

from stratal import te
from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer
from stratal.loops.stmt import For

Draw = Callable[[hs.SearchStrategy[Any]], Any]
SIZES = hs.integers(1, 6)


def _contraction(draw: Draw, dtype: str) -> list[Any]:
    m, n, p = (draw(SIZES) for _ in range(3))
    a, b = te.placeholder((p, m), dtype), te.placeholder((p, n), dtype)
    k = te.reduce_axis(p)
    return [te.compute((m, n), lambda y, x: te.sum(a[k, y] * b[k, x], axis=k))]


def _reduction(draw: Draw, dtype: str) -> list[Any]:
    m, p, q = (draw(SIZES) for _ in range(3))
    a = te.placeholder((p, m, q), dtype)
    k, u = te.reduce_axis(p), te.reduce_axis(q, "u")
    kind = draw(hs.sampled_from([te.sum, te.max, te.min, te.prod]))
    axes = draw(hs.sampled_from([(k, u), (u, k)]))
    return [te.compute((m,), lambda i: kind(a[k, i, u], axis=axes))]


def _elementwise(draw: Draw, dtype: str) -> list[Any]:
    m, n = draw(SIZES), draw(SIZES)
    a, b = te.placeholder((m, n), dtype), te.placeholder((n,), dtype)
    return [te.compute((n, m), lambda x, y: te.where(a[y, x] < b[x], a[y, x] * 3, b[n - 1 - x] - a[y, x]))]


def _convolution(draw: Draw, dtype: str) -> list[Any]:
    size, channels, taps, stride = (
        draw(hs.integers(4, 7)),
        draw(SIZES),
        draw(hs.integers(1, 3)),
        draw(hs.integers(1, 2)),
    )
    x, w = te.placeholder((size, 2), dtype), te.placeholder((channels, taps, 2), dtype)
    u, d = te.reduce_axis(taps, "u"), te.reduce_axis(2, "d")

    def padded(c: Any, h: Any) -> Any:
        at = h * stride + u - 1
        return te.sum(te.where((at >= 0) & (at < size), x[at, d], 0) * w[c, u, d], axis=(u, d))

    return [te.compute((channels, (size + 1) // stride), padded)]


def _stages(draw: Draw, dtype: str) -> list[Any]:
    m, n = draw(SIZES), draw(SIZES)
    a = te.placeholder((m, n), dtype)
    k = te.reduce_axis(n)
    doubled = te.compute((m, n), lambda i, j: a[i, j] + a[i, n - 1 - j])
    total = te.compute((m,), lambda r: te.sum(doubled[r, k] * doubled[r, k], axis=k))
    return [te.compute((m, n), lambda y, x: doubled[y, x] - total[y])]


FAMILIES = (_contraction, _reduction, _elementwise, _convolution, _stages)
STEPS = [
    *sorted(te.PRIMITIVES),
    "split",
    "reorder",
    "fission",
    "merge",
    "cache_write",
    "cache_read",
    "parallel",
]
DTYPES = ("float32", "float32", "int32", "float64", "float16", "int8")


@hs.composite
def algorithms(draw: Draw) -> te.LoopSchedule:
    """Draw the plain schedule of a random small algorithm."""
    family, dtype = draw(hs.sampled_from(FAMILIES)), draw(hs.sampled_from(DTYPES))
    return te.schedule(*family(draw, dtype))


@hs.composite
def schedules(draw: Draw) -> tuple[te.LoopSchedule, te.LoopSchedule]:
    """Draw a plain schedule and one with random legal steps; steps that are refused are left out."""
    plain = draw(algorithms())
    schedule = plain
    for _ in range(draw(hs.integers(4, 24))):
        step = draw(hs.sampled_from(STEPS))
        try:
            schedule = getattr(schedule, step)(*_arguments(draw, schedule, step))
        except ScheduleError:
            continue
    return plain, schedule


def _arguments(draw: Draw, schedule: te.LoopSchedule, step: str) -> list[Any]:
    loops = hs.sampled_from(list(schedule.nest.loops) or ["none"])
    buffers = hs.sampled_from([b.name for b in schedule.nest.buffers])
    space = hs.sampled_from(["scratch", "scratch", "register"])
    if step == "reorder":
        return draw(hs.permutations(list(schedule.nest.loops)))[: draw(hs.integers(1, 4))]
    if step == "fuse":
        names = list(schedule.nest.loops)
        k = draw(hs.integers(0, max(0, len(names) - 2)))
        return names[k : k + 2]
    if step == "tensorize":
        return [draw(loops), draw(hs.sampled_from(sorted(te.INTRINSICS)))]
    of_kind = {For: loops, Buffer: buffers, int: hs.integers(1, 5), str: space}
    return [draw(of_kind[p.kind]) for p in te.PRIMITIVES[step].parameters]


def inputs(schedule: te.LoopSchedule, seed: int = 0) -> list[Any]:
    """Return random arrays for the placeholders: values whose sums and products round."""
    rng = np.random.default_rng(seed)
    found = []
    for b in schedule.nest.reads:
        if b.dtype.is_integer:
            found.append(rng.integers(-9, 10, b.shape).astype(b.dtype.np))
        else:
            found.append(rng.standard_normal(b.shape).astype(b.dtype.np))
    return found
