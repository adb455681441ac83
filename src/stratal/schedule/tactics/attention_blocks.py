"""What attention and its gradient share: the sizes of their blocks, operands, products in register tiles and
loops over heads and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from stratal.base.dtypes import bool_, float32
from stratal.base.target import Target
from stratal.graph.node import Node, items
from stratal.loops import index
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Buffer, Const, Expr, Var, call, const, guard
from stratal.loops.stmt import For, If, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, sequence
from stratal.schedule.tactics.common import nest

QUERIES: Final = 32  # rows of a block of scores
VECTORS: Final = (2, 4)  # of keys in a block: few where causality hides half of those on the diagonal
ROWS: Final = 4  # that a tile has at least
TILE: Final = 4  # vectors of a tile
UNROLL: Final = 4
LOG2E: Final = 1.4426950408889634

Value = Callable[..., Expr]


class Blocks:
    """The sizes of one attention node, its operands as expressions, and loops over blocks of them."""

    def __init__(self, x: GroupExpressions, node: Node, target: Target) -> None:
        self.x, self.node, self.target = x, node, target
        self.q, self.k, self.v, *self.rest = node.inputs
        self.results = [x.buffer(r) for r in items(node)]
        self.causal: bool = node.op.attributes["causal"]
        self.scale: float = node.op.attributes["scale"]
        self.lanes = target.lanes(4)
        self.keys = VECTORS[not self.causal] * self.lanes
        self.accumulators = target.num_vector_registers // 2
        *self.batch, self.num_queries, self.d = self.q.aval.ints
        self.num_keys, self.e = self.v.aval.ints[-2:]
        self.rows = min(QUERIES, -(-self.num_queries // ROWS) * ROWS)
        self.num_blocks = -(-self.num_queries // self.rows)
        self.num_key_blocks = -(-self.num_keys // self.keys)
        self.padded_keys = self.num_key_blocks * self.keys
        self.padded_d, self.padded_e = (-(-n // self.lanes) * self.lanes for n in (self.d, self.e))
        self.local: list[Buffer] = []
        self.head: tuple[Expr, ...] = ()  # the batch index of the head at hand

    # -- statements ------------------------------------------------------------------------------------------
    def scratch(self, name: str, *shape: int) -> Buffer:
        made = Buffer(name, float32, shape, space="scratch")
        self.local.append(made)
        return made

    def fill(self, buffer: Buffer, value: Value) -> Stmt:
        """Store a value at every index of a scratch buffer, its last axis in vectors."""
        loops = fresh_axes(buffer.shape)
        s = Schedule(nest(loops, Store(buffer, loops, value(*loops))))
        _, lane = s.split(loops[-1], self.lanes)
        s.vectorize(lane)
        return s.body

    def turned(self, node: Node, depth: int) -> tuple[Buffer, Stmt]:
        """Return an operand's rows as blocks of keys, each turned around and in one piece, and what makes it.

        A vector of rows is copied along its lines, which stay in the cache.
        """
        buffer = self.scratch(f"turned{len(self.local)}", self.num_key_blocks, depth, self.keys)
        block, e, key = fresh_axes(buffer.shape)
        value = self.operand(node, index.add(index.mul(block, self.keys), key), e)
        s = Schedule(nest([block, e, key], Store(buffer, (block, e, key), value)))
        many, lane = s.split(key, self.lanes)
        s.vectorize(lane)
        s.reorder(block, many, e)
        return buffer, s.body

    def operand(self, node: Node, row: Expr, column: Expr) -> Expr:
        """Return an operand at a row and column of the head, zero beyond its ends."""
        num_rows, num_columns = node.aval.ints[-2:]
        inside = index.both(index.less(row, num_rows), index.less(column, num_columns))
        return guard(inside, self.x.at(node, (*self.head, row, column)), const(0, float32))

    def query(self, row: Expr, column: Expr) -> Expr:
        """Return an element of q times what makes its products logarithms to base 2."""
        return call("mul", self.operand(self.q, row, column), const(self.scale * LOG2E, float32))

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

    def by_rows(self, statement: Callable[[Var], Stmt]) -> Stmt:
        row = Var("r", self.rows)
        return For(row, statement(row))

    def along_keys(self, statement: Callable[[Var], Stmt]) -> Stmt:
        """Run over the keys of a block in one wide vector: its registers are independent work."""
        key = Var("s", self.keys)
        return For(key, statement(key), "vector")

    # -- scores ----------------------------------------------------------------------------------------------
    def hide(self, scores: Buffer, first: Expr, start: Expr) -> Stmt:
        """Set scores to -inf where the key is hidden from the query, in blocks that have such."""
        row, key = Var("r", self.rows), Var("s", self.keys)
        query, at = index.add(first, row), index.add(start, key)
        seen, whole = (
            index.less(at, self.num_keys),
            index.less(index.add(start, self.keys - 1), self.num_keys),
        )
        if self.causal:
            seen = index.both(seen, index.less(at, index.add(query, 1)))
            whole = index.both(whole, index.less(index.add(start, self.keys - 1), index.add(first, 1)))
        hidden, score = const(float("-inf"), float32), scores[row, key]
        value = score if isinstance(seen, Const) else call("select", seen, score, hidden)
        if self.mask is not None:
            whole = const(False, bool_)
            held = index.both(index.less(query, self.num_queries), index.less(at, self.num_keys))
            kept = guard(held, self.x.at(self.mask, (*self.head, query, at)), const(False, self.mask.dtype))
            value = call("select", kept, value, hidden)
        if isinstance(whole, Const) and whole.value:
            return sequence()
        body = For(row, For(key, Store(scores, (row, key), value), "vector"))
        return body if isinstance(whole, Const) else If(whole, sequence(), body)

    @property
    def mask(self) -> Node | None:
        first = 0 if self.node.op.name == "attention" else 3
        return self.rest[first] if len(self.rest) > first else None

    def over_keys(self, first_query: Expr, statement: Callable[[Var], Stmt]) -> Stmt:
        """Run over the blocks of keys that some query of a block sees."""
        block = Var("j", self.num_key_blocks)
        body = statement(block)
        if self.causal:
            seen = index.less(index.mul(block, self.keys), index.add(first_query, self.rows))
            body = where(seen, body)
        return For(block, body)

    def over_heads(self, groups: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return the parallel loop over heads and groups of queries."""
        chunk = Var("c", math.prod(self.batch) * groups)
        self.head = index.unflatten(index.floordiv(chunk, groups), tuple(self.batch))
        return For(chunk, body(index.mod(chunk, groups)), "parallel")


def where(condition: Expr, body: Stmt) -> Stmt:
    """Run a statement where a condition holds, which may be known."""
    return body if isinstance(condition, Const) and condition.value else If(condition, body)
