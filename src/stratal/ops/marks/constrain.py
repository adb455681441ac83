"""Constrain: a value that carries the placement it must have."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.base.dtypes import bool_, float32, float64
from stratal.base.errors import AttributeValueError
from stratal.base.types import TensorType
from stratal.graph.op import Reject, Sample, record
from stratal.ops.families import SAMPLE_SHAPES
from stratal.ops.marks.family import Mark


@record
class Constrain(Mark):
    """x, unchanged, placed as `spec` says; its cotangent is placed alike."""

    spec: str
    foldable = False

    def infer(self, *types: TensorType) -> TensorType:
        if not self.spec:
            raise AttributeValueError("constrain: the placement is empty")
        return types[0]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float32, float64, bool_):
            for shape in SAMPLE_SHAPES:
                yield Sample(cls("rows:data"), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(""), (TensorType(float32, (2,)),), "empty")
