"""The part of a temporary that one iteration of the loops around it uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var


class Tile:
    """A temporary as small as its accesses, by their indices, allow where the variables `fixed` do not vary.

    It starts where the first access does.
    """

    def __init__(
        self, whole: Buffer, space: str, accesses: Sequence[Sequence[Expr]], fixed: Collection[Var]
    ) -> None:
        self._fixed: Final = frozenset(fixed)
        parts = [[self._inner(i) for i in indices] for indices in accesses]
        ranges = [[index.bounds(part) for part in axis] for axis in zip(*parts, strict=True)]
        self._first: Final = [min(low for low, _ in axis) for axis in ranges]
        shape = [max(high for _, high in axis) - f + 1 for axis, f in zip(ranges, self._first, strict=True)]
        self.buffer: Final = Buffer(whole.name, whole.dtype, shape, space=space)

    def moved(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return where in the tile an element lies."""
        return tuple(index.sub(self._inner(i), f) for i, f in zip(indices, self._first, strict=True))

    def _inner(self, expr: Expr) -> Expr:
        """Return an index without its terms in fixed variables alone."""
        terms, constant = index.linear(expr)
        inner = {atom: c for atom, c in terms.items() if not (atom.free and atom.free <= self._fixed)}
        return index.from_linear(inner, constant)
