"""Attention and its gradient, block by block: scores of some queries and some keys at a time, in scratch.

A worker takes a head (or some queries of one), copies its keys turned around, and for each block of queries
walks over the blocks of keys: scores, their exponentials, and what they weigh. Row maxima and sums run
along (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., 2022).
Blocks that causality hides are not computed. Blocks are whole: what lies beyond the ends is zero or hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.graph.node import Node, items
from stratal.loops import index
from stratal.loops import math as functions
from stratal.loops.compute import axes as fresh_axes
from stratal.loops.expr import Buffer, Const, Expr, Var, call, const, guard, lanes
from stratal.loops.stmt import For, If, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.common import nest

KIND = "attention"

QUERIES: Final = 32  # rows of a block of scores
VECTORS: Final = 4  # of keys in a block, and of a tile
ROWS: Final = 4  # of a tile
UNROLL: Final = 4
HEADS: Final = 16  # beyond which heads alone keep all threads busy
LOWEST: Final = -3.4028234663852886e38  # finite: a block with every key hidden changes nothing

Value = Callable[..., Expr]


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is."""
    yield Candidate("blocks", 0.0, lambda x: schedule_attention(x, target))


def schedule_attention(x: GroupExpressions, target: Target) -> Tactic:
    """Return the nest of an `attention` or `attention_grad` node."""
    (node,) = x.group.members
    made = (Forward if node.op.name == "attention" else Backward)(x, node, target)
    body = made.body()
    steps = (f"blocks of {made.rows} queries and {made.keys} keys", f"tiles of {ROWS} x {made.width}")
    return Tactic(body, tuple(made.local), "attention", steps)


