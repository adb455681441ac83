"""Complex numbers and their parts: views of pairs of real numbers (`optimize/in_reals.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stratal.base.dtypes import float32, float64
from stratal.base.errors import DTypeError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.loops.compute import pointwise
from stratal.loops.expr import call
from stratal.ops.families import REAL_OF, SAMPLE_SHAPES, Elementwise, linear_jvp

COMPLEX_OF = {real: whole for whole, real in REAL_OF.items()}


class Part(Elementwise):
    """A linear function over the reals of a complex number."""

    arity = 1
    kinds = "c"
    not_lowered = "the compiler writes it in real numbers"

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)


@record
class Real(Part):
    """The real part."""

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(REAL_OF[super().infer(*types).dtype])

    def ref(self, *arrays: Array) -> Array:
        return np.array(arrays[0].real)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [b.complex(ct, b.like(ct, 0))]


@record
class Imag(Part):
    """The imaginary part."""

    def infer(self, *types: TensorType) -> TensorType:
        return types[0].with_dtype(REAL_OF[super().infer(*types).dtype])

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
        turned: Node = b.complex(b.real(x), b.neg(b.imag(x)))
        return turned

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
