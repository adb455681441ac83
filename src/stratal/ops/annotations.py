"""Annotations: the identity, whose presence says what must not be merged, moved or differentiated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dtypes import float32
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, record
from stratal.loops.compute import pointwise
from stratal.ops.families import SAMPLE_SHAPES, Movement


class Annotation(Movement):
    """The identity on values of any type."""

    arity = 1
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
    smooth = False

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
