"""Permute, flip, reshape and broadcast: the same elements in another order or shape, as views."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import Dim, Shape, known_equal, product
from stratal.base.dtypes import float32
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, record
from stratal.loops.compute import Compute, arguments, fresh_axes
from stratal.loops.expr import const, index_const
from stratal.loops.index import flatten, sub, unflatten
from stratal.ops.families import Movement, RowWise, over_rows


@record
class Permute(Movement):
    """Reorder axes: output axis k is input axis `perm[k]`."""

    perm: tuple[int, ...]
    arity = 1
    cases = (
        ((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((2, 3, 4), (0, 2, 1)), ((), ()), ((5,), (0,)),
        ((0, 3), (1, 0)), ((1, 4, 1), (2, 1, 0)), ((17, 19), (1, 0)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if sorted(self.perm) != list(range(x.ndim)):
            raise AttributeValueError("permute: perm must name each axis once", got=f"{self.perm} for {x}")
        return x.with_shape(x.shape[a] for a in self.perm)

    def ref(self, *arrays: Array) -> Array:
        return np.transpose(arrays[0], self.perm)

    def inverse(self) -> tuple[int, ...]:
        """Return the permutation that undoes this one."""
        return tuple(self.perm.index(a) for a in range(len(self.perm)))

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        out = fresh_axes(x.shape[a] for a in self.perm)
        return Compute((x,), out, x.dtype, x[tuple(out[k] for k in self.inverse())])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.permute(ct, perm=self.inverse())]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, perm=(0, *(a + 1 for a in self.perm)))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "once")
        yield Reject(cls((0,)), (TensorType(float32, (2, 3)),), "once")
        yield Reject(cls((0, -1)), (TensorType(float32, (2, 3)),), "once")


@record
class Flip(Movement, RowWise):
    """Reverse the order of elements along `axes`."""

    axes: tuple[int, ...]
    arity = 1
    cases = (
        ((4,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3), (0, 1)), ((2, 3), ()),
        ((0, 3), (0, 1)), ((), ()), ((1, 5, 1), (0, 1)), ((9, 35), (1,)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if len(set(self.axes)) != len(self.axes) or not all(0 <= a < x.ndim for a in self.axes):
            raise AttributeValueError("flip: axes must be distinct and in range", got=f"{self.axes} for {x}")
        return x

    def ref(self, *arrays: Array) -> Array:
        return np.asarray(np.flip(arrays[0], self.axes))

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        out = fresh_axes(x.shape)
        where = tuple(
            sub(n - 1, v) if k in self.axes else v for k, (v, n) in enumerate(zip(out, x.shape, strict=True))
        )
        return Compute((x,), out, x.dtype, x[where])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.flip(ct, axes=self.axes)]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2,)), (TensorType(float32, (2, 3)),), "range")
        yield Reject(cls((0, 0)), (TensorType(float32, (2, 3)),), "distinct")


@record
class Reshape(Movement):
    """Give `x` the shape `shape`, elements in row-major order. The front end resolves -1."""

    shape: Shape
    arity = 1
    dim_attributes = ("shape",)
    cases = (
        ((2, 3), (3, 2)), ((2, 3), (6,)), ((6,), (1, 2, 3)), ((4, 6), (8, 3)), ((2, 3, 4), (2, 12)),
        ((1,), ()), ((), (1, 1)), ((0, 4), (3, 0)), ((0,), (2, 0, 5)), ((1, 5, 1), (5,)),
        ((6, 35), (14, 15)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if any(isinstance(n, int) and n < 0 for n in self.shape):
            raise ShapeError("reshape: a size is negative", got=str(self.shape))
        if not known_equal(x.size, product(self.shape)):
            raise ShapeError(
                "reshape: number of elements differs",
                got=f"{x} to {list(self.shape)}: {x.size} and {product(self.shape)} elements",
            )
        return x.with_shape(self.shape)

    def ref(self, *arrays: Array) -> Array:
        return arrays[0].reshape(tuple(int(n) for n in self.shape))

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        shape = types[0].with_shape(self.shape).ints
        out = fresh_axes(shape)
        if 0 in shape:  # no element to find a place for
            return Compute((x,), out, x.dtype, const(0, x.dtype))
        return Compute((x,), out, x.dtype, x[unflatten(flatten(tuple(out), shape), x.shape)])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.reshape(ct, shape=inputs[0].shape)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, shape=(size, *self.shape))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((4,)), (TensorType(float32, (2, 3)),), "elements")
        yield Reject(cls((-1, 3)), (TensorType(float32, (2, 3)),), "negative")
        yield Reject(cls((0,)), (TensorType(float32, ()),), "elements")


MOST_ELEMENTS = 1 << 40  # a view of more would be looped over for hours; sizes come from mistakes


@record
class Broadcast(Movement):
    """Give `x` the shape `shape`: input axis k becomes output axis `axes[k]`; a size-1 axis stretches.

    `axes` must be strictly increasing, so a broadcast never permutes.
    """

    shape: Shape
    axes: tuple[int, ...]
    arity = 1
    repeats = True
    foldable = False  # it is sooner made again than stored
    dim_attributes = ("shape",)
    cases = (
        ((3,), (2, 3), (1,)), ((2, 1), (2, 3), (0, 1)), ((1, 3), (4, 2, 3), (1, 2)), ((), (2, 0), ()),
        ((), (), ()),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        if len(self.axes) != x.ndim or any(a >= b for a, b in zip(self.axes, self.axes[1:], strict=False)):
            raise ShapeError(
                "broadcast: axes must be one per input axis and increasing", got=f"{self.axes} for {x}"
            )
        for k, a in enumerate(self.axes):
            if not 0 <= a < len(self.shape):
                raise ShapeError("broadcast: axis out of range", got=f"axis {a} of shape {self.shape}")
            if not known_equal(x.shape[k], 1) and not known_equal(x.shape[k], self.shape[a]):
                raise ShapeError(
                    "broadcast: a size is neither 1 nor the target's", got=f"{x} to {self.shape}"
                )
        elements = math.prod(n for n in self.shape if isinstance(n, int) and n)  # a symbol may be small
        if elements >= MOST_ELEMENTS:
            raise ShapeError(
                "broadcast: more elements than any run holds",
                got=f"{x} to {list(self.shape)}",
                hint="below 2^40 elements",
            )
        return x.with_shape(self.shape)

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        expanded = [1] * len(self.shape)
        for k, a in enumerate(self.axes):
            expanded[a] = x.shape[k]
        return np.broadcast_to(x.reshape(expanded), tuple(int(n) for n in self.shape))

    def lower(self, *types: TensorType) -> Lowered:
        (x,) = arguments(*types)
        out = fresh_axes(int(n) for n in self.shape)
        where = tuple(  # an axis that does not stretch is its own, of one element too: readers see the place
            out[a] if n == self.shape[a] else index_const(0) for n, a in zip(x.shape, self.axes, strict=True)
        )
        return Compute((x,), out, x.dtype, x[where])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        x = inputs[0].aval
        stretched = [a for k, a in enumerate(self.axes) if not known_equal(x.shape[k], self.shape[a])]
        new = [a for a in range(len(self.shape)) if a not in self.axes]
        summed = b.sum(ct, axes=tuple(sorted(stretched + new)))
        return [summed if not stretched else b.reshape(summed, shape=x.shape)]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        axes = (0, *(a + 1 for a in self.axes))
        return over_rows(self, b, size, mapped, inputs, shape=(size, *self.shape), axes=axes)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((2, 3), (0,)), (TensorType(float32, (4,)),), "neither 1")
        yield Reject(cls((2, 3), (1, 0)), (TensorType(float32, (3, 2)),), "increasing")
        yield Reject(cls((2, 3), (5,)), (TensorType(float32, (3,)),), "out of range")
