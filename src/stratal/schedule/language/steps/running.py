"""How a loop runs, and on what: unroll, vectorize (lanes of a vector), parallel (threads of the pool)."""

from __future__ import annotations

from math import prod

from stratal.base.errors import ScheduleError
from stratal.loops.stmt import Fail, For, LoopKind, statements
from stratal.schedule.language.dependence import meeting
from stratal.schedule.language.nest import Nest
from stratal.schedule.language.registry import primitive

FAMILY = "Thread binding: how a loop runs"
MOST_LANES = 64
MOST_COPIES = 512
_LINE = """
    x = placeholder((4,), "float32")
    y = compute((4,), lambda i: x[i] + x[i])
"""
_SQUARE = """
    x = placeholder((3, 5), "float32")
    y = compute((3, 5), lambda i, j: x[i, j] + x[i, j])
"""


def _as(nest: Nest, loop: For, kind: LoopKind) -> Nest:
    return nest.replaced(loop, For(loop.var, loop.body, kind))


@primitive(FAMILY, _LINE, "unroll(i)")
def unroll(nest: Nest, loop: For) -> Nest:
    """Repeat the body for each iteration, with the index known: registers may then be indexed by it.

    Always legal; refused where the code would be repeated more than 512 times.
    """
    inside = prod(s.var.extent for s in statements(loop) if isinstance(s, For) and s.kind == "unroll")
    around = prod(f.var.extent for f in nest.around(loop) if f.kind == "unroll")
    copies = max(1, loop.var.extent) * max(1, inside) * max(1, around)
    if loop.kind != "serial" or copies > MOST_COPIES:
        got = f"{loop.kind} {loop.var.name}" if loop.kind != "serial" else f"{copies} copies of the body"
        raise ScheduleError(
            f"unroll: only a serial loop, and at most {MOST_COPIES} copies",
            got=got,
            hint="split the loop and unroll the inner one",
        )
    return _as(nest, loop, "unroll")


@primitive(FAMILY, _LINE, "vectorize(i)")
def vectorize(nest: Nest, loop: For) -> Nest:
    """Run all iterations at once, as lanes of a vector.

    Legal where no two iterations touch one element that either writes; at most 64 lanes.
    """
    _independent("vectorize", nest, loop, lanes=True)
    if loop.var.extent > MOST_LANES:
        raise ScheduleError(
            f"vectorize: at most {MOST_LANES} lanes",
            got=str(loop.var.extent),
            hint=f"split({loop.var.name}, 16) first",
        )
    if any(isinstance(s, Fail) for s in statements(loop)):
        raise ScheduleError("vectorize: a check stops the whole loop", got=loop.var.name)
    return _as(nest, loop, "vector")


@primitive(FAMILY, _SQUARE, "parallel(i)")
def parallel(nest: Nest, loop: For) -> Nest:
    """Make iterations the chunks of a kernel, which the threads of the pool claim.

    Legal for an outermost loop where no two iterations touch one element that either writes, temporaries
    that each iteration fills for itself left out.
    """
    _independent("parallel", nest, loop, lanes=False)
    return _as(nest, loop, "parallel")


def _independent(step: str, nest: Nest, loop: For, *, lanes: bool) -> None:
    if loop.kind != "serial":
        raise ScheduleError(f"{step}: only a serial loop", got=f"{loop.kind} {loop.var.name}")
    for b in meeting(nest.body, loop, nest.local, lanes=lanes):
        raise ScheduleError(
            f"{step}: iterations of {loop.var.name} meet in {b.name}",
            got=f"{b} is written by one and touched by another",
            hint="a loop that is reduced over runs in order; cache_write gives iterations a tile each",
        )
