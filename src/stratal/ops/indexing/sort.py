"""Sorting along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import upper_bound
from stratal.base.dtypes import bfloat16, bool_, complex64, float32, float64, int64, uint8
from stratal.base.errors import AttributeValueError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import LoopBody, Stage
from stratal.loops.expr import Buffer
from stratal.loops.stmt import Seq, Stmt
from stratal.ops.families import RowWise, check_kind
from stratal.ops.indexing import best, family, network, nth, radix
from stratal.ops.indexing.items import Items, keys_of
from stratal.ops.indexing.rows import HELD, Rows


def _loops(
    x: Buffer, outs: Sequence[Buffer], axis: int, descending: bool, start: int
) -> Sequence[Stage] | Stmt:
    """Return the loops that put part of the order of each row into `outs`: values and, of two, places."""
    rows = Rows(x, outs, axis, Items(x.dtype, descending, placed=len(outs) > 1), start)
    if 0 in outs[0].shape:
        return Seq(())
    if best.suits(rows):
        return best.best_of_rows(rows)
    if network.suits(rows):  # takes less time than to find one element alone
        return network.by_network(rows)
    if nth.suits(rows):
        return nth.nth_of_rows(rows)
    return radix.in_parts(rows) if rows.length > HELD else radix.by_digits(rows)


class Ordering(RowWise):
    """What ops share that put elements along an axis in order, as real numbers or truth values."""

    axis: int
    descending: bool
    start: int = 0
    arity = 1

    def check(self, x: TensorType) -> None:
        check_kind(self.name, x.dtype, "buif")
        family.check_axis(self.name, x, self.axis)

    def lower(self, *types: TensorType) -> Lowered:
        return LoopBody(lambda args, outs: _loops(args[0], outs, self.axis, self.descending, self.start))

    def order(self, x: Array) -> Array:
        """Return the places of elements along the axis in order, stable."""
        found = np.argsort(keys_of(x, self.descending), axis=self.axis, kind="stable")
        return found.astype(np.int64, copy=False)


@record
class Sort(Ordering):
    """The elements along `axis` in order and the int64 indices they came from; stable, NaN greatest."""

    axis: int
    descending: bool = False

    def infer(self, *types: TensorType) -> TupleType:
        x = types[0]
        self.check(x)
        return TupleType((x, x.with_dtype(int64)))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        order = self.order(arrays[0])
        return np.take_along_axis(arrays[0], order, axis=self.axis), order

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        x, order = inputs[0], b.item(out, 1)
        if ct[0] is None:
            return [None]
        return [b.scatter_along(b.like(x, 0), order, ct[0], kind="set", axis=self.axis)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        return [b.gather_along(tangents[0], b.item(out, 1), axis=self.axis), None]

    def cost(self, *types: TensorType) -> Cost:
        """n log n comparisons per row."""
        x = types[0]
        rounds = math.log2(max(upper_bound(x.shape[self.axis]), 2))
        return Cost(upper_bound(x.size) * rounds, float(x.nbytes), float(x.nbytes + upper_bound(x.size) * 8))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        few = (((7,), 0), ((4, 5), 1))
        many = (*few, ((4, 5), 0), ((2, 3, 4), 1), ((0, 3), 0), ((3, 1), 1))
        for dtype in (float32, float64, int64, uint8, bfloat16, bool_):
            for shape, axis in many if dtype is float32 else few:
                for descending in (False, True):
                    yield Sample(cls(axis, descending), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls(0), (TensorType(float32, ()),), "axis")
        yield Reject(cls(0), (TensorType(complex64, (2, 3)),), "takes")


@record
class SortValues(Ordering):
    """The elements along `axis` in order, without where they came from: NaN is the greatest."""

    axis: int
    descending: bool = False
    name = "sort_values"

    def infer(self, *types: TensorType) -> TensorType:
        self.check(types[0])
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        return np.take_along_axis(arrays[0], self.order(arrays[0]), axis=self.axis)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        order = b.item(b.op("sort", x, **self.attributes), 1)
        return [b.scatter_along(b.like(x, 0), order, ct, kind="set", axis=self.axis)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        order = b.item(b.op("sort", inputs[0], **self.attributes), 1)
        return b.gather_along(tangents[0], order, axis=self.axis)

    def cost(self, *types: TensorType) -> Cost:
        return Sort(self.axis, self.descending).cost(*types)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for sample in Sort.samples():
            yield sample._replace(op=cls(**sample.op.attributes))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        for reject in Sort.rejects():
            yield reject._replace(op=cls(**reject.op.attributes))


@record
class Top(Ordering):
    """Elements `start` to `count` in order along `axis`, and the int64 indices they came from."""

    axis: int
    count: int
    descending: bool = True
    start: int = 0

    def infer(self, *types: TensorType) -> TupleType:
        whole = types[0]
        self.check(whole)
        size = whole.shape[self.axis]
        if not 0 <= self.start <= self.count or (isinstance(size, int) and self.count > size):
            got = f"{self.start} to {self.count} of {whole}"
            raise AttributeValueError("top: the count exceeds the axis", got=got)
        number = self.count - self.start
        found = whole.with_shape((*whole.shape[: self.axis], number, *whole.shape[self.axis + 1 :]))
        return TupleType((found, found.with_dtype(int64)))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        order = self.order(arrays[0])
        order = np.take(order, range(self.start, self.count), axis=self.axis)
        return np.take_along_axis(arrays[0], order, axis=self.axis), order

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        return Sort(self.axis).vjp(b, ct, out, *inputs)

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        return Sort(self.axis).jvp(b, tangents, out, *inputs)

    def cost(self, *types: TensorType) -> Cost:
        """One comparison per element, and n log n per row of those it returns."""
        x, size = types[0], upper_bound(types[0].size)
        kept = size * (self.count - self.start) / max(upper_bound(x.shape[self.axis]), 1)
        return Cost(
            size + kept * math.log2(max(self.count, 2)), float(x.nbytes), kept * (x.dtype.itemsize + 8)
        )

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        few = (((40,), 0, 0, 3), ((9, 3), 0, 3, 6))
        many = (
            *few, ((4, 50), 1, 0, 3), ((9, 3), 0, 0, 9), ((2, 3, 4), 1, 0, 2), ((3, 0), 0, 0, 2),
            ((2, 40), 1, 0, 1), ((3, 9), 1, 4, 5),
        )  # fmt: skip
        for dtype in (float32, float64, int64, uint8, bfloat16):
            for shape, axis, start, count in many if dtype is float32 else few:
                for descending in (False, True):
                    yield Sample(cls(axis, count, descending, start), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(2, 1), (TensorType(float32, (2, 3)),), "axis")
        yield Reject(cls(0, 3), (TensorType(float32, (2, 3)),), "exceeds")
        yield Reject(cls(0, 1, start=2), (TensorType(float32, (2, 3)),), "exceeds")
        yield Reject(cls(0, 1), (TensorType(complex64, (2, 3)),), "takes")
