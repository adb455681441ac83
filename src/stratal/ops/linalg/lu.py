"""The LU factorisation with row pivoting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratal.base.cost import Cost
from stratal.base.dims import known_equal
from stratal.base.dtypes import float16, float32, int64
from stratal.base.types import TensorType, TupleType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


@record
class LU(family.OnMatrices):
    """L (below the diagonal, its own being 1) and U in one matrix, and the rows of A in the order of L U.

    Shapes: A [..., m, n] -> [..., m, n] and int64 `order` [..., m]: A[order] = L U. A singular A has a 0 on
    the diagonal of U; derivatives then do not exist, and say so. Wide and tall matrices are a square part
    with columns or rows that follow from it.
    """

    name = "lu"
    arity = 1

    def infer(self, *types: TensorType) -> TupleType:
        family.check_matrix(self.name, *types)
        return TupleType((types[0], TensorType(int64, types[0].shape[:-1])))

    def ref(self, *arrays: Array) -> tuple[Array, Array]:
        return chosen().lu(arrays[0])

    def vjp(self, b: Builder, ct: Sequence[Node | None], out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Of square A: L^-H (tril(L^H dL, -1) + triu(dU U^H)) U^-H, rows back in their places."""
        packed, order = b.items(out)
        if ct[0] is None:
            return [None]
        head, below, right = _split(b, packed)
        d_head, d_below, d_right = _split(b, ct[0])
        low, up = matrices.adjoint(b, unit_lower(b, head)), matrices.adjoint(b, matrices.upper(b, head))
        d_low, d_up = matrices.strictly_lower(b, d_head), matrices.upper(b, d_head)
        if right is not None and d_right is not None:  # U2 = L^-1 A2
            d_right = matrices.solved(b, low, d_right, lower=False)
            d_low = b.sub(d_low, matrices.times(b, d_right, matrices.adjoint(b, right)))
        if below is not None and d_below is not None:  # L2 = A2 U^-1
            d_below = matrices.divided(b, d_below, up, lower=True)
            d_up = b.sub(d_up, matrices.times(b, matrices.adjoint(b, below), d_below))
        by_low, by_up = matrices.times(b, low, d_low), matrices.times(b, d_up, up)
        inner = b.add(matrices.strictly_lower(b, by_low), matrices.upper(b, by_up))
        outer = matrices.divided(b, matrices.solved(b, low, inner, lower=False), up, lower=True)
        back = b.item(b.sort(order, axis=order.aval.ndim - 1), 1)
        return [reordered(b, _join(b, outer, d_below, d_right), back)]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> list[Node | None]:
        """Of square A, with M = L^-1 dA U^-1: dL = L tril(M, -1), dU = triu(M) U."""
        packed, order = b.items(out)
        if tangents[0] is None:
            return [None, None]
        head, below, right = _split(b, packed)
        d_head, d_below, d_right = _split(b, reordered(b, tangents[0], order))
        low, up = unit_lower(b, head), matrices.upper(b, head)
        inner = matrices.divided(b, matrices.solved(b, low, d_head, lower=True), up, lower=False)
        d_low = matrices.times(b, low, matrices.strictly_lower(b, inner))
        d_up = matrices.times(b, matrices.upper(b, inner), up)
        if right is not None and d_right is not None:
            d_right = b.sub(d_right, matrices.times(b, d_low, right))
            d_right = matrices.solved(b, low, d_right, lower=True)
        if below is not None and d_below is not None:
            d_below = matrices.divided(b, b.sub(d_below, matrices.times(b, below, d_up)), up, lower=False)
        return [_join(b, b.add(d_low, d_up), d_below, d_right), None]

    def cost(self, *types: TensorType) -> Cost:
        """Two thirds of a product of matrices."""
        return family.cubic(types, 2 / 3)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for shape in (
                (3, 3),
                (2, 4),
                (4, 2),
                (2, 2, 2),
                (1, 1),
                (0, 0),
                (0, 3),
                (3, 0),
                (0, 2, 2),
                (40, 40),
            ):
                types = family.types_of(dtype, shape)
                yield Sample(cls(), types, draw=family.draw_matrices(types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (3,)), "two axes")
        yield Reject(cls(), family.types_of(float16, (3, 3)), "takes")


def _split(b: Builder, x: Node) -> tuple[Node, Node | None, Node | None]:
    """Return the leading square part, what tall matrices have below it, what wide ones have at its right."""
    m, n = x.shape[-2:]
    if known_equal(m, n):
        return x, None, None
    if m < n:
        return matrices.columns(b, x, 0, m), None, matrices.columns(b, x, m, n)
    return matrices.rows(b, x, 0, n), matrices.rows(b, x, n, m), None


def _join(b: Builder, head: Node, below: Node | None, right: Node | None) -> Node:
    """Undo `_split`."""
    parts = [head, *(p for p in (below, right) if p is not None)]
    axis = head.aval.ndim - (1 if below is None else 2)
    return head if len(parts) == 1 else b.op("concatenate", *parts, axis=axis)


def unit_lower(b: Builder, packed: Node) -> Node:
    """Return L, its ones written out."""
    return matrices.on_diagonal(b, matrices.strictly_lower(b, packed), b.like(packed, 1))


def reordered(b: Builder, x: Node, order: Node) -> Node:
    """Return the rows of each matrix in the order given for it."""
    index = matrices.as_column(b, order, x.shape)
    return b.op("gather_along", x, index, axis=x.aval.ndim - 2)
