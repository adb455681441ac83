"""Cache locality: tiles of tensors near the processor, tensors kept or computed where they are used."""

from __future__ import annotations

from stratal.base.errors import ScheduleError
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Load, Var, call, const, guard, loads
from stratal.loops.rebuild import substitute
from stratal.loops.stmt import Fail, For, If, Seq, Stmt, Store, statements, stored
from stratal.schedule.language.dependence import private
from stratal.schedule.language.nest import Access, Nest, accesses, touched
from stratal.schedule.language.registry import PRODUCT, STAGES, primitive
from stratal.schedule.language.tiles import check_space, copy_in, copy_out, redirected, region
from stratal.schedule.primitives import listed, rewrite, rewrite_expressions, sequence

FAMILY = "Cache locality"


@primitive(FAMILY, PRODUCT, "split(x, 4)\ncache_read(B, xo)")
def cache_read(nest: Nest, tensor: Buffer, loop: For, space: str = "scratch") -> Nest:
    """Copy what one iteration of a loop reads of a tensor to a tile first, and read the tile.

    Legal where the iteration reads one box of the tensor and writes none of it. `space` is `scratch`, the
    chunk's own memory, or `register`, whose indices must be constants once loops are unrolled.
    """
    check_space("cache_read", space)
    places = touched(loop.body, tensor)
    _wants("cache_read", tensor, loop, places, is_store=False)
    box = region("cache_read", loop.body, tensor, places)
    tile = Buffer(nest.fresh(f"{tensor.name}L"), tensor.dtype, box.shape, space=space)
    body = sequence(copy_in(box, tile), redirected(loop.body, tensor, tile, box.local))
    after = nest.replaced(loop, For(loop.var, body, loop.kind))
    return after._replace(local=(*nest.local, tile))


def _wants(step: str, tensor: Buffer, loop: For, places: list[Access], *, is_store: bool) -> None:
    if loop.kind in ("vector", "unroll"):
        raise ScheduleError(
            f"{step}: the tile belongs to a serial or parallel loop", got=f"{loop.kind} {loop.var.name}"
        )
    wanted = [p for p in places if p.is_store is is_store]
    if not wanted:
        what = "writes" if is_store else "reads"
        raise ScheduleError(
            f"{step}: the loop {what} nothing of the tensor", got=f"{tensor.name} in {loop.var.name}"
        )
    if not is_store and len(wanted) != len(places):
        raise ScheduleError(
            f"{step}: the loop writes {tensor.name}, which it reads",
            got=loop.var.name,
            hint=f"cache_write({tensor.name}, {loop.var.name}) keeps both in a tile",
        )


@primitive(FAMILY, PRODUCT, "split(x, 4)\ncache_write(C, xo)")
def cache_write(nest: Nest, tensor: Buffer, loop: For, space: str = "scratch") -> Nest:
    """Let one iteration of a loop work on a tile of a tensor, and copy the tile back at its end.

    Legal where the iteration touches one box of the tensor. Where it does not write all of the box before
    it reads or leaves any of it, the box is copied to the tile first.
    """
    check_space("cache_write", space)
    places = touched(loop.body, tensor)
    _wants("cache_write", tensor, loop, places, is_store=True)
    box = region("cache_write", loop.body, tensor, places)
    tile = Buffer(nest.fresh(f"{tensor.name}L"), tensor.dtype, box.shape, space=space)
    inside = redirected(_unconditional(loop.body, tensor), tensor, tile, box.local)
    first = () if _fills(inside, tile) else (copy_in(box, tile),)
    if first:
        inside = redirected(loop.body, tensor, tile, box.local)
    body = sequence(*first, inside, copy_out(box, tile))
    after = nest.replaced(loop, For(loop.var, body, loop.kind))
    return after._replace(local=(*nest.local, tile))


def _fills(stmt: Stmt, tile: Buffer) -> bool:
    """Return whether a statement writes every element of a tile before it reads any."""
    everything = Access(tile, tuple(Var(f"all{k}", n) for k, n in enumerate(tile.shape)), False, ())
    element = tile[everything.indices]
    reader = Fail(call("eq", element, element), 1)
    whole: Stmt = reader
    for v in reversed(everything.indices):
        assert isinstance(v, Var)
        whole = For(v, whole)
    return private(sequence(stmt, whole), tile)


