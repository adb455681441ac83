"""Scan: a loop of at most `length` steps over the rows of its operands, differentiable in both modes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, as_int, known_equal, upper_bound
from stratal.base.dtypes import DType, float32, float64, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.graph import Graph, inline
from stratal.graph.node import Node, graph_input, items, make
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.control import regions, sums
from stratal.ops.families import moved_axis, or_zeros, repeated

INDEX = TensorType(int64, ())


class Parts(NamedTuple):
    """The operands of a scan, or the inputs or outputs of its body, by role."""

    carries: list[Any]
    xs: list[Any]
    consts: list[Any]


@record
class Scan(regions.Regional):
    """Run `body` once per row, threading carries from step to step.

        operands: carry..., stacked x (leading axis `length`)..., constant...[, runtime length, an int64
        scalar] body:     (carry..., row of x..., constant..., row number as int64) -> (carry..., y...)
        results:  final carry..., stacked y...                                     always a tuple

    Rows are visited in order, or from the last to the first with `reverse`; the row number counts rows, not
    steps. With `dynamic_length` only the first n rows are visited, n being clamped to [0, length]; rows of y
    beyond it are 0. A length of 0 returns the carries as they came.

    Reverse mode runs the body's derivative over the rows in the opposite order. What it needs of the primal
    is saved by a twin of the primal whose body returns these values as further ys; the body is not run again.
    The twin has the primal's operands and, among its outputs, the primal's outputs, so `optimize.merge_twins`
    leaves one scan.
    """

    body: Graph
    length: Dim
    num_carries: int
    num_xs: int
    reverse: bool = False
    dynamic_length: bool = False

    # -- roles -----------------------------------------------------------------------------------------------
    def parts(self, operands: Sequence[Any]) -> Parts:
        """Split operands, or body inputs, by role; the last (runtime length, row number) is left out."""
        end = len(self.body.inputs) - 1
        c, x = self.num_carries, self.num_carries + self.num_xs
        return Parts(list(operands[:c]), list(operands[c:x]), list(operands[x:end]))

    # -- meaning ---------------------------------------------------------------------------------------------
    def infer(self, *types: TensorType) -> TupleType:
        if self.length < 0 or self.num_carries < 0 or self.num_xs < 0:
            raise AttributeValueError("scan: length and counts are not negative", got=str(self.length))
        given = list(types)
        if self.dynamic_length and (not given or given.pop() != INDEX):
            raise ShapeError(
                "scan: the runtime length, its last operand, must be an int64 scalar", got=str(types[-1:])
            )
        if len(given) < self.num_carries + self.num_xs:
            raise ShapeError(
                f"scan: takes {self.num_carries} carries and {self.num_xs} xs", got=f"{len(given)} operands"
            )
        first_const = self.num_carries + self.num_xs
        rows = [self._row(t) for t in given[self.num_carries : first_const]]
        carries = given[: self.num_carries]
        regions.check_region("scan", "body", self.body, [*carries, *rows, *given[first_const:], INDEX])
        results = self.body.output_types
        rule = "the body must return carries of their own types"
        regions.check_same("scan", rule, results[: self.num_carries], carries)
        stacked = [t.with_shape((self.length, *t.shape)) for t in results[self.num_carries :]]
        return TupleType([*carries, *stacked])

    def _row(self, stacked: TensorType) -> TensorType:
        if stacked.ndim == 0 or not known_equal(stacked.shape[0], self.length):
            raise ShapeError(
                "scan: the leading axis of every x must be its length", got=f"{stacked}, length {self.length}"
            )
        return stacked.with_shape(stacked.shape[1:])

    def ref(self, *arrays: Array) -> tuple[Array, ...]:
        carries, xs, consts = self.parts(arrays)
        types = self.body.output_types[self.num_carries :]
        ys = [np.zeros((as_int(self.length), *t.ints), t.dtype.np) for t in types]
        length = as_int(self.length)
        steps = int(np.clip(arrays[-1], 0, length)) if self.dynamic_length else length
        state = [np.array(c) for c in carries]
        for k in range(steps)[:: -1 if self.reverse else 1]:
            rows = (np.asarray(x[k]) for x in xs)
            results = regions.run(self.body, [*state, *rows, *consts, np.asarray(k)])
            state = list(results[: self.num_carries])
            for y, row in zip(ys, results[self.num_carries :], strict=True):
                y[k] = row
        return (*state, *ys)

    def cost(self, *types: TensorType) -> Cost:
        return regions.region_cost(self.body, upper_bound(self.length))

    # -- derivatives -----------------------------------------------------------------------------------------
    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        return _Reverse(self, b, ct, out, inputs).run()

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        return _Forward(self, b, tangents, inputs).run()

    # -- batches ---------------------------------------------------------------------------------------------
    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> list[Node] | None:
        """Do all rows in each step. Where lengths differ, steps beyond a row's own change nothing of it."""
        if self.dynamic_length and mapped[-1]:
            if self.effects:
                return None
            most = b.op("reduce_max", inputs[-1], axes=(0,))
            longer = dataclasses.replace(self, body=self._masked(b))
            return longer.batch(b, size, [*mapped, False], *inputs, most)
        active = [*mapped[: len(self.body.inputs) - 1], False]
        body, active = regions.batched_step(b, self.body, size, active, self.num_carries)
        stacked = set(range(self.num_carries, self.num_carries + self.num_xs))
        operands = []
        for k, x in enumerate(inputs):
            if k in stacked and mapped[k]:
                x = moved_axis(b, x, 0, 1)
            elif k < self.num_carries and active[k] and not mapped[k]:
                x = repeated(b, size, x)
            operands.append(x)
        results = items(make(dataclasses.replace(self, body=body), *operands, where=b.where))
        gained = regions.gained(self.body, body)
        return [
            moved_axis(b, y, 1, 0) if has and k >= self.num_carries else y
            for k, (y, has) in enumerate(zip(results, gained, strict=True))
        ]

    def _masked(self, b: Builder) -> Graph:
        """Return the body with the runtime length as a constant more; steps beyond it change nothing."""
        *given, number = self.body.inputs
        length = graph_input("length", INDEX)
        going = b.op("lt", number, length)
        befores = [*given[: self.num_carries], *(b.like(y, 0) for y in self.body.outputs[self.num_carries :])]
        outputs = [
            b.op("select", b.broadcast(going, shape=new.shape, axes=()), new, old)
            for new, old in zip(self.body.outputs, befores, strict=True)
        ]
        return Graph([*given, length, number], outputs, name=self.body.name)

    # -- examples --------------------------------------------------------------------------------------------
    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64):
            matrix, row, scalar = (TensorType(dtype, s) for s in ((4, 3), (3,), ()))
            for reverse in (False, True):
                yield Sample(cls(_affine(dtype), 4, 1, 1, reverse), (row, matrix, row))
            yield Sample(cls(_affine(dtype), 1, 1, 1), (row, TensorType(dtype, (1, 3)), row))
            yield Sample(cls(_power(dtype), 5, 1, 0), (scalar,), (0.5, 1.1))
            yield Sample(cls(_map(dtype), 4, 0, 1), (matrix,))
            yield Sample(cls(_affine(dtype), 0, 1, 1), (row, TensorType(dtype, (0, 3)), row))
            for steps in (0, 3, 9):
                op = cls(_affine(dtype), 4, 1, 1, dynamic_length=True)
                yield Sample(op, (row, matrix, row, INDEX), draw=_drawn(dtype, steps))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        row, matrix = TensorType(float32, (3,)), TensorType(float32, (4, 3))
        yield Reject(cls(_affine(float32), 5, 1, 1), (row, matrix, row), "leading axis")
        yield Reject(cls(_affine(float32), 4, 1, 1), (TensorType(float64, (3,)), matrix, row), "another type")
        yield Reject(cls(_affine(float32), 4, 1, 1), (row, matrix), "takes 4 values")
        dynamic = cls(_affine(float32), 4, 1, 1, dynamic_length=True)
        yield Reject(dynamic, (row, matrix, row), "runtime length")
        yield Reject(cls(_affine(float32), -1, 1, 1), (row, matrix, row), "negative")


