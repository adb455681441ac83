"""Blocked summation: a long sum is added up in blocks, and the blocks in float64.

    for k in 1048576: a += x[k]   ->   t = 0
                                       for ko in 8192: { a = 0; for ki in 128: a += x[ko*128 + ki]; t += a }

One running sum in float32 stands still at 2^24 ones, and its error grows with the number of terms. A total in
float64, written once a block, costs nothing that can be measured. Short sums keep one running sum. See:
Higham 1993, "The accuracy of floating point summation", on blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stratal.base.dtypes import float64
from stratal.loops import index
from stratal.loops.compute import Combiner
from stratal.loops.expr import Buffer, Expr, Var, cast, const
from stratal.loops.stmt import For, Stmt, Store, substitute_stmt
from stratal.schedule.primitives import Schedule, fresh_loops, sequence
from stratal.schedule.tactics.common import nest

BLOCK: Final = 128  # terms of one running sum, in each lane
LONG: Final = 8 * BLOCK  # terms from which a sum is cut into blocks


def adds_up(combiner: Combiner, states: Sequence[Buffer]) -> bool:
    """Return whether a reduction is a sum of floats, whose roundings add up with its terms."""
    return combiner.name in ("sum", "dot") and states[0].dtype.is_float


class Totals:
    """The totals of some running sums, each kept at the same index as its sum."""

    def __init__(self, sums: Sequence[Buffer]) -> None:
        self.of: Final = {s: Buffer(f"{s.name}t", float64, s.shape, space="register") for s in sums}

    def start(self, slot: tuple[Expr, ...]) -> list[Stmt]:
        return [Store(t, slot, const(0, float64)) for t in self.of.values()]

    def begin(self, slot: tuple[Expr, ...]) -> list[Stmt]:
        """Return the start of a block."""
        return [Store(s, slot, const(0, s.dtype)) for s in self.of]

    def end(self, slot: tuple[Expr, ...]) -> list[Stmt]:
        """Return the end of a block."""
        return [Store(t, slot, t[slot] + cast(s[slot], float64)) for s, t in self.of.items()]


def in_blocks(
    axes: Sequence[Var], body: Stmt, begin: Stmt, end: Stmt, *, tail: bool = False,
    inner: Callable[[Sequence[Var], Stmt], Stmt] = nest,
) -> Stmt:  # fmt: skip
    """Return loops over reduced axes around `body`, with `begin` before each block and `end` after it.

    `inner` makes the loops within a block. With `tail` the last step of the last axis is guarded: it is done
    after the others.
    """
    place, steps = _cut([v.extent for v in axes])
    outer, axis, rest = axes[:place], axes[place], axes[place + 1 :]
    tail = tail and not rest
    body = inner(rest, body)
    whole = (axis.extent - tail) // steps
    left = axis.extent - whole * steps
    block, step, last = Var(f"{axis.name}o", whole), Var(f"{axis.name}i", steps), Var(axis.name, left)
    main = substitute_stmt(body, {axis: index.add(index.mul(block, steps), step)})
    parts: list[Stmt] = [For(block, sequence(begin, For(step, main), end))]
    if left:
        final = Schedule(For(last, substitute_stmt(body, {axis: index.add(last, whole * steps)})))
        if tail:
            final.peel(last)
        parts.append(fresh_loops(sequence(begin, final.body, end)))
    return nest(outer, sequence(*parts))


def _cut(extents: Sequence[int]) -> tuple[int, int]:
    """Return which of nested loops is cut, and how many of its steps a block has: few enough for one sum, and
    a number that divides the loop if one is near.
    """
    within = 1
    for place in reversed(range(len(extents))):
        extent = extents[place]
        if within * extent > BLOCK:
            most = max(1, BLOCK // within)
            even = (n for n in range(most, most // 4, -1) if extent % n == 0)
            return place, next(even, most)
        within *= extent
    return 0, extents[0]
