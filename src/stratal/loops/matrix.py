"""How a matrix lies in a buffer, in the words of BLAS."""

from __future__ import annotations

from typing import NamedTuple

from stratal.loops import index
from stratal.loops.expr import Load, Var


class Matrix(NamedTuple):
    """A row-major matrix, or one that is stored `transposed`; its lines lie `lead` elements apart."""

    transposed: bool
    lead: int


def matrix(access: Load, rows: Var, columns: Var) -> Matrix | None:
    """Return how the elements of an access lie for all rows and columns; None where they form no matrix."""
    offset = index.offset(access)
    down, across = index.stride_of(offset, rows), index.stride_of(offset, columns)
    if down is None or across is None:
        return None
    for transposed, (step, length), (lead, lines) in (
        (False, (across, columns.extent), (down, rows.extent)),
        (True, (down, rows.extent), (across, columns.extent)),
    ):
        if step != 1 and length > 1:
            continue
        if lines == 1:
            return Matrix(transposed, max(1, length))
        if lead >= length:
            return Matrix(transposed, lead)
    return None