class _Forward:
    """The forward rule of one scan: a scan that carries tangents beside the primal's values."""

    def __init__(
        self, scan: Scan, b: Builder, tangents: Sequence[Node | None], inputs: Sequence[Node]
    ) -> None:
        self.scan, self.b, self.inputs = scan, b, inputs
        self.tangents = scan.parts(tangents)
        count = len(scan.body.inputs) - 1
        given = [t is not None for t in tangents[:count]] + [False]
        self.active = regions.moving_carries(scan.body, given, scan.num_carries)
        self.moved = scan.parts(self.active)
        self.moved_ys = regions.moving(scan.body, self.active)[scan.num_carries :]

    def run(self) -> list[Node | None]:
        scan, (moved, _, _) = self.scan, self.moved
        body = self.body()
        num_carries = scan.num_carries + sum(moved)
        num_xs = scan.num_xs + sum(self.moved.xs)
        op = Scan(body, scan.length, num_carries, num_xs, scan.reverse, scan.dynamic_length)
        results = items(make(op, *self.operands(), where=self.b.where))
        tangents = regions.unpick(results[scan.num_carries :], moved)
        return [*tangents, *regions.unpick(results[len(scan.body.outputs) + sum(moved) :], self.moved_ys)]

    def body(self) -> Graph:
        """Return the body on (carries, their tangents, xs, ..., constants, ..., row number)."""
        scan, c = self.scan, self.scan.num_carries
        own = scan.body.inputs
        graph = self.b.jvp_graph(scan.body, self.active)
        moved = scan.parts(regions.unpick(graph.inputs[len(own) :], self.active))
        inputs = [
            n for mine, t in zip(scan.parts(own), moved, strict=True) for n in (*mine, *filter(None, t))
        ]
        inexact = (o.dtype.is_inexact for o in scan.body.outputs)
        tangents = regions.unpick(graph.outputs[len(scan.body.outputs) :], inexact)
        outputs = [
            *scan.body.outputs[:c], *regions.pick(tangents[:c], self.moved.carries),
            *scan.body.outputs[c:], *regions.pick(tangents[c:], self.moved_ys),
        ]  # fmt: skip
        return Graph([*inputs, own[-1]], outputs, name=graph.name)

    def operands(self) -> list[Node]:
        own, given = self.scan.parts(self.inputs), self.tangents
        starts = or_zeros(self.b, given.carries, own.carries)
        return [
            *own.carries, *regions.pick(starts, self.moved.carries),
            *own.xs, *filter(None, given.xs),
            *own.consts, *filter(None, given.consts),
            *self.inputs[len(self.scan.body.inputs) - 1 :],
        ]  # fmt: skip


