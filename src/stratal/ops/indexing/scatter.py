"""Writing at computed places along one axis, in index order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stratal.base.dims import Dim, as_int, product
from stratal.base.dtypes import bfloat16, bool_, float32, float64, int32, int64
from stratal.base.errors import ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.expr import Buffer, Expr
from stratal.loops.index import unflatten
from stratal.ops.families import RowWise, or_zeros, with_axis
from stratal.ops.indexing import family
from stratal.ops.indexing.scatter_kernels import LONG_SLICE, Place, scatter_body, slices_body


@dataclass(frozen=True, repr=False)
class Scattering(RowWise):
    """What scatter and scatter_along share: the derivative rules, in terms of the matching gather.

    add: every update gets the cotangent of its place. set: only the last writer of a place does, and `x` none
    there. mul: each gets the product of the others. max, min: among k equal candidates for a place, `x`
    included, each gets 1/k.
    """

    kind: str
    axis: int
    arity = 3
    gather: ClassVar[str]  # the op that reads what this one writes
    cases: ClassVar[tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...]]
    """Of samples: the shape of x, the axis, and the sizes that updates have in its place."""

    def read(self, b: Builder, x: Node, index: Node) -> Node:
        """Return what stands at the places the updates go to."""
        return b.op(self.gather, x, index, axis=self.axis)

    def write(self, b: Builder, kind: str, x: Node, index: Node, updates: Node) -> Node:
        """Return this op of another kind."""
        return b.op(self.name, x, index, updates, kind=kind, axis=self.axis)

    def last_writers(self, b: Builder, x: Node, index: Node, updates: Node) -> Node:
        """Return which updates stand in the result of a set: scatter their numbers and read them back."""
        number = b.broadcast(
            b.reshape(b.iota(shape=(product(index.shape),), axis=0, dtype=int64), shape=index.shape),
            shape=updates.shape,
            axes=self.index_axes(index.aval),
        )
        places = b.full(x.aval.with_dtype(int64), -1)
        return b.eq(self.read(b, self.write(b, "set", places, index, number), index), number)

    def index_axes(self, index: TensorType) -> tuple[int, ...]:
        """Return the axes of the updates that the axes of the indices are."""
        raise NotImplementedError

    def shares(self, b: Builder, out: Node, x: Node, index: Node, updates: Node) -> tuple[Node, Node]:
        """Return the share of `x` and of the updates in a max or min."""
        mine = b.cast(b.eq(x, out), dtype=x.dtype)
        theirs = b.cast(b.eq(updates, self.read(b, out, index)), dtype=x.dtype)
        count = self.write(b, "add", mine, index, theirs)
        return b.div(mine, count), b.div(theirs, self.read(b, count, index))

    def others(self, b: Builder, out: Node, x: Node, index: Node, updates: Node) -> tuple[Node, Node]:
        """Return for `x` and for the updates the product of the other factors of their places.

        A factor that is not 0 divides the product. For one that is, the others are P, the product of all that
        are not 0, or P times the one other 0: written as a sum of zeros, so that its derivative is P.
        """
        factors = (x, updates)
        zeros = [b.eq(v, b.like(v, 0)) for v in factors]
        safe = [b.select(z, b.like(v, 1), v) for z, v in zip(zeros, factors, strict=True)]
        none = [b.select(z, v, b.like(v, 0)) for z, v in zip(zeros, factors, strict=True)]
        ones = [b.cast(z, dtype=x.dtype) for z in zeros]
        product = self.write(b, "mul", safe[0], index, safe[1])
        nothing = self.write(b, "add", none[0], index, none[1])
        count = self.write(b, "add", ones[0], index, ones[1])
        found = []
        for k, value in enumerate(factors):
            whole, p, sum_, n = (self.read(b, v, index) if k else v for v in (out, product, nothing, count))
            other = b.mul(p, b.sub(sum_, value))
            among = b.select(b.eq(n, b.like(n, 1)), p, b.select(b.eq(n, b.like(n, 2)), other, b.like(p, 0)))
            found.append(b.select(zeros[k], among, b.div(whole, safe[k])))
        return found[0], found[1]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        _, index, updates = inputs
        at = self.read(b, ct, index)
        if self.kind == "add":
            return [ct, None, at]
        if self.kind == "set":
            kept = self.write(b, "set", ct, index, b.like(updates, 0))
            return [kept, None, b.select(self.last_writers(b, *inputs), at, b.like(at, 0))]
        mine, theirs = (self.others if self.kind == "mul" else self.shares)(b, out, *inputs)
        return [b.mul(ct, mine), None, b.mul(at, theirs)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        index = inputs[1]
        dx, _, du = or_zeros(b, tangents, inputs)
        if self.kind in ("add", "set"):
            return self.write(b, self.kind, dx, index, du)
        mine, theirs = (self.others if self.kind == "mul" else self.shares)(b, out, *inputs)
        return self.write(b, "add", b.mul(dx, mine), index, b.mul(du, theirs))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for kind in family.KINDS:
            for dtype, integer in ((float32, int64), (float64, int32), (int64, int64), (bfloat16, int64)):
                for shape, axis, sizes in cls.cases:
                    updates = (*shape[:axis], *sizes, *shape[axis + 1 :])
                    index = sizes if cls.gather == "gather" else updates
                    types = (TensorType(dtype, shape), TensorType(integer, index), TensorType(dtype, updates))
                    yield Sample(cls(kind, axis), types, draw=family.draw(types, shape[axis]))


@record
class Scatter(Scattering):
    """Combine whole slices into `x` along `axis`: out = x; out[..., indices, ...] kind= updates, in order.

    Where an index repeats, set keeps the last, the others combine all; 16-bit floats round at each update.
    Shapes: x [a..., n, c...], indices [i...], updates [a..., i..., c...] -> as x. Indices lie in [0, n).
    """

    gather = "gather"
    cases = (
        ((5,), 0, ()), ((5, 3), 0, (4,)), ((2, 5), 1, (2, 3)), ((2, 4, 3), 1, (6,)), ((1, 1), 0, (1,)),
        ((3, 2), 0, (0,)), ((3, 0), 0, (2,)), ((4, 64), 0, (7,)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x, index, updates = types
        family.check_scatter(self.name, self.kind, self.axis, *types)
        expected = x.with_shape(x.shape[: self.axis] + index.shape + x.shape[self.axis + 1 :])
        if updates.shape != expected.shape:
            raise ShapeError("scatter: updates have the wrong shape", got=f"{updates}, expected {expected}")
        return x

    def ref(self, *arrays: Array) -> Array:
        x, index, updates = arrays
        family.check_in_range(self.name, index, x.shape[self.axis])
        out = np.array(x)
        flat = updates.reshape(*x.shape[: self.axis], index.size, *x.shape[self.axis + 1 :])
        where = (index.ravel().astype(np.int64),)
        family.combine_at(self.kind, np.moveaxis(out, self.axis, 0), where, np.moveaxis(flat, self.axis, 0))
        return out

    def index_axes(self, index: TensorType) -> tuple[int, ...]:
        return tuple(range(self.axis, self.axis + index.ndim))

    def lower(self, *types: TensorType) -> Lowered:
        x, index, _ = types
        count = as_int(product(index.shape))
        if self.kind == "set" and count and x.nbytes and product(x.ints[self.axis + 1 :]) >= LONG_SLICE:
            return slices_body(self.name, self.axis, x, index)

        def update(place: Place, indices: Buffer, updates: Buffer) -> tuple[Expr, Expr]:
            at = unflatten(place.update, index.ints)
            return family.as_index(indices[at]), updates[(*place.before, *at, *place.after)]

        return scatter_body(self.name, self.kind, self.axis, x, count, update)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        if not mapped[1]:
            x, updates = with_axis(b, size, (mapped[0], mapped[2]), (inputs[0], inputs[2]))
            return b.op("scatter", x, inputs[1], updates, kind=self.kind, axis=self.axis + 1)
        x, index, updates = with_axis(b, size, mapped, inputs)
        flat = family.along_slices(b, index, x, self.axis + 1)
        rows = b.reshape(updates, shape=flat.shape)
        return b.op("scatter_along", x, flat, rows, kind=self.kind, axis=self.axis + 1)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, index = TensorType(float32, (5, 3)), TensorType(int64, (4,))
        updates = TensorType(float32, (4, 3))
        yield Reject(cls("add", 2), (x, index, updates), "axis")
        yield Reject(cls("mod", 0), (x, index, updates), "kind")
        yield Reject(cls("add", 0), (x, TensorType(float32, (4,)), updates), "integers")
        yield Reject(cls("add", 0), (x, index, TensorType(float32, (5, 3))), "wrong shape")
        yield Reject(cls("add", 0), (x, index, TensorType(float64, (4, 3))), "dtype")
        booleans = (TensorType(bool_, (5, 3)), index, TensorType(bool_, (4, 3)))
        yield Reject(cls("add", 0), booleans, "does not take")


@record
class ScatterAlong(Scattering):
    """Combine single elements along `axis`: out = x; out[..., indices[..., k, ...], ...] kind= updates.

    `indices` and `updates` have the shape of `x` but for `axis`; updates are combined in the order of
    k, as scatter does. Indices lie in [0, n).
    """

    name = "scatter_along"
    gather = "gather_along"
    cases = (
        ((5,), 0, (3,)), ((5, 3), 0, (4,)), ((2, 5), 1, (1,)), ((2, 4, 3), 1, (6,)), ((1, 1), 0, (1,)),
        ((3, 2), 0, (0,)), ((0, 2), 1, (2,)), ((4, 64), 0, (7,)),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x, index, updates = types
        family.check_scatter(self.name, self.kind, self.axis, *types)
        family.check_same_but(self.name, x, index, self.axis)
        if updates.shape != index.shape:
            raise ShapeError(
                "scatter_along: updates and indices differ in shape", got=f"{updates} and {index}"
            )
        return x

    def ref(self, *arrays: Array) -> Array:
        x, index, updates = arrays
        family.check_in_range(self.name, index, x.shape[self.axis])
        out = np.array(x)
        grid = list(np.ogrid[tuple(slice(n) for n in index.shape)])
        grid[self.axis] = index.astype(np.int64)
        places = np.broadcast_arrays(*grid)
        rows = tuple(np.moveaxis(p, self.axis, 0).ravel() for p in places)
        family.combine_at(self.kind, out, rows, np.moveaxis(updates, self.axis, 0).ravel())
        return out

    def index_axes(self, index: TensorType) -> tuple[int, ...]:
        return tuple(range(index.ndim))

    def lower(self, *types: TensorType) -> Lowered:
        def update(place: Place, indices: Buffer, updates: Buffer) -> tuple[Expr, Expr]:
            at = (*place.before, place.update, *place.after)
            return family.as_index(indices[at]), updates[at]

        return scatter_body(self.name, self.kind, self.axis, types[0], types[1].ints[self.axis], update)

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x, index, updates = (TensorType(d, (n, 3)) for d, n in ((float32, 5), (int64, 4), (float32, 4)))
        yield Reject(cls("add", 2), (x, index, updates), "axis")
        yield Reject(cls("mod", 0), (x, index, updates), "kind")
        yield Reject(cls("add", 0), (x, updates, updates), "integers")
        yield Reject(cls("add", 0), (x, index, x), "shape")
        yield Reject(cls("add", 0), (x, TensorType(int64, (4, 2)), updates), "shape")
