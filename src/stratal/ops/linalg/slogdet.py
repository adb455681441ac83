"""Sign and logarithm of determinants, whose size may be beyond all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dtypes import float16, float32
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class SLogDet(family.OnMatrices):
    """The sign of determinants, of complex ones a number of size 1, and the logarithm of their size.

    Shapes: A [..., n, n] -> [...], and real [...]. Of a singular matrix they are 0 and -inf, without
    derivatives. With t = tr(A^-1 dA) the logarithm moves by re(t) and the sign by i im(t) times itself.
    """

    name = "slogdet"
    arity = 1

    def infer(self, *types: TensorType) -> TupleType:
        family.check_square(self.name, *types)
        sign = types[0].with_shape(types[0].shape[:-2])
        return TupleType((sign, sign.with_dtype(family.real_of(sign.dtype))))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        return chosen().slogdet(arrays[0])

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        """(d_log + i im(d_sign conj(sign))) A^-H."""
        x, (d_sign, d_log) = inputs[0], ct
        scale = None if d_log is None else matrices.cast(b, d_log, x.dtype)
        if d_sign is not None and x.dtype.is_complex:
            turned = b.imag(b.mul(d_sign, b.conj(b.item(out, 0))))
            scale = matrices.total(b, scale, b.complex(b.like(turned, 0), turned))
        if scale is None:
            return [None]
        along = matrices.on_diagonal(
            b, b.like(x, 0), b.broadcast(scale, shape=x.shape, axes=tuple(range(scale.aval.ndim)))
        )
        return [b.solve(matrices.adjoint(b, x), along)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        if tangents[0] is None:
            return [None, None]
        moved = matrices.diagonal(b, b.solve(inputs[0], tangents[0]))
        trace = b.sum(moved, axes=(moved.aval.ndim - 1,))
        if not trace.dtype.is_complex:
            return [None, trace]
        turned = b.imag(trace)
        return [b.mul(b.item(out, 0), b.complex(b.like(turned, 0), turned)), b.real(trace)]

    def cost(self, *types: TensorType) -> Cost:
        """Two thirds of a product of matrices."""
        return family.cubic(types, 2 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        return family.square_samples(cls())

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,)), "two axes")
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")
        yield Reject(cls(), family.types_of(float16, (2, 2)), "takes")