class _Reverse:
    """The reverse rule of one scan: a twin that saves, and a scan in the opposite order that reads."""

    def __init__(
        self, scan: Scan, b: Builder, ct: Sequence[Node | None], out: Node, inputs: Sequence[Node]
    ) -> None:
        self.scan, self.b, self.ct, self.out, self.inputs = scan, b, ct, out, inputs
        body = scan.body
        count = len(body.inputs) - 1
        needs = [b.needed(k) and inputs[k].dtype.is_inexact for k in range(count)] + [False]
        self.active = regions.moving_carries(body, needs, scan.num_carries)
        moved = regions.moving(body, self.active)
        self.moved = scan.parts(self.active)
        c = scan.num_carries
        self.y_marks = [m and t is not None for m, t in zip(moved[c:], ct[c:], strict=True)]
        self.outputs = regions.pick(body.outputs, [*self.moved.carries, *self.y_marks])

    def run(self) -> list[Node | None]:
        scan, b, body = self.scan, self.b, self.scan.body
        if not self.outputs:
            return [None] * len(self.inputs)
        back = b.vjp_graph(Graph(body.inputs, self.outputs, name=body.name), self.active)
        own = scan.parts(body.inputs)
        cotangents = back.inputs[len(body.inputs) :]
        cut = regions.cut(back.outputs, cotangents, [*own.xs, *own.consts, body.inputs[-1]], own.consts)
        fresh = [graph_input(f"saved{k}", n.aval) for k, n in enumerate([*cut.saved, *cut.hoisted])]
        found = iter(regions.fed(cut, fresh))
        ct_in = Parts(*([next(found) if is_active else None for is_active in group] for group in self.moved))
        ct_in.xs[:] = [None if n is None or regions.is_zero(n) else n for n in ct_in.xs]
        ct_in.consts[:] = [None if n is None or regions.is_zero(n) else n for n in ct_in.consts]
        return self.results(ct_in, *self.sweep(cut, fresh, cotangents, ct_in))

    def sweep(
        self, cut: regions.Backward, fresh: Sequence[Node], cotangents: Sequence[Node], ct_in: Parts
    ) -> tuple[list[Node], dict[int, Node]]:
        """Build the scan in the opposite order; it carries cotangents of carries and sums for constants.

        Return its results and, by number, the cotangents of constants that are summed up after it.
        """
        scan, b = self.scan, self.b
        own, operands = scan.parts(scan.body.inputs), scan.parts(self.inputs)
        num_moved, num_saved = sum(self.moved.carries), len(cut.saved)
        c = scan.num_carries
        read_xs = [k for k, n in enumerate(own.xs) if n in cut.remade]
        read_consts = [k for k, n in enumerate(own.consts) if n in cut.remade]
        xs = [*cotangents[num_moved:], *fresh[:num_saved], *(own.xs[k] for k in read_xs)]
        stacked = [
            *regions.pick(self.ct[c:], self.y_marks), *self.saved_rows(cut),
            *(operands.xs[k] for k in read_xs),
        ]  # fmt: skip
        rows = dict(zip(xs, stacked, strict=True))
        same = {*fresh[num_saved:], *own.consts}
        late = self.taken_late(ct_in, rows, same)
        totals = [(k, n) for k, n in enumerate(ct_in.consts) if n is not None and k not in late]
        sum_inputs = [graph_input(f"sum{k}", n.aval) for k, n in totals]
        ys = list(filter(None, ct_in.xs))
        ys += dict.fromkeys(n for found in late.values() for n in found.rows if n not in rows and n not in ys)
        body = Graph(
            [
                *cotangents[:num_moved], *sum_inputs, *xs, *fresh[num_saved:],
                *(own.consts[k] for k in read_consts), scan.body.inputs[-1],
            ],
            [
                *filter(None, ct_in.carries),
                *(b.add(total, n) for total, (_, n) in zip(sum_inputs, totals, strict=True)),
                *ys,
            ],
            name=f"{scan.body.name}.vjp",
        )  # fmt: skip
        starts = or_zeros(b, self.ct[:c], operands.carries)
        given = [
            *regions.pick(starts, self.moved.carries), *(b.like(operands.consts[k], 0) for k, _ in totals),
            *stacked, *self.hoisted(cut, own.consts, operands.consts),
            *(operands.consts[k] for k in read_consts), *self.inputs[len(scan.body.inputs) - 1 :],
        ]  # fmt: skip
        op = Scan(body, scan.length, num_moved + len(totals), len(xs), not scan.reverse, scan.dynamic_length)
        found = items(make(op, *given, where=b.where))
        rows |= zip(ys, found[num_moved + len(totals) :], strict=True)
        return found, {k: total.finish(b, [rows[n] for n in total.rows]) for k, total in late.items()}

    def taken_late(self, ct_in: Parts, rows: dict[Node, Node], same: set[Node]) -> dict[int, sums.Sum]:
        """Return the cotangents of constants to sum up after the loop.

        Keeping the rows must move no more bytes than a total read and written in every step.
        """
        found: dict[int, sums.Sum] = {}
        if self.scan.dynamic_length:  # rows beyond the length hold anything
            return found
        for k, term in enumerate(ct_in.consts):
            total = None if term is None else sums.taken_at_once(term)
            if term is None or total is None or not same.isdisjoint(total.rows):
                continue
            if any(n not in rows and not n.inputs for n in total.rows):  # a constant, or a carry
                continue
            new = [n for n in dict.fromkeys(total.rows) if n not in rows and n not in ct_in.xs]
            if sum(n.aval.nbytes for n in new) <= 2 * term.aval.nbytes:
                found[k] = total
        return found

    def saved_rows(self, cut: regions.Backward) -> list[Node]:
        """Return the stacked values saved by the twin of the primal."""
        if not cut.saved:
            return []
        scan = self.scan
        outputs = list(scan.body.outputs)
        at = {n: k for k, n in enumerate(outputs) if k >= scan.num_carries}
        for node in cut.saved:
            if node not in at:
                at[node] = len(outputs)
                outputs.append(node)
        twin = self.out
        if len(outputs) > len(scan.body.outputs):
            body = Graph(scan.body.inputs, outputs, name=scan.body.name)
            op = Scan(body, scan.length, scan.num_carries, scan.num_xs, scan.reverse, scan.dynamic_length)
            twin = make(op, *self.inputs, where=self.b.where)
        rows = items(twin)
        return [rows[at[node]] for node in cut.saved]

    def hoisted(self, cut: regions.Backward, consts: Sequence[Node], operands: Sequence[Node]) -> list[Node]:
        """Return the values that are the same in every step, computed from the scan's operands."""
        return inline(Graph(consts, cut.hoisted), operands)

    def results(self, ct_in: Parts, found: list[Node], late: dict[int, Node]) -> list[Node | None]:
        rest = iter(found)
        carries = [next(rest) if is_active else None for is_active in self.moved.carries]
        consts = [
            late[k] if k in late else None if n is None else next(rest) for k, n in enumerate(ct_in.consts)
        ]
        xs = [None if n is None else next(rest) for n in ct_in.xs]
        return [*carries, *xs, *consts, *([None] if self.scan.dynamic_length else [])]


