"""Running sums, products and extremes along one axis, and the linear recurrence of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stratal.base.dims import as_int, known_equal, product
from stratal.base.dtypes import as_dtype, bfloat16, bool_, float32, float64, int64
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import LoopBody, Stage
from stratal.loops.expr import Buffer, Expr, Var, call, cast, const, index_const
from stratal.loops.index import add, mul, sub, unflatten
from stratal.loops.stmt import For, LoopKind, Seq, Stmt, Store
from stratal.ops.families import Linear, RowWise, cast_to, check_kind, records, same_types, widened
from stratal.ops.reduce import family

Step = Callable[[Expr | None, list[Expr]], Expr]
ROWS = (4, 3, 2, 1)  # side by side: an addition takes about four times as long as beginning one
LONG = 1 << 10  # places from which a running sum is kept in blocks
BLOCK = 128
_UNROLL: LoopKind = "unroll"
_PARALLEL: LoopKind = "parallel"
SIDE_BY_SIDE = 512  # long running sums, which lie in the first cache
CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((4,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 4), 1), ((3, 0), 0), ((0, 3), 0), ((1, 5, 1), 1),
    ((5, 1), 1), ((3, 20), 0),
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Scanned(RowWise):
    """What ops that run along one axis share."""

    axis: int
    reverse: bool = False
    arity = 1
    kinds: ClassVar[str] = "uifc"
    rounds: ClassVar[bool] = True  # whether a running value of 16 bits would have to be kept in float32

    def infer(self, *types: TensorType) -> TensorType:
        first = same_types(self.name, types)
        check_kind(self.name, first.dtype, self.kinds)
        family.check_axes(self.name, (self.axis,), first.ndim)
        return first

    def host_reason(self, *types: TensorType) -> str:
        if self.rounds and types[0].dtype is not types[0].dtype.compute:
            return "a running value of 16-bit floats is kept in float32, for which the loop body has no place"
        return super().host_reason(*types)

    def forward(self, x: Array) -> Array:
        """Return `x` with the order of the scan along its axis; its own inverse."""
        return np.flip(x, self.axis) if self.reverse else x

    def scan(self, types: Sequence[TensorType], step: Step) -> LoopBody:
        """Return the loops: chunks over outer axes, the scanned axis in order, inner axes side by side.

        `step(before, operands)` gives the next running value; `before` is None at the first place.
        """
        shape = types[0].ints
        outer, inner = shape[: self.axis], shape[self.axis + 1 :]
        length = shape[self.axis]
        if length > 1 and as_int(product(inner)) == 1:
            return self.scan_rows(types[0], step)

        def build(args: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
            out = outs[0]
            chunk, place = Var("chunk", as_int(product(outer))), Var("place", max(length - 1, 0))

            def store(at: Expr, before: Expr | None) -> Stmt:
                lane = Var("lane", as_int(product(inner)))
                pre, post = unflatten(chunk, outer), unflatten(lane, inner)
                running = None if before is None else out[(*pre, before, *post)]
                value = step(running, [a[(*pre, at, *post)] for a in args])
                return For(lane, Store(out, (*pre, at, *post), value), "parallel")

            last = length - 1
            if length == 0:
                return Seq(())
            first = store(index_const(last if self.reverse else 0), None)
            places = (sub(last - 1, place), sub(last, place)) if self.reverse else (add(place, 1), place)
            rest = store(*places)
            return For(chunk, Seq((first, For(place, rest))), "parallel")

        return LoopBody(build)

    def scan_rows(self, type_: TensorType, step: Step) -> LoopBody:
        """Return the loops where the scanned axis is innermost: running values stay in registers, those of
        several rows side by side, for each waits for the one before.
        """
        shape, length = type_.ints, type_.ints[self.axis]
        outer, inner = shape[: self.axis], shape[self.axis + 1 :]
        rows = as_int(product(outer))
        together = next(n for n in ROWS if rows % n == 0)

        def build(args: Sequence[Buffer], outs: Sequence[Buffer]) -> list[Stage]:
            out, kept = outs[0], Buffer("running", type_.dtype, (together,), space="register")
            chunk, place = Var("chunk", rows // together), Var("place", length - 1)

            def at(where: Expr, first: bool) -> Stmt:
                row = Var("row", together)
                before = unflatten(add(mul(chunk, together), row), outer)
                index = (*before, where, *(index_const(0) for _ in inner))
                value = step(None if first else kept[row,], [a[index] for a in args])
                return For(row, Seq((Store(kept, (row,), value), Store(out, index, kept[row,]))), "unroll")

            last = length - 1
            begin = index_const(last if self.reverse else 0)
            rest = sub(last - 1, place) if self.reverse else add(place, 1)
            body = For(chunk, Seq((at(begin, True), For(place, at(rest, False)))), "parallel")
            return [Stage(body, (kept,))]

        return LoopBody(build)

    def shifted(self, b: Builder, x: Node, fill: float, back: bool = True) -> Node:
        """Return what stood one place before in scan order (after, if not `back`), `fill` at the end."""
        if known_equal(x.shape[self.axis], 0):
            return x
        return family.shifted(b, x, self.axis, fill, later=back != self.reverse)

    @classmethod
    def calls(cls) -> Iterable[tuple[Any, tuple[int, ...]]]:
        for shape, axis in CASES:
            for reverse in (False, True):
                yield cls(axis, reverse), shape

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for k, (op, shape) in enumerate(cls.calls()):
            for dtype in (float32, float64) if k > 3 else (float32, float64, int64, bfloat16):
                yield Sample(op, (TensorType(dtype, shape),) * (cls.arity or 1))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        count = cls.arity or 1
        yield Reject(cls(2, False), (TensorType(float32, (2, 3)),) * count, "axis")
        yield Reject(cls(0, False), (TensorType(bool_, (2, 3)),) * count, "takes")


class Running(Scanned):
    """What running totals share: each element is combined with what stands before it."""

    ufunc: ClassVar[np.ufunc]
    fn: ClassVar[str]

    def ref(self, *arrays: Array) -> Array:
        x = self.forward(widened(arrays[0]))
        found: Array = self.ufunc.accumulate(x, axis=self.axis, dtype=x.dtype)
        return self.forward(found).astype(arrays[0].dtype)

    def lower(self, *types: TensorType) -> Lowered:
        compute, dtype = types[0].dtype.compute, types[0].dtype

        def step(before: Expr | None, xs: list[Expr]) -> Expr:
            if before is None:
                return xs[0]
            return cast(call(self.fn, cast(before, compute), cast(xs[0], compute)), dtype)

        return self.scan(types, step)


@record
class CumSum(Linear, Running):
    """The running sum along `axis`, from the end with `reverse`; 16-bit floats are summed in float32.

    Long sums of floats are added up in blocks, and the blocks in float64.
    """

    ufunc = np.add
    fn = "add"

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        short = as_dtype(x.dtype)
        if short.is_float and short.itemsize <= 4 and x.shape[self.axis] > LONG:
            return super().ref(x.astype(np.float64)).astype(x.dtype)
        return super().ref(x)

    def lower(self, *types: TensorType) -> Lowered:
        long = types[0].dtype is float32 and types[0].ints[self.axis] > LONG
        return LoopBody(self._long) if long else super().lower(*types)

    def _long(self, args: Sequence[Buffer], outs: Sequence[Buffer]) -> list[Stage]:
        """Return the loops of a long sum: rows side by side in registers, or what lies beside one another."""
        (x,), (out,) = args, outs
        outer, inner = x.shape[: self.axis], x.shape[self.axis + 1 :]
        rows, beside = as_int(product(outer)), as_int(product(inner))
        if beside == 1:
            width = next(n for n in ROWS if rows % n == 0)
            chunk, first = Var("chunk", rows // width), index_const(0)

            def element(where: Expr, lane: Expr) -> tuple[Expr, ...]:
                return (*unflatten(add(mul(chunk, width), lane), outer), where, *(first for _ in inner))

            return [self._stage(x, out, [chunk], width, element)]
        whole, left = divmod(beside, SIDE_BY_SIDE)
        tiles = [(0, whole, SIDE_BY_SIDE)] * (whole > 0) + [(beside - left, 1, left)] * (left > 0)
        return [self._beside(x, out, *tile) for tile in tiles]

    def _beside(self, x: Buffer, out: Buffer, begin: int, tiles: int, width: int) -> Stage:
        """Return the loops of sums that lie beside one another, in tiles."""
        outer, inner = x.shape[: self.axis], x.shape[self.axis + 1 :]
        chunk, tile = Var("chunk", as_int(product(outer))), Var("tile", tiles)

        def element(where: Expr, lane: Expr) -> tuple[Expr, ...]:
            across = add(add(mul(tile, width), lane), begin)
            return (*unflatten(chunk, outer), where, *unflatten(across, inner))

        return self._stage(x, out, [chunk, tile], width, element)

    def _stage(
        self, x: Buffer, out: Buffer, loops: Sequence[Var], width: int,
        element: Callable[[Expr, Expr], tuple[Expr, ...]],
    ) -> Stage:  # fmt: skip
        """Return the loops over chunks of some sums side by side, and in each over blocks of the axis.

            for block: { s = 0; for place: { out = before + (s + x); s = s + x }; total += s; before = total }
        """
        alone = len(loops) == 1
        space, kind = "register" if alone else "scratch", _UNROLL if alone else _PARALLEL
        s, before = (Buffer(n, x.dtype, (width,), space=space) for n in ("sum", "before"))
        total = Buffer("total", float64, (width,), space=space)
        length = x.shape[self.axis]

        def lanes(*stores: Callable[[Var], Store]) -> Stmt:
            lane = Var("lane", width)
            return For(lane, Seq([store(lane) for store in stores]), kind)

        def zero(buffer: Buffer) -> Callable[[Var], Store]:
            return lambda lane: Store(buffer, (lane,), const(0, buffer.dtype))

        def block(begin: Expr, places: int) -> Stmt:
            place = Var("place", places)
            at = add(begin, place)
            where = sub(length - 1, at) if self.reverse else at
            add_one = lanes(
                lambda lane: Store(out, (at := element(where, lane)), before[lane,] + (s[lane,] + x[at])),
                lambda lane: Store(s, (lane,), s[lane,] + x[element(where, lane)]),
            )
            end = (
                lambda lane: Store(total, (lane,), total[lane,] + cast(s[lane,], float64)),
                lambda lane: Store(before, (lane,), cast(total[lane,], before.dtype)),
            )
            return Seq((lanes(zero(s)), For(place, add_one), *map(lanes, end)))

        number = Var("block", length // BLOCK)
        parts = [lanes(zero(total)), lanes(zero(before)), For(number, block(mul(number, BLOCK), BLOCK))]
        if length % BLOCK:
            parts.append(block(index_const(length - length % BLOCK), length % BLOCK))
        body: Stmt = Seq(parts)
        for var in reversed(loops[1:]):
            body = For(var, body)
        return Stage(For(loops[0], body, "parallel"), (s, before, total))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.cumsum(ct, axis=self.axis, reverse=not self.reverse)]


@record
class CumProd(Running):
    """The running product along `axis`, from the end with `reverse`. Gradients are right at zeros, too."""

    ufunc = np.multiply
    fn = "mul"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Return before[i] * r[i] with r[i] = ct[i] + x[i+1] * r[i+1], which divides by nothing."""
        x = inputs[0]
        before = self.shifted(b, out, 1)
        factors = self.shifted(b, x, 0, back=False)
        if x.dtype.is_complex:
            before, factors = b.conj(before), b.conj(factors)
        gathered = b.linear_recurrence(factors, ct, axis=self.axis, reverse=not self.reverse)
        return [b.mul(before, gathered)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """Return t[i] = x[i] * t[i-1] + dx[i] * before[i]."""
        pushed = b.mul(tangents[0], self.shifted(b, out, 1))
        return b.op("linear_recurrence", inputs[0], pushed, axis=self.axis, reverse=self.reverse)


@record
class LinearRecurrence(Scanned):
    """h[i] = a[i] * h[i-1] + u[i] along `axis`, with h before the first place 0; from the end with `reverse`.

    The first `a` is not read. Product and sum each round; 16-bit floats are kept in float32 on the way.
    """

    name = "linear_recurrence"
    arity = 2
    kinds = "fc"

    def ref(self, *arrays: Array) -> Array:
        a, u = (np.moveaxis(self.forward(widened(x)), self.axis, 0) for x in arrays)
        h = np.array(u)
        for k in range(1, len(h)):
            h[k] = a[k] * h[k - 1] + u[k]
        return np.ascontiguousarray(self.forward(np.moveaxis(h, 0, self.axis)), arrays[0].dtype)

    def lower(self, *types: TensorType) -> Lowered:
        return self.scan(types, lambda before, xs: xs[1] if before is None else xs[0] * before + xs[1])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Return g * h[i-1] and g with g[i] = ct[i] + a[i+1] * g[i+1]."""
        factors, before = self.shifted(b, inputs[0], 0, back=False), self.shifted(b, out, 0)
        if ct.dtype.is_complex:
            factors, before = b.conj(factors), b.conj(before)
        gathered = b.linear_recurrence(factors, ct, axis=self.axis, reverse=not self.reverse)
        return [b.mul(gathered, before), gathered]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """Return t[i] = a[i] * t[i-1] + (da[i] * h[i-1] + du[i])."""
        da, du = tangents
        pushed = du if da is None else b.mul(da, self.shifted(b, out, 0))
        if da is not None and du is not None:
            pushed = b.add(pushed, du)
        assert pushed is not None
        return b.op(self.name, inputs[0], pushed, **self.attributes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for op, shape in cls.calls():
            for dtype in (float32, float64):
                yield Sample(op, (TensorType(dtype, shape),) * 2)


class RunningExtreme(Running):
    """What cummax and cummin share. The cotangent goes to the latest of equal extremes, as in PyTorch."""

    kinds = "uif"
    rounds = False

    def chosen(self, b: Builder, out: Node, x: Node) -> Node:
        """Return where each running extreme stands: the latest place so far that set or equalled it."""
        here = b.iota(shape=x.shape, axis=self.axis, dtype=int64)
        sets = b.op("or", b.eq(x, out), b.ne(x, x))
        if self.reverse:
            never = b.like(here, (1 << 62))
            return b.op("cummin", b.select(sets, here, never), axis=self.axis, reverse=True)
        return b.op("cummax", b.select(sets, here, b.like(here, 0)), axis=self.axis, reverse=False)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        zeros = b.full(x.aval.with_dtype(x.dtype.compute), 0)
        wide = cast_to(b, ct, zeros.dtype)
        summed = b.scatter_along(zeros, self.chosen(b, out, x), wide, kind="add", axis=self.axis)
        return [cast_to(b, summed, x.dtype)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        assert tangents[0] is not None
        return b.op("gather_along", tangents[0], self.chosen(b, out, inputs[0]), axis=self.axis)


running = records(__name__, RunningExtreme)
running(
    "cummax", "The greatest so far along `axis`, from the end with `reverse`; NaN from the first NaN on.",
    ufunc=np.maximum, fn="max",
)  # fmt: skip
running(
    "cummin", "The least so far along `axis`, from the end with `reverse`; NaN from the first NaN on.",
    ufunc=np.minimum, fn="min",
)  # fmt: skip
