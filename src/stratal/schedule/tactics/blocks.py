"""What kernels that work block by block share: scratch, loops in vectors, and products of blocks in tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Expr, Var, call, const
from stratal.loops.stmt import For, Stmt, Store
from stratal.schedule.primitives import Schedule, sequence
from stratal.schedule.tactics.common import nest, vectorize_inner

ROWS: Final = 4  # that a tile has at least
TILE: Final = 4  # vectors of a tile
UNROLL: Final = 4

Value = Callable[..., Expr]


class BlockLoops:
    """Statements over blocks of `rows` rows, and the buffers they were given."""

    def __init__(self, target: Target, num_rows: int) -> None:
        self.target = target
        self.lanes = target.lanes(4)
        self.accumulators = target.num_vector_registers // 2
        self.rows = num_rows
        self.local: list[Buffer] = []

    def scratch(self, name: str, *shape: int) -> Buffer:
        made = Buffer(name, float32, shape, space="scratch")
        self.local.append(made)
        return made

    def fill(self, buffer: Buffer, value: Value) -> Stmt:
        """Store a value at every index of a scratch buffer, its last axis in vectors."""
        loops = fresh_axes(buffer.shape)
        return self.in_vectors(loops, Store(buffer, loops, value(*loops)))

    def in_vectors(self, loops: Sequence[Var], stmt: Stmt) -> Stmt:
        """Run a statement over loops, the last of them in vectors."""
        s = Schedule(nest(loops, stmt))
        vectorize_inner(s, loops[-1], self.lanes)
        return s.body

    def by_rows(self, statement: Callable[[Var], Stmt]) -> Stmt:
        row = Var("r", self.rows)
        return For(row, statement(row))

    def product(
        self, out: Buffer, at: Callable[[Expr, Expr], tuple[Expr, ...]], shape: tuple[int, int, int],
        a: Value, b: Value, *, first: Value | None = None, last: Value | None = None,
    ) -> Stmt:  # fmt: skip
        """Return out[at(m, n)] = last(m, n, first(m, n) + sum over k of a(m, k) b(k, n)), in tiles."""
        m, n, depth = shape
        acc = Buffer(f"acc{len(self.local)}", float32, (m, n), space="register")
        vectors = next(
            v for v in range(TILE, 0, -1) if n // self.lanes % v == 0 and v * ROWS <= self.accumulators
        )
        rows = next(
            r for r in (16, 8, 4, 2, 1) if m % r == 0 and r * vectors <= max(vectors, self.accumulators)
        )
        parts: list[Schedule] = []
        heads: list[tuple[Var, Var]] = []
        for stage in range(3):
            i, j, k = Var("m", m), Var("n", n), Var("k", depth)
            if stage == 0:
                value = first(i, j) if first is not None else const(0, float32)
                s = Schedule(nest([i, j], Store(acc, (i, j), value)))
            elif stage == 1:
                s = Schedule(nest([i, j, k], Store(acc, (i, j), call("fma", a(i, k), b(k, j), acc[i, j]))))
            else:
                value = last(i, j, acc[i, j]) if last is not None else acc[i, j]
                s = Schedule(nest([i, j], Store(out, at(i, j), value)))
            io, ii = s.split(i, rows)
            jo, ji = s.split(j, vectors * self.lanes)
            jv, jl = s.split(ji, self.lanes)
            s.reorder(io, jo, *([k] if stage == 1 else []), ii, jv, jl)
            s.unroll(ii)
            s.unroll(jv)
            s.vectorize(jl)
            if stage == 1:
                ko, ki = s.split(k, UNROLL)
                s.unroll(ki)
                if depth % UNROLL:
                    s.peel(ko)
            parts.append(s)
            heads.append((io, jo))
        joined = Schedule(sequence(*(part.body for part in parts)), [acc])
        joined.merge_nests(heads)
        joined.shrink(acc, heads[0], "register")
        self.local += joined.local
        return joined.body
