"""Terms with other parts: axes replaced by indices, tensors by other tensors."""

from __future__ import annotations

from collections.abc import Mapping

from stratal.loops.te.tensor import Computed, Tensor
from stratal.loops.te.term import Access, Apply, Axis, Number, Reduction, Term, walk


def substituted(
    root: Term,
    values: Mapping[Axis, Term],
    tensors: Mapping[Tensor, Tensor] | None = None,
    front: tuple[Axis, ...] = (),
) -> Term:
    """Return a term with axes replaced by other indices, and tensors by others of the same type.

    These may have further axes in front, at which they are read.
    """
    others = tensors or {}
    made: dict[int, Term] = {}
    for t in walk(root):
        parts = tuple(made[id(p)] for p in t.parts)
        if isinstance(t, Axis):
            made[id(t)] = values.get(t, t)
        elif isinstance(t, Access):
            made[id(t)] = (
                Access(others[t.tensor], (*front, *parts)) if t.tensor in others else Access(t.tensor, parts)
            )
        elif isinstance(t, Apply):
            made[id(t)] = _rebuilt(t, parts)
        else:
            made[id(t)] = t
    return made[id(root)]


def _rebuilt(t: Apply, parts: tuple[Term, ...]) -> Term:
    """Return a function of other terms; adding or taking away nothing vanishes."""
    if (
        t.fn in ("add", "sub")
        and isinstance(parts[1], Number)
        and parts[1].value == 0
        and not t.dtype.is_float
    ):
        return parts[0]
    return t if parts == t.args else Apply(t.fn, parts, t.dtype)


def reading(tensor: Computed, tensors: Mapping[Tensor, Tensor]) -> Computed:
    """Return a computed tensor that reads other tensors."""
    term = substituted(tensor.term, {}, tensors)
    body = tensor.body
    if isinstance(body, Reduction):
        term = Reduction(body.combiner, term, body.axes)
    return Computed(tensor.shape, tensor.axes, term, tensor.dtype, "")


def over_rows(tensor: Computed, tensors: Mapping[Tensor, Tensor], size: int) -> Computed:
    """Return a computed tensor with an axis of `size` in front, at which it reads those that have it, too."""
    row = Axis("row", size)
    term = substituted(tensor.term, {}, tensors, (row,))
    body = tensor.body
    if isinstance(body, Reduction):
        term = Reduction(body.combiner, term, body.axes)
    return Computed((size, *tensor.shape), (row, *tensor.axes), term, tensor.dtype, "")
