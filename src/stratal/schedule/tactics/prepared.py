"""Products that read copies of their operands, which a kernel before makes once.

    turned    dot products one of whose operands is laid out along the reduction first, so that both are
              contiguous there: with few columns, most of a vector along them would be empty, and turning the
              operand with many rows instead takes longer than the product
    widened   products of 16-bit floats whose operands are copied to float32, and not widened for every
              product; the copies keep their order, so tiles and dot products run over them as over float32
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from stratal.base.target import Target
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.stmt import Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule
from stratal.schedule.result import Candidate, Pack, Tactic
from stratal.schedule.tactics import contract, dots
from stratal.schedule.tactics.common import distribute, nest, unroll_neighbours, vectorize_inner
from stratal.schedule.tactics.product import Product, product_of

KIND = "contract"

TURN_CYCLES: Final = 1.0  # an element copied across its line
COPY_CYCLES: Final = 0.4  # an element widened: two bytes read, four written and read again


class PreparedProduct(Product):
    """A product that reads copies of some operands; `packs` are the kernels that make them."""

    def __init__(self, x: GroupExpressions, target: Target, operands: Sequence[int]) -> None:
        super().__init__(x, target)
        self.copy_cycles = 0.0
        for k in operands:
            self._copy(k)

    def _copy(self, k: int) -> None:
        """Copy an operand, where that is of use."""
        raise NotImplementedError

    def _read(self, k: int, copy: Buffer, s: Schedule, at: tuple[Expr, ...], cycles: float) -> None:
        """Read an operand from a copy that a schedule makes."""
        self.packs.append(Pack(copy, s.body, tuple(s.steps)))
        self.copy_cycles += 0.0 if self.frozen[k] else copy.size * cycles
        self.terms[k] = copy[at]


class Turned(PreparedProduct):
    """Reads a copy of one operand laid out along the reduction."""

    def _copy(self, k: int) -> None:
        loops = self.used(k, self.loops)
        copy = Buffer("turned", self.terms[k].dtype, [v.extent for v in loops])
        s = Schedule(nest(loops, Store(copy, loops, self.terms[k])))
        together = [v for v in loops[:-1] if self.step(k, v) == 1]  # what lies so, at most one
        around = [v for v in loops[:-1] if v not in together]
        many, lane = s.split(loops[-1], self.lanes)
        s.vectorize(lane)
        s.reorder(*around, many, *together, lane)
        for v in together:
            unroll_neighbours(s, v)
        distribute(s, [*around, many], 2.0 * math.prod(v.extent for v in (*together, lane)))
        self._read(k, copy, s, tuple(loops), TURN_CYCLES)


class Widened(PreparedProduct):
    """Reads float32 copies of operands that are 16-bit floats."""

    def _copy(self, k: int) -> None:
        if not (self.narrow(k) and _lies_dense(self, k)):
            return
        loops = _loops(self, k)
        copy = Buffer(f"wide{k}", self.terms[k].dtype, [v.extent for v in loops])
        s = Schedule(nest(loops, Store(copy, loops, self.terms[k])))
        *around, last = loops
        many = vectorize_inner(s, last, self.lanes)
        taken = around or [many]
        distribute(s, taken, max(1.0, 2.0 * copy.size / math.prod(v.extent for v in taken)))
        self._read(k, copy, s, tuple(loops), COPY_CYCLES)


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield dot products where one operand alone is contiguous along the reduction, and tiles and dot
    products over copies of the operands that would be widened again and again.
    """
    plain = product_of(x, target)
    if not all(v.extent for v in (*plain.axes, *plain.roles.reduce)):
        return
    for k in (0, 1):
        if _may_turn(plain, k) and dots.suits(p := Turned(x, target, (k,))):
            yield _by_dots("dots, one operand transposed", p, (k,), (("operand", k),))
    kept = _kept(plain)
    if kept:
        widened = Widened(x, target, kept)
        t = contract.choose_tiling(widened)
        cycles = contract.cycles_of(widened, t) + widened.copy_cycles
        parameters = (("rows", t.rows), ("vectors", t.vectors), ("depth", t.depth))
        make = partial(_tiles, target=target, kept=kept)
        seconds = cycles / (target.ghz * 1e9)
        yield Candidate("tiles of float32", seconds, make, parameters, widened.operations)
    if dots.suits(plain) and any(plain.narrow(k) for k in (0, 1)):
        yield _by_dots("dots of float32", Widened(x, target, (0, 1)), (0, 1))


def _by_dots(
    algorithm: str, p: PreparedProduct, operands: Sequence[int], named: tuple[tuple[str, int], ...] = ()
) -> Candidate:
    cut = dots.choose_cut(p)
    return Candidate(
        algorithm,
        (dots.cycles_of(p, cut) + p.copy_cycles) / (p.target.ghz * 1e9),
        partial(_dots, target=p.target, way=type(p), operands=operands),
        (*named, ("rows", cut.rows), ("columns", cut.columns)),
        p.operations,
    )


def _dots(x: GroupExpressions, target: Target, way: type[PreparedProduct], operands: Sequence[int]) -> Tactic:
    p = way(x, target, operands)
    return dots.schedule_dots(p, dots.choose_cut(p))


def _tiles(x: GroupExpressions, target: Target, kept: tuple[int, ...]) -> Tactic:
    p = Widened(x, target, kept)
    return contract.schedule_tiles(p, contract.choose_tiling(p))


# -- which operands ------------------------------------------------------------------------------------------
def _may_turn(p: Product, k: int) -> bool:
    """Return whether an operand may be turned: the other one lies along the reduction, this one does not, and
    no element of it is in several windows.
    """
    operand, last = p.operand(k), p.roles.reduce[-1] if p.roles.reduce else None
    return (
        operand is not None
        and last is not None
        and p.step(1 - k, last) == 1 != p.step(k, last)
        and not any(map(p.narrow, (0, 1)))
        and p.panels(k)
        and len(used := p.used(k, p.loops)) > 0  # a sum of one term may depend on no loop
        and math.prod(v.extent for v in used) <= operand.buffer.size
    )


def _kept(p: Product) -> tuple[int, ...]:
    """Return the operands to widen: those that no tile copies into panels, which widens them as well."""
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
