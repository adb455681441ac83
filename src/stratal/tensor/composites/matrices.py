"""Matrices made of vectors, places in matrices, and sums of products beside a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stratal.base.dtypes import as_dtype, int64
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.tensor.arguments import check_axis
from stratal.tensor.build import as_tensor, broadcast_shapes, common_dtype, iota
from stratal.tensor.functions.creation import diagonal_order, eye, matrix_sizes, zeros
from stratal.tensor.functions.elementwise import FUNCTIONS, as_written, cast, pow, where
from stratal.tensor.functions.linear import bmm, diagonal, mv, outer, tensordot, vecdot
from stratal.tensor.functions.ramps import Array, write_places, written
from stratal.tensor.functions.shapes import (
    as_shape,
    broadcast_to,
    expand_dims,
    moveaxis,
    pad_constant,
    ravel,
    reshape,
    roll,
)
from stratal.tensor.tensor import Tensor, fresh

_add, _mul = FUNCTIONS["add"], FUNCTIONS["multiply"]


# -- diagonals -----------------------------------------------------------------------------------------------
def on_diagonal(base: Tensor, line: Tensor, offset: int) -> Tensor:
    """Return matrices with the rows of `line` on the diagonal `offset` right of the main one."""
    rows, columns = base.shape[-2:]
    below = offset < 0  # there an element's place is its column, else its row
    lead = [(0, 0)] * (line.ndim - 1)
    padded = pad_constant(line, [*lead, (0, (columns if below else rows) - line.shape[-1])])
    spread = broadcast_to(expand_dims(padded, axis=-2 if below else -1), base.shape)
    return where(diagonal_order((rows, columns), offset, "equal"), spread, base)


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return matrices with the rows of `x` on a diagonal and zeros elsewhere; `diagonal` reads them back.

    Shapes: [..., n] -> [..., m, m] with m = n + |offset|; the new axes stand at dim1 and dim2.
    """
    t = as_tensor(x, "diag_embed")
    if not t.ndim:
        raise ShapeError("diag_embed: needs at least one axis", got=str(t.type))
    a, b = (check_axis("diag_embed", d, t.ndim + 1) for d in (dim1, dim2))
    if a == b:
        raise AttributeValueError("diag_embed: needs two axes", got=f"{dim1}, {dim2}")
    m = t.shape[-1] + abs(offset)
    values = pad_constant(t, [(0, 0)] * (t.ndim - 1) + [(0, abs(offset))])
    along = expand_dims(values, -1 if offset >= 0 else -2)  # element i stands in row i, or in column i
    matrix = where(diagonal_order((m, m), offset, "equal"), along, zeros((), dtype=t.dtype))
    return moveaxis(matrix, (-2, -1), (a, b))


def diag(x: Any, diagonal: int = 0, *, k: int | None = None) -> Tensor:
    """Return a matrix with a vector on its diagonal, or the diagonal of a matrix. NumPy's word is `k`."""
    t = as_tensor(x, "diag")
    offset = diagonal if k is None else k
    if t.ndim not in (1, 2):
        raise ShapeError(
            "diag: takes a vector or a matrix", got=str(t.type), hint="diag_embed takes more axes"
        )
    return diag_embed(t, offset) if t.ndim == 1 else fresh(_diagonal(t, offset))


_diagonal = diagonal


def diagflat(x: Any, offset: int = 0, *, k: int | None = None) -> Tensor:
    """Return a matrix with all elements of `x` on its diagonal."""
    return diag_embed(ravel(x), offset if k is None else k)


def fill_diagonal(x: Any, value: Any) -> Tensor:
    """Return a matrix with a value all along its main diagonal."""
    t = as_tensor(x, "fill_diagonal")
    if t.ndim != 2:
        raise ShapeError("fill_diagonal: takes a matrix", got=str(t.type))
    return where(diagonal_order(t.shape, 0, "equal"), as_written("fill_diagonal", value, t.dtype), t)


