"""Windowed reductions (pooling) and the three ops their gradients are made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, Shape, as_int
from stratal.base.dtypes import DType, as_dtype, bfloat16, bool_, float32, float64, int32, int64, uint8
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.loops.compute import Compute, arguments, fresh_axes, highest, lowest
from stratal.loops.expr import Expr, Var, call, cast, const, guard
from stratal.loops.index import both, flatten, floordiv, less, mod
from stratal.ops.families import check_kind, linear_jvp, over_rows
from stratal.ops.linear import family
from stratal.ops.linear.family import Pairs

Sizes = tuple[int, ...]


def offset_dtype(window: Sizes) -> DType:
    """Return the dtype of offsets in a window: bytes where they do, for gradients keep one per window.

    Its greatest number is the offset of nothing: that of a window that lies in the padding alone.
    """
    return uint8 if math.prod(window) <= highest(uint8) else int32


class Windowed(Op):
    """What the ops over windows share. Attributes have one entry per axis, window 1 where untouched."""

    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes

    @property
    def geometry(self) -> dict[str, Any]:
        """The attributes that say where windows lie."""
        return {k: getattr(self, k) for k in ("window", "strides", "padding", "dilation")}

    def counts(self, x: TensorType) -> TensorType:
        """Return the type with one element per window. Raises: ShapeError, AttributeValueError."""
        family.check_windows(
            self.name, x.ndim, self.padding, window=self.window, strides=self.strides, dilation=self.dilation
        )
        windows = zip(x.shape, self.window, self.strides, self.padding, self.dilation, strict=True)
        return x.with_shape(family.window_count(self.name, *one) for one in windows)

    def view(self, x: Array, fill: object) -> Array:
        """Return the array [places..., offsets] of all windows, offsets in row-major order."""
        padded = family.spread(x, 0, self.padding, (1,) * x.ndim, fill)
        view = family.windows(padded, 0, self.window, self.strides, self.dilation)
        return view.reshape(*view.shape[: x.ndim], int(np.prod(self.window)))

    def offsets(self) -> tuple[list[Var], list[Expr]]:
        """Return a reduction variable per axis with a window and an offset expression per axis."""
        variables = fresh_axes(self.window, "k")
        reduce = [v for v in variables if v.extent > 1]
        return reduce, [v if v.extent > 1 else const(0, int64) for v in variables]

    def reads(
        self, places: Sequence[Var], offsets: Sequence[Expr], sizes: Sizes
    ) -> tuple[Expr, tuple[Expr, ...]]:
        ones = (1,) * len(sizes)
        return family.window_reads(places, offsets, sizes, self.strides, self.padding, ones, self.dilation)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(
            self, b, size, mapped, inputs, window=(1, *self.window), strides=(1, *self.strides),
            padding=((0, 0), *self.padding), dilation=(1, *self.dilation),
        )  # fmt: skip

    def cost(self, *types: TensorType) -> Cost:
        """One operation per element of every window."""
        one = super().cost(*types)
        return one._replace(flops=one.flops * math.prod(self.window))


@record
class WindowReduce(Windowed):
    """Reduce every window of `x` to its `kind`: sum, max or min (XLA's ReduceWindow).

    Padding counts 0 in a sum and never wins in max or min; a window of padding alone has the lowest (highest)
    value of the dtype. NaN propagates. 16-bit floats are summed in float32 and round once.
    """

    kind: str
    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes
    name = "window_reduce"
    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        if self.kind not in ("sum", "max", "min"):
            raise AttributeValueError("window_reduce: kind is one of sum, max, min", got=repr(self.kind))
        check_kind(self.name, types[0].dtype, "uif")
        return self.counts(types[0])

    def identity(self, dtype: DType) -> float | int:
        """Return what padding holds."""
        return 0 if self.kind == "sum" else lowest(dtype) if self.kind == "max" else highest(dtype)

    def ref(self, *arrays: Array) -> Array:
        x = family.accumulating(arrays[0])
        function: np.ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum}[self.kind]
        view = self.view(x, self.identity(as_dtype(x.dtype)))
        return np.asarray(function.reduce(view, axis=-1)).astype(arrays[0].dtype)

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        compute = types[0].dtype.compute
        places = fresh_axes(self.infer(*types).ints)
        reduce, offsets = self.offsets()
        condition, at = self.reads(places, offsets, types[0].ints)
        value = guard(condition, cast(x[at], compute), const(self.identity(compute), compute))
        return Compute((x,), places, types[0].dtype, value, reduce=reduce, combiner=self.kind)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0]
        if self.kind == "sum":
            return [self._spread_sum(b, ct, x.aval)]
        index = self._chosen(b, x)
        return [b.window_scatter(ct, index, shape=x.shape, **self.geometry)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        if self.kind == "sum":
            return linear_jvp(self, b, tangents, *inputs)
        assert tangents[0] is not None
        return b.op("window_gather", tangents[0], self._chosen(b, inputs[0]), **self.geometry)

    def _chosen(self, b: Builder, x: Node) -> Node:
        """Return the offset of each window's winner."""
        return b.op("window_argmax", x if self.kind == "max" else b.neg(x), **self.geometry)

    def _spread_sum(self, b: Builder, ct: Node, x: TensorType) -> Node:
        """Sum for every element the cotangents of the windows that read it: windows over the dilated ct."""
        padding = []
        for k, n in enumerate(x.shape):
            reach = (self.window[k] - 1) * self.dilation[k]
            low = reach - self.padding[k][0]
            padding.append((low, as_int(n + reach - family.dilated(ct.shape[k], self.strides[k]) - low)))
        ct, positive = family.crop_negative(b, ct, 0, tuple(padding), self.strides)
        if any(s > 1 for s in self.strides):
            none = (0,) * x.ndim
            between = tuple(s - 1 for s in self.strides)
            ct = b.pad(ct, b.const(0, ct.dtype), low=none, high=none, interior=between)
        geometry = {**self.geometry, "strides": (1,) * x.ndim, "padding": positive}
        return b.op(self.name, ct, kind="sum", **geometry)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for kind in ("sum", "max", "min"):
            for k, (shape, geometry) in enumerate(CASES):
                for dtype in (float32, float64) if k else (float32, float64, int64, bfloat16):
                    yield Sample(cls(kind, *geometry), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 5))
        none = ((0, 0), (0, 0))
        yield Reject(cls("mean", (1, 2), (1, 1), none, (1, 1)), (x,), "kind")
        yield Reject(cls("max", (1, 6), (1, 1), none, (1, 1)), (x,), "larger than")
        yield Reject(cls("max", (1,), (1, 1), none, (1, 1)), (x,), "window")
        yield Reject(cls("max", (1, 2), (1, 0), none, (1, 1)), (x,), "at least 1")
        yield Reject(cls("max", (1, 2), (1, 1), ((0, 0), (-1, 0)), (1, 1)), (x,), "padding")
        yield Reject(cls("sum", (1, 2), (1, 1), none, (1, 1)), (x.with_dtype(bool_),), "takes")


