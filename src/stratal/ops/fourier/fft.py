"""Fourier transforms: to complex numbers, and between real numbers and half of their spectrum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, as_int, known_equal
from stratal.base.dtypes import DType, as_dtype, complex64, complex128, float16, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.families import COMPLEX_OF, REAL_OF, Linear, RowWise
from stratal.ops.fourier import family
from stratal.ops.fourier.in_reals import along, is_served, lines, nothing, of_real, scale_of, to_real


@record
class FFT(Linear, RowWise):
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
        family.check(self.name, x, self.axes, self.norm, (*REAL_OF, *COMPLEX_OF))
        return x.with_dtype(COMPLEX_OF.get(x.dtype, x.dtype))

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
            made = b.cast(x, dtype=COMPLEX_OF[x.dtype])
        for axis in axes:
            scale = scale_of(self.norm, x.aval.ints[axis], inverse=self.inverse)
            made = along(b, made, axis, scale, inverse=self.inverse)
        return made

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        back = b.fft(ct, axes=self.axes, inverse=not self.inverse, norm=family.ADJOINT[self.norm])
        return [back if inputs[0].dtype.is_complex else b.real(back)]

    def cost(self, *types: TensorType) -> Cost:
        return family.cost(types[0], self.infer(*types), self.axes)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (complex128, complex64):
            for shape, axes in (((7,), (0,)), ((4, 3), (0,)), ((2, 4), (0, 1)), ((2, 3, 2), (2, 0)),
                                ((1,), (0,)), ((0, 3), (1,)), ((3,), ())):  # fmt: skip
                for inverse in (False, True):
                    for norm in family.ADJOINT:
                        yield Sample(cls(axes, inverse, norm), (TensorType(dtype, shape),))
                yield Sample(cls(axes), (TensorType(REAL_OF[dtype], shape),))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls((0,)), (TensorType(float16, (4,)),), "takes")
        yield Reject(cls((1,)), (TensorType(complex64, (4,)),), "range")
        yield Reject(cls((0, 0)), (TensorType(complex64, (4,)),), "twice")
        yield Reject(cls((0,)), (TensorType(complex64, (0,)),), "empty")
        yield Reject(cls((0,), norm="none"), (TensorType(complex64, (4,)),), "norm")


# -- real numbers --------------------------------------------------------------------------------------------
class _Half(Linear, RowWise):
    """What both directions share: they are linear, along one axis."""

    axis: int
    norm: str
    arity = 1
    not_lowered = family.IN_REALS
    dtypes: ClassVar[tuple[DType, ...]]  # of samples
    cases: ClassVar[tuple[tuple[Any, ...], ...]]  # a shape, and the fields of the op but `norm`

    def infer(self, *types: TensorType) -> TensorType:
        raise NotImplementedError

    def cost(self, *types: TensorType) -> Cost:
        return family.cost(types[0], self.infer(*types), (self.axis,))

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in cls.dtypes:
            for shape, *fields in cls.cases:
                for norm in family.ADJOINT:
                    yield Sample(cls(*fields, norm=norm), (TensorType(dtype, shape),))  # type: ignore[call-arg]


@record
class RFFT(_Half):
    """The first n // 2 + 1 terms of the Fourier transform of n real numbers along `axis`, scaled as by `fft`.

    The others are the conjugates of these.
    """

    axis: int
    norm: str = "backward"
    name = "rfft"
    dtypes = (float64, float32)
    cases = (((8,), 0), ((7,), 0), ((4, 3), 0), ((2, 5), 1), ((1,), 0), ((2,), 0), ((0, 3), 1))

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        family.check(self.name, x, (self.axis,), self.norm, COMPLEX_OF)
        half = x.shape[self.axis] // 2 + 1
        return TensorType(COMPLEX_OF[x.dtype], (*x.shape[: self.axis], half, *x.shape[self.axis + 1 :]))

    def ref(self, *arrays: Array) -> Array:
        out = np.fft.rfft(arrays[0], axis=self.axis, norm=self.norm)  # type: ignore[arg-type]
        return out.astype(np.result_type(arrays[0].dtype, np.complex64), copy=False)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        r, n, c = lines(x, self.axis)
        if r * c == 0:
            return nothing(b, self.infer(x.aval))
        if not is_served(n):
            return None
        terms = of_real(b, b.reshape(x, shape=(r, n, c)), n // 2 + 1, scale_of(self.norm, n, inverse=False))
        return b.reshape(terms, shape=self.infer(x.aval).shape)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """The inverse adds each term and its conjugate; here each counts once."""
        n = inputs[0].shape[self.axis]
        once = b.mul(ct, _weights(b, ct, self.axis, n, 0.5))
        odd = as_int(n) % 2 == 1
        return [b.irfft(once, axis=self.axis, odd=odd, norm=family.ADJOINT[self.norm])]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(0), (TensorType(complex64, (4,)),), "takes")
        yield Reject(cls(1), (TensorType(float32, (4,)),), "range")
        yield Reject(cls(0), (TensorType(float32, (0,)),), "empty")
        yield Reject(cls(0, "none"), (TensorType(float32, (4,)),), "norm")


@record
class IRFFT(_Half):
    """The n real numbers whose Fourier transform along `axis` begins with the given n // 2 + 1 terms.

    n is even unless `odd`. The imaginary parts of the first term and, if n is even, of the last are ignored.
    """

    axis: int
    odd: bool
    norm: str = "backward"
    name = "irfft"
    dtypes = (complex128, complex64)
    cases = (
        ((4,), 0, False), ((4,), 0, True), ((3, 2), 0, False), ((2, 2), 1, True), ((1,), 0, True),
        ((2,), 0, False), ((0, 2), 1, True),
    )  # fmt: skip

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        family.check(self.name, x, (self.axis,), self.norm, REAL_OF)
        n = self.count(x)
        if known_equal(n, 0):
            raise ShapeError(f"{self.name}: one term is of one number", got=str(x), hint="odd=True")
        return TensorType(REAL_OF[x.dtype], (*x.shape[: self.axis], n, *x.shape[self.axis + 1 :]))

    def count(self, x: TensorType) -> Dim:
        """Return n."""
        return 2 * (x.shape[self.axis] - 1) + self.odd

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        n = as_int(self.count(TensorType(as_dtype(x.dtype), x.shape)))
        out = np.fft.irfft(x, n=n, axis=self.axis, norm=self.norm)  # type: ignore[arg-type]
        return out.astype(x.real.dtype, copy=False)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        (x,) = inputs
        r, terms, c = lines(x, self.axis)
        n = as_int(self.count(x.aval))
        if r * c == 0:
            return nothing(b, self.infer(x.aval))
        if not is_served(n):
            return None
        made = to_real(b, b.reshape(x, shape=(r, terms, c)), n, scale_of(self.norm, n, inverse=True))
        return b.reshape(made, shape=self.infer(x.aval).shape)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        terms = b.rfft(ct, axis=self.axis, norm=family.ADJOINT[self.norm])
        return [b.mul(terms, _weights(b, terms, self.axis, self.count(inputs[0].aval), 2.0))]

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(0, False), (TensorType(float32, (3,)),), "takes")
        yield Reject(cls(1, False), (TensorType(complex64, (3,)),), "range")
        yield Reject(cls(0, False), (TensorType(complex64, (1,)),), "one term")
        yield Reject(cls(0, True, "none"), (TensorType(complex64, (3,)),), "norm")


def _weights(b: Builder, terms: Node, axis: int, n: Dim, weight: float) -> Node:
    """Return `weight` where the spectrum of n real numbers has a term twice, 1 where it has one once."""
    count = as_int(n)
    values = np.full(count // 2 + 1, weight)
    values[0] = 1.0
    if count % 2 == 0:
        values[-1] = 1.0
    return b.broadcast(b.const(values, terms.dtype), shape=terms.shape, axes=(axis,))
