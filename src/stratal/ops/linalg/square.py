"""Functions of square matrices: determinants, their sign and logarithm, and the exponential."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stratal.base.dims import known_equal
from stratal.base.dtypes import float32, int64
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen
from stratal.ops.linalg.triangles import reordered, unit_lower


@record
class Determinant(family.OnMatrices):
    """The determinants of square matrices: A [..., n, n] -> [...]; 1 of no rows, 0 of a singular matrix."""

    name = "det"
    arity = 1
    work = 2 / 3
    is_square = True
    shapes = (*family.SQUARE, (20, 20))
    spread = 0.2

    def infer(self, *types: TensorType) -> TensorType:
        family.check_square(self.name, *types)
        return types[0].with_shape(types[0].shape[:-2])

    def ref(self, *arrays: Array) -> Array:
        return chosen().det(arrays[0])

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """The cofactors, conjugated."""
        x = inputs[0]
        scale = b.broadcast(ct, shape=x.shape, axes=tuple(range(ct.aval.ndim)))
        return [b.mul(scale, _cofactors(b, x))]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        each = b.mul(matrices.conjugate(b, _cofactors(b, inputs[0])), tangents[0])
        return b.op("sum", each, axes=(each.aval.ndim - 2, each.aval.ndim - 1))


def _cofactors(b: Builder, x: Node) -> Node:
    """Return the conjugated matrix of cofactors, det(A)^* A^-H, by one LU factorisation for both factors.

    A pivot of 0 counts as the rounding error of the largest element: what is divided by it was multiplied by
    it, so the cofactors of a singular matrix are right to about that error, too. PyTorch's are 0 there.
    """
    if known_equal(x.shape[-1], 0):
        return x
    packed, order = b.items(b.lu(x))
    size = b.reduce_max(b.abs(x), axes=(x.aval.ndim - 2, x.aval.ndim - 1))
    size = b.select(b.eq(size, b.like(size, 0)), b.like(size, 1), size)
    tiny = b.stop_gradient(b.mul(size, b.like(size, np.finfo(size.dtype.np).eps)))
    tiny = matrices.cast(b, b.broadcast(tiny, shape=x.shape, axes=tuple(range(size.aval.ndim))), x.dtype)
    packed = matrices.on_diagonal(b, packed, b.select(b.eq(packed, b.like(packed, 0)), tiny, packed))
    low = matrices.adjoint(b, unit_lower(b, packed))
    up = matrices.adjoint(b, matrices.upper(b, packed))
    one = matrices.on_diagonal(b, b.like(x, 0), b.like(x, 1))
    inverse = matrices.solved(b, low, matrices.solved(b, up, one, lower=True), lower=False, unit=True)
    product = b.op("prod", matrices.diagonal(b, packed), axes=(x.aval.ndim - 2,))
    product = matrices.conjugate(b, b.mul(product, matrices.cast(b, _sign(b, order), x.dtype)))
    back = b.item(b.sort(order, axis=order.aval.ndim - 1), 1)
    scale = b.broadcast(product, shape=x.shape, axes=tuple(range(product.aval.ndim)))
    return b.mul(scale, reordered(b, inverse, back))


def _sign(b: Builder, order: Node) -> Node:
    """Return 1 or, where an odd number of pairs is out of order, -1."""
    shape = (*order.shape, order.shape[-1])
    wrong = b.op("gt", matrices.as_column(b, order, shape), matrices.as_row(b, order, shape))
    pairs = matrices.strictly_upper(b, b.op("cast", wrong, dtype=int64))
    total = b.sum(pairs, axes=(len(shape) - 2, len(shape) - 1))
    odd = b.op("and", total, b.like(total, 1))
    return b.sub(b.like(odd, 1), b.mul(odd, b.like(odd, 2)))


@record
class SLogDet(family.OnMatrices):
    """The sign of determinants, of complex ones a number of size 1, and the logarithm of their size.

    Shapes: A [..., n, n] -> [...], and real [...]. Of a singular matrix they are 0 and -inf, without
    derivatives. With t = tr(A^-1 dA) the logarithm moves by re(t) and the sign by i im(t) times itself.
    """

    name = "slogdet"
    arity = 1
    work = 2 / 3
    is_square = True
    shapes = (*family.SQUARE, (20, 20))
    spread = 0.2

    def infer(self, *types: TensorType) -> TupleType:
        family.check_square(self.name, *types)
        sign = types[0].with_shape(types[0].shape[:-2])
        return TupleType((sign, sign.with_dtype(sign.dtype.real)))

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
        moved = matrices.diagonal(b, b.solve(inputs[0], tangents[0]))
        trace = b.sum(moved, axes=(moved.aval.ndim - 1,))
        if not trace.dtype.is_complex:
            return [None, trace]
        turned = b.imag(trace)
        return [b.mul(b.item(out, 0), b.complex(b.like(turned, 0), turned)), b.real(trace)]


# -- the exponential -----------------------------------------------------------------------------------------
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
    work = 22.0  # six products, a system of equations, and a few squarings
    is_square = True
    shapes = family.SQUARE
    not_lowered = "how often it squares is data; NumPy's products run as a host call"

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
        assert tangents[0] is not None
        return _upper_right(b, inputs[0], tangents[0])

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        yield from super().samples()
        types = family.types_of(float32, (2, 3, 3))
        yield Sample(cls(), types, draw=family.draw_matrices(types, spread=9.0))


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
