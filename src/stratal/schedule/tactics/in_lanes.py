"""A reduction along a contiguous axis: each lane of a vector reduces its share, then a tree joins the lanes.

The order depends on the width of the vector, and in long sums on the size of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratal.base.dtypes import DType
from stratal.loops import index
from stratal.loops.compute import Combiner
from stratal.loops.expr import Buffer, Expr, Var, cast, const, guard, lanes
from stratal.loops.stmt import For, Stmt, Store
from stratal.schedule.primitives import at_once, sequence
from stratal.schedule.tactics.long_sums import Totals, adds_up


class InLanes:
    """The parts of one reduction: `start`, an `update` per vector, `join`, and then its states are `totals`.

    `registers` and `scratch` are the temporaries it needs. A `long` sum also has a `begin` and an `end` of
    each block of updates.
    """

    def __init__(
        self, combiner: Combiner, dtypes: Sequence[DType], width: int, name: str, long: bool = False
    ) -> None:
        self.combiner: Final = combiner
        self.width: Final = width
        self.accs: Final = [
            Buffer(f"{name}_{k}" if k else name, d, (width,), space="register") for k, d in enumerate(dtypes)
        ]
        self.registers: Final = list(self.accs)
        self.scratch: Final[list[Buffer]] = []
        self.identity: Final = combiner.identity(dtypes)
        lane = Var("l", width)
        first = [Store(a, (lane,), i) for a, i in zip(self.accs, self.identity, strict=True)]
        self.start: Stmt = For(lane, sequence(*first), "vector")
        self.begin = self.end = self.join = sequence()
        if long and adds_up(combiner, self.accs):
            self._add_blocks(Totals(self.accs))
        elif combiner.lanes is not None:
            (acc,), lane = self.accs, Var("l", width)
            self.totals: list[Expr] = [lanes(combiner.lanes, acc[lane], lane)]
        else:
            self._join_in_memory()

    def update(self, lane: Var, terms: Sequence[Expr], inside: Expr) -> Stmt:
        """Return what a vector of terms does to the states, for the lanes that are `inside`."""
        zero = const(0, self.accs[0].dtype)
        # a state's identity adds nothing to it, nor does a product of zeros
        neutral = self.identity if len(terms) == len(self.accs) else [zero] * len(terms)
        given = [guard(inside, t, n) for t, n in zip(terms, neutral, strict=True)]
        new = self.combiner.combine([a[lane] for a in self.accs], given)
        stmt, held = at_once([Store(a, (lane,), v) for a, v in zip(self.accs, new, strict=True)])
        self.registers.extend(held)
        return stmt

    def _add_blocks(self, blocks: Totals) -> None:
        """Keep sums of blocks in the registers, and their totals in others."""
        (acc,), (total,) = self.accs, blocks.of.values()
        self.registers.append(total)
        parts = []
        for part in (blocks.start, blocks.begin, blocks.end):
            lane = Var("l", self.width)
            parts.append(For(lane, sequence(*part((lane,))), "vector"))
        self.start, self.begin, self.end = parts
        lane = Var("l", self.width)
        self.totals = [cast(lanes("add", total[lane], lane), acc.dtype)]

    def _join_in_memory(self) -> None:
        """Join several states by halves, each half one vector: no instruction does it for all lanes."""
        states = [Buffer(f"{a.name}m", a.dtype, a.shape, space="scratch") for a in self.accs]
        self.scratch.extend(states)
        lane = Var("l", self.width)
        kept = [Store(s, (lane,), a[lane]) for s, a in zip(states, self.accs, strict=True)]
        parts: list[Stmt] = [For(lane, sequence(*kept), "vector")]
        half = self.width // 2
        while half:
            lane = Var("l", half)
            other = index.add(lane, half)
            joined = self.combiner.merge([s[lane] for s in states], [s[other] for s in states])
            stores = [Store(s, (lane,), v) for s, v in zip(states, joined, strict=True)]
            stmt, held = at_once(stores, suffix=f"n{half}")
            self.registers.extend(held)
            parts.append(For(lane, stmt, "vector"))
            half //= 2
        self.join = sequence(*parts)
        self.totals = [s[index.as_expr(0)] for s in states]
