"""Fourier transforms between real numbers and the half of a spectrum that says all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, as_int, known_equal
from stratal.base.dtypes import as_dtype, complex64, complex128, float32, float64
from stratal.base.errors import ShapeError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Op, Reject, Sample, record
from stratal.ops.families import linear_jvp, over_rows
from stratal.ops.fourier import family
from stratal.ops.fourier.in_reals import is_served, lines, nothing, of_real, scale_of, to_real


class _Half(Op):
    """What both directions share: they are linear, along one axis."""

    axis: int
    norm: str
    arity = 1
    not_lowered = family.IN_REALS

    def infer(self, *types: TensorType) -> TensorType:
        raise NotImplementedError

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return linear_jvp(self, b, tangents, *inputs)

    def cost(self, *types: TensorType) -> Cost:
        return family.cost(types[0], self.infer(*types), (self.axis,))

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Node:
        return over_rows(self, b, size, mapped, inputs, axis=self.axis + 1)


@record
class RFFT(_Half):
    """The first n // 2 + 1 terms of the Fourier transform of n real numbers along `axis`, scaled as by `fft`.

    The others are the conjugates of these.
    """

    axis: int
    norm: str = "backward"
    name = "rfft"

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        family.check(self.name, x, (self.axis,), self.norm, family.COMPLEX_OF)
        half = x.shape[self.axis] // 2 + 1
        return TensorType(
            family.COMPLEX_OF[x.dtype], (*x.shape[: self.axis], half, *x.shape[self.axis + 1 :])
        )

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
        found: Node = b.reshape(terms, shape=self.infer(x.aval).shape)
        return found

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """The inverse adds each term and its conjugate; here each counts once."""
        n = inputs[0].shape[self.axis]
        once = b.mul(ct, _weights(b, ct, self.axis, n, 0.5))
        odd = as_int(n) % 2 == 1
        return [b.irfft(once, axis=self.axis, odd=odd, norm=family.ADJOINT[self.norm])]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (float64, float32):
            for shape, axis in (
                ((8,), 0),
                ((7,), 0),
                ((4, 3), 0),
                ((2, 5), 1),
                ((1,), 0),
                ((2,), 0),
                ((0, 3), 1),
            ):
                for norm in family.ADJOINT:
                    yield Sample(cls(axis, norm), (TensorType(dtype, shape),))

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

    def infer(self, *types: TensorType) -> TensorType:
        x = types[0]
        family.check(self.name, x, (self.axis,), self.norm, family.REAL_OF)
        n = self.count(x)
        if known_equal(n, 0):
            raise ShapeError(f"{self.name}: one term is of one number", got=str(x), hint="odd=True")
        return TensorType(family.REAL_OF[x.dtype], (*x.shape[: self.axis], n, *x.shape[self.axis + 1 :]))

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
        found: Node = b.reshape(made, shape=self.infer(x.aval).shape)
        return found

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        terms = b.rfft(ct, axis=self.axis, norm=family.ADJOINT[self.norm])
        return [b.mul(terms, _weights(b, terms, self.axis, self.count(inputs[0].aval), 2.0))]

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in (complex128, complex64):
            for shape, axis, odd in (((4,), 0, False), ((4,), 0, True), ((3, 2), 0, False), ((2, 2), 1, True),
                                     ((1,), 0, True), ((2,), 0, False), ((0, 2), 1, True)):  # fmt: skip
                for norm in family.ADJOINT:
                    yield Sample(cls(axis, odd, norm), (TensorType(dtype, shape),))

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
    row: Node = b.broadcast(b.const(values, terms.dtype), shape=terms.shape, axes=(axis,))
    return row
