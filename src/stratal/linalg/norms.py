"""Norms of vectors and matrices, and condition numbers."""

from __future__ import annotations

import math
from typing import Any

from stratal.base.dtypes import as_dtype
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.linalg.factor import svdvals
from stratal.linalg.operands import identity, matrix, run, square
from stratal.linalg.solve import inv
from stratal.tensor.build import as_tensor, default_float
from stratal.tensor.functions import reductions
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.linear import diagonal
from stratal.tensor.functions.reductions import amax, amin, any, sum
from stratal.tensor.functions.shapes import as_axes, expand_dims, moveaxis, reshape
from stratal.tensor.tensor import Tensor


def _floats(name: str, x: Any, dtype: Any) -> Tensor:
    t = as_tensor(x, name)
    return cast(t, as_dtype(dtype) if dtype is not None else default_float(t.dtype))


def vector_norm(
    x: Any, /, ord: float = 2, axis: Any = None, keepdims: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return (sum |x|^ord)^(1/ord) over axes, all for None: a real tensor.

    inf and -inf: the greatest and the least |x|; 0: how many are not 0. Axes vanish, or stay as 1 where
    `keepdims`. At 0 the gradient is 0.
    """
    t = _floats("vector_norm", x, dtype)
    if not isinstance(ord, (int, float)) or ord != ord:
        raise AttributeValueError("vector_norm: ord is a number", got=repr(ord))
    return reductions.norm(t, ord, axis, keepdims)  # type: ignore[no-any-return]


_SUMS = {1: (-2, amax), -1: (-2, amin), math.inf: (-1, amax), -math.inf: (-1, amin)}
_SPECTRAL = {2: amax, -2: amin, "nuc": sum}


def matrix_norm(
    x: Any, /, ord: Any = "fro", axis: Any = (-2, -1), keepdims: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return a norm of matrices over two axes: a real tensor.

    "fro": the root of the sum of |x|^2; "nuc": the sum of singular values; 2, -2: the greatest, the least of
    them; 1, -1: the greatest, the least sum of |x| in a column; inf, -inf: in a row. Both axes vanish, or
    stay as 1 where `keepdims`.
    """
    t = _floats("matrix_norm", x, dtype)
    axes = as_axes("matrix_norm", axis, t.ndim)
    if len(axes) != 2:
        raise AttributeValueError("matrix_norm: needs two axes", got=f"{axis} of {t.type}")
    if not isinstance(ord, (int, float, str)) or ord not in {"fro", *_SPECTRAL, *_SUMS}:
        rule = "matrix_norm: ord is fro, nuc, 1, -1, 2, -2, inf or -inf"
        raise AttributeValueError(rule, got=repr(ord))
    if ord == "fro":
        return vector_norm(t, 2, axes, keepdims)
    t = matrix("matrix_norm", moveaxis(t, axes, (-2, -1)))
    if ord in _SPECTRAL:
        result = _SPECTRAL[ord](svdvals(t), axis=-1)
    else:
        along, extreme = _SUMS[ord]
        result = extreme(sum(FUNCTIONS["abs"](t), axis=along), axis=-1)
    for a in sorted(axes) if keepdims else ():
        result = expand_dims(result, axis=a)
    return result


def norm(
    x: Any, /, ord: Any = None, axis: Any = None, keepdims: bool = False, *, dtype: Any = None
) -> Tensor:
    """Return the norm of vectors along one axis, of matrices along two, or of all elements together.

    With an `ord` and no axes `x` is one vector or one matrix. See `vector_norm`, `matrix_norm`.
    """
    t = _floats("norm", x, dtype)
    if ord is None:
        return vector_norm(t, 2, axis, keepdims)
    if axis is None and t.ndim > 2:
        raise ShapeError("norm: with an ord and no axes x is a vector or a matrix", got=str(t.type))
    axes = as_axes("norm", axis, t.ndim)
    if len(axes) > 2:
        raise AttributeValueError("norm: takes one axis or two", got=f"{axis} of {t.type}")
    return (matrix_norm if len(axes) == 2 else vector_norm)(t, ord, axes, keepdims)


def cond(x: Any, /, p: Any = None) -> Tensor:
    """Return the norm of matrices times that of their inverses: [..., m, n] -> [...]; inf for singular ones.

    `p` is an `ord` of `matrix_norm`. For None and 2 it is the greatest singular value over the least, for -2
    the least over the greatest, of matrices of any shape; others are for square ones.
    """
    if p not in (None, 2, -2):
        t = square("cond", x)
        packed, _ = run("lu", t.detach())
        singular = any(diagonal(packed, 0, -2, -1) == 0, axis=-1)
        regular = where(reshape(singular, (*singular.shape, 1, 1)), identity(t), t)
        return where(singular, math.inf, matrix_norm(t, p) * matrix_norm(inv(regular), p))
    t = matrix("cond", x)
    if not min(t.shape[-2:]):
        raise ShapeError("cond: an empty matrix has no condition number", got=str(t.type))
    s = svdvals(t)
    high, low = amax(s, axis=-1), amin(s, axis=-1)
    if p == -2:
        return low / where(high == 0, 1.0, high)
    return where(low == 0, math.inf, high / where(low == 0, 1.0, low))
