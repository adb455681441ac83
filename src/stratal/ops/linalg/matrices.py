"""Small graphs of matrices [..., m, n], of which the derivatives of factorisations are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from stratal.base.dims import Dim, Shape
from stratal.base.dtypes import DType, int64
from stratal.graph.builder import Builder
from stratal.graph.node import Node
from stratal.ops.families import cast_to
from stratal.ops.families import total as total


def transposed(b: Builder, x: Node) -> Node:
    """Return the transpose of matrices."""
    last = x.aval.ndim - 1
    return b.permute(x, perm=(*range(last - 1), last, last - 1))


def conjugate(b: Builder, x: Node) -> Node:
    """Return the complex conjugate; a real node as it is."""
    return b.op("conj", x) if x.dtype.is_complex else x


def adjoint(b: Builder, x: Node) -> Node:
    """Return the conjugate transpose of matrices."""
    return conjugate(b, transposed(b, x))


def times(b: Builder, *factors: Node) -> Node:
    """Return the product of matrices, from left to right."""
    return reduce(b.matmul, factors)


def real(b: Builder, x: Node) -> Node:
    """Return the real part; a real node as it is."""
    return b.op("real", x) if x.dtype.is_complex else x


def cast(b: Builder, x: Node, dtype: DType) -> Node:
    """Return `x` in `dtype`; complex to real keeps the real part."""
    return cast_to(b, x if dtype.is_complex else real(b, x), dtype)


def _order(b: Builder, x: Node, comparison: str) -> Node:
    """Compare column and row at every place of matrices."""
    row, column = (b.iota(shape=x.shape, axis=x.aval.ndim - k, dtype=int64) for k in (2, 1))
    return b.op(comparison, column, row)


def on_diagonal(b: Builder, x: Node, value: Node) -> Node:
    """Return matrices with another diagonal; the off-diagonal elements are those of `x`."""
    return b.op("select", _order(b, x, "eq"), value, x)


def _triangle(comparison: str) -> Callable[[Builder, Node], Node]:
    """Return a function that gives matrices with zeros where column and row do not compare so."""
    return lambda b, x: b.op("select", _order(b, x, comparison), x, b.like(x, 0))


lower, strictly_lower = _triangle("le"), _triangle("lt")
upper, strictly_upper = _triangle("ge"), _triangle("gt")


def half_lower(b: Builder, x: Node) -> Node:
    """Return the lower triangles with halved, real diagonals: F with F + F^H = x for Hermitian x."""
    return on_diagonal(b, strictly_lower(b, x), cast(b, b.mul(real(b, x), b.like(real(b, x), 0.5)), x.dtype))


def hermitian(b: Builder, x: Node) -> Node:
    """Return the Hermitian matrices LAPACK sees in `x`: of its lower triangles."""
    half = half_lower(b, x)
    return b.op("add", half, adjoint(b, half))


def on_lower(b: Builder, s: Node) -> Node:
    """Return the transpose of `hermitian`: what Hermitian cotangents are to the lower triangles read."""
    return half_lower(b, b.add(s, adjoint(b, s)))


def diagonal(b: Builder, x: Node) -> Node:
    """Return the diagonals of square matrices [..., n, n] as [..., n]."""
    kept = on_diagonal(b, b.like(x, 0), x)
    return b.op("sum", kept, axes=(x.aval.ndim - 1,))


def as_row(b: Builder, v: Node, shape: Shape) -> Node:
    """Return [..., n] as matrices of a shape, every row the same."""
    return b.op("broadcast", v, shape=shape, axes=(*range(len(shape) - 2), len(shape) - 1))


def as_column(b: Builder, v: Node, shape: Shape) -> Node:
    """Return [..., m] as matrices of a shape, every column the same."""
    return b.op("broadcast", v, shape=shape, axes=tuple(range(len(shape) - 1)))


def diagonal_matrix(b: Builder, values: Node, dtype: DType) -> Node:
    """Return [..., n] as diagonal matrices of a dtype."""
    shape = (*values.shape, values.shape[-1])
    row = as_row(b, cast(b, values, dtype), shape)
    return on_diagonal(b, b.like(row, 0), row)


def gaps(b: Builder, values: Node) -> Node:
    """Return the differences values[j] - values[i] at [..., i, j], and 1 on the diagonal."""
    shape = (*values.shape, values.shape[-1])
    difference = b.sub(as_row(b, values, shape), as_column(b, values, shape))
    return on_diagonal(b, difference, b.like(difference, 1))


def columns(b: Builder, x: Node, start: Dim, stop: Dim) -> Node:
    """Return some columns of matrices."""
    zeros = (0,) * (x.aval.ndim - 1)
    attributes = {"start": (*zeros, start), "stop": (*x.shape[:-1], stop), "step": (1,) * x.aval.ndim}
    return b.op("slice", x, **attributes)


def rows(b: Builder, x: Node, start: Dim, stop: Dim) -> Node:
    """Return some rows of matrices."""
    *batch, _, n = x.shape
    zeros = (0,) * len(batch)
    attributes = {"start": (*zeros, start, 0), "stop": (*batch, stop, n), "step": (1,) * x.aval.ndim}
    return b.op("slice", x, **attributes)


def solved(b: Builder, a: Node, x: Node, *, lower: bool, unit: bool = False) -> Node:
    """Return A^-1 X for triangular A."""
    return b.op("triangular_solve", a, x, upper=not lower, unit=unit)


def divided(b: Builder, x: Node, a: Node, *, lower: bool) -> Node:
    """Return X A^-1 for triangular A."""
    turned = solved(b, transposed(b, a), transposed(b, x), lower=not lower)
    return transposed(b, turned)
