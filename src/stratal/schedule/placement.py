"""Where a kernel of a sum stores its results: at the loops of the sum, or where a result shows them moved.

A result that reads each element of the sum at a place of its own, through reshapes, permutations and slices,
is stored from the loops of the sum: no copy stands between the two.
"""

from __future__ import annotations

from typing import NamedTuple

from stratal.base.dtypes import bool_
from stratal.base.errors import VerifyError
from stratal.graph.node import Node
from stratal.loops import index
from stratal.loops.compute import fresh_axes
from stratal.loops.expr import Buffer, Expr, Load, const, load
from stratal.loops.inverse import inverse
from stratal.loops.rebuild import substitute, transform
from stratal.loops.stmt import If, Seq, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.primitives import sequence


class Placed(NamedTuple):
    """The element of a result that follows from one of the sum, and the condition that there is one."""

    access: Load
    exists: Expr

    @property
    def always(self) -> bool:
        return self.exists is const(True, bool_)


def stand_in(x: GroupExpressions) -> Buffer:
    """Return the buffer that stands for the sum while what follows it is put together."""
    anchor = x.group.members[0]
    if anchor not in x.local:
        x.local[anchor] = Buffer("stand", anchor.dtype, anchor.aval.ints)
        x.forget()
    return x.local[anchor]


def placed(x: GroupExpressions, result: Node, where: tuple[Expr, ...]) -> Placed:
    """Return where a result is stored from the sum's element at `where`."""
    stand = stand_in(x)
    axes, read = x.reads_of(stand, result)
    exists: Expr = const(True, bool_)
    if read and (read != {axes} or result.shape != stand.shape):  # the first elements lie at their own places
        # At the sum's own axes, as fusion asks: loops over whole tiles pass their ends, and store nothing
        here = tuple(fresh_axes(stand.shape))
        inverted = inverse(next(iter(read)), axes, here) if len(read) == 1 else None
        if inverted is None:
            raise VerifyError(f"schedule: {result.op.name} has no place in its kernel", where=result.where)
        found = tuple(substitute(inverted, dict(zip(here, where, strict=True))))
        for place, v in zip(found, axes, strict=True):
            exists = index.both(exists, index.within(place, 0, v.extent))
        where = found
    return Placed(load(x.buffer(result), where), exists)


def stores(x: GroupExpressions, total: Expr, where: tuple[Expr, ...]) -> Stmt:
    """Return the stores of what a group computes from one sum, that at `where`."""
    stand = stand_in(x)
    parts: list[Stmt] = []
    for r in x.results:
        there = placed(x, r, where)
        (value,) = transform(
            [x.at(r, there.access.indices)],
            lambda e: total if isinstance(e, Load) and e.buffer is stand else None,
        )
        store = Store(there.access.buffer, there.access.indices, value)
        # with an arm of its own for what exists nowhere, the condition is no tail of a loop that could be cut
        parts.append(store if there.always else If(there.exists, store, Seq(())))
    return sequence(*parts)
