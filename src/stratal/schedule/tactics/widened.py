"""Products of 16-bit floats whose operands are copied to float32 first, once, and not for every product.

The copies keep the order of their operands, so tiles and dot products run over them as over float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from stratal.base.target import Target
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.stmt import Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics import contract, dots
from stratal.schedule.tactics.common import distribute, finished, nest, reduction_order
from stratal.schedule.tactics.product import Product, product_of
from stratal.schedule.tactics.tiles import TiledProduct

KIND = "contract"

COPY_CYCLES: Final = 0.4  # an element widened: two bytes read, four written and read again


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield tiles and dot products over copies of the operands that would be widened again and again."""
    plain = product_of(x, target)
    if not all(v.extent for v in (*plain.axes, *plain.roles.reduce)):
        return
    kept = _kept(plain)
    if kept:
        p = WidenedProduct(x, target, kept)
        tiling = contract.choose_tiling(p)
        yield Candidate(
            "tiles of float32",
            (contract.cycles_of(p, tiling) + p.copy_cycles) / (target.ghz * 1e9),
            partial(_tiles, target=target, kept=kept),
            (("rows", tiling.rows), ("vectors", tiling.vectors), ("depth", tiling.depth)),
            plain.operations,
        )
    if dots.suits(plain) and any(plain.narrow(k) for k in (0, 1)):
        p = WidenedProduct(x, target, (0, 1))
        cut = dots.choose_cut(p)
        yield Candidate(
            "dots of float32",
            (dots.cycles_of(p, cut) + p.copy_cycles) / (target.ghz * 1e9),
            partial(_dots, target=target),
            (("rows", cut.rows), ("columns", cut.columns)),
            plain.operations,
        )


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return the product over copies of that name, if it has those parameters."""
    if not algorithm.endswith(" of float32"):
        return None
    found = (c for c in candidates(x, target) if c.algorithm == algorithm)
    return next((c for c in found if dict(c.parameters) == parameters), None)


def _kept(p: Product) -> tuple[int, ...]:
    """Return the operands to copy: those that no tile copies into panels, which widens them as well."""
    tiling = contract.choose_tiling(p)
    reads = ((p.roles.a, tiling.copy_a), (p.roles.b, tiling.copy_b))
    return tuple(k for k, copied in reads if not copied and p.narrow(k) and _lies_dense(p, k))


def _lies_dense(p: Product, k: int) -> bool:
    """Return whether an operand is contiguous along some loop, and no element is read at two places."""
    loops, operand = _loops(p, k), p.operand(k)
    return (
        operand is not None
        and bool(loops)
        and p.step(k, loops[-1]) == 1
        and math.prod(v.extent for v in loops) <= operand.buffer.size
    )


def _loops(p: Product, k: int) -> list[Var]:
    """Return the loops an operand depends on, in the order in which it lies in memory."""
    return sorted(p.used(k, p.loops), key=lambda v: -abs(p.step(k, v) or 1 << 40))


def _tiles(x: GroupExpressions, target: Target, kept: tuple[int, ...]) -> Tactic:
    p = WidenedProduct(x, target, kept)
    tiles = TiledProduct(p, contract.choose_tiling(p))
    schedule = tiles.schedule()
    schedule.steps.append(reduction_order(p.roles.reduce))
    return finished(schedule, "contract", p.in_place, [*p.packs, *tiles.packs])


def _dots(x: GroupExpressions, target: Target) -> Tactic:
    p = WidenedProduct(x, target, (0, 1))
    schedule = dots.DotProducts(p, dots.choose_cut(p)).schedule()
    schedule.steps.append(reduction_order(p.roles.reduce))
    return finished(schedule, "dots", p.in_place, p.packs)


class WidenedProduct(Product):
    """A product that reads float32 copies of some of its operands; `packs` are the kernels that make them."""

    def __init__(self, x: GroupExpressions, target: Target, widened: Sequence[int]) -> None:
        super().__init__(x, target)
        self.packs: list[Pack] = []
        self.copy_cycles = 0.0
        for k in widened:
            if self.narrow(k) and _lies_dense(self, k):
                self.terms[k] = self._copied(k)

    def _copied(self, k: int) -> Expr:
        loops = _loops(self, k)
        copy = Buffer(f"wide{k}", self.terms[k].dtype, [v.extent for v in loops])
        at: tuple[Expr, ...] = tuple(loops)
        s = Schedule(nest(loops, Store(copy, at, self.terms[k])))
        *around, last = loops
        many, lane = s.split(last, self.lanes)
        s.vectorize(lane)
        taken = around or [many]
        distribute(s, taken, max(1.0, 2.0 * copy.size / math.prod(v.extent for v in taken)))
        self.packs.append(Pack(copy, s.body, tuple(s.steps)))
        if not self.held[k]:
            self.copy_cycles += copy.size * COPY_CYCLES
        return copy[at]
