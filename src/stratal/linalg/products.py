"""Products of several matrices, of reflections, and powers of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratal.base.dims import known_equal
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.linalg.operands import adjoint, matrix
from stratal.linalg.solve import solve_triangular
from stratal.tensor.build import as_tensor
from stratal.tensor.functions import linear
from stratal.tensor.functions.creation import eye
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.linear import matmul
from stratal.tensor.functions.reductions import cumprod, sum
from stratal.tensor.functions.shapes import broadcast_to, concat, expand_dims, narrow, reshape
from stratal.tensor.functions.triangles import tril, triu
from stratal.tensor.tensor import Tensor


# -- several matrices ----------------------------------------------------------------------------------------
def multi_dot(tensors: Sequence[Any], /) -> Tensor:
    """Return the product of two or more matrices in the order that takes the fewest multiplications.

    The first may be a row and the last a column, [n]. See: Cormen et al., "Introduction to algorithms", 15.2.
    """
    given = [as_tensor(t, "multi_dot") for t in tensors]
    shown = ", ".join(str(t.type) for t in given)
    if len(given) < 2:
        raise AttributeValueError("multi_dot: takes two or more matrices", got=shown)
    row, column = given[0].ndim == 1, given[-1].ndim == 1
    given[0] = expand_dims(given[0], axis=0) if row else given[0]
    given[-1] = expand_dims(given[-1], axis=1) if column else given[-1]
    if any(t.ndim != 2 for t in given):
        raise ShapeError("multi_dot: takes matrices, and vectors at the ends", got=shown)
    sizes = [*(t.shape[0] for t in given), given[-1].shape[1]]
    if not all(known_equal(t.shape[1], n) for t, n in zip(given, sizes[1:], strict=True)):
        raise ShapeError("multi_dot: inner sizes differ", got=shown)
    product = _chain(given, _best_splits(sizes), 0, len(given) - 1)
    return reshape(product, [*([] if row else sizes[:1]), *([] if column else sizes[-1:])])


def _best_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return after which factor to split each run of factors i..j; factor k is [sizes[k], sizes[k + 1]]."""
    count = len(sizes) - 1
    cost, splits = {(i, i): 0 for i in range(count)}, {}
    for i, j in ((i, i + length) for length in range(1, count) for i in range(count - length)):
        work = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
        splits[i, j] = min(work, key=work.__getitem__)
        cost[i, j] = work[splits[i, j]]
    return splits


def _chain(given: Sequence[Tensor], splits: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return given[i]
    k = splits[i, j]
    return matmul(_chain(given, splits, i, k), _chain(given, splits, k + 1, j))


# -- reflections ---------------------------------------------------------------------------------------------
def householder_product(x: Any, tau: Any, /) -> Tensor:
    """Return the first n columns of H_1 ... H_k, H_i = I - tau_i v_i v_i^H, v_i below the diagonal of column
    i.

    Shapes: A [..., m, n] with m >= n, tau [..., k] with k <= n -> [..., m, n]. See: Joffrain et al.,
    "Accumulating Householder transformations, revisited", 2006: the product is I - V T V^H, where T^-1 has 1
    / tau on, and V^H V above its diagonal.
    """
    a, scale = matrix("householder_product", x), as_tensor(tau, "householder_product")
    m, n = a.shape[-2:]
    k = scale.shape[-1] if scale.ndim else n + 1
    if not k <= n <= m or scale.shape[:-1] != a.shape[:-2] or scale.dtype is not a.dtype:
        rule = "householder_product: takes A [..., m, n] and tau [..., k], k <= n <= m, of one dtype"
        raise ShapeError(rule, got=f"{a.type} and {scale.type}")
    v = tril(narrow(a, -1, 0, k), -1) + eye(m, k, dtype=a.dtype)
    weights = expand_dims(scale, axis=-1)
    inner = weights * triu(adjoint(v) @ v, 1)  # T = (I + D triu(V^H V, 1))^-1 D: tau may be 0
    top = weights * adjoint(narrow(v, -2, 0, n))
    return eye(m, n, dtype=a.dtype) - v @ solve_triangular(inner, top, upper=True, unitriangular=True)


# -- powers --------------------------------------------------------------------------------------------------
def vander(x: Any, /, N: int | None = None) -> Tensor:
    """Return the powers 0, 1, ..., N - 1 of each element along a new last axis; N: as many as elements."""
    t = as_tensor(x, "vander")
    if t.ndim < 1:
        raise ShapeError("vander: takes vectors", got=str(t.type))
    count = t.shape[-1] if N is None else N
    if count < 0:
        raise AttributeValueError("vander: N is not negative", got=str(count))
    one = cast(broadcast_to(as_tensor(1), (*t.shape, min(count, 1))), t.dtype)
    factors = broadcast_to(expand_dims(t, axis=-1), (*t.shape, max(count - 1, 0)))
    return cumprod(concat([one, factors], axis=-1), axis=-1, dtype=t.dtype)


def diagonal(x: Any, /, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return diagonals of the last two axes, as an axis at the end; `st.diagonal` takes the first two."""
    return linear.diagonal(x, offset, dim1, dim2)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """Return the sums along the diagonals of the last two axes; `st.trace` takes the first two."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)
