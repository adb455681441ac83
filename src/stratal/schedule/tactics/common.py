"""What tactics share: vector widths, chunk sizes, splitting the last loop into vectors, tails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stratal.base.dtypes import DType
from stratal.base.target import Target
from stratal.loops import index
from stratal.loops.expr import Buffer, Expr, Load, Var, walk
from stratal.loops.stmt import Fail, For, If, Seq, Stmt, Store, map_parts, parts, store_groups
from stratal.schedule.primitives import Schedule, guarded_by, listed, sequence, simplify
from stratal.schedule.result import Pack, Tactic

CHUNK_WORK = 1 << 14  # operations a chunk should be worth: far above the cost of claiming it
MAX_CHUNKS = 64
FEW_CHUNKS = 16  # of which one more or less is felt
LONG_RUN = 16  # steps of a chunk along one loop that are worth a loop of their own
FAIR_SHARE = 0.515  # of all work, for one of two threads
NEIGHBOURS = 4  # that are read together and turned in registers, where lanes lie apart


def lanes_of(target: Target, dtypes: Iterable[DType]) -> int:
    """Return the vector width for values of several dtypes: that of the widest arithmetic, never below 8
    bytes' worth.
    """
    sizes = [d.compute.itemsize for d in dtypes if not d.is_bool]
    return target.lanes(max(4, min(sizes, default=4)))


def vector_lanes(target: Target, roots: Sequence[Expr]) -> int:
    return lanes_of(target, [e.dtype for e in walk(roots) if isinstance(e, Load) or e.dtype.is_float])


def finished(
    schedule: Schedule, name: str, in_place: Sequence[tuple[Buffer, Buffer]] = (), packs: Sequence[Pack] = ()
) -> Tactic:
    """Return a finished schedule as a tactic's result."""
    return Tactic(
        schedule.body, tuple(schedule.local), name, tuple(schedule.steps), tuple(in_place), tuple(packs)
    )


def reduction_order(axes: Sequence[Var]) -> str:
    """Return the step that says in which order a reduction visits its axes, outermost first: its bits depend
    on that.
    """
    return f"reduction in the order {', '.join(v.name for v in axes)}"


def nest(axes: Sequence[Var], body: Stmt) -> Stmt:
    """Wrap a statement in loops, the first axis outermost."""
    for var in reversed(axes):
        body = For(var, body)
    return body


def collapse(schedule: Schedule, loops: list[Var]) -> list[Var]:
    """Make one loop of neighbours that every operand walks as one."""
    kept = [loops[0]]
    for var in loops[1:]:
        fused = schedule.try_fuse(kept[-1], var)
        if fused is None:
            kept.append(var)
        else:
            kept[-1] = fused
    return kept


def vectorize_inner(schedule: Schedule, var: Var, lanes: int) -> Var:
    """Split a loop into vectors of `lanes`; return the loop over whole vectors."""
    outer, inner = schedule.split(var, lanes)
    schedule.vectorize(inner)
    return outer


def unroll_neighbours(schedule: Schedule, var: Var) -> Var:
    """Unroll a few steps of a loop along which lanes read what lies together; return the loop over those."""
    outer, inner = schedule.split(var, NEIGHBOURS)
    schedule.unroll(inner)
    return outer


