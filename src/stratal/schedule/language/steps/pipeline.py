"""Latency hiding: the copies for the next iteration run ahead of this one's work."""

from __future__ import annotations

from stratal.base.errors import ScheduleError
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Var
from stratal.loops.stmt import For, Stmt, loaded, stored, substitute_stmt
from stratal.schedule.language.dependence import private
from stratal.schedule.language.nest import Nest, touched
from stratal.schedule.language.registry import PRODUCT, primitive
from stratal.schedule.language.tiles import redirected
from stratal.schedule.primitives import fresh_loops, listed, sequence

FAMILY = "Latency hiding"


@primitive(FAMILY, PRODUCT, "split(x, 4)\ncache_read(B, xo)\npipeline(xo, BL)")
def pipeline(nest: Nest, loop: For, *tiles: Buffer) -> Nest:
    """Give tiles two slots each, and fill those of the next iteration before this iteration works on its own.

    The first fill comes before the loop, the last iteration's work after it. On a machine that copies and
    computes at once the copies cost no time; a processor that reorders instructions sees them early.
    Legal for scratch tiles that each iteration fills first, from tensors the rest of the loop does not write.
    """
    body = listed(loop.body)
    if loop.kind != "serial" or loop.var.extent < 2 or not tiles:
        raise ScheduleError(
            "pipeline: a serial loop of two iterations or more, and its tiles",
            got=f"{loop.kind} {loop.var.name} in {loop.var.extent}",
        )
    for tile in tiles:
        _check_tile(nest, loop, tile)
    fills = [s for s in body if set(stored(s)) & set(tiles)]
    work = [s for s in body if not set(stored(s)) & set(tiles)]
    _check_parts(loop, tiles, fills, work)
    n, var = loop.var.extent, loop.var
    again = Var(var.name, n - 1)
    slots = {t: Buffer(t.name, t.dtype, (2, *t.shape), space=t.space) for t in tiles}

    def at(stmts: list[Stmt], i: Expr) -> Stmt:
        """Return statements of iteration `i`, on that iteration's slots."""
        made: Stmt = substitute_stmt(sequence(*stmts), {var: i})
        slot = index.mod(i, 2)
        for tile, double in slots.items():
            made = redirected(made, tile, double, lambda indices: (slot, *indices))
        return fresh_loops(made)

    ahead = For(again, sequence(at(fills, index.add(again, 1)), at(work, again)))
    stmts = (at(fills, index.as_expr(0)), ahead, at(work, index.as_expr(n - 1)))
    local = tuple(slots.get(b, b) for b in nest.local)
    return nest.replaced(loop, sequence(*stmts))._replace(local=local)


def _check_tile(nest: Nest, loop: For, tile: Buffer) -> None:
    inside = touched(loop.body, tile)
    if tile not in nest.local or tile.space != "scratch" or not inside:
        raise ScheduleError(
            "pipeline: a scratch tile of the loop",
            got=f"{tile.space} {tile.name}",
            hint=f"cache_read(tensor, {loop.var.name}) makes one",
        )
    if len(inside) != len(touched(nest.body, tile)) or not private(loop.body, tile):
        raise ScheduleError(
            f"pipeline: {tile.name} carries values from one iteration to the next", got=loop.var.name
        )


def _check_parts(loop: For, tiles: tuple[Buffer, ...], fills: list[Stmt], work: list[Stmt]) -> None:
    """Raise ScheduleError unless the fills may run before the work of the iteration before."""
    filled, written = set().union(*map(stored, fills)), set().union(*map(stored, work))
    if not work or not filled <= set(tiles):
        raise ScheduleError(
            "pipeline: the tiles are filled by statements of their own",
            got=loop.var.name,
            hint=f"the loops: {', '.join(b.name for b in filled - set(tiles)) or 'no work left'}",
        )
    read = set().union(*map(loaded, fills)) - set(tiles)
    if read & written:
        raise ScheduleError(
            "pipeline: the work of an iteration writes what the next one copies",
            got=", ".join(b.name for b in read & written),
        )