class Blocks:
    """The sizes of one attention node, its operands as expressions, and loops over blocks of them."""

    def __init__(self, x: GroupExpressions, node: Node, target: Target) -> None:
        self.x, self.node, self.target = x, node, target
        self.q, self.k, self.v, *self.rest = node.inputs
        self.results = [x.buffer(r) for r in items(node)]
        self.causal: bool = node.op.attributes["causal"]
        self.scale = const(node.op.attributes["scale"], float32)
        self.lanes = target.lanes(4)
        vectors = VECTORS if target.num_vector_registers >= 32 else VECTORS // 2
        self.width, self.keys = vectors * self.lanes, VECTORS * self.lanes
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

    def fill(self, buffer: Buffer, value: Value, *, turned: bool = False, lanes: int = 0) -> Stmt:
        """Store a value at every index of a scratch buffer, its last axis in vectors.

        `turned` values lie along the other axis: a block of vectors stays in the cache while that one runs.
        """
        loops = fresh_axes(buffer.shape)
        s = Schedule(nest(loops, Store(buffer, loops, value(*loops))))
        many, lane = s.split(loops[-1], lanes or self.lanes)
        s.vectorize(lane)
        if turned:
            s.reorder(many, *loops[:-1])
        return s.body

    def operand(self, node: Node, row: Expr, column: Expr) -> Expr:
        """Return an operand at a row and column of the head, zero beyond its ends."""
        num_rows, num_columns = node.aval.ints[-2:]
        inside = index.both(index.less(row, num_rows), index.less(column, num_columns))
        return guard(inside, self.x.at(node, (*self.head, row, column)), const(0, float32))

    def product(
        self, out: Buffer, at: Callable[[Expr, Expr], tuple[Expr, ...]], shape: tuple[int, int, int],
        a: Value, b: Value, *, add: bool = False,
    ) -> Stmt:  # fmt: skip
        """Return out[at(m, n)] = (out +) sum over k of a(m, k) b(k, n) in register tiles."""
        m, n, depth = shape
        zero = const(0, float32)
        acc = Buffer(f"acc{len(self.local)}", float32, (m, n), space="register")
        many = n // self.lanes
        vectors = next(v for v in (self.width // self.lanes, 3, 2, 1) if many % v == 0)
        parts: list[Schedule] = []
        heads: list[tuple[Var, Var]] = []
        for stage in range(3):
            i, j, k = Var("m", m), Var("n", n), Var("k", depth)
            if stage == 0:
                s = Schedule(nest([i, j], Store(acc, (i, j), out[at(i, j)] if add else zero)))
            elif stage == 1:
                s = Schedule(nest([i, j, k], Store(acc, (i, j), call("fma", a(i, k), b(k, j), acc[i, j]))))
            else:
                s = Schedule(nest([i, j], Store(out, at(i, j), acc[i, j])))
            io, ii = s.split(i, ROWS)
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
    def shown(self, score: Expr, query: Expr, key: Expr) -> Expr:
        """Return a score, -inf where the key is hidden from the query."""
        hidden = const(float("-inf"), float32)
        inside = index.less(key, self.num_keys)
        if self.causal:
            inside = index.both(inside, index.less(key, index.add(query, 1)))
        if self.mask is not None:
            held = index.both(index.less(query, self.num_queries), index.less(key, self.num_keys))
            seen = guard(held, self.x.at(self.mask, (*self.head, query, key)), const(False, self.mask.dtype))
            score = call("select", seen, score, hidden)
        return score if isinstance(inside, Const) and inside.value else call("select", inside, score, hidden)

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


class Forward(Blocks):
    """attention: out and lse."""

    def body(self) -> Stmt:
        heads = math.prod(self.batch)
        groups = min(self.num_blocks, max(1, -(-HEADS // heads)))
        per_group = -(-self.num_blocks // groups)
        turned = self.scratch("kt", self.d, self.padded_keys)
        values = self.scratch("v", self.padded_keys, self.padded_e)

        def work(group: Expr) -> Stmt:
            block = Var("i", per_group)
            number = index.add(index.mul(group, per_group), block)
            queries = self._queries(index.mul(number, self.rows), turned, values)
            queries = where(index.less(number, self.num_blocks), queries)
            return sequence(
                self.fill(turned, lambda e, s: self.operand(self.k, s, e), turned=True),
                self.fill(values, lambda s, e: self.operand(self.v, s, e)),
                For(block, queries),
            )

        return self.over_heads(groups, work)

    def _queries(self, first: Expr, turned: Buffer, values: Buffer) -> Stmt:
        """Return the work on one block of queries."""
        q = self.scratch("q", self.rows, self.d)
        out = self.scratch("o", self.rows, self.padded_e)
        top, new, total, shrunk = (self.scratch(n, self.rows) for n in ("top", "new", "total", "shrunk"))
        scores = self.scratch("scores", self.rows, self.keys)
        zero = const(0, float32)

        def block(j: Var) -> Stmt:
            start = index.mul(j, self.keys)

            def shown(r: Expr, s: Expr) -> Expr:
                return self.shown(scores[r, s], index.add(first, r), index.add(start, s))

            lane = Var("l", self.keys)
            return sequence(
                self.product(
                    scores, lambda m, n: (m, n), (self.rows, self.keys, self.d),
                    lambda m, k: q[m, k], lambda k, n: turned[k, index.add(start, n)],
                ),
                self.by_rows(
                    lambda r: Store(new, (r,), call("max", top[(r,)], lanes("max", shown(r, lane), lane)))
                ),
                self.fill(shrunk, lambda r: functions.exp(call("sub", top[(r,)], new[(r,)]))),
                self.by_rows(
                    lambda r: self.along_keys(
                        lambda s: Store(scores, (r, s), functions.exp(call("sub", shown(r, s), new[(r,)])))
                    )
                ),
                self.by_rows(
                    lambda r: Store(
                        total, (r,),
                        call("fma", total[(r,)], shrunk[(r,)], lanes("add", scores[r, lane], lane)),
                    )
                ),
                self.fill(top, lambda r: new[(r,)]),
                self.fill(out, lambda r, e: call("mul", out[r, e], shrunk[(r,)])),
                self.product(
                    out, lambda m, n: (m, n), (self.rows, self.padded_e, self.keys),
                    lambda m, k: scores[m, k], lambda k, n: values[index.add(start, k), n], add=True,
                ),
            )  # fmt: skip

        result, lse = self.results
        row, column, last = Var("r", self.rows), Var("e", self.e), Var("r", self.rows)
        mean = call("div", out[row, column], total[(row,)])
        s = Schedule(nest([row, column], Store(result, (*self.head, index.add(first, row), column), mean)))
        _, one = s.split(column, self.lanes)
        s.vectorize(one)
        logarithm = call("add", top[(last,)], functions.log(total[(last,)]))
        ends = Schedule(For(last, Store(lse, (*self.head, index.add(first, last)), logarithm), "vector"))
        return sequence(
            self.fill(q, lambda r, e: call("mul", self.operand(self.q, index.add(first, r), e), self.scale)),
            self.fill(top, lambda r: const(LOWEST, float32)),
            self.fill(total, lambda r: zero),
            self.fill(out, lambda r, e: zero),
            self.over_keys(first, block),
            guard_leaves(s.body, index.less(index.add(first, row), self.num_queries)),
            guard_leaves(ends.body, index.less(index.add(first, last), self.num_queries)),
        )


class Backward(Blocks):
    """attention_grad: dq, dk and dv."""

    def body(self) -> Stmt:
        turned_k = self.scratch("kt", self.d, self.padded_keys)
        turned_v = self.scratch("vt", self.e, self.padded_keys)
        keys = self.scratch("k", self.padded_keys, self.padded_d)
        dk = self.scratch("dk", self.padded_keys, self.padded_d)
        dv = self.scratch("dv", self.padded_keys, self.padded_e)
        zero = const(0, float32)

        def work(group: Expr) -> Stmt:
            block = Var("i", self.num_blocks)
            return sequence(
                self.fill(turned_k, lambda e, s: self.operand(self.k, s, e), turned=True),
                self.fill(turned_v, lambda e, s: self.operand(self.v, s, e), turned=True),
                self.fill(keys, lambda s, e: self.operand(self.k, s, e)),
                self.fill(dk, lambda s, e: zero),
                self.fill(dv, lambda s, e: zero),
                For(block, self._queries(index.mul(block, self.rows), turned_k, turned_v, keys, dk, dv)),
                self._store(self.results[1], dk, self.d),
                self._store(self.results[2], dv, self.e),
            )

        return self.over_heads(1, work)

    def _store(self, result: Buffer, held: Buffer, num_columns: int) -> Stmt:
        """Return the copy of a head's gradient to its place."""
        row, column = Var("s", self.num_keys), Var("e", num_columns)
        s = Schedule(nest([row, column], Store(result, (*self.head, row, column), held[row, column])))
        _, lane = s.split(column, self.lanes)
        s.vectorize(lane)
        return s.body

    def _queries(self, first: Expr, *held: Buffer) -> Stmt:
        """Return the work on one block of queries."""
        turned_k, turned_v, keys, dk, dv = held
        ct_node, lse_node, delta_node = self.rest[:3]
        q, dq = (self.scratch(n, self.rows, self.padded_d) for n in ("q", "dq"))
        ct = self.scratch("ct", self.rows, self.padded_e)
        lse, delta = self.scratch("lse", self.rows), self.scratch("delta", self.rows)
        p, t = (self.scratch(n, self.rows, self.keys) for n in ("p", "t"))
        zero = const(0, float32)

        def row_value(node: Node, r: Expr, beyond: float) -> Expr:
            query = index.add(first, r)
            value = self.x.at(node, (*self.head, query))
            return guard(index.less(query, self.num_queries), value, const(beyond, float32))

        def block(j: Var) -> Stmt:
            start = index.mul(j, self.keys)

            def weight(r: Expr, s: Expr) -> Expr:
                score = self.shown(p[r, s], index.add(first, r), index.add(start, s))
                return functions.exp(call("sub", score, lse[(r,)]))

            def slope(r: Expr, s: Expr) -> Expr:
                return call("mul", p[r, s], call("sub", t[r, s], delta[(r,)]))

            square, of_keys = (self.rows, self.keys), (self.keys, self.rows)
            return sequence(
                self.product(
                    p, lambda m, n: (m, n), (*square, self.d),
                    lambda m, k: q[m, k], lambda k, n: turned_k[k, index.add(start, n)],
                ),
                self.by_rows(lambda r: self.along_keys(lambda s: Store(p, (r, s), weight(r, s)))),
                self.product(
                    t, lambda m, n: (m, n), (*square, self.e),
                    lambda m, k: ct[m, k], lambda k, n: turned_v[k, index.add(start, n)],
                ),
                self.by_rows(lambda r: self.along_keys(lambda s: Store(t, (r, s), slope(r, s)))),
                self.product(
                    dv, lambda m, n: (index.add(start, m), n), (of_keys[0], self.padded_e, of_keys[1]),
                    lambda m, k: p[k, m], lambda k, n: ct[k, n], add=True,
                ),
                self.product(
                    dk, lambda m, n: (index.add(start, m), n), (of_keys[0], self.padded_d, of_keys[1]),
                    lambda m, k: t[k, m], lambda k, n: q[k, n], add=True,
                ),
                self.product(
                    dq, lambda m, n: (m, n), (self.rows, self.padded_d, self.keys),
                    lambda m, k: t[m, k], lambda k, n: keys[index.add(start, k), n], add=True,
                ),
            )  # fmt: skip

        row, column = Var("r", self.rows), Var("e", self.d)
        value = call("mul", dq[row, column], self.scale)
        at = (*self.head, index.add(first, row), column)
        s = Schedule(nest([row, column], Store(self.results[0], at, value)))
        _, lane = s.split(column, self.lanes)
        s.vectorize(lane)
        return sequence(
            self.fill(q, lambda r, e: call("mul", self.operand(self.q, index.add(first, r), e), self.scale)),
            self.fill(ct, lambda r, e: self.operand(ct_node, index.add(first, r), e)),
            self.fill(lse, lambda r: row_value(lse_node, r, float("inf"))),
            self.fill(delta, lambda r: row_value(delta_node, r, 0.0)),
            self.fill(dq, lambda r, e: zero),
            self.over_keys(first, block),
            guard_leaves(s.body, index.less(index.add(first, row), self.num_queries)),
        )


def where(condition: Expr, body: Stmt) -> Stmt:
    """Run a statement where a condition holds, which may be known."""
    return body if isinstance(condition, Const) and condition.value else If(condition, body)
