"""Attention and its gradient, block by block: scores of some queries and some keys at a time, in scratch.

A worker takes a head (or some queries of one), copies its keys turned around, and for each block of queries
walks over the blocks of keys: scores, their exponentials, and what they weigh. Row maxima and sums run
along (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., 2022).
Blocks that causality hides are not computed. Blocks are whole: what lies beyond the ends is zero or hidden.
Scores are logarithms to base 2: the factor is in the queries, and powers of 2 take half the work of exp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from stratal.base.dtypes import bool_, float32
from stratal.base.target import Target
from stratal.graph.node import Node, items
from stratal.loops import index
from stratal.loops import math as functions
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Const, Expr, Var, call, const, guard, lanes
from stratal.loops.stmt import For, If, Stmt, Store, guarded
from stratal.ops.linear.attention import Attention
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.blocks import ROWS, BlockLoops
from stratal.schedule.tactics.common import nest

KIND = "attention"

HEADS: Final = 16  # beyond which heads alone keep all threads busy
LOWEST: Final = -3.4028234663852886e38  # finite: a block with every key hidden changes nothing
LN2: Final = 0.6931471805599453
QUERIES: Final = 32  # rows of a block of scores
VECTORS: Final = (2, 4)  # of keys in a block: few where causality hides half of those on the diagonal
LOG2E: Final = 1.4426950408889634


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is."""
    yield Candidate("blocks", 0.0, lambda x: schedule_attention(x, target))


def schedule_attention(x: GroupExpressions, target: Target) -> Tactic:
    """Return the nest of an `attention` or `attention_grad` node."""
    (node,) = x.group.members
    made = (Forward if isinstance(node.op, Attention) else Backward)(x, node, target)
    body = made.body()
    steps = (f"blocks of {made.rows} queries and {made.keys} keys",)
    return Tactic(body, tuple(made.local), "attention", steps)


