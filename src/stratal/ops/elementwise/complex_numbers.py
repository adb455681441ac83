"""Complex numbers, their parts, and pairs of real numbers: the same bytes under another type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import known_equal
from stratal.base.dtypes import complex64, complex128, float16, float32, float64
from stratal.base.errors import DTypeError, ShapeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.loops.compute import SameBytes, pointwise
from stratal.loops.expr import call
from stratal.ops.families import COMPLEX_OF, REAL_OF, SAMPLE_SHAPES, Elementwise, Linear, Movement, RowWise


class Part(Linear, Elementwise):
    """A linear function over the reals of a complex number."""

    arity = 1
    kinds = "c"
    not_lowered = "the compiler writes it in real numbers"


class RealPart(Part):
    """One of the two real numbers."""

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(REAL_OF[super().infer(*types).dtype])


@record
class Real(RealPart):
    """The real part."""

    def ref(self, *arrays: Array) -> Array:
        return np.array(arrays[0].real)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.complex(ct, b.like(ct, 0))]


@record
class Imag(RealPart):
    """The imaginary part."""

    def ref(self, *arrays: Array) -> Array:
        return np.array(arrays[0].imag)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.complex(b.like(ct, 0), ct)]


@record
class Conj(Part):
    """The complex conjugate."""

    ufunc = np.conjugate

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        return b.complex(b.real(x), b.neg(b.imag(x)))

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.conj(ct)]


@record
class Complex(Part):
    """re + im * 1j, of two float32 or two float64."""

    arity = 2
    kinds = "f"
    not_lowered = ""

    def infer(self, *types: TensorType) -> TensorType:
        part = super().infer(*types)
        if part.dtype not in COMPLEX_OF:
            raise DTypeError("complex: takes float32 or float64 parts", got=str(part), hint="cast to float32")
        return part.with_dtype(COMPLEX_OF[part.dtype])

    def host_reason(self, *types: TensorType) -> str:
        return ""

    def lower(self, *types: TensorType) -> Lowered:
        return pointwise(types, self.infer(*types).dtype, lambda re, im: call("pair", re, im))

    def ref(self, *arrays: Array) -> Array:
        re, im = arrays
        out = np.empty(re.shape, np.complex64 if re.dtype == np.float32 else np.complex128)
        out.real, out.imag = re, im
        return out

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.real(ct), b.imag(ct)]

    @classmethod
    def samples(cls) -> Sequence[Sample]:
        return [Sample(cls(), (TensorType(d, s),) * 2) for d in (float32, float64) for s in SAMPLE_SHAPES]


# -- pairs ---------------------------------------------------------------------------------------------------
class _Retyped(Movement, RowWise):
    """What both directions share: nothing is moved."""

    arity = 1
    by_parts = False

    def host_reason(self, *types: TensorType) -> str:
        return ""

    def lower(self, *types: TensorType) -> Lowered:
        return SameBytes()


@record
class ViewAsReal(_Retyped):
    """Complex numbers as pairs (real, imaginary) along a new last axis. Shapes: [...] -> [..., 2]."""

    name = "view_as_real"
    cases = tuple((shape,) for shape in SAMPLE_SHAPES)
    dtypes = (complex128, complex64)

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
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), (TensorType(float32, (2,)),), "takes")


@record
class ViewAsComplex(_Retyped):
    """Pairs (real, imaginary) along the last axis as complex numbers. Shapes: [..., 2] -> [...]."""

    name = "view_as_complex"
    cases = tuple(((*shape, 2),) for shape in SAMPLE_SHAPES)
    dtypes = (float64, float32)

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
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), (TensorType(float16, (2,)),), "takes")
        yield Reject(cls(), (TensorType(float32, (3,)),), "last axis")
        yield Reject(cls(), (TensorType(float32, ()),), "last axis")
