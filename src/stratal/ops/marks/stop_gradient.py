"""Stop gradient: a value that derivatives treat as a constant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dtypes import bool_, float32, float64
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Sample, record
from stratal.ops.families import SAMPLE_SHAPES
from stratal.ops.marks.family import Mark


@record
class StopGradient(Mark):
    """x, unchanged, with no cotangent and no tangent."""

    name = "stop_gradient"

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [None]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, bool_):
            for shape in SAMPLE_SHAPES:
                yield Sample(cls(), (TensorType(dtype, shape),), smooth=False)