class Blocks(BlockLoops):
    """The sizes of one attention node, its operands as expressions, and loops over blocks of them."""

    def __init__(self, x: GroupExpressions, node: Node, target: Target) -> None:
        num_queries = node.inputs[0].aval.ints[-2]
        super().__init__(target, min(QUERIES, -(-num_queries // ROWS) * ROWS))
        self.x, self.node = x, node
        self.q, self.k, self.v, *self.rest = node.inputs
        self.results = [x.buffer(r) for r in items(node)]
        self.causal: bool = node.op.attributes["causal"]
        self.scale: float = node.op.attributes["scale"]
        self.keys = VECTORS[not self.causal] * self.lanes
        *self.batch, self.num_queries, self.d = self.q.aval.ints
        self.num_keys, self.e = self.v.aval.ints[-2:]
        self.num_blocks = -(-self.num_queries // self.rows)
        self.num_key_blocks = -(-self.num_keys // self.keys)
        self.padded_keys = self.num_key_blocks * self.keys
        self.padded_d, self.padded_e = (-(-n // self.lanes) * self.lanes for n in (self.d, self.e))
        self.head: tuple[Expr, ...] = ()  # the batch index of the head at hand

    # -- statements ------------------------------------------------------------------------------------------
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
        return self.operand(self.q, row, column) * (self.scale * LOG2E)

    def exponentials(self, scores: Buffer, less: Buffer) -> Stmt:
        """Take powers of 2 of scores less a number of their row, in one wide vector: independent work."""
        row, key = Var("r", self.rows), Var("s", self.keys)
        power = functions.exp2_below(scores[row, key] - less[row])
        return For(row, For(key, Store(scores, (row, key), power), "vector"))

    # -- scores ----------------------------------------------------------------------------------------------
    def hide(self, scores: Buffer, first: Expr, start: Expr) -> Stmt:
        """Set scores to -inf where the key is hidden from the query, in blocks that have such."""
        row, key = Var("r", self.rows), Var("s", self.keys)
        query, at = index.add(first, row), index.add(start, key)
        last = index.add(start, self.keys - 1)
        seen, whole = (index.less(k, self.num_keys) for k in (at, last))
        if self.causal:
            seen = index.both(seen, index.less(at, index.add(query, 1)))
            whole = index.both(whole, index.less(last, index.add(first, 1)))
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
        first = 0 if isinstance(self.node.op, Attention) else 3
        return self.rest[first] if len(self.rest) > first else None

    def over_keys(self, first_query: Expr, statement: Callable[[Var], Stmt]) -> Stmt:
        """Run over the blocks of keys that some query of a block sees."""
        block = Var("j", self.num_key_blocks)
        body = statement(block)
        if self.causal:
            seen = index.less(index.mul(block, self.keys), index.add(first_query, self.rows))
            body = guarded(seen, body)
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
        values = self.scratch("v", self.padded_keys, self.padded_e)

        def work(group: Expr) -> Stmt:
            block = Var("i", per_group)
            number = index.add(index.mul(group, per_group), block)
            turned, turn = self.turned(self.k, self.d)
            queries = self._queries(index.mul(number, self.rows), turned, values)
            queries = guarded(index.less(number, self.num_blocks), queries)
            return sequence(
                turn, self.fill(values, lambda s, e: self.operand(self.v, s, e)), For(block, queries)
            )

        return self.over_heads(groups, work)

    def _queries(self, first: Expr, turned: Buffer, values: Buffer) -> Stmt:
        """Return the work on one block of queries."""
        q = self.scratch("q", self.rows, self.d)
        out = self.scratch("o", self.rows, self.padded_e)
        top, new, shrunk = (self.scratch(n, self.rows) for n in ("top", "new", "shrunk"))
        total = self.scratch("total", self.rows, self.lanes)  # of every lane apart: added up at the end
        scores = self.scratch("scores", self.rows, self.keys)
        zero = const(0, float32)

        def block(j: Var) -> Stmt:
            start = index.mul(j, self.keys)
            lane = Var("l", self.keys)
            return sequence(
                self.product(
                    scores, lambda m, n: (m, n), (self.rows, self.keys, self.d),
                    lambda m, k: q[m, k], lambda k, n: turned[j, k, n],
                ),
                self.hide(scores, first, start),
                self.by_rows(
                    lambda r: Store(new, (r,), call("max", top[r], lanes("max", scores[r, lane], lane)))
                ),
                self.fill(shrunk, lambda r: functions.exp2_below(top[r] - new[r])),
                self.exponentials(scores, new),
                self.fill(total, lambda r, lane: self._lane_total(scores, total, shrunk, r, lane)),
                self.fill(top, lambda r: new[r]),
                self.product(
                    out, lambda m, n: (m, n), (self.rows, self.padded_e, self.keys),
                    lambda m, k: scores[m, k], lambda k, n: values[index.add(start, k), n],
                    first=lambda m, n: out[m, n] * shrunk[m],
                ),
            )  # fmt: skip

        return sequence(
            self.fill(q, lambda r, e: self.query(index.add(first, r), e)),
            self.fill(top, lambda r: const(LOWEST, float32)),
            self.fill(total, lambda r, lane: zero),
            self.fill(out, lambda r, e: zero),
            self.over_keys(first, block),
            *self._results(first, out, top, total),
        )

    def _lane_total(self, scores: Buffer, total: Buffer, shrunk: Buffer, row: Expr, lane: Expr) -> Expr:
        """Return what the weights in one lane of every vector of keys sum up to so far."""
        sum_: Expr = scores[row, lane]
        for k in range(self.lanes, self.keys, self.lanes):
            sum_ = sum_ + scores[row, index.add(lane, k)]
        return call("fma", total[row, lane], shrunk[row], sum_)

    def _results(self, first: Expr, out: Buffer, top: Buffer, total: Buffer) -> list[Stmt]:
        """Return the stores of the weighted means and of lse, through `top`."""
        result, lse = self.results
        sums = self.scratch("sums", self.rows)
        lane, row, column = Var("l", self.lanes), Var("r", self.rows), Var("e", self.e)
        last = Var("r", self.rows)
        add_up = self.by_rows(lambda r: Store(sums, (r,), lanes("add", total[r, lane], lane)))
        zero, one = const(0, float32), const(1, float32)

        def unless_hidden(r: Expr, value: Expr, otherwise: Expr) -> Expr:
            return call("select", call("eq", sums[r], zero), otherwise, value)

        mean = out[row, column] / sums[row]
        inside = index.less(index.add(first, row), self.num_queries)
        means = Store(result, (*self.head, index.add(first, row), column), mean)
        logarithm = call("fma", top[last], const(LN2, float32), functions.log(sums[last]))
        ends = For(last, Store(lse, (*self.head, index.add(first, last)), logarithm), "vector")
        return [
            add_up,
            self.fill(top, lambda r: unless_hidden(r, top[r], zero)),
            self.fill(sums, lambda r: unless_hidden(r, sums[r], one)),
            guard_leaves(self.in_vectors([row, column], means), inside),
            guard_leaves(ends, index.less(index.add(first, last), self.num_queries)),
        ]


class Backward(Blocks):
    """attention_grad: dq, dk and dv."""

    def body(self) -> Stmt:
        keys = self.scratch("k", self.padded_keys, self.padded_d)
        dk = self.scratch("dk", self.padded_keys, self.padded_d)
        dv = self.scratch("dv", self.padded_keys, self.padded_e)
        zero = const(0, float32)

        def work(group: Expr) -> Stmt:
            block = Var("i", self.num_blocks)
            turned_k, turn_k = self.turned(self.k, self.d)
            turned_v, turn_v = self.turned(self.v, self.e)
            return sequence(
                turn_k,
                turn_v,
                self.fill(keys, lambda s, e: self.operand(self.k, s, e)),
                self.fill(dk, lambda s, e: zero),
                self.fill(dv, lambda s, e: zero),
                For(block, self._queries(index.mul(block, self.rows), turned_k, turned_v, keys, dk, dv)),
                self._store(self.results[1], dk, self.d, LN2),
                self._store(self.results[2], dv, self.e, 1.0),
            )

        return self.over_heads(1, work)

    def _store(self, result: Buffer, held: Buffer, num_columns: int, factor: float) -> Stmt:
        """Return the copy of a head's gradient, times a factor, to its place."""
        row, column = Var("s", self.num_keys), Var("e", num_columns)
        value = held[row, column] if factor == 1 else held[row, column] * factor
        return self.in_vectors([row, column], Store(result, (*self.head, row, column), value))

    def _queries(self, first: Expr, *held: Buffer) -> Stmt:
        """Return the work on one block of queries."""
        turned_k, turned_v, keys, dk, dv = held
        ct_node, lse_node, delta_node = self.rest[:3]
        q, dq = (self.scratch(n, self.rows, self.padded_d) for n in ("q", "dq"))
        ct = self.scratch("ct", self.rows, self.padded_e)
        lse, delta = self.scratch("lse", self.rows), self.scratch("delta", self.rows)
        p, t = (self.scratch(n, self.rows, self.keys) for n in ("p", "t"))
        zero = const(0, float32)

        def row_value(node: Node, r: Expr, factor: float, beyond: float) -> Expr:
            query = index.add(first, r)
            value = self.x.at(node, (*self.head, query)) * factor
            return guard(index.less(query, self.num_queries), value, const(beyond, float32))

        def block(j: Var) -> Stmt:
            start = index.mul(j, self.keys)
            return sequence(
                self.product(
                    p, lambda m, n: (m, n), (self.rows, self.keys, self.d),
                    lambda m, k: q[m, k], lambda k, n: turned_k[j, k, n],
                ),
                self.hide(p, first, start),
                self.exponentials(p, lse),
                self.product(
                    t, lambda m, n: (m, n), (self.rows, self.keys, self.e),
                    lambda m, k: ct[m, k], lambda k, n: turned_v[j, k, n],
                    first=lambda m, n: delta[m], last=lambda m, n, total: p[m, n] * total,
                ),
                self.product(
                    dv, lambda m, n: (index.add(start, m), n), (self.keys, self.padded_e, self.rows),
                    lambda m, k: p[k, m], lambda k, n: ct[k, n],
                    first=lambda m, n: dv[index.add(start, m), n],
                ),
                self.product(
                    dk, lambda m, n: (index.add(start, m), n), (self.keys, self.padded_d, self.rows),
                    lambda m, k: t[k, m], lambda k, n: q[k, n],
                    first=lambda m, n: dk[index.add(start, m), n],
                ),
                self.product(
                    dq, lambda m, n: (m, n), (self.rows, self.padded_d, self.keys),
                    lambda m, k: t[m, k], lambda k, n: keys[index.add(start, k), n],
                    first=lambda m, n: dq[m, n],
                ),
            )  # fmt: skip

        row, column = Var("r", self.rows), Var("e", self.d)
        value = dq[row, column] * self.scale
        at = (*self.head, index.add(first, row), column)
        results = self.in_vectors([row, column], Store(self.results[0], at, value))
        return sequence(
            self.fill(q, lambda r, e: self.query(index.add(first, r), e)),
            self.fill(ct, lambda r, e: self.operand(ct_node, index.add(first, r), e)),
            self.fill(lse, lambda r: row_value(lse_node, r, LOG2E, float("inf"))),
            self.fill(delta, lambda r: row_value(delta_node, r, -1.0, 0.0)),
            self.fill(dq, lambda r, e: zero),
            self.over_keys(first, block),
            guard_leaves(results, index.less(index.add(first, row), self.num_queries)),
        )
