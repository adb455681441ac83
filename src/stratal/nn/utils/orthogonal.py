"""Weights that stay orthogonal: functions of skew-symmetric matrices, or products of reflections."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratal.base.errors import AttributeValueError, CallOrderError, ShapeError
from stratal.nn.module import Module
from stratal.nn.utils.parametrize import register_parametrization
from stratal.tensor.build import call
from stratal.tensor.functions import random
from stratal.tensor.functions.creation import eye, zeros
from stratal.tensor.functions.linear import diagonal
from stratal.tensor.functions.shapes import broadcast_to, concat, expand_dims, narrow
from stratal.tensor.functions.triangles import tril, triu
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad

_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """A tall matrix with orthonormal columns, or a wide one with such rows, made from one without bounds.

    With a base, the map starts at it: the original is -1 on the diagonal and 0 elsewhere, which the maps make
    the identity. See: Lezcano-Casado 2019, "Trivializations for gradient-based optimization on manifolds".
    """

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        if weight.dtype.is_complex and orthogonal_map == "householder":
            raise AttributeValueError("orthogonal: householder takes real weights", got=str(weight.type))
        self.shape, self.orthogonal_map = tuple(weight.shape), orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        made = self._reflected(x) if self.orthogonal_map == "householder" else self._rotated(x)
        made = self.base @ made if self.use_trivialization else made
        return made.mT if wide else made

    def _rotated(self, x: Tensor) -> Tensor:
        """Return the first columns of the rotation whose generator has `x` below its diagonal."""
        n, k = (int(s) for s in x.shape[-2:])
        low = tril(x)
        if n != k:
            low = concat([low, zeros((*x.shape[:-2], n, n - k), dtype=x.dtype)], -1)
        skew = low - low.mH
        if self.orthogonal_map == "matrix_exp":
            return call("matrix_exp", skew)[..., :k]  # type: ignore[no-any-return]
        one = broadcast_to(eye(n, dtype=x.dtype), skew.shape)
        return call("solve", one - 0.5 * skew, one + 0.5 * skew)[..., :k]  # type: ignore[no-any-return]

    def _reflected(self, x: Tensor) -> Tensor:
        """Return a product of reflections by the columns below the diagonal, whose signs the diagonal has.

        It is I - V T V^T, T^-1 = D^-1 + what V^T V has above its diagonal, D the reflections' factors.
        """
        n, k = (int(s) for s in x.shape[-2:])
        below, one = tril(x, -1), eye(n, k, dtype=x.dtype)
        factors = expand_dims(2.0 / (1.0 + (below * below).sum(-2)), axis=-1)
        v = below + one
        inner, top = factors * triu(v.mT @ v, 1), factors * narrow(v, -2, 0, k).mT
        product = one - v @ call("triangular_solve", inner, top, upper=True, unit=True)
        return product * expand_dims(diagonal(x).detach(), axis=-2)  # type: ignore[no-any-return]

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the original of which this matrix is made; the base, if there is one, becomes the matrix."""
        if tuple(value.shape) != self.shape:
            raise ShapeError(f"orthogonal: the weight has the shape {list(self.shape)}", got=str(value.type))
        wide = self.shape[-2] < self.shape[-1]
        with no_grad():
            q = value.mT if wide else value
            if self.use_trivialization:
                self.base = _completed(q)
                rows, columns = value.shape[-2:]
                start = -np.eye(int(rows), int(columns))
                return broadcast_to(tensor(start, dtype=value.dtype), value.shape)
            if self.orthogonal_map != "householder":
                raise CallOrderError(
                    f"orthogonal: nothing is known that {self.orthogonal_map} makes a given weight from",
                    hint="use_trivialization=True starts at the weight, or orthogonal_map='householder'",
                )
            found = _reflections(q)
            return found.mT if wide else found


def _completed(q: Tensor) -> Tensor:
    """Return a square matrix with orthonormal columns, the first those of `q` or, if those are not, of its QR
    factorisation with a positive diagonal.
    """
    n, k = (int(s) for s in q.shape[-2:])
    if n != k:
        q = concat([q, random.randn((*q.shape[:-2], n, n - k), dtype=q.dtype)], -1)
    a = q.detach().numpy()
    gram = np.swapaxes(a, -1, -2).conj() @ a
    if np.allclose(gram, np.eye(n), atol=10 * n * np.finfo(a.dtype).eps):
        return q.detach()
    made, r = np.linalg.qr(a)
    signs = np.diagonal(r, axis1=-2, axis2=-1).copy()
    signs /= np.where(signs == 0, 1, np.abs(signs))
    return tensor(made * signs[..., None, :], dtype=q.dtype)


def _reflections(q: Tensor) -> Tensor:
    """Return the reflections whose product a matrix is, and on the diagonal the signs of its columns."""
    a = q.detach().numpy()
    packed, scale = (np.asarray(part) for part in np.linalg.qr(a, mode="raw"))
    packed = np.swapaxes(packed, -1, -2).copy()
    k = a.shape[-1]
    signs = np.sign(packed[..., range(k), range(k)])
    packed[..., range(k), range(k)] = np.where(scale == 0, -signs, signs)
    return tensor(packed, dtype=q.dtype)


def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """Keep a weight (of more columns than rows: its transpose) orthogonal while it trains; return the module.

    `orthogonal_map` is "matrix_exp", "cayley" or "householder"; by default the first for square and complex
    weights, else the last. Weights of more than two axes are stacks of matrices.
    """
    weight: Any = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise AttributeValueError(
            f"orthogonal: {type(module).__name__} has no parameter of that name", got=repr(name)
        )
    if weight.ndim < 2:
        raise ShapeError("orthogonal: takes matrices, with at least two axes", got=str(weight.type))
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1]
        orthogonal_map = "matrix_exp" if square or weight.dtype.is_complex else "householder"
    if orthogonal_map not in _MAPS:
        raise AttributeValueError(
            f"orthogonal: orthogonal_map is one of {', '.join(_MAPS)}", got=repr(orthogonal_map)
        )
    made = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)
