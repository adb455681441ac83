"""What functions of linear algebra do first: make matrices of floats, and a few things of matrices."""

from __future__ import annotations

from typing import Any

from stratal.graph.op import REGISTRY
from stratal.ops.linalg import family
from stratal.tensor.build import apply, as_tensor, broadcast_shapes, common_dtype, default_float
from stratal.tensor.functions.creation import eye
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.functions.shapes import broadcast_to, matrix_transpose
from stratal.tensor.tensor import Tensor


def matrix(name: str, x: Any) -> Tensor:
    """Return a stack of matrices [..., m, n] of floats; integers become float32. Raises: ShapeError,
    DTypeError.
    """
    t = as_tensor(x, name)
    t = cast(t, default_float(t.dtype))
    family.check_matrix(name, t.type)
    return t


def square(name: str, x: Any) -> Tensor:
    """Return a stack of square matrices of floats. Raises: ShapeError, DTypeError."""
    t = matrix(name, x)
    family.check_square(name, t.type)
    return t


def matrices(name: str, *given: Any) -> list[Tensor]:
    """Return stacks of matrices of one dtype whose leading axes are stretched to the same ones."""
    tensors = [as_tensor(x, name) for x in given]
    dtype = default_float(common_dtype(name, tensors))
    tensors = [cast(t, dtype) for t in tensors]
    family.check_matrix(name, *[t.type for t in tensors])
    batch = broadcast_shapes(name, *[t.shape[:-2] for t in tensors])
    return [broadcast_to(t, (*batch, *t.shape[-2:])) for t in tensors]


def run(op: str, *tensors: Tensor, **attributes: Any) -> Any:
    """Apply a record of linear algebra."""
    return apply(REGISTRY[op](**attributes), *tensors)


def conjugate(t: Tensor) -> Tensor:
    """Return the complex conjugate; a real tensor as it is."""
    return run("conj", t) if t.dtype.is_complex else t  # type: ignore[no-any-return]


def adjoint(t: Tensor) -> Tensor:
    """Return the conjugate transpose of matrices."""
    return conjugate(matrix_transpose(t))


def of_triangle(t: Tensor, upper: bool = False) -> Tensor:
    """Return Hermitian matrices by one triangle of theirs, as a record that reads lower triangles takes them.

    Gradients are Hermitian, those of (A + A^H) / 2, whichever triangle is read: as PyTorch's.
    """
    over = adjoint(t)
    return run("straight_through", over if upper else t, t * 0.5 + over * 0.5)  # type: ignore[no-any-return]


def identity(t: Tensor) -> Tensor:
    """Return the identity for each matrix of a stack of square ones."""
    n = t.shape[-1]
    return broadcast_to(eye(n, dtype=t.dtype), t.shape)