@record
class WindowArgmax(Windowed):
    """The row-major offset in every window of its greatest element: the first of equal ones, of NaN if any.

    Padding never wins; a window of padding alone has an offset no element has. Dtype: `offset_dtype`.
    """

    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes
    name = "window_argmax"
    arity = 1
    not_differentiable = "an index does not change with small changes of the values"

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uif")
        return self.counts(types[0]).with_dtype(offset_dtype(self.window))

    def ref(self, *arrays: Array) -> Array:
        x = family.accumulating(arrays[0])
        inside = self.view(np.ones(x.shape, np.bool_), False)
        view = self.view(x, lowest(as_dtype(x.dtype)))
        best = np.max(view, axis=-1, keepdims=True)
        winners = inside & ((view == best) | ((view != view) & (best != best)))
        dtype = offset_dtype(self.window)
        return np.where(winners.any(-1), np.argmax(winners, axis=-1), highest(dtype)).astype(dtype.np)

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        compute = types[0].dtype.compute
        places = fresh_axes(self.infer(*types).ints)
        reduce, offsets = self.offsets()
        condition, at = self.reads(places, offsets, types[0].ints)
        dtype = offset_dtype(self.window)
        offset = cast(flatten(tuple(offsets), self.window), int32)
        if all(p == (0, 0) for p in self.padding):  # offset 0 exists: the answer where all are the lowest
            terms, combiner = (cast(x[at], compute), offset), "first_argmax"
        else:
            value = guard(condition, cast(x[at], compute), const(lowest(compute), compute))
            terms = value, call("select", condition, offset, const(highest(dtype), int32))
            combiner = "argmax"
        return Compute((x,), places, dtype, terms, reduce=reduce, combiner=combiner, result=1)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for shape, geometry in CASES:
            for dtype in (float32, float64, int64):
                yield Sample(cls(*geometry), (TensorType(dtype, shape),), smooth=False)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2, 5))
        yield Reject(cls((1, 6), (1, 1), ((0, 0), (0, 0)), (1, 1)), (x,), "larger than")
        yield Reject(cls((1, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)), (x.with_dtype(bool_),), "takes")