# -- bodies of the samples -----------------------------------------------------------------------------------
def _affine(dtype: DType) -> Graph:
    """carry' = carry * x + k;  y = carry * carry'"""
    b, row = Builder(), TensorType(dtype, (3,))
    carry, x, k, i = (graph_input(n, t) for n, t in zip("cxki", (row, row, row, INDEX), strict=True))
    after = b.add(b.mul(carry, x), k)
    return Graph([carry, x, k, i], [after, b.mul(carry, after)], name="affine")


def _power(dtype: DType) -> Graph:
    """carry' = carry * carry, without xs or constants"""
    b = Builder()
    carry, i = graph_input("c", TensorType(dtype, ())), graph_input("i", INDEX)
    return Graph([carry, i], [b.mul(carry, carry), carry], name="power")


def _map(dtype: DType) -> Graph:
    """y = x * x and the row number, without a carry"""
    b = Builder()
    x, i = graph_input("x", TensorType(dtype, (3,))), graph_input("i", INDEX)
    return Graph([x, i], [b.mul(x, x), i], name="map")


def _drawn(dtype: DType, steps: int) -> Any:
    def draw(rng: np.random.Generator) -> Sequence[Array]:
        values = [np.asarray(rng.uniform(-2, 2, s)).astype(dtype.np) for s in ((3,), (4, 3), (3,))]
        return [*values, np.asarray(steps)]

    return draw
