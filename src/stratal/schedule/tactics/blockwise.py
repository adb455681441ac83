"""Regions of tiles (`ops/control/blockwise`): a block of rows and columns at a time, in scratch.

A worker takes a head (or some rows of one), lays out what columns of tiles are made of, and for each block of
rows walks over the blocks of columns: products, what follows on them element by element, as expressions of
the loops, and what reductions take of it. With a running maximum, sums so far shrink as it grows.

Blocks are whole: beyond the ends, tiles hold what changes no reduction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from stratal.base.dtypes import float32
from stratal.base.errors import VerifyError
from stratal.base.target import Target
from stratal.graph.node import Node, items, topological
from stratal.loops import index
from stratal.loops import math as functions
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Const, Expr, Var, call, const, guard, lanes
from stratal.loops.stmt import For, If, Stmt, Store, guarded
from stratal.ops.control.blockwise import Operand, Sink, Tiles, tiles
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import Schedule, guard_leaves, sequence
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.attention import HEADS, LOG2E, LOWEST, QUERIES
from stratal.schedule.tactics.blocks import ROWS, BlockLoops
from stratal.schedule.tactics.common import nest
from stratal.schedule.tactics.hidden_blocks import Bounds, exactly, hidden
from stratal.schedule.tile_expressions import TileExpressions

KIND = "blockwise"

VECTORS: Final = 4  # of columns in a block
COSTLY: Final = frozenset(("exp", "exp_within", "tanh", "erf", "log", "pow", "sin", "cos"))  # computed once

ZERO: Final = const(0, float32)
LEAST: Final = const(-math.inf, float32)
LOWEST_SHIFT: Final = const(LOWEST, float32)


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield the one way there is."""
    yield Candidate("blocks", 0.0, lambda x: schedule_blockwise(x, target))


def schedule_blockwise(x: GroupExpressions, target: Target) -> Tactic:
    """Return the nest of a `blockwise` node."""
    (node,) = x.group.members
    found = tiles(node.op.attributes["body"])
    if isinstance(found, str):
        raise VerifyError(f"blockwise: {found}", where=node.where)
    made = BlockwiseNest(x, node, found, target)
    body = made.body()
    names = ", ".join(dict.fromkeys(_named(sink) for sink in found.sinks))
    steps = [f"blocks of {made.rows} rows and {made.columns} columns", f"in one pass: {names}"]
    if made.hides:
        steps.append("blocks that a mask hides as a whole are left out")
    return Tactic(body, tuple(made.local), "blockwise", tuple(steps))


def _named(sink: Sink) -> str:
    what = "products" if sink.operand is not None else "maximum" if sink.how == "max" else "sums"
    return f"{what} {'along columns' if sink.along == -1 else 'along rows' if sink.along else 'over tiles'}"


