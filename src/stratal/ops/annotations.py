"""Annotations: the identity, whose presence says what must not be merged, moved or differentiated, and what
must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError, DTypeError, ShapeError, check_failed
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Draw, Reject, Sample, record
from stratal.loops.compute import Check, Compute, arguments, fresh_axes, pointwise
from stratal.loops.expr import call, cast
from stratal.ops.families import SAMPLE_SHAPES, Movement, RowWise


class Annotation(Movement, RowWise):
    """The identity on values of any type."""

    arity = 1
    exact = ""  # what it says is said to the compiler
    cases = tuple((shape,) for shape in SAMPLE_SHAPES)

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        return arrays[0]

    def lower(self, *types: TensorType) -> Lowered:
        return pointwise(types, types[0].dtype, lambda x, *_: x)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.op(self.name, ct, **self.attributes)]


AGAIN = 1 << 32  # the id of what a checkpoint reads again: whatever depends on it is to be computed anew


@record
class Barrier(Annotation):
    """x, unchanged. Barriers of different `id` never merge: clones made to be computed again stay apart."""

    id: int
    foldable = False
    pinned = True
    cases = tuple((shape, 3) for shape in SAMPLE_SHAPES)

    def infer(self, *types: TensorType) -> TensorType:
        if self.id < 0:
            raise AttributeValueError("barrier: an id is not negative", got=str(self.id))
        return types[0]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(-1), (TensorType(float32, (2,)),), "negative")


@record
class Constrain(Annotation):
    """x, unchanged, placed as `spec` says; its cotangent is placed alike."""

    spec: str
    foldable = False
    pinned = True
    cases = tuple((shape, "rows:data") for shape in SAMPLE_SHAPES)

    def infer(self, *types: TensorType) -> TensorType:
        if not self.spec:
            raise AttributeValueError("constrain: the placement is empty")
        return types[0]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(""), (TensorType(float32, (2,)),), "empty")


@record
class StopGradient(Annotation):
    """x, unchanged, with no cotangent and no tangent."""

    name = "stop_gradient"
    exact = Movement.exact
    smooth = False

    def differentiated(self, *inputs: Node) -> Sequence[Node]:
        return ()

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None


@record
class StraightThrough(Annotation):
    """x, with the cotangent and the tangent of `source`: what a write that no gradient sees makes of it."""

    name = "straight_through"
    arity = 2
    smooth = False

    def differentiated(self, *inputs: Node) -> Sequence[Node]:
        return inputs[1:]

    def infer(self, *types: TensorType) -> TensorType:
        if types[0] != types[1]:
            raise ShapeError("straight_through: a value and its source have one type",
                             got=f"{types[0]} and {types[1]}")  # fmt: skip
        return types[0]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None, ct]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return tangents[1]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), (TensorType(float32, (2,)), TensorType(float32, (3,))), "one type")


@record
class Require(Annotation):
    """x, unchanged, if all of `index` lies in [0, bound); else the run ends before it writes, and `says` why.

    A condition is a bool that is true where it is broken, and a bound of 1.
    """

    bound: int
    says: str
    arity = 2
    foldable = False
    by_parts = False

    def infer(self, *types: TensorType) -> TensorType:
        x, index = types
        if not (index.dtype.is_integer or index.dtype.is_bool):
            raise DTypeError("require: indices must be integers, conditions bools", got=str(index))
        if index.shape != x.shape:
            raise ShapeError("require: looks at one index per element", got=f"{index} for {x}")
        if self.bound < 0 or not self.says:
            raise AttributeValueError("require: takes a bound of at least 0, and words",
                                      got=f"{self.bound}, {self.says!r}")  # fmt: skip
        return x

    def ref(self, *arrays: Array) -> Array:
        x, index = arrays
        index = index.astype(np.int64) if index.dtype == np.bool_ else index
        bad = (index < 0) | (index >= self.bound)
        if bad.any():
            raise check_failed(self.says, int(index[bad].flat[0]))
        return x

    def lower(self, *types: TensorType) -> Lowered:
        x, index = arguments(*types)
        out = fresh_axes(x.shape)
        # The index is read, though both cases are alike: so it has a value where the check is made.
        element = call("select", cast(index[tuple(out)], int64) < self.bound, x[tuple(out)], x[tuple(out)])
        return Compute((x, index), out, x.dtype, element, checks=(Check(1, self.bound, self.says),))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct, None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return tangents[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, int64):
            for shape in ((2, 5), (), (0, 4), (37,)):
                x, index, broken = (TensorType(d, shape) for d in (dtype, int64, bool_))
                yield Sample(cls(5, "demo: index out of range"), (x, index), draw=_draw((x, index), 5))
                yield Sample(cls(1, "demo: it must hold"), (x, broken), draw=_draw((x, broken), 1))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        x = TensorType(float32, (2,))
        yield Reject(cls(3, "demo"), (x, x), "integers")
        yield Reject(cls(-1, "demo"), (x, TensorType(int64, (2,))), "bound")
        yield Reject(cls(3, "demo"), (x, TensorType(int64, (3,))), "one index per element")


def _draw(types: Sequence[TensorType], bound: int) -> Draw:
    """Return a drawing of operands of which the second passes the check."""

    def values(rng: np.random.Generator) -> Sequence[Array]:
        x, index = types
        return [
            (4 * rng.random(x.ints) - 2).astype(x.dtype.np),
            rng.integers(0, bound, index.ints).astype(index.dtype.np),
        ]

    return values