def _unconditional(stmt: Stmt, tensor: Buffer) -> Stmt:
    """Return a statement whose first stores to a tensor happen even beyond its end: a tile has room there.

    Only conditions that say where the tensor ends are dropped; what is loaded stays under them.
    """
    done = False

    def visit(s: Stmt) -> Stmt:
        nonlocal done
        if done or not isinstance(s, If) or s.otherwise is not None or not isinstance(s.then, Store):
            done = done or (isinstance(s, Store) and s.buffer is tensor)
            return s
        if s.then.buffer is not tensor:
            return s
        done = True
        limits = {index.less(i, n) for i, n in zip(s.then.indices, tensor.shape, strict=True)}
        if not set(index.conjuncts(s.condition)) <= limits:
            return s
        value = s.then.value
        if loads((value,)):
            value = guard(s.condition, value, const(0, value.dtype))
        return Store(tensor, s.then.indices, value)

    return rewrite(stmt, visit)


@primitive(FAMILY, STAGES, "merge(a, b)\nstore_at(t, a, register)")
def store_at(nest: Nest, tensor: Buffer, loop: For, space: str = "scratch") -> Nest:
    """Keep of a temporary only what one iteration of a loop uses.

    Legal where nothing outside of the loop touches it, and each iteration writes what it reads.
    """
    check_space("store_at", space)
    if tensor not in nest.local:
        raise ScheduleError(
            "store_at: not a temporary", got=tensor.name, hint="cache_write keeps a tile of it"
        )
    places = touched(loop.body, tensor)
    if len(places) != len(touched(nest.body, tensor)) or not places:
        raise ScheduleError(f"store_at: {tensor.name} is used outside of the loop", got=loop.var.name)
    box = region("store_at", loop.body, tensor, places)
    tile = Buffer(tensor.name, tensor.dtype, box.shape, space=space)
    body = redirected(_unconditional(loop.body, tensor), tensor, tile, box.local)
    if not private(body, tile):
        raise ScheduleError(
            f"store_at: an iteration of {loop.var.name} reads of {tensor.name} what it may not have written",
            got=str(tensor),
            hint="merge the loops that write and read it",
        )
    after = nest.replaced(loop, For(loop.var, body, loop.kind))
    return after._replace(local=tuple(tile if b is tensor else b for b in nest.local))


@primitive(FAMILY, STAGES, "inline(t)")
def inline(nest: Nest, tensor: Buffer) -> Nest:
    """Compute an element of a temporary again wherever it is read, and keep no memory for it.

    Legal for a tensor that one statement computes, element by element, from tensors no loop changes later.
    """
    if tensor not in nest.local:
        raise ScheduleError("inline: not a temporary", got=tensor.name, hint="results and inputs have memory")
    stores = [s for s in statements(nest.body) if isinstance(s, Store) and s.buffer is tensor]
    guards = [a for a in accesses(nest.body) if a.buffer is tensor and a.is_store and a.conditions]
    (store, *more) = stores
    reads = {e.buffer for e in loads((store.value,))}
    own = next(s for s in listed(nest.body) if tensor in stored(s))
    near = any(b in nest.writes or b.space != "global" or b is tensor for b in reads)
    if more or guards or near or stored(own) != [tensor]:
        raise ScheduleError(
            f"inline: {tensor.name} is not computed by one statement, element by element",
            got=f"{len(stores)} stores" if more else str(tensor),
            hint="inline before the loops are changed; store_at keeps a reduction near its reader",
        )
    variables = [i for i in store.indices if isinstance(i, Var)]
    whole = all(
        (isinstance(i, Var) and i.extent == n) or n == 1
        for i, n in zip(store.indices, tensor.shape, strict=True)
    )
    if not whole or len(set(variables)) != len(variables):
        raise ScheduleError(
            "inline: the loops of the tensor are changed already", got=str(tensor), hint="inline first"
        )

    def change(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer is tensor:
            values = {v: i for v, i in zip(store.indices, e.indices, strict=True) if isinstance(v, Var)}
            return substitute((store.value,), values)[0]
        return None

    kept = _without(rewrite_expressions(nest.body, change, {}), tensor)
    return nest._replace(body=kept, local=tuple(b for b in nest.local if b is not tensor))


def _without(stmt: Stmt, tensor: Buffer) -> Stmt:
    """Return a tree without the statements that only write a tensor."""
    if isinstance(stmt, Seq):
        return sequence(*(_without(s, tensor) for s in stmt.body if stored(s) != [tensor]))
    return stmt
