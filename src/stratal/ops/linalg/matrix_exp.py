"""The exponential of matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dtypes import float16, float32
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen

_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_REACH = 5.371920351148152  # the 1-norm up to which the approximant of degree 13 is exact in float64
_MOST_SQUARINGS = 1100  # a norm is at most 2**1024


@record
class MatrixExp(family.OnMatrices):
    """The sum of A^k / k! of square matrices [..., n, n], by Pade's approximant of A / 2^s, squared s times.

    s follows from the norm of each matrix, so this is an op rather than a graph of products. Its derivative
    is a block of the exponential of twice the size. See: Higham, "The scaling and squaring method for the
    matrix exponential revisited", 2005; Mathias, "A chain rule for matrix functions", 1996.
    """

    name = "matrix_exp"
    arity = 1
    not_lowered = "how often it squares is data; NumPy's products run as a host call"

    def infer(self, *types: TensorType) -> TensorType:
        family.check_square(self.name, *types)
        return types[0]

    def ref(self, *arrays: Array) -> Array:
        x = arrays[0]
        if not x.size:
            return np.array(x)
        norm = np.abs(x).sum(axis=-2).max(axis=-1)
        known = np.isfinite(norm)
        _, power = np.frexp(np.where(known, norm, 0) / _REACH)
        squarings = np.clip(power, 0, _MOST_SQUARINGS)
        scaled = (
            np.where(known[..., None, None], x, 0) * np.exp2(-squarings.astype(norm.dtype))[..., None, None]
        )
        result = _pade(scaled)
        for k in range(int(squarings.max())):
            result = np.where((k < squarings)[..., None, None], result @ result, result)
        return np.where(known[..., None, None], result, np.nan).astype(x.dtype)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        return [_upper_right(b, matrices.adjoint(b, inputs[0]), ct)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        return None if tangents[0] is None else _upper_right(b, inputs[0], tangents[0])

    def cost(self, *types: TensorType) -> Cost:
        """Six products, a system of equations, and a few squarings."""
        return family.cubic(types, 22.0)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in ((3, 3), (2, 2, 2), (1, 1), (0, 0), (0, 2, 2)):
                types = family.types_of(dtype, shape)
                yield Sample(cls(), types, draw=family.draw_matrices(types))
        types = family.types_of(float32, (2, 3, 3))
        yield Sample(cls(), types, draw=family.draw_matrices(types, spread=9.0))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (2, 3)), "square")
        yield Reject(cls(), family.types_of(float16, (2, 2)), "takes")


def _pade(a: Array) -> Array:
    """Return the approximant of degree 13 of exp: six products and a system of equations."""
    c, one = _PADE, np.eye(a.shape[-1], dtype=a.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    odd = a @ (a6 @ (c[13] * a6 + c[11] * a4 + c[9] * a2) + c[7] * a6 + c[5] * a4 + c[3] * a2 + c[1] * one)
    even = a6 @ (c[12] * a6 + c[10] * a4 + c[8] * a2) + c[6] * a6 + c[4] * a4 + c[2] * a2 + c[0] * one
    return chosen().solve(even - odd, even + odd)


def _upper_right(b: Builder, a: Node, change: Node) -> Node:
    """Return the upper right block of exp [[A, E], [0, A]]: how exp(A) moves with A along E."""
    n, last = a.shape[-1], a.aval.ndim - 1
    top, bottom = b.concatenate(a, change, axis=last), b.concatenate(b.like(a, 0), a, axis=last)
    whole = b.matrix_exp(b.concatenate(top, bottom, axis=last - 1))
    return matrices.columns(b, matrices.rows(b, whole, 0, n), n, n + n)
