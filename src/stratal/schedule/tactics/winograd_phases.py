"""The phases of an image, side by side as channels: what makes a convolution with strides one without.

    phases[n, y, x, (p, q, c)] = image[n, c, y * stride + p, x * stride + q]

Filters have a phase for each too, with a tap of zero where theirs end. It is for images of few channels, as
the first convolution of a network has: their phases fill vectors.
"""

from __future__ import annotations

from stratal.base.dtypes import float32
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var, call, guard
from stratal.loops.stmt import For, Stmt, Store
from stratal.schedule.primitives import Schedule, guard_leaves
from stratal.schedule.result import Pack
from stratal.schedule.tactics.common import cut_tails, distribute, nest
from stratal.schedule.tactics.winograd_stages import (
    ZERO,
    Stages,
    condition,
    either,
    fits,
    unguarded,
    unphased,
    up,
)

CYCLES = 2.0  # per element


def phases(stages: Stages) -> list[Pack]:
    """Return the kernel that lays out the phases of the image, and let tiles be read from there.

    Returns nothing where there are no strides.
    """
    g, s = stages.g, stages.g.sizes
    if s.stride == 1:
        return []
    image = stages.anchor.inputs[0]
    _, channels, height, width = image.aval.ints
    rows, columns = (n * g.m + s.taps - 1 for n in (g.rows, g.columns))  # of whole tiles
    shape = (s.batch, rows, columns, up(s.channels, g.lanes))
    made = stages.phases = Buffer("phases", float32, shape)
    n, y, block = Var("n", shape[0]), Var("y", shape[1]), Var("x", -(-shape[2] // g.lanes))
    start = index.mul(block, g.lanes)
    if shape[2] >= g.lanes:  # the last vector overlaps the one before it
        start = call("min", start, index.as_expr(shape[2] - g.lanes))
    unrolled: list[Var] = []

    def element(channel: Expr, x: Expr, p: Expr, q: Expr) -> Expr:
        row, column = index.add(index.mul(y, s.stride), p), index.add(index.mul(x, s.stride), q)
        found = stages.read(image, (n, channel, row, column))
        return guard(fits(row, height, column, width), found, ZERO)

    def arm(edge: bool) -> Stmt:
        c, lane = Var("c", shape[3]), Var("l", g.lanes)
        unrolled.append(c)
        x = index.add(start, lane)
        channel, p, q = unphased(c, channels, s.stride)
        found = element(channel, x, p, q)
        found = guard(index.less(c, s.channels), found if edge else unguarded(found), ZERO)
        store = Store(made, (n, y, x, c), found)
        return For(c, For(lane, guard_leaves(store, index.less(x, shape[2])), "vector"))

    near, far = index.as_expr(0), index.as_expr(s.stride - 1)
    whole = index.both(
        condition(element(near, start, near, near)),
        condition(element(near, index.add(start, g.lanes - 1), far, far)),
    )
    schedule = Schedule(nest((n, y, block), either(whole, arm)))
    for c in unrolled:
        schedule.unroll(c)
    distribute(schedule, [n, y], 2.0 * shape[2] * shape[3])
    cut_tails(schedule)
    return [Pack(made, schedule.body, tuple(schedule.steps), stages.taken(), "phases")]


def cycles(stages_size: tuple[int, ...]) -> float:
    """Estimate the cycles of laying out phases."""
    total = CYCLES
    for n in stages_size:
        total *= n
    return total
