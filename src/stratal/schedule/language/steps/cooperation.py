"""Thread cooperation: tiles that all chunks of a kernel share, filled by all threads together."""

from __future__ import annotations

from stratal.base.errors import ScheduleError
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import For, Stmt, statements
from stratal.schedule.language.nest import Nest, nested, touched
from stratal.schedule.language.registry import PRODUCT, primitive
from stratal.schedule.language.tiles import Region, at, copy_in, redirected, region
from stratal.schedule.primitives import listed, sequence

FAMILY = "Thread cooperation"


@primitive(FAMILY, PRODUCT, "split(x, 4)\nshare(B, xo)")
def share(nest: Nest, tensor: Buffer, loop: For) -> Nest:
    """Copy the tiles that iterations of a loop read of an input to one workspace, before all other loops.

    Every tile is copied once, whoever reads it and however often: chunks of the loops below share them. The
    loop that copies is a statement of its own, so `parallel` lets all threads fill the workspace together;
    they wait for each other between the statements. A tile lies in memory as one block.
    Legal for an input, or a temporary that statements before have finished, where the loop reads one box.
    """
    top, before = _top(nest, loop)
    written_later = any(a.is_store for s in (top, *before[1]) for a in touched(s, tensor))
    if tensor in nest.writes or written_later or tensor.space != "global":
        raise ScheduleError(
            "share: the tensor is not finished before the loops that read it",
            got=tensor.name,
            hint="cache_read copies it where it is used",
        )
    places = touched(loop.body, tensor)
    if not places:
        raise ScheduleError(
            "share: the loop reads nothing of the tensor", got=f"{tensor.name} in {loop.var.name}"
        )
    box = region("share", loop.body, tensor, places)
    loops = [f.var for f in (*nest.around(loop), loop) if any(f.var in s.free for s in box.start)]
    free = set().union(*(s.free for s in box.start)) - set(loops)
    if free:
        raise ScheduleError(
            "share: the tile starts where something else decides", got=", ".join(map(str, free))
        )
    workspace = Buffer(
        nest.fresh(f"{tensor.name}S"), tensor.dtype, (*(v.extent for v in loops), *box.shape), space="global"
    )
    fill = _fill(box, workspace, loops)

    def local(indices: object) -> tuple[Expr, ...]:
        return (*at(loops), *box.local(indices))  # type: ignore[arg-type]

    body = redirected(loop.body, tensor, workspace, local)
    after = nest.replaced(loop, For(loop.var, body, loop.kind))
    stmts = list(listed(after.body))
    stmts.insert(len(before[0]), fill)
    return after._replace(body=sequence(*stmts), local=(*nest.local, workspace))


def _top(nest: Nest, loop: For) -> tuple[Stmt, tuple[list[Stmt], list[Stmt]]]:
    """Return the statement at the top that holds a loop, those before it and those after it."""
    stmts = list(listed(nest.body))
    around = nest.around(loop)
    holder = around[0] if around else loop
    k = next(k for k, s in enumerate(stmts) if any(part is holder for part in statements(s)))
    return stmts[k], (stmts[:k], stmts[k + 1 :])


def _fill(box: Region, workspace: Buffer, loops: list[Var]) -> Stmt:
    """Return the loops that copy every tile, outermost those over tiles."""
    again = [Var(v.name, v.extent) for v in loops]
    start = tuple(substitute(box.start, dict(zip(loops, at(again), strict=True))))
    moved = box._replace(start=start)
    return nested(again, copy_in(moved, workspace, lambda here: (*at(again), *here)))
