"""Plain products by the vendor's library, one call for each chunk of the result.

Only measurements choose it: `stratal tune` times it beside the generated kernels, and a record that names it
counts as long as that very library is there. The chunks follow from the record, never from the number of
threads, and so do the bits. What follows a product in one kernel, it cannot compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from stratal.base.target import Target
from stratal.base.tuning import LIBRARY
from stratal.base.vendor import FUNCTIONS, Vendor, vendor
from stratal.loops import index
from stratal.loops.expr import Expr, Var
from stratal.loops.index import matrix
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import For, If, ProductCall, Stmt, Store
from stratal.schedule.expressions import GroupExpressions
from stratal.schedule.result import Candidate, Tactic
from stratal.schedule.tactics.product import Product

KIND = "contract"

CUTS: Final = (1, 2, 4, 8)  # pieces of either axis that measurements try
PIECES: Final = 16  # pieces of one product beyond which calls cost more than threads gain


def candidates(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield nothing: nobody calls a library unless it was measured to be faster."""
    yield from ()


def variants(x: GroupExpressions, target: Target) -> Iterator[Candidate]:
    """Yield calls on whole products and on pieces of them."""
    p, library = Product(x, target), vendor()
    if library is None or not suits(p):
        return
    sizes = p.m.extent, p.roles.vector.extent
    pieces = [(r, c) for r in CUTS for c in CUTS if r * c <= PIECES and r <= sizes[0] and c <= sizes[1]]
    for r, c in sorted(pieces, key=lambda cut: (cut[0] * cut[1] * p.num_outer < len(CUTS), *cut)):
        yield _candidate(p, -(-sizes[0] // r), -(-sizes[1] // c), library)


def candidate_of(
    x: GroupExpressions, target: Target, algorithm: str, parameters: Mapping[str, int]
) -> Candidate | None:
    """Return the calls a record names; None where the library is another one, or missing."""
    if algorithm != LIBRARY or set(parameters) != {"rows", "columns", "version"}:
        return None
    p, library = Product(x, target), vendor()
    rows, columns = parameters["rows"], parameters["columns"]
    if library is None or parameters["version"] != library.version or not suits(p):
        return None
    fits = 1 <= rows <= p.m.extent and 1 <= columns <= p.roles.vector.extent
    return _candidate(p, rows, columns, library) if fits else None


def suits(p: Product) -> bool:
    """Return whether a group is a product of matrices, or many of them, and nothing else."""
    a, b, out = p.operand(p.roles.a), p.operand(p.roles.b), p.x.buffer(p.anchor)
    if a is None or b is None or len(p.x.group.members) != 1 or len(p.roles.reduce) != 1:
        return False
    if p.dtype not in FUNCTIONS or not p.dtype is p.anchor.dtype is a.dtype is b.dtype:
        return False
    m, n, (k,) = p.m, p.roles.vector, p.roles.reduce
    result = matrix(out[p.where], m, n)
    return (
        all(v.extent for v in (*p.axes, k))
        and not index.depends(a, n)
        and not index.depends(b, m)
        and matrix(a, m, k) is not None
        and matrix(b, k, n) is not None
        and result is not None
        and not result.transposed
    )


def _candidate(p: Product, rows: int, columns: int, library: Vendor) -> Candidate:
    return Candidate(
        LIBRARY,
        p.operations / p.target.flops_per_cycle / (p.target.ghz * 1e9),
        partial(schedule_calls, target=p.target, rows=rows, columns=columns, library=library),
        (("rows", rows), ("columns", columns), ("version", library.version)),
        p.operations,
    )


def schedule_calls(x: GroupExpressions, target: Target, rows: int, columns: int, library: Vendor) -> Tactic:
    """Return a nest of calls, each of which computes `rows` x `columns` of a result, fewer at its ends."""
    p = Product(x, target)
    extents = [v.extent for v in p.roles.outer]
    pieces = -(-p.m.extent // rows), -(-p.roles.vector.extent // columns)
    chunk = Var("chunk", math.prod((*extents, *pieces)))
    *outer, down, across = index.unflatten(chunk, (*extents, *pieces))
    at: dict[Var, Expr] = dict(zip(p.roles.outer, outer, strict=True))

    def in_rows(row: Expr, height: int) -> Stmt:
        def call_at(column: Expr, width: int) -> Stmt:
            return _call(p, {**at, p.m: row, p.roles.vector: column}, height, width)

        return _along(across, p.roles.vector.extent, columns, call_at)

    body = _along(down, p.m.extent, rows, in_rows)
    step = f"{library} computes {rows} x {columns} of the result a call"
    return Tactic(For(chunk, body, "parallel"), (), LIBRARY, (step,))


def _along(number: Expr, extent: int, size: int, make: Callable[[Expr, int], Stmt]) -> Stmt:
    """Return what is made for a piece of an axis, by its number; the last one may be smaller."""
    start, last = index.mul(number, size), (extent - 1) // size
    if extent % size == 0:
        return make(start, size)
    end = make(index.as_expr(last * size), extent % size)
    return If(index.less(number, last), make(start, size), end) if last else end


def _call(p: Product, at: Mapping[Var, Expr], height: int, width: int) -> Stmt:
    """Return the call for one piece, which begins where `at` says."""
    (k,) = p.roles.reduce
    rows, columns = Var("r", height), Var("c", width)
    inside = {**at, p.m: index.add(at[p.m], rows), p.roles.vector: index.add(at[p.roles.vector], columns)}
    *where, a, b = substitute((*p.where, p.terms[p.roles.a], p.terms[p.roles.b]), inside)
    return ProductCall(rows, columns, k, Store(p.x.buffer(p.anchor), where, a * b))
