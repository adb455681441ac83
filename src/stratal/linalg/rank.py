"""What depends on which singular values count as 0: rank, pseudo-inverse, least squares."""

from __future__ import annotations

from typing import Any

from stratal.base.dims import known_equal
from stratal.base.dtypes import int64
from stratal.base.errors import ShapeError
from stratal.linalg.factor import eigvalsh, svdvals
from stratal.linalg.operands import adjoint, matrices, matrix, run
from stratal.linalg.results import LstsqResult
from stratal.tensor.api.info import finfo
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.reductions import amax, sum
from stratal.tensor.functions.shapes import broadcast_to, expand_dims, squeeze
from stratal.tensor.functions.triangles import tril
from stratal.tensor.tensor import Tensor


def _cutoffs(name: str, t: Tensor, rtol: Any, atol: Any) -> tuple[Tensor, Tensor | None]:
    """Return the relative and the absolute cutoff: max(m, n) * eps, and none, where neither is given."""
    dtype = t.dtype.real
    if rtol is None:
        rtol = max(t.shape[-2:]) * finfo(dtype).eps if atol is None else 0.0
    relative, absolute = (None if c is None else cast(as_tensor(c, name), dtype) for c in (rtol, atol))
    assert relative is not None
    return relative, absolute


def _largest(s: Tensor) -> Tensor:
    """Return the largest singular value of each matrix, 0 where there is none."""
    return amax(s, axis=-1) if s.shape[-1] else zeros(s.shape[:-1], dtype=s.dtype)


def _rank(s: Tensor, relative: Tensor, absolute: Tensor | None) -> Tensor:
    least = relative * _largest(s)
    least = least if absolute is None else FUNCTIONS["maximum"](least, absolute)
    return sum(cast(s > expand_dims(least, axis=-1), int64), axis=-1)


def matrix_rank(
    x: Any, /, tol: Any = None, hermitian: bool = False, *, rtol: Any = None, atol: Any = None
) -> Tensor:
    """Return how many singular values exceed max(atol, rtol * the largest), as int64.

    Shapes: [..., m, n] -> [...]; cutoffs are numbers or [...], `tol` is another name of `atol`. `rtol` is
    max(m, n) * eps unless one of them is given. `hermitian` takes eigenvalues, by the lower triangle.
    """
    t = matrix("matrix_rank", x)
    s = FUNCTIONS["abs"](eigvalsh(t)) if hermitian else svdvals(t)
    return _rank(s, *_cutoffs("matrix_rank", t, rtol, tol if atol is None else atol))


def pinv(
    x: Any, /, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None, atol: Any = None
) -> Tensor:
    """Return the pseudo-inverse: singular values up to max(atol, rtol * the largest) count as 0.

    Shapes: [..., m, n] -> [..., n, m]; cutoffs are numbers or [...], `rcond` is another name of `rtol`.
    `rtol` is max(m, n) * eps unless one of them is given. `hermitian` takes the lower triangle to say
    all. The gradient takes the rank to stay as it is.
    """
    t = matrix("pinv", x)
    if hermitian:
        low = tril(t)
        t = run("straight_through", low + adjoint(tril(low, -1)), t)
    relative, absolute = _cutoffs("pinv", t, rcond if rtol is None else rtol, atol)
    if absolute is not None:
        largest = _largest(svdvals(t.detach()))
        relative = FUNCTIONS["maximum"](relative, absolute / where(largest == 0, 1.0, largest))
    return run("pinv", t, broadcast_to(relative.detach(), t.shape[:-2]))


def lstsq(x1: Any, x2: Any, /, rcond: Any = None, *, driver: str | None = None) -> LstsqResult:
    """Return the X of least norm among those of least |A X - B|, column by column.

    Shapes: A [..., m, n], B [m] or [..., m, k] -> X [n] or [..., n, k], residuals (sums of squares over
    columns, where m > n, else empty), rank [...], singular values [..., min(m, n)]. Singular values up to
    `rcond` times the largest count as 0; max(m, n) * eps by default. `driver` is PyTorch's, and changes
    nothing.
    """
    b = as_tensor(x2, "lstsq")
    if b.ndim == 1:
        found = lstsq(x1, expand_dims(b, axis=-1), rcond)
        return found._replace(solution=squeeze(found.solution, axis=-1))
    if b.ndim < 2 or not known_equal(matrix("lstsq", x1).shape[-2], b.shape[-2]):
        raise ShapeError("lstsq: A and B have as many rows", got=f"{matrix('lstsq', x1).type} and {b.type}")
    a, b = matrices("lstsq", x1, b)
    relative, absolute = _cutoffs("lstsq", a, rcond, None)
    solution = run("lstsq", a, b, broadcast_to(relative.detach(), a.shape[:-2]))
    s = svdvals(a)
    residuals = zeros((0,), dtype=s.dtype)
    if a.shape[-2] > a.shape[-1]:
        distance = FUNCTIONS["abs"](a @ solution - b)
        residuals = sum(distance * distance, axis=-2)
    return LstsqResult(solution, residuals, _rank(s, relative, absolute), s)
