"""The Cholesky factorisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dtypes import bfloat16, float32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class Cholesky(family.OnMatrices):
    """The lower triangular L with A = L L^H of positive definite matrices [..., n, n].

    Only the lower triangle of A is read, so its cotangent lies there too. See: Murray, "Differentiation of
    the Cholesky decomposition", 2016.
    """

    arity = 1

    def infer(self, *types: TensorType) -> TensorType:
        family.check_square(self.name, *types)
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        with family.refusing(self.name, "the matrix is not positive definite", arrays[0]):
            return chosen().cholesky(arrays[0])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """L^-H F(L^H ct) L^-1, where F takes the lower triangle and halves the diagonal."""
        upper = matrices.adjoint(b, out)
        inner = matrices.half_lower(b, matrices.times(b, upper, ct))
        outer = matrices.solved(b, upper, inner, lower=False)
        return [matrices.on_lower(b, matrices.divided(b, outer, out, lower=True))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        """L F(L^-1 dA L^-H)."""
        if tangents[0] is None:
            return None
        left = matrices.solved(b, out, matrices.hermitian(b, tangents[0]), lower=True)
        inner = matrices.divided(b, left, matrices.adjoint(b, out), lower=False)
        return matrices.times(b, out, matrices.half_lower(b, inner))

    def cost(self, *types: TensorType) -> Cost:
        """A third of a product of matrices."""
        return family.cubic(types, 1 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 3, 3)):
                types = family.types_of(dtype, shape)
                yield Sample(cls(), types, draw=family.draw_matrices(types, positive=True))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")
        yield Reject(cls(), family.types_of(float32, (3,)), "two axes")
        yield Reject(cls(), family.types_of(bfloat16, (3, 3)), "takes")
