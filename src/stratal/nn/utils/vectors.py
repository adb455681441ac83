"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from stratal.tensor.shapes import concat
from stratal.tensor.state import no_grad
from stratal.tensor.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters end to end as one vector."""
    return concat([p.reshape((-1,)) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the pieces of one vector into the parameters, in order."""
    start = 0
    with no_grad():
        for p in parameters:
            size = 1
            for n in p.shape:
                size *= int(n)
            p.copy_(vec[start : start + size].reshape(p.shape))
            start += size