class BlockwiseNest(BlockLoops):
    """One region: its sizes, its buffers and its loops."""

    def __init__(self, x: GroupExpressions, node: Node, found: Tiles, target: Target) -> None:
        *self.batch, self.num_rows, self.num_columns = found.shape
        super().__init__(target, min(QUERIES, -(-self.num_rows // ROWS) * ROWS))
        self.columns = VECTORS * self.lanes
        self.tiles = found
        self.expressions = TileExpressions(x, node)
        self.result_of = {sink: x.buffer(r) for sink, r in zip(found.sinks, items(node), strict=True)}
        self.num_blocks = -(-self.num_rows // self.rows)
        self.num_column_blocks = -(-self.num_columns // self.columns)
        self.padded_columns = self.num_column_blocks * self.columns
        self.head: tuple[Expr, ...] = ()  # the batch index at hand
        self.hides = False  # whether masks by positions may hide blocks
        self._made: dict[object, Buffer] = {}
        self._fills: list[Stmt] = []

    def block(self, name: str) -> Buffer:
        return self.scratch(f"{name}{len(self.local)}", self.rows, self.columns)

    def padded(self, width: int) -> int:
        return -(-width // self.lanes) * self.lanes

    # -- operands --------------------------------------------------------------------------------------------
    def element(self, operand: Operand, axis: Expr, own: Expr, size: int) -> Expr:
        """Return an operand's element, zero beyond its ends."""
        inside = index.both(index.less(axis, size), index.less(own, operand.width))
        return guard(inside, self.expressions.operand(operand, self.head, axis, own), ZERO)

    def turned(self, operand: Operand) -> Buffer:
        """Return what columns are made of as blocks, each turned around, and remember to fill it."""
        key = ("turned", operand)
        if key not in self._made:
            shape = (self.num_column_blocks, operand.width, self.columns)
            made = self.scratch(f"turned{len(self.local)}", *shape)
            block, e, column = fresh_axes(made.shape)
            value = self.element(
                operand, index.add(index.mul(block, self.columns), column), e, self.num_columns
            )
            s = Schedule(nest([block, e, column], Store(made, (block, e, column), value)))
            many, lane = s.split(column, self.lanes)
            s.vectorize(lane)
            s.reorder(block, many, e)
            self._made[key] = made
            self._fills.append(s.body)
        return self._made[key]

    def whole(self, operand: Operand) -> Buffer:
        """Return an operand of columns as it lies, and remember to fill it."""
        key = ("whole", operand)
        if key not in self._made:
            made = self.scratch(f"whole{len(self.local)}", self.padded_columns, self.padded(operand.width))
            self._made[key] = made
            self._fills.append(
                self.fill(made, lambda c, e: self.element(operand, c, e, self.num_columns))
            )
        return self._made[key]

    def of_rows(self, operand: Operand, first: Expr, fills: list[Stmt]) -> Buffer:
        """Return a block of an operand of rows."""
        key = ("rows", operand)
        if key not in self._made:
            made = self.scratch(f"rows{len(self.local)}", self.rows, self.padded(operand.width))
            self._made[key] = made
            fills.append(
                self.fill(made, lambda r, e: self.element(operand, index.add(first, r), e, self.num_rows))
            )
        return self._made[key]

    # -- loops -----------------------------------------------------------------------------------------------
    def body(self) -> Stmt:
        over = [sink for sink in self.tiles.sinks if not sink.along]
        if over:
            return self._over_tiles(over)
        heads = math.prod(self.batch)
        of_heads = any(sink.along == -2 for sink in self.tiles.sinks)  # what is summed over all rows
        groups = 1 if of_heads else min(self.num_blocks, max(1, -(-HEADS // heads)))
        per_group = -(-self.num_blocks // groups)
        chunk = Var("c", heads * groups)
        self.head = index.unflatten(index.floordiv(chunk, groups), tuple(self.batch))
        block = Var("i", per_group)
        number = index.add(index.mul(index.mod(chunk, groups), per_group), block)
        sums = {sink: self._column_sums(sink) for sink in self.tiles.sinks if sink.along == -2}
        work = guarded(index.less(number, self.num_blocks), self._rows(index.mul(number, self.rows), sums))
        return For(
            chunk,
            sequence(
                *self._fills,
                *(self.fill(made, lambda *_: ZERO) for made in sums.values()),
                For(block, work),
                *(self._store_columns(sink, made) for sink, made in sums.items()),
            ),
            "parallel",
        )

    def _over_tiles(self, sinks: Sequence[Sink]) -> Stmt:
        """Return sums over tiles: a worker takes some rows of all that are added up."""
        over = sinks[0].node.op.attributes["axes"]
        kept = tuple(n for k, n in enumerate(self.batch) if k not in over)
        chunk = Var("c", math.prod(kept) * self.num_blocks)
        number, place = index.mod(chunk, self.num_blocks), index.floordiv(chunk, self.num_blocks)
        added = {k: Var(f"h{k}", n) for k, n in enumerate(self.batch) if k in over}
        where = index.unflatten(place, kept)
        rest = iter(where)
        self.head = tuple(added[k] if k in added else next(rest) for k in range(len(self.batch)))
        first = index.mul(number, self.rows)
        sums = {s: self.scratch(f"sums{len(self.local)}", self.rows, self.padded_columns) for s in sinks}
        work = self._rows(first, sums)
        stores = []
        for sink, made in sums.items():
            row, column = Var("r", self.rows), Var("s", self.num_columns)
            at = index.add(first, row)
            stored = Store(self.result_of[sink], (*where, at, column), made[row, column])
            stores.append(guard_leaves(self.in_vectors([row, column], stored), index.less(at, self.num_rows)))
        zeros = [self.fill(made, lambda *_: ZERO) for made in sums.values()]
        one = nest(list(added.values()), sequence(*self._fills, work))
        return For(chunk, sequence(*zeros, one, *stores), "parallel")

    def _column_sums(self, sink: Sink) -> Buffer:
        if sink.operand is None:
            return self.scratch(f"sums{len(self.local)}", self.padded_columns)
        return self.scratch(f"sums{len(self.local)}", self.padded_columns, self.padded(sink.operand.width))

    def _store_columns(self, sink: Sink, made: Buffer) -> Stmt:
        result = self.result_of[sink]
        loops = fresh_axes(result.shape[len(self.batch) :])
        return self.in_vectors(loops, Store(result, (*self.head, *loops), made[tuple(loops)]))

    def _rows(self, first: Expr, sums: dict[Sink, Buffer]) -> Stmt:
        """Return the work on one block of rows."""
        fills: list[Stmt] = []
        j = Var("j", self.num_column_blocks)
        start = index.mul(j, self.columns)
        steps: list[Stmt] = []
        for product in self.tiles.products:
            rows, turned = self.of_rows(product.rows, first, fills), self.turned(product.columns)
            made = self.block("s")
            steps.append(self._tile_product(made, rows, turned, j, product.rows.width))
            self.expressions.hold(product.node, made)
        running = Running(self) if self.tiles.peak is not None else None
        if running is not None:
            steps += running.step(first, start)
            fills += running.starts
        for node in self._costly():
            made = self.block("f")
            steps.append(self._evaluate(made, node, first, start, ZERO))
            self.expressions.hold(node, made)
        states: dict[Sink, Buffer] = {}
        blocks: dict[tuple[Node, Expr], Buffer] = {}
        if running is not None:
            states[running.peak] = running.top
        for sink in self.tiles.sinks:
            if running is not None and sink is running.peak:
                continue
            beyond = LEAST if sink.how == "max" else ZERO
            if running is not None and sink.tile is self.tiles.power:
                blocks[sink.tile, beyond] = running.powers
            if (sink.tile, beyond) not in blocks:
                made = blocks[sink.tile, beyond] = self.block("x")
                steps.append(self._evaluate(made, sink.tile, first, start, beyond))
            tile = blocks[sink.tile, beyond]
            if not sink.along:
                steps.append(self._add_tile(sums[sink], tile, start))
            elif sink.along == -2:
                steps.append(self._add_columns(sink, sums[sink], tile, start, first, fills))
            else:
                states[sink] = state = self._state(sink)
                fills.append(self.fill(state, lambda *_, beyond=beyond: beyond))
                steps.append(self._add_rows(sink, state, tile, start, running))
        ends = [self._store_rows(sink, state, first, states, running) for sink, state in states.items()]
        return sequence(*fills, For(j, self._unless_hidden(sequence(*steps), first, start)), *ends)

    def _unless_hidden(self, body: Stmt, first: Expr, start: Expr) -> Stmt:
        """Return the work on a block, left out where a mask hides all of it."""
        ends = ((first, self.rows), (start, self.columns))
        block = [exactly(h) for h in self.head]
        block += [Bounds((low,), (index.add(low, size - 1),)) for low, size in ends]
        conditions = hidden(self.tiles, block)
        self.hides = bool(conditions)
        for condition in conditions:
            body = If(condition, sequence(), body)
        return body

    def _costly(self) -> list[Node]:
        """Return what is computed once per element and read by several: in a block of its own."""
        if self.tiles.peak is not None:
            return []
        nodes = topological(sink.tile for sink in self.tiles.sinks)
        return [n for n in nodes if n.op.name in COSTLY and n.type == self.tiles.products[0].node.type]

    # -- blocks ----------------------------------------------------------------------------------------------
    def _tile_product(self, made: Buffer, rows: Buffer, turned: Buffer, j: Var, depth: int) -> Stmt:
        return self.product(
            made, lambda m, n: (m, n), (self.rows, self.columns, depth),
            lambda m, k: rows[m, k], lambda k, n: turned[j, k, n],
        )  # fmt: skip

    def _evaluate(self, made: Buffer, node: Node, first: Expr, start: Expr, beyond: Expr) -> Stmt:
        """Store a tile's elements in a block, `beyond` outside of the value."""
        row, column = Var("r", self.rows), Var("s", self.columns)
        at_row, at_column = index.add(first, row), index.add(start, column)
        value = self.expressions.at(node, (*self.head, at_row, at_column), row, column)

        def loops(element: Expr) -> Stmt:
            return For(row, For(column, Store(made, (row, column), element), "vector"))

        inside = index.both(index.less(at_row, self.num_rows), index.less(at_column, self.num_columns))
        whole = index.both(
            index.less(index.add(first, self.rows - 1), self.num_rows),
            index.less(index.add(start, self.columns - 1), self.num_columns),
        )
        if isinstance(inside, Const):
            return loops(value)
        careful = loops(guard(inside, value, beyond))
        return careful if isinstance(whole, Const) else If(whole, loops(value), careful)

    def _add_columns(
        self, sink: Sink, made: Buffer, tile: Buffer, start: Expr, first: Expr, fills: list[Stmt]
    ) -> Stmt:  # fmt: skip
        if sink.operand is None:
            row, column = Var("r", self.rows), Var("s", self.columns)
            at = index.add(start, column)
            return For(row, For(column, Store(made, (at,), made[at,] + tile[row, column]), "vector"))
        other = self.of_rows(sink.operand, first, fills)
        return self.product(
            made, lambda m, n: (index.add(start, m), n), (self.columns, made.shape[1], self.rows),
            lambda m, k: tile[k, m], lambda k, n: other[k, n],
            first=lambda m, n: made[index.add(start, m), n],
        )  # fmt: skip

    def _add_tile(self, made: Buffer, tile: Buffer, start: Expr) -> Stmt:
        row, column = Var("r", self.rows), Var("s", self.columns)
        at = index.add(start, column)
        return For(row, For(column, Store(made, (row, at), made[row, at] + tile[row, column]), "vector"))

    def _state(self, sink: Sink) -> Buffer:
        width = self.lanes if sink.operand is None else self.padded(sink.operand.width)
        return self.scratch(f"state{len(self.local)}", self.rows, width)

    def _add_rows(
        self, sink: Sink, state: Buffer, tile: Buffer, start: Expr, running: Running | None
    ) -> Stmt:  # fmt: skip
        """Return what adds a block to sums of rows, in lanes, or to products with an operand of columns."""

        def so_far(m: Expr, n: Expr) -> Expr:
            return state[m, n] if running is None else state[m, n] * running.shrunk[m]

        if sink.operand is not None:
            other = self.whole(sink.operand)
            return self.product(
                state, lambda m, n: (m, n), (self.rows, state.shape[1], self.columns),
                lambda m, k: tile[m, k], lambda k, n: other[index.add(start, k), n], first=so_far,
            )  # fmt: skip
        fn = "max" if sink.how == "max" else "add"

        def joined(row: Expr, lane: Expr) -> Expr:
            parts: Expr = tile[row, lane]
            for k in range(self.lanes, self.columns, self.lanes):
                parts = call(fn, parts, tile[row, index.add(lane, k)])
            return call(fn, so_far(row, lane), parts)

        return self.fill(state, joined)

    def _store_rows(
        self, sink: Sink, state: Buffer, first: Expr, states: dict[Sink, Buffer], running: Running | None
    ) -> Stmt:  # fmt: skip
        """Return the store of a row's results."""
        result, row = self.result_of[sink], Var("r", self.rows)
        at = index.add(first, row)
        inside = index.less(at, self.num_rows)
        if sink.operand is not None:
            column = Var("e", sink.operand.width)
            stored = Store(result, (*self.head, at, column), state[row, column])
            return guard_leaves(self.in_vectors([row, column], stored), inside)
        if running is not None and sink is running.peak:
            value: Expr = state[row]
        else:
            lane = Var("l", self.lanes)
            value = lanes("max" if sink.how == "max" else "add", state[row, lane], lane)
        return guard_leaves(For(row, Store(result, (*self.head, at), value)), inside)


class Running:
    """A maximum that runs along, the powers of e below it, and by how much what came before shrinks."""

    def __init__(self, nest: BlockwiseNest) -> None:
        self.nest = nest
        found = nest.tiles
        assert found.peak is not None and found.power is not None
        self.peak, self.power = found.peak, found.power
        self.top, self.shift, self.shrunk = (
            nest.scratch(f"{n}{len(nest.local)}", nest.rows) for n in ("top", "shift", "shrunk")
        )
        self.powers = nest.block("e")
        self.starts = [
            nest.fill(self.top, lambda r: LEAST), nest.fill(self.shift, lambda r: LOWEST_SHIFT)
        ]  # fmt: skip

    def step(self, first: Expr, start: Expr) -> list[Stmt]:
        """Return what makes the powers of a block, and the factor of what came before.

        The shift is finite where the maximum is -inf: a block with nothing in it changes nothing.
        """
        nest, scores, top, shift = self.nest, self.powers, self.top, self.shift
        row, column, lane = Var("r", nest.rows), Var("s", nest.columns), Var("l", nest.columns)

        def highest(r: Expr) -> Expr:
            return call("max", top[r], lanes("max", scores[r, lane], lane))

        power = functions.exp2_below((scores[row, column] - shift[row]) * LOG2E)
        made = [
            nest._evaluate(scores, self.peak.tile, first, start, LEAST),
            nest.by_rows(lambda r: Store(top, (r,), highest(r))),
            nest.fill(
                self.shrunk,
                lambda r: functions.exp2_below((shift[r] - call("max", top[r], LOWEST_SHIFT)) * LOG2E),
            ),
            nest.fill(shift, lambda r: call("max", top[r], LOWEST_SHIFT)),
            For(row, For(column, Store(scores, (row, column), power), "vector")),
        ]
        nest.expressions.hold(self.power, scores)
        return made