def identity(n: int, dtype: Any = None) -> Tensor:
    """Return the identity matrix."""
    return eye(n, dtype=dtype)


# -- triangles and coordinates -------------------------------------------------------------------------------
def tri(n: int, m: int | None = None, k: int = 0, dtype: Any = None) -> Tensor:
    """Return a matrix with ones on and below its k-th diagonal, zeros above."""
    return cast(diagonal_order((n, n if m is None else m), k, "less_equal"), dtype or float)


def tril_indices(row: int, col: int | None = None, offset: int = 0, *, dtype: Any = int64) -> Tensor:
    """Return rows and columns of the places on and below a diagonal, as a matrix of two rows."""
    sizes = matrix_sizes(row, row if col is None else col)
    return _places(sizes, lambda diagonal: (0 * diagonal, diagonal + 1), offset, dtype)


def triu_indices(row: int, col: int | None = None, offset: int = 0, *, dtype: Any = int64) -> Tensor:
    """Return rows and columns of the places on and above a diagonal, as a matrix of two rows."""
    sizes = matrix_sizes(row, row if col is None else col)
    return _places(sizes, lambda diagonal: (diagonal, sizes[1] + 0 * diagonal), offset, dtype)


def _places(sizes: Sequence[Any], part: Callable[[Any], Any], offset: int, dtype: Any) -> Tensor:
    """Return what lies from one column to before another in each row, by the column of the diagonal there."""
    numbers = np.arange(sizes[0])
    first, stop = (np.clip(c, 0, sizes[1]) for c in part(numbers + offset))
    found = stop > first
    rows, first, lengths = numbers[found], first[found], (stop - first)[found]
    shape = (2, int(lengths.sum()))
    places = written(int64, shape, lambda out: write_places(out, rows, first, lengths))
    return cast(places, dtype)


def indices(dimensions: Sequence[int], dtype: Any = int64) -> Tensor:
    """Return the coordinates of every place of a shape: one array an axis, stacked."""
    sizes = as_shape("indices", (dimensions,))
    if any(n < 0 for n in sizes):
        raise AttributeValueError("indices: a size is negative", got=str(list(sizes)))

    def write(out: Array) -> None:
        for axis, n in enumerate(sizes):
            out[axis] = np.arange(n).reshape(n, *(1,) * (len(sizes) - 1 - axis))

    return written(as_dtype(dtype), (len(sizes), *sizes), write)


def vander(x: Any, n: int | None = None, increasing: bool = False, *, N: int | None = None) -> Tensor:
    """Return the powers of a vector as the columns of a matrix, the highest first unless `increasing`."""
    t = as_tensor(x, "vander")
    if t.ndim != 1:
        raise ShapeError("vander: takes a vector", got=str(t.type))
    given = n if N is None else N
    count = int(t.shape[0]) if given is None else given
    if count < 0:
        raise AttributeValueError("vander: a number of columns is not negative", got=str(count))
    powers = iota((count,))
    powers = cast(powers if increasing else count - 1 - powers, t.dtype)
    return pow(reshape(t, (t.shape[0], 1)), reshape(powers, (1, count)))


# -- products ------------------------------------------------------------------------------------------------
def kron(x: Any, y: Any, /) -> Tensor:
    """Return the Kronecker product: every element of `x` times all of `y`, in its place."""
    a, b = as_tensor(x, "kron"), as_tensor(y, "kron")
    rank = max(a.ndim, b.ndim)
    left, right = ((1,) * (rank - t.ndim) + t.shape for t in (a, b))
    wide = reshape(a, [m for n in left for m in (n, 1)]) * reshape(b, [m for n in right for m in (1, n)])
    return reshape(wide, [n * m for n, m in zip(left, right, strict=True)])


