"""The Fourier transform to complex numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import complex64, complex128, float16
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import linear_jvp, over_rows
from stratal.ops.fourier import family
from stratal.ops.fourier.in_reals import along, is_served, lines, nothing, of_real, scale_of


@record
class FFT(Op):
    """The sum over j of x[j] exp(-2 pi i j k / n) along each of `axes`; + instead of - where `inverse`.

    `norm` scales it. backward: the inverse is divided by n; forward: the transform itself; ortho: both by
    sqrt(n).
    """

    axes: tuple[int, ...]
    inverse: bool = False
    norm: str = "backward"
    name = "fft"
    arity = 1
    not_lowered = family.IN_REALS

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        family.check(self.name, x, self.axes, self.norm, (*family.REAL_OF, *family.COMPLEX_OF))
        return x.with_dtype(family.COMPLEX_OF.get(x.dtype, x.dtype))

    def ref(self, *arrays: Array) -> Array:
        transform = np.fft.ifftn if self.inverse else np.fft.fftn
        out: Array = transform(arrays[0], axes=self.axes, norm=self.norm)  # type: ignore[arg-type]
        return out.astype(np.result_type(arrays[0].dtype, np.complex64), copy=False)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        if x.aval.size == 0:
            return nothing(b, self.infer(x.aval))
        if not all(is_served(x.aval.ints[a]) for a in self.axes):
            return None
        axes = list(self.axes)
        made = x
        if not x.dtype.is_complex and axes and not self.inverse:
            axis = axes.pop()
            r, n, c = lines(x, axis)
            scale = scale_of(self.norm, n, inverse=False)
            made = b.reshape(of_real(b, b.reshape(x, shape=(r, n, c)), n, scale), shape=x.shape)
        elif not x.dtype.is_complex:
            made = b.cast(x, dtype=family.COMPLEX_OF[x.dtype])
        for axis in axes:
            scale = scale_of(self.norm, x.aval.ints[axis], inverse=self.inverse)
            made = along(b, made, axis, scale, inverse=self.inverse)
        return made

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        back = b.fft(ct, axes=self.axes, inverse=not self.inverse, norm=family.ADJOINT[self.norm])
        return [back if inputs[0].dtype.is_complex else b.real(back)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)

    def cost(self, *types: TensorType) -> Cost:
        return family.cost(types[0], self.infer(*types), self.axes)

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axes=tuple(a + 1 for a in self.axes))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (complex128, complex64):
            for shape, axes in (((7,), (0,)), ((4, 3), (0,)), ((2, 4), (0, 1)), ((2, 3, 2), (2, 0)),
                                ((1,), (0,)), ((0, 3), (1,)), ((3,), ())):  # fmt: skip
                for inverse in (False, True):
                    for norm in family.ADJOINT:
                        yield Sample(cls(axes, inverse, norm), (TensorType(dtype, shape),))
                yield Sample(cls(axes), (TensorType(family.REAL_OF[dtype], shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((0,)), (TensorType(float16, (4,)),), "takes")
        yield Reject(cls((1,)), (TensorType(complex64, (4,)),), "range")
        yield Reject(cls((0, 0)), (TensorType(complex64, (4,)),), "twice")
        yield Reject(cls((0,)), (TensorType(complex64, (0,)),), "empty")
        yield Reject(cls((0,), norm="none"), (TensorType(complex64, (4,)),), "norm")