def distribute(schedule: Schedule, loops: Sequence[Var], work_per_iteration: float) -> None:
    """Turn leading loops into chunks worth their cost; the rest stays serial.

    Tails of the loops are cut off.
    """
    total = work_per_iteration
    for var in loops:
        total *= var.extent
    if not loops or total < 2 * CHUNK_WORK:
        cut_tails(schedule)
        return
    taken, *rest = loops
    wanted = num_chunks(total)
    while rest and taken.extent < 2 * MAX_CHUNKS:
        var = rest.pop(0)
        steps = -(-var.extent // -(-wanted // max(1, taken.extent)))  # of a chunk along this loop
        if steps < LONG_RUN:
            taken = schedule.fuse(taken, var)
            continue
        if steps < var.extent:
            taken = schedule.fuse(taken, _pieces(schedule, var, steps))
            wanted = taken.extent
        break
    chunk, _ = schedule.split(taken, _share(taken.extent, wanted))
    schedule.branch(chunk)
    schedule.parallel(chunk)
    cut_tails(schedule)


def _pieces(schedule: Schedule, var: Var, steps: int) -> Var:
    """Cut a loop into pieces of at least `steps`, of one length if that is near; return the loop over them.

    Inside of a piece no index needs a division.
    """
    even = next((n for n in range(steps, steps + steps // 2 + 1) if var.extent % n == 0), steps)
    piece, _ = schedule.split(var, even)
    if var.extent % even:
        schedule.branch(piece)
    return piece


def distribute_runs(schedule: Schedule, runs: Sequence[Var], work_per_run: float) -> None:
    """Turn nested loops over runs into chunks worth their cost; tails were dealt with before."""
    fused, *rest = runs
    for var in rest:
        fused = schedule.fuse(fused, var)
    count = fused.extent
    if count * work_per_run < 2 * CHUNK_WORK:
        return
    chunk, _ = schedule.split(fused, chunk_size(count * work_per_run, count))
    schedule.parallel(chunk)


def chunk_size(work: float, count: int) -> int:
    """Return how many of `count` iterations a chunk takes, so that it is worth its cost.

    Few chunks are a power of two, or up to twice as many where two threads then share them more evenly.
    """
    return _share(count, num_chunks(work))


def _share(count: int, chunks: int) -> int:
    return fair_size(count, -(-count // min(count, chunks)))


def num_chunks(work: float) -> int:
    """Return how many chunks operations are worth; few are a power of two."""
    chunks = int(min(MAX_CHUNKS, max(1, work // CHUNK_WORK)))
    return 1 << (chunks - 1).bit_length() if chunks <= FEW_CHUNKS else chunks


def fair_size(count: int, most: int) -> int:
    """Return how many of `count` iterations go together, at most `most`, so that two threads have about as
    many each; `most` where no size above half of it does that.
    """
    fair = max(-(-count // 2), FAIR_SHARE * count)
    return next(
        (size for size in range(most, (most - 1) // 2, -1) if _longer_share(count, size) <= fair), most
    )


def _longer_share(count: int, size: int) -> int:
    """Return the iterations of the slower of two threads, where the last chunk may be shorter."""
    first = -(-count // size) // 2 * size
    return max(first, count - first)


def cut_tails(schedule: Schedule) -> None:
    """Peel the last iteration of every serial loop whose body is guarded for its sake."""
    schedule.body = _cut(simplify(schedule.body))


def _cut(stmt: Stmt) -> Stmt:
    if isinstance(stmt, For) and stmt.kind == "vector":
        return stmt
    if not isinstance(stmt, For) or stmt.kind == "parallel" or not guarded_by(stmt.body, stmt.var):
        return map_parts(stmt, _cut)
    part = Schedule(stmt)
    part.peel(stmt.var)
    pieces = listed(part.body)
    if stmt.var.extent <= 1:
        return sequence(*map(_cut, pieces))
    main, *last = pieces
    assert isinstance(main, For)
    return sequence(For(main.var, _cut(main.body), main.kind), *map(_cut, last))


def unit_axis(buffer: Buffer, indices: Sequence[Expr], axes: Iterable[Var]) -> Var | None:
    """Return the axis along which an access moves by one element."""
    offset = index.offset(buffer[tuple(indices)])
    return next((var for var in axes if index.stride_of(offset, var) == 1), None)


def lies(b: Buffer) -> tuple[object, ...]:
    """Return what is the same for buffers whose elements lie at the same places."""
    return b.dtype, b.shape, b.strides


def in_place_pairs(
    body: Stmt, reads: Sequence[Buffer], writes: Sequence[Buffer]
) -> list[tuple[Buffer, Buffer]]:
    """Return (read, write) pairs that may share memory: every access to both is at one and the same place per
    iteration.

    Within an iteration nothing reads there after the write.
    """
    places: dict[Buffer, set[tuple[Expr, ...]]] = {}
    first_write: dict[Buffer, int] = {}
    last_read: dict[Buffer, int] = {}
    for moment, (roots, stores) in enumerate(_moments(body)):
        for e in walk(roots):
            if isinstance(e, Load):
                places.setdefault(e.buffer, set()).add(e.indices)
                last_read[e.buffer] = moment
        for s in stores:
            places.setdefault(s.buffer, set()).add(s.indices)
            first_write.setdefault(s.buffer, moment)
    pairs = []
    for w in writes:
        for r in reads:
            same = len(places.get(r, ())) == 1 and places[r] == places.get(w)
            in_time = last_read.get(r, -1) <= first_write.get(w, -1)
            if same and in_time and lies(r) == lies(w):
                pairs.append((r, w))
    return pairs


def _moments(body: Stmt) -> Iterator[tuple[list[Expr], list[Store]]]:
    """Yield, in program order, expressions that are computed together and the stores that follow them."""
    if isinstance(body, Seq):
        for group in store_groups(body.body):
            if isinstance(group, list):
                yield [e for s in group for e in (*s.indices, s.value)], group
            else:
                yield from _moments(group)
    elif isinstance(body, Store):
        yield [*body.indices, body.value], [body]
    else:
        if isinstance(body, (If, Fail)):
            yield [body.condition], []
        for part in parts(body):
            yield from _moments(part)