def inner(x: Any, y: Any, /) -> Tensor:
    """Return the sums of products over the last axes of both; a number scales."""
    a, b = as_tensor(x, "inner"), as_tensor(y, "inner")
    return _mul(a, b) if not a.ndim or not b.ndim else tensordot(a, b, ([-1], [-1]))


def vdot(x: Any, y: Any, /) -> Tensor:
    """Return the sum of products of all elements of both, those of `x` conjugated."""
    return vecdot(ravel(x), ravel(y))


def cross(x: Any, y: Any, /, axis: int = -1) -> Tensor:
    """Return the vectors at right angles to pairs of vectors of three elements along an axis."""
    a, b = as_tensor(x, "cross"), as_tensor(y, "cross")
    shape = broadcast_shapes("cross", a.shape, b.shape)
    at = check_axis("cross", axis, len(shape))
    if a.ndim == 0 or b.ndim == 0 or shape[at] != 3 or 3 not in (a.shape + b.shape):
        raise ShapeError("cross: the axis must have three elements", got=f"{a.type} and {b.type}")
    dtype = common_dtype("cross", (a, b))
    a, b = (broadcast_to(cast(t, dtype), shape) for t in (a, b))
    return roll(a, -1, at) * roll(b, -2, at) - roll(a, -2, at) * roll(b, -1, at)


def _beside(
    name: str, multiply: Callable[..., Tensor], x: Any, one: Any, two: Any, beta: Any, alpha: Any
) -> Tensor:
    """Return beta * x + alpha * product; with beta 0, `x` is not looked at. 16-bit floats round once."""
    start, one, two = (as_tensor(t, name) for t in (x, one, two))
    dtype = common_dtype(name, (start, one, two))
    if dtype.compute is not dtype:
        start, one, two = (cast(t, dtype.compute) for t in (start, one, two))
        return cast(_beside(name, multiply, start, one, two, beta, alpha), dtype)
    product = multiply(one, two)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return broadcast_to(product, broadcast_shapes(name, start.shape, product.shape))
    return _add(start if beta == 1 else start * beta, product)


def addmv(x: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * (mat @ vec)."""
    return _beside("addmv", mv, x, mat, vec, beta, alpha)


def addr(x: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * outer(vec1, vec2)."""
    return _beside("addr", outer, x, vec1, vec2, beta, alpha)


def baddbmm(x: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * (batch1 @ batch2), batch by batch."""
    return _beside("baddbmm", bmm, x, batch1, batch2, beta, alpha)


def addbmm(x: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * x + alpha * the sum over the batch of batch1 @ batch2."""
    one, two = as_tensor(batch1, "addbmm"), as_tensor(batch2, "addbmm")
    if one.ndim != 3 or two.ndim != 3:
        raise ShapeError("addbmm: takes two batches of matrices", got=f"{one.type} @ {two.type}")
    return _beside("addbmm", lambda a, b: tensordot(a, b, ([0, 2], [0, 1])), x, one, two, beta, alpha)


def polyval(p: Any, x: Any, /) -> Tensor:
    """Return the polynomial with coefficients `p`, the highest power first, at each element of `x`."""
    coefficients, t = as_tensor(p, "polyval"), as_tensor(x, "polyval")
    if coefficients.ndim != 1:
        raise ShapeError("polyval: coefficients are a vector", got=str(coefficients.type))
    dtype = common_dtype("polyval", (coefficients, t))
    coefficients, t = cast(coefficients, dtype), cast(t, dtype)
    result = zeros(*t.shape, dtype=dtype)
    for k in range(int(coefficients.shape[0])):
        result = result * t + coefficients[k] if k else broadcast_to(coefficients[0], t.shape)
    return result


__all__ = [
    "addbmm", "addmv", "addr", "baddbmm", "cross", "diag", "diag_embed", "diagflat", "fill_diagonal",
    "identity", "indices", "inner", "kron", "polyval", "tri", "tril_indices", "triu_indices", "vander",
    "vdot",
]  # fmt: skip
