"""Systems of linear equations: general ones and triangular ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim
from stratal.base.dtypes import as_dtype, float16, float32, float64, int64
from stratal.base.errors import LinAlgError
from stratal.base.types import TensorType
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.graph.op import Array, Reject, Sample, record
from stratal.ops.linalg import family, matrices
from stratal.ops.linalg.choice import chosen


class System(family.OnMatrices):
    """A X = B. Rows of a batch that share A are more columns of B: A is factorised once."""

    arity = 2

    def infer(self, *types: TensorType) -> TensorType:
        family.check_system(self.name, *types)
        return types[1]

    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Any:
        if mapped[0]:
            return super().batch(b, size, mapped, *inputs)
        a, x = inputs
        last = x.aval.ndim - 1
        *_, n, k = x.shape
        beside = b.permute(x, perm=(*range(1, last), 0, last))
        shape = beside.shape
        beside = b.reshape(beside, shape=(*shape[:-3], n, size * k))
        solved = b.reshape(b.op(self.name, a, beside, **self.attributes), shape=shape)
        return b.op("permute", solved, perm=(last - 1, *range(last - 1), last))


@record
class Solve(System):
    """X with A X = B, for A [..., n, n] and B [..., n, k].

    See: Giles, "An extended collection of matrix derivative results", 2008, 2.3.1.
    """

    def ref(self, *arrays: Array) -> Array:
        a, b = arrays
        with family.refusing(self.name, "the matrix is singular", a):
            return chosen().solve(a, b)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        by_b = b.solve(matrices.adjoint(b, inputs[0]), ct)
        by_a = b.neg(matrices.times(b, by_b, matrices.adjoint(b, out))) if b.needed(0) else None
        return [by_a, by_b]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        da, db = tangents
        moved = None if da is None else b.neg(matrices.times(b, da, out))
        change = matrices.total(b, db, moved)
        return None if change is None else b.solve(inputs[0], change)

    def cost(self, *types: TensorType) -> Cost:
        """The factorisation, and a product with the right-hand side."""
        own = family.cubic(types, 2 / 3)
        return own._replace(flops=own.flops + 2 * family.cubic(types[::-1], 1.0).flops)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for a, x in (((3, 3), (3, 2)), ((2, 2, 2), (2, 2, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 2)),
                         ((0, 2, 2), (0, 2, 1)), ((2, 2), (2, 0))):  # fmt: skip
                types = family.types_of(dtype, a, x)
                yield Sample(cls(), types, draw=family.draw_matrices(types))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(), family.types_of(float32, (2, 3), (2, 1)), "square")
        yield Reject(cls(), family.types_of(float32, (2, 2), (3, 1)), "right-hand side")
        yield Reject(cls(), family.types_of(float16, (2, 2), (2, 1)), "takes")
        yield Reject(cls(), family.types_of(int64, (2, 2), (2, 1)), "takes")
        mixed = (*family.types_of(float32, (2, 2)), *family.types_of(float64, (2, 1)))
        yield Reject(cls(), mixed, "dtype")


@record
class TriangularSolve(System):
    """X with A X = B, where one triangle of A [..., n, n] is read; `unit`: its diagonal is taken to be 1."""

    upper: bool
    unit: bool = False
    name = "triangular_solve"

    def ref(self, *arrays: Array) -> Array:
        a, b = arrays
        diagonals = a.diagonal(0, -2, -1)
        if not self.unit and b.size and np.count_nonzero(diagonals) < diagonals.size:
            zero = np.argwhere(diagonals == 0)[0].tolist()
            got = f"0 at {zero} of the diagonals of {TensorType(as_dtype(a.dtype), a.shape)}"
            raise LinAlgError("triangular_solve: the matrix is singular", got=got)
        return chosen().solve_triangular(a, b, not self.upper, self.unit)

    def triangle(self, b: Builder, x: Node) -> Node:
        """Return what of the matrices is read, zeros elsewhere."""
        if self.unit:
            return matrices.strictly_upper(b, x) if self.upper else matrices.strictly_lower(b, x)
        return matrices.upper(b, x) if self.upper else matrices.lower(b, x)

    def vjp(self, b: Builder, ct: Node, out: Node, *inputs: Node) -> Sequence[Node | None]:
        adjoint = matrices.adjoint(b, inputs[0])
        by_b = matrices.solved(b, adjoint, ct, lower=self.upper, unit=self.unit)
        if not b.needed(0):
            return [None, by_b]
        return [self.triangle(b, b.neg(matrices.times(b, by_b, matrices.adjoint(b, out)))), by_b]

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Node | None:
        da, db = tangents
        moved = None if da is None else b.neg(matrices.times(b, self.triangle(b, da), out))
        change = matrices.total(b, db, moved)
        return None if change is None else b.op(self.name, inputs[0], change, **self.attributes)

    def cost(self, *types: TensorType) -> Cost:
        """Half of a product."""
        return family.cubic(types[::-1], 1.0)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        for dtype in family.DTYPES:
            for a, x in (((3, 3), (3, 2)), ((2, 2, 2), (2, 2, 1)), ((0, 0), (0, 2)), ((0, 2, 2), (0, 2, 1)),
                         ((2, 2), (2, 0))):  # fmt: skip
                types = family.types_of(dtype, a, x)
                for upper, unit in ((True, False), (False, False), (True, True), (False, True)):
                    yield Sample(cls(upper, unit), types, draw=family.draw_matrices(types, positive=True))

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        yield Reject(cls(True), family.types_of(float32, (2, 3), (2, 1)), "square")
        yield Reject(cls(True), family.types_of(float32, (2, 2, 2), (2, 1)), "right-hand side")
        yield Reject(cls(False), family.types_of(float16, (2, 2), (2, 1)), "takes")
