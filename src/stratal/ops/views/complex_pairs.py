"""Complex numbers as pairs of real ones and back: the same bytes under another type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.dims import Dim, known_equal
from stratal.base.dtypes import complex64, complex128, float16, float32, float64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import SameBytes
from stratal.ops.families import REAL_OF, Movement, over_rows

COMPLEX_OF = {real: whole for whole, real in REAL_OF.items()}
SHAPES = ((3,), (), (2, 5), (0, 4), (1, 1))


class _Retyped(Movement):
    """What both directions share: nothing is moved."""

    arity = 1
    by_parts = False

    def host_reason(self, *types: TensorType) -> str:
        return ""

    def lower(self, *types: TensorType) -> Lowered:
        return SameBytes()

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs)


@record
class ViewAsReal(_Retyped):
    """Complex numbers as pairs (real, imaginary) along a new last axis. Shapes: [...] -> [..., 2]."""

    name = "view_as_real"

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype not in REAL_OF:
            raise DTypeError("view_as_real: takes complex numbers", got=str(x))
        return TensorType(REAL_OF[x.dtype], (*x.shape, 2))

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0].copy(order="C")
        return x.reshape(*x.shape, 1).view(x.real.dtype)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.view_as_complex(ct)]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (complex128, complex64):
            for shape in SHAPES:
                yield Sample(cls(), (TensorType(dtype, shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), (TensorType(float32, (2,)),), "takes")


@record
class ViewAsComplex(_Retyped):
    """Pairs (real, imaginary) along the last axis as complex numbers. Shapes: [..., 2] -> [...]."""

    name = "view_as_complex"

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype not in COMPLEX_OF:
            raise DTypeError("view_as_complex: takes float32 or float64", got=str(x), hint="cast to float32")
        if not x.ndim or not known_equal(x.shape[-1], 2):
            raise ShapeError("view_as_complex: the last axis holds real and imaginary part", got=str(x))
        return TensorType(COMPLEX_OF[x.dtype], x.shape[:-1])

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0].copy(order="C")
        return x.view(COMPLEX_OF[float32 if x.dtype.itemsize == 4 else float64].np).reshape(x.shape[:-1])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.view_as_real(ct)]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float64, float32):
            for shape in SHAPES:
                yield Sample(cls(), (TensorType(dtype, (*shape, 2)),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), (TensorType(float16, (2,)),), "takes")
        yield Reject(cls(), (TensorType(float32, (3,)),), "last axis")
        yield Reject(cls(), (TensorType(float32, ()),), "last axis")
