"""Operations of a kernel, counted from its loops.

    for i in range(8):
        for k in range(64):
            s[i] = fma(a[i, k], b[k], s[i])        8 * 64 * 2 operations

Arithmetic of indices, conditions and conversions is left out; a multiply-add is two operations. Of two
branches the one that does more counts, and a branch that is not always taken counts as if it were: the count
is an upper bound of what runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from stratal.loops.expr import Call, Expr, Guard, Lanes, Load, walk
from stratal.loops.stmt import For, If, ProductCall, Seq, Stmt, Store

_FREE: Final = frozenset(("cast", "bitcast", "bytes4", "halves2", "pair", "pick8"))  # they only move bits
_SEVERAL: Final = {"fma": 2, "dot2": 4, "dot4": 8}


def operations(stmt: Stmt) -> int:
    """Return the operations of a statement, all iterations of its loops together."""
    if isinstance(stmt, For):
        return stmt.var.extent * operations(stmt.body)
    if isinstance(stmt, ProductCall):
        return 2 * math.prod(v.extent for v in stmt.loops)
    if isinstance(stmt, If):
        return max(operations(stmt.then), operations(stmt.otherwise) if stmt.otherwise is not None else 0)
    if isinstance(stmt, Seq):  # stores in a row share what their values have in common
        stores = [s.value for s in stmt.body if isinstance(s, Store)]
        return _of_values(stores) + sum(operations(s) for s in stmt.body if not isinstance(s, Store))
    return _of_values([stmt.value]) if isinstance(stmt, Store) else 0


def _of_values(values: Iterable[Expr]) -> int:
    """Return the operations of some values, what they share counted once; of lanes, all of them."""
    found = walk(values, _operands)
    lanes = {e.var for e in found if isinstance(e, Lanes)}
    total = 0
    for e in found:
        if isinstance(e, Call) and e.fn not in _FREE:
            total += _SEVERAL.get(e.fn, 1) * math.prod(v.extent for v in e.free & lanes)
        elif isinstance(e, Lanes):
            total += e.var.extent - 1
    return total


def _operands(e: Expr) -> Sequence[Expr]:
    if isinstance(e, Load):
        return ()
    return (e.value, e.otherwise) if isinstance(e, Guard) else e.parts
