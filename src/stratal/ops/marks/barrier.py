"""Barrier: a value that rewrites must not merge with an equal one, nor move across."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dtypes import bool_, float32, float64, int64
from stratal.base.errors import AttributeValueError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Reject, Sample, record
from stratal.ops.families import SAMPLE_SHAPES
from stratal.ops.marks.family import Mark

AGAIN = 1 << 32  # the id of what a checkpoint reads again: whatever depends on it is to be computed anew


@record
class Barrier(Mark):
    """x, unchanged. Barriers of different `id` never merge: clones made to be computed again stay apart."""

    id: int
    foldable = False

    def infer(self, *types: TensorType) -> TensorType:
        if self.id < 0:
            raise AttributeValueError("barrier: an id is not negative", got=str(self.id))
        return types[0]

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [ct]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, bool_, int64):
            for shape in SAMPLE_SHAPES:
                yield Sample(cls(3), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(-1), (TensorType(float32, (2,)),), "negative")
