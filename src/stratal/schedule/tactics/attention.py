"""Attention and its gradient, block by block: scores of some queries and some keys at a time, in scratch.

A worker takes a head (or some queries of one), copies its keys turned around, and for each block of queries
walks over the blocks of keys: scores, their exponentials, and what they weigh. Row maxima and sums run
along (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., 2022).
Blocks that causality hides are not computed. Blocks are whole: what lies beyond the ends is zero or hidden.
Scores are logarithms to base 2: the factor is in the queries, and powers of 2 take half the work of exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from stratal.base.dtypes import float32
from stratal.base.target import Target
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops import math as functions
from stratal.loops.expr import Buffer, Expr, Var, call, const, guard, lanes
from stratal.loops.stmt import For, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.attention_blocks import LOG2E, Blocks, where
from stratal.schedule.tactics.common import nest

KIND = "attention"

HEADS: Final = 16  # beyond which heads alone keep all threads busy
LOWEST: Final = -3.4028234663852886e38  # finite: a block with every key hidden changes nothing
LN2: Final = 0.6931471805599453


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is."""
    yield Candidate("blocks", 0.0, lambda x: schedule_attention(x, target))


def schedule_attention(x: GroupExpressions, target: Target) -> Tactic:
    """Return the nest of an `attention` or `attention_grad` node."""
    (node,) = x.group.members
    made = (Forward if node.op.name == "attention" else Backward)(x, node, target)
    body = made.body()
    steps = (f"blocks of {made.rows} queries and {made.keys} keys",)
    return Tactic(body, tuple(made.local), "attention", steps)


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
            queries = where(index.less(number, self.num_blocks), queries)
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
                    lambda r: Store(new, (r,), call("max", top[(r,)], lanes("max", scores[r, lane], lane)))
                ),
                self.fill(shrunk, lambda r: functions.exp2_below(call("sub", top[(r,)], new[(r,)]))),
                self.by_rows(
                    lambda r: self.along_keys(
                        lambda s: Store(
                            scores, (r, s), functions.exp2_below(call("sub", scores[r, s], new[(r,)]))
                        )
                    )
                ),
                self.fill(total, lambda r, lane: self._lane_total(scores, total, shrunk, r, lane)),
                self.fill(top, lambda r: new[(r,)]),
                self.product(
                    out, lambda m, n: (m, n), (self.rows, self.padded_e, self.keys),
                    lambda m, k: scores[m, k], lambda k, n: values[index.add(start, k), n],
                    first=lambda m, n: call("mul", out[m, n], shrunk[(m,)]),
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
            sum_ = call("add", sum_, scores[row, index.add(lane, k)])
        return call("fma", total[row, lane], shrunk[(row,)], sum_)

    def _results(self, first: Expr, out: Buffer, top: Buffer, total: Buffer) -> list[Stmt]:
        """Return the stores of the weighted means and of lse, through `top`."""
        result, lse = self.results
        sums = self.scratch("sums", self.rows)
        lane, row, column, last = (
            Var("l", self.lanes),
            Var("r", self.rows),
            Var("e", self.e),
            Var("r", self.rows),
        )
        add_up = self.by_rows(lambda r: Store(sums, (r,), lanes("add", total[r, lane], lane)))
        mean = call("div", out[row, column], sums[(row,)])
        s = Schedule(nest([row, column], Store(result, (*self.head, index.add(first, row), column), mean)))
        _, one = s.split(column, self.lanes)
        s.vectorize(one)
        logarithm = call("fma", top[(last,)], const(LN2, float32), functions.log(sums[(last,)]))
        ends = Schedule(For(last, Store(lse, (*self.head, index.add(first, last)), logarithm), "vector"))
        return [
            add_up,
            guard_leaves(s.body, index.less(index.add(first, row), self.num_queries)),
            guard_leaves(ends.body, index.less(index.add(first, last), self.num_queries)),
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
        value = held[row, column] if factor == 1 else call("mul", held[row, column], const(factor, float32))
        s = Schedule(nest([row, column], Store(result, (*self.head, row, column), value)))
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

        def row_value(node: Node, r: Expr, factor: float, beyond: float) -> Expr:
            query = index.add(first, r)
            value = call("mul", self.x.at(node, (*self.head, query)), const(factor, float32))
            return guard(index.less(query, self.num_queries), value, const(beyond, float32))

        def block(j: Var) -> Stmt:
            start = index.mul(j, self.keys)
            of_keys = self.keys, self.rows
            return sequence(
                self.product(
                    p, lambda m, n: (m, n), (self.rows, self.keys, self.d),
                    lambda m, k: q[m, k], lambda k, n: turned_k[j, k, n],
                ),
                self.hide(p, first, start),
                self.by_rows(
                    lambda r: self.along_keys(
                        lambda s: Store(p, (r, s), functions.exp2_below(call("sub", p[r, s], lse[(r,)])))
                    )
                ),
                self.product(
                    t, lambda m, n: (m, n), (self.rows, self.keys, self.e),
                    lambda m, k: ct[m, k], lambda k, n: turned_v[j, k, n],
                    first=lambda m, n: delta[(m,)], last=lambda m, n, total: call("mul", p[m, n], total),
                ),
                self.product(
                    dv, lambda m, n: (index.add(start, m), n), (of_keys[0], self.padded_e, of_keys[1]),
                    lambda m, k: p[k, m], lambda k, n: ct[k, n],
                    first=lambda m, n: dv[index.add(start, m), n],
                ),
                self.product(
                    dk, lambda m, n: (index.add(start, m), n), (of_keys[0], self.padded_d, of_keys[1]),
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
        value = call("mul", dq[row, column], const(self.scale, float32))
        at = (*self.head, index.add(first, row), column)
        s = Schedule(nest([row, column], Store(self.results[0], at, value)))
        _, lane = s.split(column, self.lanes)
        s.vectorize(lane)
        return sequence(
            self.fill(q, lambda r, e: self.query(index.add(first, r), e)),
            self.fill(ct, lambda r, e: self.operand(ct_node, index.add(first, r), e)),
            self.fill(lse, lambda r: row_value(lse_node, r, LOG2E, float("inf"))),
            self.fill(delta, lambda r: row_value(delta_node, r, -1.0, 0.0)),
            self.fill(dq, lambda r, e: zero),
            self.over_keys(first, block),
            guard_leaves(s.body, index.less(index.add(first, row), self.num_queries)),
        )
