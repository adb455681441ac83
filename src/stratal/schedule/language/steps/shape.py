"""Shape of the loops: split, reorder, fuse, fission, merge, peel, branch."""

from __future__ import annotations

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Var, loads
from stratal.loops.stmt import For, If, Seq, Stmt, stored, substitute_stmt
from stratal.schedule.language.dependence import (
    accumulates_exactly,
    carried,
    privates,
    separated,
    variables_of,
)
from stratal.schedule.language.nest import Nest, touched
from stratal.schedule.language.registry import STAGES, primitive
from stratal.schedule.primitives import guard_leaves, listed, sequence

FAMILY = "Loop transformations"
_DOUBLE = """
    x = placeholder(({}), "float32")
    y = compute(({}), lambda {}: x[{}] + x[{}])
"""
_LINE = _DOUBLE.format("10,", "10,", "i", "i", "i")
_SQUARE = _DOUBLE.format("3, 5", "3, 5", "i, j", "i, j", "i, j")
_PRODUCT = """
    A = placeholder((4, 6), "float32")
    B = placeholder((4, 6), "float32")
    k = reduce_axis(4)
    C = compute((6, 6), lambda y, x: sum(A[k, y] * B[k, x], axis=k))
"""


def _serial(step: str, *loops: For) -> None:
    for loop in loops:
        if loop.kind != "serial":
            raise ScheduleError(
                f"{step}: a loop whose way to run is decided",
                got=f"{loop.kind} {loop.var.name}",
                hint=f"{step} first, then say how the loops run",
            )


@primitive(FAMILY, _LINE, "split(i, 4)")
def split(nest: Nest, loop: For, factor: int) -> Nest:
    """Make two loops of one, the inner of `factor` iterations. A tail that does not divide is a condition.

    Always legal: the iterations keep their order.
    """
    _serial("split", loop)
    if factor < 1:
        raise ScheduleError("split: the factor is at least 1", got=str(factor))
    return nest.edited(lambda part: part.split(loop.var, factor))


@primitive(FAMILY, _SQUARE, "fuse(i, j)")
def fuse(nest: Nest, outer: For, inner: For) -> Nest:
    """Make one loop of two perfectly nested ones. Always legal: the iterations keep their order."""
    _serial("fuse", outer, inner)
    return nest.edited(lambda part: part.fuse(outer.var, inner.var))


@primitive(FAMILY, _SQUARE, "reorder(j, i)")
def reorder(nest: Nest, *loops: For) -> Nest:
    """Give perfectly nested loops another order, outermost first.

    Legal where loops that carry a dependence through the same tensor keep their order. The loops of one
    reduction do so, unless it is exact in any order, as that of integers is.
    """
    chain = _chain(loops)
    wanted = [loop.var for loop in loops]
    moved = iter(wanted)
    after = [next(moved) if f.var in wanted else f.var for f in chain]
    before = [f.var for f in chain]
    body = chain[-1].body
    skip = privates(nest.body, body, nest.local)
    for b, loops_of in carried(body, before, skip).items():
        old, new = ([v for v in order if v in loops_of] for order in (before, after))
        if old != new and not accumulates_exactly(body, b):
            raise ScheduleError(
                f"reorder: the order in which {b.name} is combined would change",
                got=f"{', '.join(v.name for v in old)} -> {', '.join(v.name for v in new)}",
                hint="these loops keep their order among themselves; others may move between them",
            )
    return nest.edited(lambda part: part.reorder(*wanted))


def _chain(loops: tuple[For, ...]) -> list[For]:
    """Return the perfectly nested loops from the first to the last of some. Raises: ScheduleError."""
    if len({id(f) for f in loops}) != len(loops):
        raise ScheduleError("reorder: a loop is named twice", got=", ".join(f.var.name for f in loops))
    for top in loops:
        chain = [top]
        while isinstance(chain[-1].body, For):
            chain.append(chain[-1].body)
        if all(f in chain for f in loops):
            last = max(chain.index(f) for f in loops)
            return chain[: last + 1]
    raise ScheduleError(
        "reorder: loops are not perfectly nested",
        got=", ".join(f.var.name for f in loops),
        hint="fission separates what stands between them",
    )


@primitive(FAMILY, _PRODUCT, "fission(x)")
def fission(nest: Nest, loop: For, at: int = 1) -> Nest:
    """Run the first `at` statements of a loop in a loop of their own, before the rest.

    Legal where no later iteration of the first part touches what an earlier one of the rest has touched.
    """
    _serial("fission", loop)
    body = _statements(loop.body)
    if not 0 < at < len(body):
        raise ScheduleError(f"fission: {loop.var.name} has {len(body)} statements", got=f"at={at}")
    first, rest = sequence(*body[:at]), sequence(*body[at:])
    _apart("fission", loop.var, first, rest)
    again = Var(loop.var.name, loop.var.extent)
    second = For(again, substitute_stmt(rest, {loop.var: again}))
    return nest.replaced(loop, Seq((For(loop.var, first), second)))


def _statements(body: Stmt) -> tuple[Stmt, ...]:
    """Return the statements of a loop's body; a condition around them, as split makes it, goes to each."""
    if isinstance(body, If) and body.otherwise is None and not loads((body.condition,)):
        return tuple(guard_leaves(s, body.condition) for s in _statements(body.then))
    return listed(body)


def _apart(step: str, var: Var, first: Stmt, rest: Stmt) -> None:
    """Raise ScheduleError unless the two parts meet only within one iteration."""
    inner = variables_of(first) | variables_of(rest)
    written = {*stored(first), *stored(rest)}
    for b in written:
        one, two = touched(first, b), touched(rest, b)
        if not one or not two or var.extent <= 1:
            continue
        if var not in separated([a.indices for a in (*one, *two)], [var], inner):
            raise ScheduleError(
                f"{step}: iterations of {var.name} meet in {b.name}",
                got=", ".join(
                    dict.fromkeys(f"{b.name}[{', '.join(map(str, a.indices))}]" for a in (*one, *two))
                ),
            )


@primitive(FAMILY, STAGES, "merge(a, b)")
def merge(nest: Nest, first: For, *others: For) -> Nest:
    """Run neighbouring loops of equal extent as one: the later bodies move into the first loop.

    Legal where iteration i of each touches only what iterations i of the others touch.
    """
    _serial("merge", first, *others)
    bodies = [first.body]
    for other in others:
        moved = substitute_stmt(other.body, {other.var: first.var})
        for earlier in bodies:
            if other.var.extent == first.var.extent:
                _apart("merge", first.var, earlier, moved)
        bodies.append(moved)
    merged = nest.edited(lambda part: part.merge(first.var, *(f.var for f in others)))
    if any(f.var.name in merged.loops for f in others):
        raise ScheduleError(
            "merge: loops are not neighbours", got=", ".join(f.var.name for f in (first, *others))
        )
    return merged


@primitive(FAMILY, _LINE, "split(i, 4)\npeel(io)")
def peel(nest: Nest, loop: For) -> Nest:
    """Run the last iteration after the loop, so that conditions for a tail vanish from the others.

    Always legal: the iterations keep their order.
    """
    _serial("peel", loop)
    return nest.edited(lambda part: part.peel(loop.var))


@primitive(FAMILY, _LINE, "split(i, 4)\nbranch(io)")
def branch(nest: Nest, loop: For) -> Nest:
    """Give the last iteration an arm of its own inside the loop: what peel does, for a loop that stays one.

    Always legal: the iterations keep their order.
    """
    return nest.edited(lambda part: part.branch(loop.var))