def check_offsets(name: str, window: Sizes, index: TensorType, places: TensorType) -> None:
    """Offsets are as window_argmax gives them, one per window. Raises: DTypeError, ShapeError."""
    if index.dtype is not offset_dtype(window):
        raise DTypeError(f"{name}: offsets in this window are {offset_dtype(window)}", got=str(index))
    if index.shape != places.shape:
        raise ShapeError(f"{name}: takes one offset per window", got=f"{index} for {places}")


class ByOffset(Windowed):
    """Takes numbers, in which it is linear, and the offset of one place in each window."""

    arity = 2

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else b.op(self.name, tangents[0], inputs[1], **self.attributes)


@record
class WindowGather(ByOffset):
    """Of every window of `x`, the element at the offset given for it; 0 where no element stands there."""

    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes
    name = "window_gather"

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uifc")
        result = self.counts(types[0])
        check_offsets(self.name, self.window, types[1], result)
        return result

    def ref(self, *arrays: Array) -> Array:
        x, index = arrays
        view = self.view(x, 0)
        inside = (index >= 0) & (index < view.shape[-1])
        taken = np.take_along_axis(view, np.where(inside, index, 0)[..., None], axis=-1)[..., 0]
        return np.where(inside, taken, np.zeros((), x.dtype))

    def lower(self, *types: TensorType) -> Lowered:
        """Sum over the window what the offset selects: regular reads, and never out of bounds."""
        x, index = arguments(*types)
        compute = types[0].dtype.compute
        places = fresh_axes(index.shape)
        reduce, offsets = self.offsets()
        condition, at = self.reads(places, offsets, types[0].ints)
        value = guard(condition, cast(x[at], compute), const(0, compute))
        here = call("eq", index[tuple(places)], cast(flatten(tuple(offsets), self.window), index.dtype))
        term = call("select", here, value, const(0, compute))
        return Compute((x, index), places, types[0].dtype, term, reduce=reduce, combiner="sum")

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.window_scatter(ct, inputs[1], shape=inputs[0].shape, **self.geometry), None]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for shape, geometry in CASES:
            for dtype in (float32, float64, int64):
                op = cls(*geometry)
                x = TensorType(dtype, shape)
                types = (x, op.counts(x).with_dtype(offset_dtype(op.window)))
                yield Sample(op, types, draw=_draw(types, geometry[0]))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        op = cls((1, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
        x = TensorType(float32, (2, 5))
        yield Reject(op, (x, TensorType(int64, (2, 4))), "offsets in this window")
        yield Reject(op, (x, TensorType(uint8, (2, 5))), "one offset")


@record
class WindowScatter(ByOffset):
    """The transpose of window_gather: an element of `shape` sums the values of the windows that chose it.

    Lowered as a sum over window offsets, so that no two threads write one element; 16-bit floats sum in
    float32.
    Shapes: values [places...], offsets [places...] of `offset_dtype` -> `shape`.
    """

    shape: Shape
    window: Sizes
    strides: Sizes
    padding: Pairs
    dilation: Sizes
    name = "window_scatter"
    dim_attributes = ("shape",)

    def infer(self, *types: TensorType) -> TensorType:
        check_kind(self.name, types[0].dtype, "uifc")
        result = types[0].with_shape(self.shape)
        places = self.counts(result)
        if places.shape != types[0].shape:
            raise ShapeError("window_scatter: takes one value per window", got=f"{types[0]} for {places}")
        check_offsets(self.name, self.window, types[1], places)
        return result

    def ref(self, *arrays: Array) -> Array:
        values, index = (family.accumulating(arrays[0]), arrays[1])
        padded = [as_int(n) + low + high for n, (low, high) in zip(self.shape, self.padding, strict=True)]
        total = np.zeros(padded, values.dtype)
        for number, offset in enumerate(np.ndindex(*self.window)):
            at = tuple(
                slice(k * d, k * d + (n - 1) * s + 1 if n else 0, s)
                for k, d, n, s in zip(offset, self.dilation, values.shape, self.strides, strict=True)
            )
            total[at] += np.where(index == number, values, np.zeros((), values.dtype))
        inside = tuple(
            slice(low, low + as_int(n)) for n, (low, _) in zip(self.shape, self.padding, strict=True)
        )
        return np.asarray(total[inside], arrays[0].dtype).copy()

    def lower(self, *types: TensorType) -> Lowered:
        values, index = arguments(*types)
        compute = types[0].dtype.compute
        elements = fresh_axes(self.infer(*types).ints)
        if self.is_disjoint():
            return self._lower_disjoint(types, elements)
        reduce, offsets = self.offsets()
        condition, places = family.window_writes(
            elements, offsets, types[0].ints, self.strides, self.padding, self.dilation
        )
        here = call("eq", index[places], cast(flatten(tuple(offsets), self.window), index.dtype))
        zero = const(0, compute)
        term = guard(condition, call("select", here, cast(values[places], compute), zero), zero)
        return Compute((values, index), elements, types[0].dtype, term, reduce=reduce, combiner="sum")

    def is_disjoint(self) -> bool:
        """Return whether no element lies in two windows, and windows start at 0: the usual pooling."""
        unpadded = all(p == (0, 0) for p in self.padding)
        return unpadded and self.strides == self.window and all(d == 1 for d in self.dilation)

    def _lower_disjoint(self, types: Sequence[TensorType], elements: Sequence[Var]) -> Lowered:
        """Let each element ask the only window it can lie in."""
        values, index = arguments(*types)
        places = tuple(floordiv(e, w) for e, w in zip(elements, self.window, strict=True))
        offset = flatten(tuple(mod(e, w) for e, w in zip(elements, self.window, strict=True)), self.window)
        covered: Expr = const(True, bool_)
        for place, count in zip(places, types[0].ints, strict=True):
            covered = both(covered, less(place, count))
        zero = const(0, types[0].dtype)
        here = call("eq", index[places], cast(offset, index.dtype))
        term = guard(covered, call("select", here, values[places], zero), zero)
        return Compute((values, index), elements, types[0].dtype, term)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.window_gather(ct, inputs[1], **self.geometry), None]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        longer = dataclasses.replace(self, shape=(size, *self.shape))
        return Windowed.batch(longer, b, size, mapped, *inputs)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for shape, geometry in CASES:
            for dtype in (float32, float64, int64):
                op = cls(shape, *geometry)
                places = op.counts(TensorType(dtype, shape))
                types = (places, places.with_dtype(offset_dtype(op.window)))
                yield Sample(op, types, draw=_draw(types, geometry[0]))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        op = cls((2, 5), (1, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
        x = TensorType(float32, (2, 4))
        yield Reject(op, (x, TensorType(int64, (2, 4))), "offsets in this window")
        yield Reject(op, (TensorType(float32, (2, 5)), TensorType(uint8, (2, 4))), "one value")


def _draw(types: Sequence[TensorType], window: Sizes) -> Any:
    """Return a drawing of values and of offsets inside the window."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        shape, whole = types[0].ints, types[0].dtype.is_integer
        x = rng.integers(0, 9, shape) if whole else rng.uniform(-2, 2, shape)
        index = rng.integers(0, int(np.prod(window)), types[1].ints)
        return [np.asarray(x).astype(types[0].dtype.np), np.asarray(index).astype(types[1].dtype.np)]

    return values


CASES: tuple[tuple[Sizes, tuple[Sizes, Sizes, Pairs, Sizes]], ...] = (
    ((2, 3, 6, 4), ((1, 1, 2, 2), (1, 1, 2, 2), ((0, 0),) * 4, (1,) * 4)),
    ((1, 2, 5, 5), ((1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)), (1,) * 4)),
    ((1, 1, 7, 6), ((1, 1, 2, 3), (1, 1, 3, 1), ((0, 0), (0, 0), (0, 1), (1, 0)), (1, 1, 2, 2))),
    ((7,), ((3,), (1,), ((1, 1),), (1,))),
    ((9,), ((2,), (4,), ((0, 0),), (1,))),
    ((3, 4), ((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((2, 3, 4), ((2, 2, 2), (1, 1, 1), ((0, 0), (1, 0), (0, 1)), (1, 1, 1))),
    ((0, 4), ((1, 2), (1, 2), ((0, 0), (0, 0)), (1, 1))),
    ((), ((), (), (), ())),
)
